"""How a field of the settings is declared: its section, its reader, its help."""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BeforeValidator, Field

from ratelimit_service.settings import go_syntax
from ratelimit_service.settings.choices import RedisType, SocketType, one_of
from ratelimit_service.settings.go_syntax import duration, integer


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
