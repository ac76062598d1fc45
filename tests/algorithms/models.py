"""Each algorithm as its definition has it: an exact log of what was charged, or a bucket in rational numbers.

Slow and plain on purpose: nothing is packed or rounded, and forgotten only what a hit has found to be all over. A model
is asked what may be charged, and told what was. Where the clock steps back, what is charged counts as charged with the
latest charge before it.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Protocol

from ratelimit_service.model import Limit


class Model(Protocol):
    """A counter."""

    def left(self, now: int) -> int:
        """How much may still be charged; below 0 where refused hits count."""

    def charge(self, cost: int, now: int, *, allowed: bool) -> None:
        """It was asked for, and allowed or not."""


class Log:
    """What was charged, in order of effective moments; `used` says how much of it counts."""

    def __init__(self, limit: Limit, used: Callable[["Log", int], int]) -> None:
        self.limit = limit
        self.most = limit.requests + limit.exceed
        self.charges: list[tuple[int, int]] = []
        self._used = used

    def left(self, now: int) -> int:
        return self.most - self._used(self, now)

    def charge(self, cost: int, now: int, *, allowed: bool) -> None:
        if self.left(now) == self.most:
            self.charges.clear()
        if allowed and cost:
            self.charges.append((self.latest(now), cost))

    def latest(self, now: int) -> int:
        """Now, or the last charge if that was later."""
        return max(now, self.charges[-1][0]) if self.charges else now

    def since(self, first: int, end: int | None = None) -> int:
        """Charged from then on, and before the end."""
        return sum(cost for moment, cost in self.charges if first <= moment and (end is None or moment < end))


def sliding_log(log: Log, now: int) -> int:
    """All that is less than a window old."""
    return log.since(log.latest(now) - log.limit.window + 1)


def sub_windows(log: Log, now: int) -> int:
    """All that lies in parts of which anything is less than a window old."""
    part = -(-log.limit.window // log.limit.parts)
    return log.since((log.latest(now) // part - log.limit.parts) * part)


def sliding_window(log: Log, now: int) -> int:
    """All of this window, and of the one before the share that is in view."""
    window = log.limit.window
    start = log.latest(now) // window * window
    in_view = Fraction(window - max(0, now - start), window)
    return int(log.since(start - window, start) * in_view) + log.since(start)


class FixedWindow:
    """All that came in this window, refused hits too where they count."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.count = 0
        self.end = 0

    def left(self, now: int) -> int:
        return self.limit.requests + self.limit.exceed - (self.count if now < self.end else 0)

    def charge(self, cost: int, now: int, *, allowed: bool) -> None:
        window = self.limit.window
        if now >= self.end:
            self.count = 0
        if cost and (allowed or self.limit.count_refused):
            if not self.count:
                self.end = now + window if self.limit.first_request else now // window * window + window
            self.count += cost


class Bucket:
    """Full at first; what was taken flows back, at the limit a window, to the last fraction."""

    def __init__(self, limit: Limit) -> None:
        self.most = (limit.burst or limit.requests) + limit.exceed
        self.rate = Fraction(limit.requests, limit.window)
        self.full = Fraction(0)
        """The moment when it is full again."""

    def left(self, now: int) -> int:
        room = self.most - max(Fraction(0), self.full - now) * self.rate
        return room.numerator // room.denominator

    def charge(self, cost: int, now: int, *, allowed: bool) -> None:
        if self.full <= now:
            self.full = Fraction(0)
        if allowed and cost:
            self.full = max(self.full, Fraction(now)) + cost / self.rate


def open_model(name: str, limit: Limit) -> Model:
    """The model of that algorithm."""
    match name:
        case "fixed_window":
            return FixedWindow(limit)
        case "sliding_window":
            return Log(limit, sliding_window)
        case "sub_windows":
            return Log(limit, sub_windows)
        case "sliding_log":
            return Log(limit, sliding_log)
        case "token_bucket" | "leaky_bucket":
            return Bucket(limit)
        case _:
            raise KeyError(name)
