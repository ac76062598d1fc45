"""Declares a setting: its section, its reader, its help text; and the names that some settings choose from."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from pydantic import BeforeValidator, Field

from ratelimit_service.settings import go_syntax
from ratelimit_service.settings.go_syntax import duration, integer


class Backend(StrEnum):
    """The store that keeps counters."""

    MEMORY = "memory"
    REDIS = "redis"


class SourceKind(StrEnum):
    """A kind of source of rules."""

    FILES = "files"
    API = "api"
    XDS = "xds"


class RedisType(StrEnum):
    """The kind of Redis that REDIS_URL leads to."""

    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


class SocketType(StrEnum):
    """The kind of address of a single Redis."""

    EITHER = ""
    TCP = "tcp"
    UNIX = "unix"


class StorePolicy(StrEnum):
    """The answer to a request while the store is unavailable."""

    ERROR = "error"
    OPEN = "open"
    CLOSED = "closed"
    LOCAL = "local"


class LeaseMode(StrEnum):
    """Whether limits in Redis lease if their rule does not say so."""

    AUTO = "auto"
    OFF = "off"


class KeyFormat(StrEnum):
    """The format of the keys of counters in Redis."""

    OWN = "own"
    ENVOYPROXY = "envoyproxy"


class ResponseHeaders(StrEnum):
    """A set of response headers about limits."""

    RATELIMIT = "ratelimit"
    X_RATELIMIT = "x_ratelimit"
    IETF = "ietf"


HEADERS_OF: Final[Mapping[ResponseHeaders, frozenset[str]]] = {
    ResponseHeaders.RATELIMIT: frozenset(),
    ResponseHeaders.X_RATELIMIT: frozenset({"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"}),
    ResponseHeaders.IETF: frozenset({"ratelimit-policy", "ratelimit"}),
}
"""The names of headers that cannot be chosen, in lower case; those of `ratelimit` can."""


class ConfigType(StrEnum):
    """The source of rules."""

    FILE = "FILE"
    GRPC_XDS_SOTW = "GRPC_XDS_SOTW"


class TransportName(StrEnum):
    """The implementation of gRPC."""

    HTTP2 = "http2"
    GRPCIO = "grpcio"


class LogLevel(StrEnum):
    """The lowest level that is logged. The names are logrus's, which envoyproxy uses."""

    TRACE = "trace"
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    FATAL = "fatal"
    PANIC = "panic"


class TracingProtocol(StrEnum):
    """The protocol by which spans are exported."""

    HTTP = "http"
    GRPC = "grpc"


class LogFormat(StrEnum):
    """The format of a log line."""

    TEXT = "text"
    JSON = "json"


_UNSUPPORTED: Final[Mapping[str, str]] = {
    # Values of envoyproxy. If they were ignored, hits would be counted in the wrong place, or no rule would apply.
    "memcache": "is not in this release: counters are kept in this process's memory (memory) or in Redis (redis)",
}

_Choice = TypeVar("_Choice", bound=StrEnum)


def one_of(choices: type[_Choice], **aliases: _Choice) -> Callable[[str], _Choice]:
    """A reader of these names, in any case, and of the aliases; the alias `empty` is for an empty value."""
    by_name = {choice.value.lower(): choice for choice in choices} | aliases

    def read(text: str) -> _Choice:
        name = text.lower() or "empty"
        if (choice := by_name.get(name)) is not None:
            return choice
        raise ValueError(_UNSUPPORTED.get(name) or f"is not one of {', '.join(filter(None, choices))}")

    return read


def list_of(choices: type[_Choice]) -> Callable[[str], tuple[_Choice, ...]]:
    """A reader of a list of these names, separated by commas; an empty text is an empty list."""
    read_one = one_of(choices)

    def read(text: str) -> tuple[_Choice, ...]:
        try:
            return tuple(dict.fromkeys(read_one(part.strip()) for part in go_syntax.read_list(text)))
        except ValueError as error:
            raise ValueError(f"is not a list of {', '.join(choices)}") from error

    return read


AUTO: Final = 0
"""The number of workers that stands for one per CPU."""

MAX_WORKERS: Final = 1024


def read_workers(text: str) -> int:
    """The number of workers, or AUTO."""
    if text.lower() == "auto":
        return AUTO
    try:
        return integer(1, MAX_WORKERS)(text)
    except ValueError as error:
        raise ValueError(f"{error}, or auto") from error


def reads(reader: Callable[[str], object]) -> BeforeValidator:
    """A validator that passes text to the reader; other values go unchanged to the check of the type."""
    return BeforeValidator(lambda value: reader(value) if isinstance(value, str) else value)


Boolean = Annotated[bool, reads(go_syntax.read_bool)]
Port = Annotated[int, reads(integer(0, 65535))]
Count = Annotated[int, reads(integer(0))]
Positive = Annotated[int, reads(integer(1))]
Bytes = Positive
Hosts = Annotated[tuple[str, ...], reads(go_syntax.read_hosts)]
Duration = Annotated[int, reads(duration("0"))]
Timeout = Annotated[int, reads(duration("1ms"))]
Header = Annotated[str, reads(go_syntax.read_header)]


class Section(StrEnum):
    """A heading of docs/settings.md."""

    LISTENING = "Listening"
    OPERATOR = "The operator's port"
    RULES = "Rules"
    CONTROL_PLANE = "Rules of a control plane"
    COUNTING = "Counting"
    REDIS = "Redis"
    REGIONS = "Regions"
    RESPONSES = "Responses"
    METRICS = "Metrics"
    LOGGING = "Logging"
    TRACING = "Tracing"
    PROCESS = "Process"


class Setting(NamedTuple):
    """One setting as docs/settings.md and the command line show it."""

    field: str
    variable: str
    flag: str
    """`--grpc-port`; empty when the setting is a variable only."""
    default: str
    """As the operator would write it."""
    meaning: str
    section: Section
    origin: str

    @property
    def help(self) -> str:
        """The help text of the flag in `ratelimit serve --help`."""
        default = f", {self.default} by default" if self.default else ""
        return f"{self.meaning.replace('`', '')} [{self.variable}{default}]"


NEW: Final = "new"
"""The origin of a setting that envoyproxy does not have."""
ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - envoyproxy's default: other machines call this service


def setting(
    section: Section, default: str, meaning: str, origin: str = "envoyproxy", *, flag: str | None = None
) -> Any:
    """A field of `Settings`. With `flag`, `ratelimit serve` has it too; an empty flag is named after the field."""
    return Field(
        default=default, description=meaning, json_schema_extra={"section": section, "origin": origin, "flag": flag}
    )
