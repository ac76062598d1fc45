"""How long calls took, as a histogram of integers. Hot path."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from operator import add
from typing import NamedTuple

_MICROSECONDS = (50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000)
BOUNDS = tuple(bound * 1_000 for bound in (*_MICROSECONDS, 1_000_000, 2_500_000, 5_000_000, 10_000_000))
"""Nanoseconds. From 5 ms on they are upstream's, whose dashboards name them; most calls here are done before that."""

_FIRST = BOUNDS[0]


class Bucket(NamedTuple):
    """How many calls took at most `seconds`."""

    seconds: float
    calls: int


class Latency:
    """A histogram of durations."""

    __slots__ = ("_counts", "nanoseconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.nanoseconds = 0
        """All durations added up."""

    def observe(self, nanoseconds: int) -> None:
        """Count one call that took so long."""
        # Calls that wait for nobody are in the first bucket, and are spared half of the time: 100 ns.
        self._counts[bisect_left(BOUNDS, nanoseconds) if nanoseconds > _FIRST else 0] += 1
        self.nanoseconds += nanoseconds

    def observe_all(self, nanoseconds: int, calls: int) -> None:
        """Count several that took so long."""
        self._counts[bisect_left(BOUNDS, nanoseconds)] += calls
        self.nanoseconds += nanoseconds * calls

    @property
    def counts(self) -> Sequence[int]:
        """How many calls were in each bucket, the last of which has no bound."""
        return self._counts

    def take(self) -> tuple[list[int], int]:
        """All that was counted, and its nanoseconds, for another histogram to add; here it begins anew."""
        taken = self._counts, self.nanoseconds
        self._counts, self.nanoseconds = [0] * len(self._counts), 0
        return taken

    def add(self, counts: Sequence[int], nanoseconds: int) -> None:
        """Count what was taken from another."""
        self._counts = list(map(add, self._counts, counts))
        self.nanoseconds += nanoseconds

    @property
    def calls(self) -> int:
        """How many calls were counted."""
        return sum(self._counts)

    def buckets(self) -> list[Bucket]:
        """Cumulative, as Prometheus has them, without the last, which has no bound: that is `calls`."""
        return [Bucket(bound / 1e9, calls) for bound, calls in zip(BOUNDS, accumulate(self._counts), strict=False)]
