"""Time: a clock is a function that returns integer microseconds, since the epoch unless it says otherwise.

The store owns the clock, so that one request is decided at one moment; tests pass a clock that they can set.
"""

from collections.abc import Callable
from time import monotonic_ns, time_ns

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
