"""Time: a clock is a function that returns integer microseconds, since the epoch unless it says otherwise.

The store owns the clock, so that one request is decided at one moment; tests pass a clock that they can set.
"""

from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import Final

Clock = Callable[[], int]

Tick = Callable[[], int]
"""Nanoseconds that never go back."""

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def system_clock() -> int:
    """The machine's wall clock."""
    return time_ns() // 1000


def steady_clock() -> int:
    """Microseconds since some moment, that never go back: for timeouts, which must not depend on the wall clock."""
    return monotonic_ns() // 1000


_PARTS: Final = ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "min"), (MINUTE, "min", SECOND, "s"))


def duration_in_words(microseconds: int) -> str:
    """`41 s`, `2 min 5 s`, `3 d 4 h`; rounded up."""
    for unit, name, part, part_name in _PARTS:
        if microseconds >= unit:
            whole, rest = divmod(-(-microseconds // part), unit // part)
            return f"{whole:,} {name} {rest} {part_name}" if rest else f"{whole:,} {name}"
    return f"{-(-microseconds // SECOND)} s"


def delay_in_words(microseconds: int) -> str:
    """`200 ms`, or as `duration_in_words` from ten seconds on; rounded up."""
    return duration_in_words(microseconds) if microseconds >= 10 * SECOND else f"{-(-microseconds // 1000):,} ms"
