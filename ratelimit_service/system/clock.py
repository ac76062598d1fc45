"""Time: a clock is a function to integer microseconds, since the epoch if it does not say otherwise.

The store owns the clock, so that one request is decided at one moment; tests hand it a clock they can turn.
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
    """Microseconds since some moment, that never go back: for timeouts, whatever is done to the wall clock."""
    return monotonic_ns() // 1000
