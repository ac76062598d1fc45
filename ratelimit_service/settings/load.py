"""Where the settings come from: flags, the environment, an `.env` file; and what is to be said of them."""

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from ratelimit_service.errors import SettingsError
from ratelimit_service.settings import go_syntax
from ratelimit_service.settings.choices import Backend
from ratelimit_service.settings.env_file import Given, read_env_file
from ratelimit_service.settings.fields import Section
from ratelimit_service.settings.redis_url import masked
from ratelimit_service.settings.settings import KNOBS, Settings
from ratelimit_service.settings.upstream import ALWAYS, ASKS_FOR_NOTHING, TRACING, WITHOUT_MEANING

_NEED_TLS: Final = ("GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_CLIENT_TLS_CACERT", "GRPC_CLIENT_TLS_SAN")
_OF_REDIS: Final = tuple(knob.variable for knob in KNOBS if knob.variable.startswith("REDIS_"))
_NEED_REDIS: Final = tuple(name for name in _OF_REDIS if not name.startswith("REDIS_PERSECOND_"))
_NEED_PERSECOND: Final = tuple(name for name in _OF_REDIS if name.startswith("REDIS_PERSECOND_"))
_BY_VARIABLE: Final = {knob.variable: knob for knob in KNOBS}
_KNOWN: Final = frozenset(_BY_VARIABLE) | frozenset(ALWAYS) | frozenset(WITHOUT_MEANING)


def load_settings(
    environ: Mapping[str, str],
    flags: Mapping[str, object] | None = None,
    dotenv: Path | None = None,
    section: Section | None = None,
) -> tuple[Settings, list[str]]:
    """The settings and what to warn of; a flag wins over the environment, that over the file, that over a default.

    `flags` are by field, None where not given. With a section, only its variables are read. Everything that is wrong
    is in one SettingsError, a line each.
    """
    problems: list[str] = []
    given = read_env_file(dotenv, problems) if dotenv else {}
    warnings = [_unknown(name, f"unknown variable in {dotenv}") for name in given if not _is_known(name)]
    warnings += [_unknown(name, "not a variable of this service") for name in environ if _resembles(name)]
    given |= {name: Given(environ[name], name) for name in environ if name in _KNOWN}
    for field, value in (flags or {}).items():
        if value is not None:
            knob = _BY_VARIABLE[field.upper()]
            given[knob.variable] = Given(str(value), knob.flag or knob.variable)
    if section is not None:
        given = {name: text for name, text in given.items() if _is_of(name, section)}

    settings = None
    try:
        settings = Settings.model_validate({name.lower(): given[name].text for name in _BY_VARIABLE if name in given})
    except ValidationError as error:
        for detail in error.errors():
            name = str(detail["loc"][0]).upper()
            problems.append(_problem(given[name], str(detail.get("ctx", {}).get("error", detail["msg"]))))
    for name in ALWAYS:
        try:
            go_syntax.read_bool(given[name].text if name in given else "true")
        except ValueError as error:
            problems.append(_problem(given[name], str(error)))
    if problems or settings is None:
        raise SettingsError(problems)
    return settings, [*warnings, *_unused(settings, given)]


def _is_of(name: str, section: Section) -> bool:
    return name in _BY_VARIABLE and _BY_VARIABLE[name].section is section


def _problem(given: Given, wrong: str) -> str:
    return f"{given.label}: {json.dumps(masked(given.text))} {wrong}"


def _is_known(name: str) -> bool:
    return name in _KNOWN or name.startswith(TRACING)


def _resembles(name: str) -> str | None:
    """The variable that this name, which is none, was perhaps meant to be."""
    if _is_known(name):
        return None
    if name.upper() in _KNOWN and "_" in name:
        return name.upper()
    family = name.upper().split("_")[0] + "_"
    return next(iter(get_close_matches(name, [known for known in _KNOWN if known.startswith(family)], 1, 0.85)), None)


def _unknown(name: str, what: str) -> str:
    meant = _resembles(name)
    return f"{name}: {what}" + (f"; did you mean {meant}?" if meant else "")


def _unused(settings: Settings, given: Mapping[str, Given]) -> Iterator[str]:
    """What was set and counts for nothing; one line for each reason."""
    names: dict[str, list[str]] = {}
    for name, why in WITHOUT_MEANING.items():
        if name in given and given[name].text not in ASKS_FOR_NOTHING.get(name, ()):
            names.setdefault(why, []).append(name)
    for why, unused in names.items():
        yield f"{', '.join(unused)}: not used by this release: {why}"
    for idle, why in (
        ((() if settings.grpc_server_use_tls else _NEED_TLS), "GRPC_SERVER_USE_TLS is false"),
        ((() if settings.backend_type is Backend.REDIS else _NEED_REDIS), f"BACKEND_TYPE is {settings.backend_type}"),
        ((() if settings.redis_persecond else _NEED_PERSECOND), "REDIS_PERSECOND is false"),
    ):
        if unused := [name for name in idle if name in given and given[name].text]:
            yield f"{', '.join(unused)}: not used, because {why}"
