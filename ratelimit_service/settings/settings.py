"""Every knob of the operator: declared once, read once, validated all together.

A field is a variable of the environment: `grpc_port` is GRPC_PORT. Defaults are written as the operator would write
them, and go through the same readers. Times are microseconds. A field that holds a secret must be a `SecretStr`.
Nothing is read at import, and nothing but `load_settings` knows where values come from.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from ratelimit_service.address import Tcp
from ratelimit_service.errors import SettingsError
from ratelimit_service.settings import go_syntax
from ratelimit_service.settings.choices import Backend, ConfigType, LogFormat, LogLevel, TransportName, one_of
from ratelimit_service.settings.env_file import Given, read_env_file
from ratelimit_service.settings.go_syntax import FALSE, duration, integer, number
from ratelimit_service.settings.upstream import ALWAYS, SWITCHES, WITHOUT_MEANING


class Group(StrEnum):
    """The headings of the table."""

    LISTENING = "Listening"
    RULES = "Rules"
    COUNTING = "Counting"
    ANSWERS = "Answers"
    METRICS = "Metrics"
    LOGGING = "Logging"
    LIFE = "Life"


def _reads(reader: Callable[[str], object]) -> BeforeValidator:
    """Texts go through the reader; what is typed already is left to the type."""
    return BeforeValidator(lambda value: reader(value) if isinstance(value, str) else value)


Switch = Annotated[bool, _reads(go_syntax.read_bool)]
Port = Annotated[int, _reads(integer(0, 65535))]
Bytes = Annotated[int, _reads(integer(1))]
Hosts = Annotated[tuple[str, ...], _reads(go_syntax.read_hosts)]
Duration = Annotated[int, _reads(duration("0"))]
Header = Annotated[str, _reads(go_syntax.read_header)]

_NEW: Final = "new"
_EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - upstream's default: other machines ask this service


def _knob(group: Group, default: str, meaning: str, origin: str = "upstream", *, flag: str | None = None) -> Any:
    """A field. With `flag`, `ratelimit serve` has it too, under that name, or the field's own when it is empty."""
    return Field(
        default=default, description=meaning, json_schema_extra={"group": group, "origin": origin, "flag": flag}
    )


