"""The cost of one request where its values are tried with patterns: each of them takes time for each byte.

Values come from clients, and may have 60 KB through Envoy. A pattern is a regular expression, or has text between two
`*`. The work is counted as bytes times patterns, so that the same request costs the same everywhere.

Most regexes take RE2 2 to 4 ns a byte. A few take a thousand times as much: those for which its DFA has more states
than the memory for them, such as `.*a.{1,300}b.*`, on values that lead through all of them. Mostly they are large, as
programs; so a large one is tried on shorter values, and counts for more. `slow-regex`, a warning of `ratelimit check`,
names those that are slow all the same.
"""

from dataclasses import dataclass
from typing import Final

from ratelimit_service.errors import TooLongError

TOO_LONG: Final = "too_long"
"""What is denied for a value that is too long is counted by this name."""

LARGE_WEIGHT: Final = 64
"""A large regex counts as so many others."""
_LARGE_SHARE: Final = 4
"""It is tried on values of at most a quarter of the length."""


@dataclass(frozen=True, slots=True)
class PatternBounds:
    """The bounds on what the patterns of one request may cost."""

    regex_length: int = 8192
    """Bytes of a value that a regex is tried on: what web servers take of a header at most (nginx, Apache)."""
    work: int = 2**20
    """Bytes times patterns: 100 regexes on 10 KB, which take 2 to 4 ms."""


DEFAULT_BOUNDS: Final = PatternBounds()


def longest_value(weight: int, bounds: PatternBounds) -> int:
    """The most bytes of a value that a regex of this weight is tried on."""
    return bounds.regex_length // _LARGE_SHARE if weight > 1 else bounds.regex_length


class PatternWork:
    """The work of one request: what is left, and what was found, so that nothing is tried twice."""

    __slots__ = ("_bounds", "encoded", "found", "left")

    def __init__(self, bounds: PatternBounds) -> None:
        self._bounds = bounds
        self.left = bounds.work
        self.found: dict[tuple[int, str], object] = {}
        """What a level, by its identity, has found for a text."""
        self.encoded: tuple[str, bytes] = ("", b"")
        """The last value that a regex was tried on."""

    def bytes_of(self, value: str) -> bytes:
        """The value as regexes take it."""
        if self.encoded[0] is not value:
            self.encoded = value, value.encode(errors="surrogatepass")
        return self.encoded[1]

    def spend(self, work: int) -> None:
        """Count what is about to be done. Raises TooLongError if it is too much."""
        self.left -= work
        if self.left < 0:
            raise TooLongError("the values are too long to be compared with all patterns", "REQUEST_MAX_PATTERN_WORK")

    def try_regex(self, length: int, weight: int) -> None:
        """Count a regex that is about to be tried on a value. Raises TooLongError if the value is too long for it."""
        most = longest_value(weight, self._bounds)
        if length > most:
            large = " that is large" if weight > 1 else ""
            message = f"a value of {length:,} bytes is compared with a regex{large}, for which {most:,} are the maximum"
            raise TooLongError(message, "REGEX_MAX_VALUE_LENGTH")
        self.spend(length * weight)


def unbounded() -> PatternWork:
    """Work without bounds, for commands."""
    return PatternWork(_NO_BOUNDS)


_NO_BOUNDS: Final = PatternBounds(2**62, 2**62)
