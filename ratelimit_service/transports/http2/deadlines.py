"""Deadlines of the calls of one connection that are not answered at once. Hot path.

Almost all are taken away again before they are over, so that a call costs one entry of a dict and nothing else; who
asks which are over looks at all of them, but only when the soonest may be.
"""

from typing import Final

from ratelimit_service.clock import SECOND

GRAIN: Final = SECOND // 100
"""Microseconds: a call may end so much later than its deadline."""


class Deadlines:
    """By stream; times are microseconds of any clock that does not go back."""

    __slots__ = ("of", "soonest")

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        """When each call is over; one that is answered is taken out."""
        self.soonest = 0
        """No call is over before."""

    def add(self, number: int, when: int) -> None:
        """A call, once."""
        if not self.of or when < self.soonest:
            self.soonest = when
        self.of[number] = when

    def over(self, now: int) -> list[int]:
        """Those whose time has come; they are forgotten."""
        found = [number for number, when in self.of.items() if when <= now] if now >= self.soonest else []
        for number in found:
            del self.of[number]
        if found or now >= self.soonest:
            self.soonest = min(self.of.values(), default=now)
        return found
