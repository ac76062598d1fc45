"""A histogram of durations, in integers. Hot path."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import add
from time import time
from typing import Any, NamedTuple

_MICROSECONDS = (50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000)
BOUNDS = tuple(bound * 1_000 for bound in (*_MICROSECONDS, 1_000_000, 2_500_000, 5_000_000, 10_000_000))
"""Upper bounds of the buckets, in nanoseconds. From 5 ms on they are envoyproxy's, which dashboards name; most calls
here take less."""

_FIRST = BOUNDS[0]
_NO_CALLS = (0,) * (len(BOUNDS) + 1)


class Bucket(NamedTuple):
    """The number of calls that took at most `seconds`."""

    seconds: float
    calls: int


class Exemplar(NamedTuple):
    """A call with a sampled trace."""

    bucket: int
    """The number of its bucket."""
    trace_id: int
    seconds: float
    """How long it took."""
    when: float
    """Seconds since the epoch."""


class Latency:
    """A histogram of the times that calls took."""

    __slots__ = ("_counts", "exemplars", "nanoseconds")

    def __init__(self, counts: Iterable[int] = _NO_CALLS, nanoseconds: int = 0) -> None:
        self._counts = list(counts)
        self.nanoseconds = nanoseconds
        """The sum of all durations."""
        self.exemplars: dict[int, Exemplar] = {}
        """By the number of the bucket: the last call in it that has one."""

    def observe(self, nanoseconds: int) -> None:
        """Count one call of this duration."""
        # A call that does not wait for the store is in the first bucket. The shortcut saves half of the time, 100 ns.
        self._counts[bisect_left(BOUNDS, nanoseconds) if nanoseconds > _FIRST else 0] += 1
        self.nanoseconds += nanoseconds

    def observe_all(self, nanoseconds: int, calls: int) -> None:
        """Count several calls of this duration."""
        self._counts[bisect_left(BOUNDS, nanoseconds)] += calls
        self.nanoseconds += nanoseconds * calls

    def copy(self) -> "Latency":
        """Another histogram with the same counts, without exemplars."""
        return Latency(self._counts, self.nanoseconds)

    @property
    def counts(self) -> Sequence[int]:
        """The number of calls in each bucket; the last has no upper bound."""
        return self._counts

    def drain(self) -> tuple[list[int], int]:
        """Return the counts and the sum of durations, for another histogram to `add`, and reset both."""
        taken = self._counts, self.nanoseconds
        self._counts, self.nanoseconds = [0] * len(self._counts), 0
        return taken

    def add(self, counts: Sequence[int], nanoseconds: int) -> None:
        """Add the counts and durations that `drain` returned elsewhere."""
        self._counts = list(map(add, self._counts, counts))
        self.nanoseconds += nanoseconds

    def drain_exemplars(self) -> list[Exemplar]:
        """Return the exemplars, for another histogram, and forget them."""
        taken = list(self.exemplars.values())
        self.exemplars.clear()
        return taken

    def add_exemplars(self, exemplars: Iterable[Sequence[Any]]) -> None:
        """Add those that `drain_exemplars` returned elsewhere."""
        self.exemplars.update((fields[0], Exemplar(*fields)) for fields in exemplars)

    @property
    def calls(self) -> int:
        """The number of calls counted."""
        return sum(self._counts)

    def quantile(self, share: float) -> float:
        """The bound that this share of the calls kept, in seconds; the last one if they did not, 0 without calls."""
        wanted = self.calls * share
        if not wanted:
            return 0
        return next((bound for bound, calls in self.buckets() if calls >= wanted), BOUNDS[-1] / 1e9)

    def buckets(self) -> list[Bucket]:
        """Cumulative buckets, as Prometheus has them, without the last, which has no bound: it is `calls`."""
        return [Bucket(bound / 1e9, calls) for bound, calls in zip(BOUNDS, accumulate(self._counts), strict=False)]


class TracedLatency(Latency):
    """The same, with exemplars: set `trace_id` before a call with a sampled trace is observed."""

    __slots__ = ("trace_id",)

    def __init__(self) -> None:
        super().__init__()
        self.trace_id = 0

    def observe(self, nanoseconds: int) -> None:
        """Count one call of this duration."""
        bucket = bisect_left(BOUNDS, nanoseconds) if nanoseconds > _FIRST else 0
        self._counts[bucket] += 1  # not by super(): that takes 200 ns, also of calls without a trace
        self.nanoseconds += nanoseconds
        if self.trace_id:
            self.exemplars[bucket] = Exemplar(bucket, self.trace_id, nanoseconds / 1e9, time())
            self.trace_id = 0
