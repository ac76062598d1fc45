"""Settings that are a choice of names: the names there are, and those that upstream has and this release refuses."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, TypeVar

from ratelimit_service.settings.go_syntax import integer


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
