"""How a setting is declared: its section, its reader, its help; and the names that a setting may choose from."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from pydantic import BeforeValidator, Field

from ratelimit_service.settings import go_syntax
from ratelimit_service.settings.go_syntax import duration, integer


class Backend(StrEnum):
    """Where counters live."""

    MEMORY = "memory"
    REDIS = "redis"


class RedisType(StrEnum):
    """What stands behind REDIS_URL."""

    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


class SocketType(StrEnum):
    """How one server is reached."""

    EITHER = ""
    TCP = "tcp"
    UNIX = "unix"


class StorePolicy(StrEnum):
    """What is answered when the store cannot."""

    ERROR = "error"
    OPEN = "open"
    CLOSED = "closed"
    LOCAL = "local"


class KeyFormat(StrEnum):
    """What counters are called in Redis."""

    OWN = "own"
    ENVOYPROXY = "envoyproxy"


class ConfigType(StrEnum):
    """Where rules come from."""

    FILE = "FILE"


class TransportName(StrEnum):
    """What carries the calls."""

    HTTP2 = "http2"
    GRPCIO = "grpcio"


class LogLevel(StrEnum):
    """From which level lines are logged; the names are logrus's, as upstream has them."""

    TRACE = "trace"
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    FATAL = "fatal"
    PANIC = "panic"


class LogFormat(StrEnum):
    """How a line is written."""

    TEXT = "text"
    JSON = "json"


_NOT_YET: Final[Mapping[str, str]] = {
    "memcache": "is not in this release: counters are kept in this process's memory (memory) or in Redis (redis)",
    "grpc_xds_sotw": "is not supported by this release: rules are read from files (FILE)",
}
"""Values that upstream knows and this release does not; to ignore them would count wrongly or drop all rules."""

_Choice = TypeVar("_Choice", bound=StrEnum)


def one_of(choices: type[_Choice], **others: _Choice) -> Callable[[str], _Choice]:
    """A reader of their names, in any case, and of aliases; `empty=` says what an empty value means."""
    by_name = {choice.value.lower(): choice for choice in choices} | others

    def read(text: str) -> _Choice:
        name = text.lower() or "empty"
        if (choice := by_name.get(name)) is not None:
            return choice
        raise ValueError(_NOT_YET.get(name) or f"is not one of {', '.join(filter(None, choices))}")

    return read


AUTO: Final = 0
"""As many workers as there are CPUs."""

MOST_WORKERS: Final = 1024


def read_workers(text: str) -> int:
    """How many there are to be, or AUTO."""
    if text.lower() == "auto":
        return AUTO
    try:
        return integer(1, MOST_WORKERS)(text)
    except ValueError as error:
        raise ValueError(f"{error}, or auto") from error


class Section(StrEnum):
    """A part of docs/settings.md, by its heading."""

    LISTENING = "Listening"
    RULES = "Rules"
    COUNTING = "Counting"
    REDIS = "Redis"
    ANSWERS = "Answers"
    METRICS = "Metrics"
    LOGGING = "Logging"
    LIFE = "Life"


def reads(reader: Callable[[str], object]) -> BeforeValidator:
    """Texts go through the reader; what is typed already is left to the type."""
    return BeforeValidator(lambda value: reader(value) if isinstance(value, str) else value)


Switch = Annotated[bool, reads(go_syntax.read_bool)]
Port = Annotated[int, reads(integer(0, 65535))]
Bytes = Annotated[int, reads(integer(1))]
Hosts = Annotated[tuple[str, ...], reads(go_syntax.read_hosts)]
Duration = Annotated[int, reads(duration("0"))]
Timeout = Annotated[int, reads(duration("1ms"))]
Header = Annotated[str, reads(go_syntax.read_header)]
Type = Annotated[RedisType, reads(one_of(RedisType, empty=RedisType.SINGLE))]
Socket = Annotated[SocketType, reads(one_of(SocketType, empty=SocketType.EITHER))]

NEW: Final = "new"
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - upstream's default: other machines ask this service


def knob(section: Section, default: str, meaning: str, origin: str = "upstream", *, flag: str | None = None) -> Any:
    """A field. With `flag`, `ratelimit serve` has it too, under that name, or the field's own when it is empty."""
    return Field(
        default=default, description=meaning, json_schema_extra={"section": section, "origin": origin, "flag": flag}
    )


class Knob(NamedTuple):
    """One field as the table and the command line show it."""

    field: str
    variable: str
    flag: str
    """`--grpc-port`; empty when it is a variable only."""
    default: str
    """As the operator would write it."""
    meaning: str
    section: Section
    origin: str

    @property
    def help(self) -> str:
        """What `ratelimit serve --help` says."""
        default = f", {self.default} by default" if self.default else ""
        return f"{self.meaning.replace('`', '')} [{self.variable}{default}]"
