"""The hottest descriptors: which had most hits lately, and which were refused most. Pure.

Hits that were allowed and hits that were refused are two streams, so that each hit is counted once on the hot path; all
hits are both streams together. A descriptor is counted by its `descriptor_name`. Laws, of each number that is shown:

- it is never too low, and too high by at most the error, as `heavy_hitters` says, unless hits were skipped;
- it is of the last five to ten minutes: two pairs of sketches alternate, and the older one is dropped.
"""

from collections.abc import Callable
from heapq import nlargest
from typing import Final, NamedTuple, Protocol

from ratelimit_service.system.clock import MINUTE, SECOND, Clock, steady_clock
from ratelimit_service.telemetry.heavy_hitters import Sketch

HALF: Final = 5 * MINUTE
"""The time for which each pair of sketches is added to."""


class TopDescriptor(NamedTuple):
    """One of the hottest."""

    name: str
    hits: float
    refused: float


class TopCounts(NamedTuple):
    """The sketches of a time, or of a worker."""

    allowed: Sketch
    refused: Sketch

    def add(self, other: "TopCounts") -> None:
        """Merge the other ones into these."""
        self.allowed.add(other.allowed)
        self.refused.add(other.refused)

    @property
    def hits(self) -> float:
        """All hits, allowed or refused."""
        return self.allowed.total + self.refused.total

    @property
    def error(self) -> float:
        """The most by which the hits of a name may be too high."""
        return self.allowed.error + self.refused.error

    def most_hits(self, most: int, wanted: Callable[[str], bool]) -> list[TopDescriptor]:
        """So many of the wanted names, those with the most hits first."""
        both = dict(self.allowed.counts)
        for name, cost in self.refused.counts.items():
            both[name] = both.get(name, 0) + cost
        return [self._of(name) for name in nlargest(most, filter(wanted, both), key=both.__getitem__)]

    def most_refused(self, most: int, wanted: Callable[[str], bool]) -> list[TopDescriptor]:
        """So many of the wanted names, those refused most first."""
        refused = self.refused.counts
        return [self._of(name) for name in nlargest(most, filter(wanted, refused), key=refused.__getitem__)]

    def _of(self, name: str) -> TopDescriptor:
        refused = self.refused.counts.get(name, 0) + self.refused.error
        return TopDescriptor(name, self.allowed.counts.get(name, 0) + self.allowed.error + refused, refused)


class TopSource(Protocol):
    """A part that counts hits."""

    def drain(self) -> TopCounts:
        """Everything that was counted since the last time."""


class TopSums:
    """The sum of what was added since it was last taken; workers add to it."""

    def __init__(self) -> None:
        self._counts = no_counts()

    def add(self, number: int, sketch: Sketch) -> None:
        """Add what a worker has counted, to the sketch of this number."""
        self._counts[number].add(sketch)

    def drain(self) -> TopCounts:
        """As TopSource says."""
        taken, self._counts = self._counts, no_counts()
        return taken


class RecentTop:
    """The counts of the last five to ten minutes."""

    def __init__(self, clock: Clock = steady_clock) -> None:
        self._clock = clock
        self._before, self._now = no_counts(), no_counts()
        self._before_began = self._now_began = clock()

    @property
    def seconds(self) -> float:
        """The seconds since the counts began."""
        return (self._clock() - self._before_began) / SECOND

    def add(self, counts: TopCounts) -> None:
        """Add what was counted since the last time; called at least every few seconds."""
        now = self._clock()
        if now - self._now_began >= HALF:
            # After a pause, such as of a machine that slept, what is left is too old.
            self._before = self._now if now - self._now_began < 2 * HALF else no_counts()
            self._before_began = self._now_began if now - self._now_began < 2 * HALF else now
            self._now, self._now_began = no_counts(), now
        self._now.add(counts)

    def counts(self) -> TopCounts:
        """All of them."""
        found = no_counts()
        found.add(self._before)
        found.add(self._now)
        return found


def no_counts() -> TopCounts:
    """Sketches of nothing."""
    return TopCounts(Sketch(), Sketch())
