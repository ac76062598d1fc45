"""When to stop asking a server, and how long to wait before asking again. Pure.

A server that fails again and again is not asked: each call would only make its callers wait. It is looked for with
growing pauses, each different on every instance, so that a hundred of them do not come back at one moment.
"""

from collections.abc import Callable
from random import random
from typing import Final

MOST_FAILURES: Final = 5
"""Calls that may fail or be late one after the other."""

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
"""Seconds; a server that came back is noticed within the longest. Pauses grow within an outage and begin short in the
next one: otherwise a server that stands still for 50 ms every two seconds would not be asked most of the time."""


class Breaker:
    """Counts failures while it is closed, and pauses while it is open; times are seconds of a monotonic clock."""

    def __init__(self, chance: Callable[[], float] = random) -> None:
        self.opened_at: float | None = None
        """None while it is closed."""
        self._chance = chance
        self._failures = 0
        self._pauses = 0

    def succeed(self) -> None:
        """A call was answered in time."""
        self._failures = 0

    def fail(self) -> bool:
        """A call failed or came late; says whether that was one too many."""
        self._failures += 1
        return self._failures >= MOST_FAILURES

    def open(self, now: float) -> bool:
        """No calls from now on; says whether that is news."""
        news = self.opened_at is None
        if news:
            self.opened_at = now
            self._pauses = 0
        return news

    def close(self, now: float) -> float:
        """Calls again; says for how many seconds there were none."""
        since = now - (now if self.opened_at is None else self.opened_at)
        self.opened_at = None
        self._failures = 0
        return since

    def forget(self) -> None:
        """The next pauses are short again."""
        self._pauses = 0

    def pause(self) -> float:
        """Seconds until the next look: half of the growing pause at least, the rest by chance."""
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * (1 << min(self._pauses, 10)))
        self._pauses += 1
        return longest * (0.5 + self._chance() / 2)