class Settings(BaseSettings):
    """The knobs; `Settings()` has the defaults, and never looks at the environment by itself."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", validate_default=True)

    host: Hosts = _knob(
        Group.LISTENING, _EVERYWHERE, "Addresses of the HTTP port, between commas; `::` is IPv4 too.", flag=""
    )
    port: Port = _knob(Group.LISTENING, "8080", "HTTP: `/json`, `/healthcheck`, `/metrics`; 0 is any free.", flag="")
    debug_host: Hosts = _knob(Group.LISTENING, _EVERYWHERE, "Addresses of the debug port.", flag="")
    debug_port: Port = _knob(Group.LISTENING, "6070", "HTTP for the operator: the pages and `/metrics`.", flag="")
    grpc_host: Hosts = _knob(Group.LISTENING, _EVERYWHERE, "Addresses of the gRPC port.", flag="")
    grpc_port: Port = _knob(Group.LISTENING, "8081", "gRPC: where Envoy asks.", flag="")
    grpc_uds: str = _knob(Group.LISTENING, "", "Path of a unix socket for gRPC, in place of host and port.", flag="")
    grpc_server_tls_cert: str = _knob(Group.LISTENING, "", "File with the certificate chain of the gRPC port.")
    grpc_server_tls_key: str = _knob(Group.LISTENING, "", "File with the private key of that certificate.")
    grpc_client_tls_cacert: str = _knob(
        Group.LISTENING, "", "File with the CA of clients; when set, a client must show a certificate."
    )
    grpc_client_tls_san: str = _knob(Group.LISTENING, "", "Name (DNS or IP) the certificate of a client must bear.")
    grpc_server_use_tls: Switch = _knob(Group.LISTENING, "false", "TLS on the gRPC port; needs certificate and key.")
    grpc_max_connection_age: Duration = _knob(
        Group.LISTENING, "24h", "How old a gRPC connection may get before it is asked to close; 0 is for ever."
    )
    grpc_max_connection_age_grace: Duration = _knob(
        Group.LISTENING, "1h", "Time for its calls after that; 0 is for ever."
    )
    grpc_keepalive_time: Annotated[int, _reads(duration("1s"))] = _knob(
        Group.LISTENING, "2h", "How long a gRPC connection is silent before it is pinged.", _NEW
    )
    grpc_keepalive_timeout: Annotated[int, _reads(duration("1ms"))] = _knob(
        Group.LISTENING, "20s", "How long it may take to answer the ping before it is closed.", _NEW
    )
    grpc_max_connection_idle: Duration = _knob(
        Group.LISTENING, "1h", "How long a gRPC connection may be without calls before it is asked to close.", _NEW
    )
    grpc_max_connections: Annotated[int, _reads(integer(0))] = _knob(
        Group.LISTENING, "10000", "gRPC connections at once; 0 is any number. `http2` only.", _NEW
    )
    grpc_max_concurrent_streams: Annotated[int, _reads(integer(1, 2**31 - 1))] = _knob(
        Group.LISTENING, "1000", "Calls at once on one gRPC connection.", _NEW
    )
    grpc_max_connection_memory: Bytes = _knob(
        Group.LISTENING,
        "16777216",
        "Bytes of unread answers, and of unfinished questions, of one gRPC connection. `http2` only.",
        _NEW,
    )
    grpc_max_header_list_size: Bytes = _knob(Group.LISTENING, "16384", "Bytes of a call's headers.", _NEW)
    grpc_max_message_size: Bytes = _knob(Group.LISTENING, "4194304", "Bytes of the largest gRPC message.", _NEW)
    grpc_preface_timeout: Annotated[int, _reads(duration("100ms"))] = _knob(
        Group.LISTENING,
        "10s",
        "How long a gRPC client may take to begin, and to finish headers or a frame it began. `http2` only.",
        _NEW,
    )
    http_max_body_size: Bytes = _knob(Group.LISTENING, "131072", "Bytes of the largest HTTP body.", _NEW)
    transport: Annotated[TransportName, _reads(one_of(TransportName))] = _knob(
        Group.LISTENING, "grpcio", "What carries gRPC: `grpcio`, or `http2`, which is faster.", _NEW, flag=""
    )

    config_type: Annotated[ConfigType, _reads(one_of(ConfigType))] = _knob(
        Group.RULES, "FILE", "Where rules come from: `FILE`; upstream's `GRPC_XDS_SOTW` is refused."
    )
    runtime_root: str = _knob(Group.RULES, "/srv/runtime_data/current", "Folder above the rules.")
    runtime_subdirectory: str = _knob(Group.RULES, "", "Folder in it.")
    runtime_appdirectory: str = _knob(Group.RULES, "config", "Folder in that one: the rules' own.")
    rules_path: Path = _knob(
        Group.RULES,
        "",
        "Folder or file of the rules; when empty, the three RUNTIME_ folders joined.",
        _NEW,
        flag="--rules",
    )
    rules_poll_interval: Annotated[int, _reads(duration("10ms"))] = _knob(
        Group.RULES, "1s", "How often the rules are looked at for a change.", _NEW
    )
    merge_domain_config: Switch = _knob(Group.RULES, "false", "Whether several files may have rules of one domain.")
    force_start_without_initial_config: Switch = _knob(
        Group.RULES, "false", "Start although the rules' folder is not there yet, and wait for it."
    )

    backend_type: Annotated[Backend, _reads(one_of(Backend, empty=Backend.MEMORY))] = _knob(
        Group.COUNTING,
        "memory",
        "Where counters live: `memory`; upstream's `redis` and `memcache` are refused until they are here.",
        "upstream; `redis` there",
        flag="--backend",
    )
    memory_max_counters: Annotated[int, _reads(integer(1))] = _knob(
        Group.COUNTING, "1000000", "Counters kept in memory; above it the least recently used are forgotten.", _NEW
    )
    near_limit_ratio: Annotated[float, _reads(number(0, 1))] = _knob(
        Group.COUNTING, "0.8", "Part of a limit above which a hit is counted as near it."
    )
    shadow_mode: Switch = _knob(Group.COUNTING, "false", "Count and report everything, and answer OK to every request.")
    quota_mode: Switch = _knob(Group.COUNTING, "false", "Treat every rule as if it said `quota_mode`.")

    limit_response_headers_enabled: Switch = _knob(Group.ANSWERS, "false", "Send the three headers below.")
    limit_limit_header: Header = _knob(Group.ANSWERS, "RateLimit-Limit", "Header with the limit.")
    limit_remaining_header: Header = _knob(Group.ANSWERS, "RateLimit-Remaining", "Header with what is left of it.")
    limit_reset_header: Header = _knob(Group.ANSWERS, "RateLimit-Reset", "Header with the seconds until it is whole.")
    response_dynamic_metadata: Switch = _knob(
        Group.ANSWERS, "false", "Send what was asked, and the rules' metadata, as dynamic metadata."
    )

    metrics_max_values: Annotated[int, _reads(integer(0))] = _knob(
        Group.METRICS, "1000", "Series kept per rule for values of requests; the rest are summed as `other`.", _NEW
    )
    extra_tags: Annotated[tuple[tuple[str, str], ...], _reads(go_syntax.read_labels)] = _knob(
        Group.METRICS, "", "Labels on every metric, `key:value,key2:value2`."
    )
    use_prometheus: Switch = _knob(Group.METRICS, "false", "Serve metrics on an address of their own too.")
    prometheus_addr: Annotated[Tcp, _reads(go_syntax.read_address)] = _knob(
        Group.METRICS, ":9090", "Where they are served then."
    )
    prometheus_path: Annotated[str, _reads(go_syntax.read_path)] = _knob(Group.METRICS, "/metrics", "Their path there.")

    log_level: Annotated[LogLevel, _reads(one_of(LogLevel, warn=LogLevel.WARNING))] = _knob(
        Group.LOGGING,
        "info",
        f"The least level that is logged: {', '.join(LogLevel)}.",
        "upstream; `WARN` there",
        flag="",
    )
    log_format: Annotated[LogFormat, _reads(one_of(LogFormat, empty=LogFormat.TEXT))] = _knob(
        Group.LOGGING, "text", "How lines are written: text or json.", flag=""
    )

    drain_seconds: Annotated[float, _reads(number(0, 3600, "number of seconds"))] = _knob(
        Group.LIFE, "5", "Seconds between health saying NOT_SERVING and the ports closing.", _NEW, flag=""
    )
    drain_timeout: Duration = _knob(Group.LIFE, "30s", "How long calls may take to finish after that.", _NEW)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is handed over: `load_settings` merges the sources, because it must say which one was wrong."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

    @field_validator("grpc_server_use_tls")
    @classmethod
    def _has_its_files(cls, use_tls: bool, info: ValidationInfo) -> bool:
        files = info.data
        if use_tls and not (files["grpc_server_tls_cert"] and files["grpc_server_tls_key"]):
            raise ValueError("needs both GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY")
        if use_tls and files["grpc_client_tls_san"] and not files["grpc_client_tls_cacert"]:
            raise ValueError("needs GRPC_CLIENT_TLS_CACERT for GRPC_CLIENT_TLS_SAN to be asked of anybody")
        return use_tls

    @field_validator("rules_path", mode="before")
    @classmethod
    def _where_upstream_has_it(cls, path: object, info: ValidationInfo) -> object:
        if path:
            return path
        below = (info.data["runtime_subdirectory"], info.data["runtime_appdirectory"])
        return Path(info.data["runtime_root"], *(folder.lstrip("/") for folder in below))


class Knob(NamedTuple):
    """One field as the table and the command line show it."""

    field: str
    variable: str
    flag: str
    """`--grpc-port`; empty when it is a variable only."""
    default: str
    """As the operator would write it."""
    meaning: str
    group: Group
    origin: str

    @property
    def help(self) -> str:
        """What `ratelimit serve --help` says."""
        default = f", {self.default} by default" if self.default else ""
        return f"{self.meaning.replace('`', '')} [{self.variable}{default}]"


def _knobs() -> Iterator[Knob]:
    for field, info in Settings.model_fields.items():
        about: Any = info.json_schema_extra
        flag = "" if about["flag"] is None else about["flag"] or f"--{field.replace('_', '-')}"
        yield Knob(field, field.upper(), flag, info.default, info.description or "", about["group"], about["origin"])


KNOBS: Final = tuple(_knobs())
FLAGS: Final = tuple(knob for knob in KNOBS if knob.flag)
"""The knobs that `ratelimit serve` has as options; what it was given goes to `load_settings` by `Knob.field`."""
_NEED_TLS: Final = ("GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_CLIENT_TLS_CACERT", "GRPC_CLIENT_TLS_SAN")
_BY_VARIABLE: Final = {knob.variable: knob for knob in KNOBS}
_KNOWN: Final = frozenset(_BY_VARIABLE) | frozenset(ALWAYS) | frozenset(WITHOUT_MEANING)


def load_settings(
    environ: Mapping[str, str], flags: Mapping[str, object] | None = None, dotenv: Path | None = None
) -> tuple[Settings, list[str]]:
    """The settings and what to warn of; a flag wins over the environment, that over the file, that over a default.

    `flags` are by field, None where not given. Everything that is wrong is in one SettingsError, a line each.
    """
    problems: list[str] = []
    given = read_env_file(dotenv, problems) if dotenv else {}
    warnings = [_unknown(name, f"unknown variable in {dotenv}") for name in given if name not in _KNOWN]
    warnings += [_unknown(name, "not a variable of this service") for name in environ if _resembles(name)]
    given |= {name: Given(environ[name], name) for name in environ if name in _KNOWN}
    for field, value in (flags or {}).items():
        if value is not None:
            knob = _BY_VARIABLE[field.upper()]
            given[knob.variable] = Given(str(value), knob.flag or knob.variable)

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


def _problem(given: Given, wrong: str) -> str:
    return f"{given.label}: {json.dumps(given.text)} {wrong}"


def _resembles(name: str) -> str | None:
    """The variable that this name, which is none, was perhaps meant to be."""
    if name in _KNOWN:
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
        if name in given and not (name in SWITCHES and given[name].text in FALSE):
            names.setdefault(why, []).append(name)
    for why, unused in names.items():
        yield f"{', '.join(unused)}: not used by this release: {why}"
    idle = [name for name in _NEED_TLS if name in given and given[name].text]
    if idle and not settings.grpc_server_use_tls:
        yield f"{', '.join(idle)}: not used, because GRPC_SERVER_USE_TLS is false"
