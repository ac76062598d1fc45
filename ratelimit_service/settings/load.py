"""Loads settings from flags, the environment and an `.env` file, and reports what is wrong or without effect in them.

A deployment that moves here from envoyproxy/ratelimit brings its variables along. Those that ask for a feature that is
missing here are named in a warning at the start. The others, and those that control planes set in every pod, cause
neither a warning nor an error.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from dotenv.parser import Original, parse_stream
from pydantic import SecretStr, ValidationError

from ratelimit_service.errors import SettingsError
from ratelimit_service.settings import go_syntax
from ratelimit_service.settings.fields import Backend, ConfigType, Section
from ratelimit_service.settings.go_syntax import FALSE
from ratelimit_service.settings.redis_url import masked
from ratelimit_service.settings.settings import SETTINGS, Settings
from ratelimit_service.system.disk import read_file

ALWAYS_ON: Final[Mapping[str, str]] = MappingProxyType(
    {
        "RUNTIME_WATCH_ROOT": "the files' content is compared, so a swapped link and an edited file are both noticed",
        "RUNTIME_IGNOREDOTFILES": "files and folders whose names start with a dot are never read",
    }
)
"""Booleans of envoyproxy/ratelimit that change nothing, each with the reason: what is done here covers both values."""


def _names(prefix: str, rest: str) -> list[str]:
    return [f"{prefix}{name}" for name in rest.split()]


_POOL_NAMES: Final = "POOL_SIZE PIPELINE_WINDOW PIPELINE_LIMIT CLUSTER_PIPELINE_PARALLELISM POOL_ON_EMPTY_BEHAVIOR"

_REASONS: Final[Mapping[str, Iterable[str]]] = {
    "one connection to each server carries all hits that have come, in one call": [
        *_names("REDIS_", _POOL_NAMES),
        *_names("REDIS_PERSECOND_", _POOL_NAMES),
    ],
    "the service starts without Redis, and looks for it every 50 ms to 2 s": _names(
        "REDIS_STARTUP_", "INITIAL_INTERVAL MAX_INTERVAL MAX_ELAPSED_TIME"
    ),
    "counters are kept in this process's memory or in Redis, not in memcached": [
        *_names("MEMCACHE_", "HOST_PORT SRV SRV_REFRESH MAX_IDLE_CONNS TLS"),
        *_names("MEMCACHE_TLS_", "CLIENT_CERT CLIENT_KEY CACERT SKIP_HOSTNAME_VERIFICATION"),
    ],
    "a rule says it: count_refused: false, and then no denied hit is counted at all": [
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"
    ],
    "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL and the others say when a control plane is dialled again": [
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL"
    ],
    "nothing is sent to statsd: Prometheus reads /metrics": [
        *_names("", "USE_STATSD STATSD_HOST STATSD_PORT STATSD_PROTOCOL STATS_FLUSH_INTERVAL"),
        *_names("", "USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS"),
    ],
    "metrics keep their names and are in seconds, and there is no mapper": [
        "PROMETHEUS_MAPPER_YAML",
        "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
    ],
    "metrics are always there, and cost nothing until they are read": ["DISABLE_STATS"],
    "envoyproxy does not read it either; GRPC_CLIENT_TLS_CACERT names the CA that clients are checked with": [
        "GRPC_SERVER_TLS_CA_CERT"  # Envoy Gateway sets it; its name promises what neither service does
    ],
}

UNUSED: Final[Mapping[str, str]] = MappingProxyType({name: why for why, names in _REASONS.items() for name in names})
"""Variables of envoyproxy/ratelimit that have no effect, each with the reason. A new feature takes its own out."""

HARMLESS_VALUES: Final[Mapping[str, Collection[str]]] = MappingProxyType(
    {
        **dict.fromkeys(("USE_STATSD", "USE_DOG_STATSD", "DISABLE_STATS"), FALSE),
        "PROMETHEUS_MAPPER_YAML": ("/etc/statsd-exporter/conf.yaml",),  # envoyproxy's own, whose names the metrics have
    }
)
"""Values of unused variables that need no warning: they turn a feature off, or describe what this service does."""

TRACING_PREFIX: Final = "OTEL_"
"""Variables that begin like this are read by OpenTelemetry's SDK, if TRACING_ENABLED. Its operator sets some in every
pod."""


_NEED_TLS: Final = ("GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_CLIENT_TLS_CACERT", "GRPC_CLIENT_TLS_SAN")
_REDIS_NAMES: Final = tuple(setting.variable for setting in SETTINGS if setting.variable.startswith("REDIS_"))
_NEED_REDIS: Final = tuple(name for name in _REDIS_NAMES if not name.startswith("REDIS_PERSECOND_"))
_NEED_PERSECOND: Final = tuple(name for name in _REDIS_NAMES if name.startswith("REDIS_PERSECOND_"))
_NEED_REGIONS: Final = tuple(
    setting.variable
    for setting in SETTINGS
    if setting.section is Section.REGIONS and setting.variable not in {"REGION", "REGIONS"}
)
_NEED_CONTROL_PLANE: Final = tuple(setting.variable for setting in SETTINGS if setting.section is Section.CONTROL_PLANE)
_NEED_XDS_TLS: Final = (
    *("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
    *("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
)
_OF_FILES: Final = ("RULES_PATH", "RULES_POLL_INTERVAL")
_OF_DEBUG_PORT: Final = ("ADMIN_TLS_CERT", "ADMIN_TLS_KEY", "ADMIN_CLIENT_TLS_CACERT")
_BY_VARIABLE: Final = {setting.variable: setting for setting in SETTINGS}
_KNOWN: Final = frozenset(_BY_VARIABLE) | frozenset(ALWAYS_ON) | frozenset(UNUSED)


_SECRETS: Final[Mapping[str, int]] = {"HASH_KEY": 4096, "ADMIN_TOKEN": 4096, "RULES_TOKENS": 256 * 1024}
"""May stand in the file that their variable with `_FILE` names, of so many bytes at most: a good secret has some
dozens."""

_TOGETHER: Final = (
    ("ADMIN_TLS_CERT", "ADMIN_TLS_KEY"),
    ("ADMIN_TLS_KEY", "ADMIN_TLS_CERT"),
    ("ADMIN_CLIENT_TLS_CACERT", "ADMIN_TLS_CERT"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT"),
)
"""The first needs the second."""


class Given(NamedTuple):
    """The text of a variable, and where the operator set it, for messages."""

    text: str
    label: str


def load_settings(
    environ: Mapping[str, str],
    flags: Mapping[str, object] | None = None,
    dotenv: Path | None = None,
    section: Section | None = None,
) -> tuple[Settings, list[str]]:
    """The settings and the warnings. A flag wins over the environment, that over the file, that over a default.

    `flags` are by field, None where not given. With a section, only its variables are read. Raises one SettingsError
    with a line for everything that is wrong.
    """
    problems: list[str] = []
    given = read_env_file(dotenv, problems) if dotenv else {}
    warnings = [_unknown(name, f"unknown variable in {dotenv}") for name in given if not _is_known(name)]
    warnings += [_unknown(name, "not a variable of this service") for name in environ if _nearest_known(name)]
    given |= {name: Given(environ[name], name) for name in environ if name in _KNOWN}
    for field, value in (flags or {}).items():
        if value is not None:
            setting = _BY_VARIABLE[field.upper()]
            given[setting.variable] = Given(str(value), setting.flag or setting.variable)
    if section is not None:
        given = {name: text for name, text in given.items() if _is_in_section(name, section)}

    for name in _SECRETS:
        _read_secret_file(name, given, problems)

    settings = None
    try:
        settings = Settings.model_validate({name.lower(): given[name].text for name in _BY_VARIABLE if name in given})
    except ValidationError as error:
        for detail in error.errors():
            field = str(detail["loc"][0])
            wrong = str(detail.get("ctx", {}).get("error", detail["msg"]))
            secret = Settings.model_fields[field].annotation is SecretStr and not field.endswith("url")
            problems.append(_problem(given[field.upper()], wrong, secret=secret))
    for name, other in _TOGETHER:
        if name in given and given[name].text and not (other in given and given[other].text):
            problems.append(_problem(given[name], f"needs {other} too"))
    for name in ALWAYS_ON:
        try:
            go_syntax.read_bool(given[name].text if name in given else "true")
        except ValueError as error:
            problems.append(_problem(given[name], str(error)))
    if problems or settings is None:
        raise SettingsError(problems)
    return settings, [*warnings, *_unused(settings, given)]


def _is_in_section(name: str, section: Section) -> bool:
    return name in _BY_VARIABLE and _BY_VARIABLE[name].section is section


def _problem(given: Given, wrong: str, *, secret: bool = False) -> str:
    return f"{given.label}: {wrong}" if secret else f"{given.label}: {json.dumps(masked(given.text))} {wrong}"


def _read_secret_file(name: str, given: dict[str, Given], problems: list[str]) -> None:
    """Put the content of the file in place of the secret with this name."""
    path = given.get(f"{name}_FILE")
    if path is None or not path.text:
        return
    if name in given and given[name].text:
        problems.append(f"{path.label}: contradicts {given[name].label}: remove one of them")
        return
    try:
        most = _SECRETS[name]
        content = read_file(path.text, most + 1)
        if len(content) > most:
            problems.append(_problem(path, f"is larger than {most} bytes"))
            return
        text = content.decode()
    except OSError as error:
        problems.append(_problem(path, f"cannot be read: {error.strerror}"))
    except UnicodeDecodeError:
        problems.append(_problem(path, "cannot be read: it is not UTF-8"))
    else:
        given[name] = Given(text, path.label)
        if not text.strip():
            problems.append(_problem(path, "is empty"))


def _is_known(name: str) -> bool:
    return name in _KNOWN or name.startswith(TRACING_PREFIX)


def _nearest_known(name: str) -> str | None:
    """The known variable that an unknown name was probably meant to be."""
    if _is_known(name):
        return None
    if name.upper() in _KNOWN and "_" in name:
        return name.upper()
    family = name.upper().split("_")[0] + "_"
    return next(iter(get_close_matches(name, [known for known in _KNOWN if known.startswith(family)], 1, 0.85)), None)


def _unknown(name: str, what: str) -> str:
    meant = _nearest_known(name)
    return f"{name}: {what}" + (f"; did you mean {meant}?" if meant else "")


def _unused(settings: Settings, given: Mapping[str, Given]) -> Iterator[str]:
    """Warnings about variables that are set and have no effect; one for each reason."""
    names: dict[str, list[str]] = {}
    for name, why in UNUSED.items():
        if name in given and given[name].text not in HARMLESS_VALUES.get(name, ()):
            names.setdefault(why, []).append(name)
    for why, unused in names.items():
        yield f"{', '.join(unused)}: not used by this release: {why}"
    by_xds = settings.config_type is ConfigType.GRPC_XDS_SOTW
    without_tls = by_xds and not settings.config_grpc_xds_server_use_tls
    for idle, why in (
        ((_OF_FILES if by_xds else _NEED_CONTROL_PLANE), f"CONFIG_TYPE is {settings.config_type}"),
        ((_NEED_XDS_TLS if without_tls else ()), "CONFIG_GRPC_XDS_SERVER_USE_TLS is false"),
        ((() if settings.grpc_server_use_tls else _NEED_TLS), "GRPC_SERVER_USE_TLS is false"),
        ((_OF_DEBUG_PORT if settings.debug_uds else ()), "DEBUG_UDS replaces the debug port"),
        ((() if settings.backend_type is Backend.REDIS else _NEED_REDIS), f"BACKEND_TYPE is {settings.backend_type}"),
        ((() if settings.redis_persecond else _NEED_PERSECOND), "REDIS_PERSECOND is false"),
        ((_NEED_REGIONS if len(settings.regions) < 2 else ()), "REGIONS does not name several regions"),
        (
            (_NEED_REGIONS if len(settings.regions) > 1 and settings.backend_type is Backend.MEMORY else ()),
            "BACKEND_TYPE is memory",
        ),
    ):
        if unused := [name for name in idle if name in given and given[name].text]:
            yield f"{', '.join(unused)}: not used, because {why}"


def default_env_file() -> Path | None:
    """The file that is read when none is named: `.env` in the current folder, if it exists."""
    path = Path(".env")
    return path if path.exists() and not path.is_dir() else None  # some people name a virtual environment so


def read_env_file(path: Path, problems: list[str]) -> dict[str, Given]:
    """The variables of the file, in the syntax of python-dotenv; problems are added to the list.

    `${NAME}` is not replaced, so that the result depends on the file alone.
    """
    given: dict[str, Given] = {}
    try:
        for binding in parse_stream(StringIO(read_file(path).decode(), newline=None)):
            if binding.error or (binding.key and binding.value is None):
                problems.append(f"{path}:{_line(binding.original)}: is not a line such as GRPC_PORT=8081")
            elif binding.key:
                given[binding.key] = Given(binding.value or "", f"{binding.key} (in {path})")
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        problems.append(f"{path}: cannot be read: it is not UTF-8")
    return given


def _line(original: Original) -> int:
    """The line on which the text begins; python-dotenv counts the empty lines before it as part of it."""
    text = original.string
    return original.line + text[: len(text) - len(text.lstrip())].count("\n")
