"""The heaviest of a stream of names, by cost, in bounded memory. Pure. `HeavyNames.add` is hot.

This is the Space-Saving sketch (Metwally, Agrawal, El Abbadi: "Efficient computation of frequent and top-k elements in
data streams", 2005) in the form in which sketches are merged (Agarwal et al.: "Mergeable summaries", 2012): from all
counts the largest one that has no room is subtracted, which leaves at most KEPT of them, and the sum of all that was
subtracted is the `error`. With `count` what is left of a name, or 0:

    count <= true cost <= count + error, and error <= total / (KEPT + 1)

since each subtraction takes its amount from more than KEPT counts at once. The same holds after any number of merges,
of sketches of any streams, in any order: the total is that of all.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

KEPT: Final = 512
"""Names in a sketch: the error is at most 0.2 % of all cost."""

MAX_NAMES: Final = 2048
"""The most names that are counted, and not in a sketch yet."""


class Sketch:
    """The heaviest names, as this module says."""

    __slots__ = ("counts", "error", "skipped", "total")

    def __init__(
        self, counts: Mapping[str, float] | None = None, error: float = 0, total: float = 0, skipped: int = 0
    ) -> None:
        self.counts = dict(counts or {})
        self.error = error
        self.total = total
        """The cost of all names, also of those that are not kept."""
        self.skipped = skipped
        """Occurrences that were not looked at, and for which others weigh more. While it is 0 all numbers are whole,
        and the law holds; else costs are estimates."""

    def add(self, other: "Sketch") -> None:
        """Merge the other one into this; the other one may have any number of names."""
        self.total += other.total
        self.skipped += other.skipped
        more, of_other = _shrunk(other.counts)
        counts = self.counts
        for name, cost in more.items():
            counts[name] = counts.get(name, 0) + cost
        self.counts, of_both = _shrunk(counts)
        self.error += other.error + of_other + of_both

    def packed(self, names: int = KEPT) -> Iterator[tuple[Mapping[str, float], float, float, int]]:
        """It as JSON can carry it: the arguments of others with so many names at most, which it is the sum of."""
        counts = iter(self.counts.items())
        yield dict(islice(counts, names)), self.error, self.total, self.skipped
        while more := dict(islice(counts, names)):
            yield more, 0, 0, 0


class HeavyNames:
    """Counts a stream of names."""

    __slots__ = ("_new", "_sketch")

    def __init__(self) -> None:
        self._new: dict[str, float] = {}
        self._sketch = Sketch()

    def add(self, name: str, cost: float) -> None:
        """Count it."""
        new = self._new
        new[name] = new.get(name, 0) + cost
        if len(new) > MAX_NAMES:
            self._fold()

    def merge(self, sketch: Sketch) -> None:
        """Count what others have taken, or that some were not looked at."""
        self._sketch.add(sketch)

    def drain(self) -> Sketch:
        """Everything since the last time."""
        taken = self.seen()
        self._sketch = Sketch()
        return taken

    def seen(self) -> Sketch:
        """Everything since the last `drain`."""
        self._fold()
        return self._sketch

    def _fold(self) -> None:
        new, self._new = self._new, {}
        self._sketch.add(Sketch(new, 0, sum(new.values())))


def _shrunk(counts: dict[str, float]) -> tuple[dict[str, float], float]:
    """At most KEPT of the counts, and what was subtracted from each."""
    if len(counts) <= KEPT:
        return counts, 0
    less = sorted(counts.values(), reverse=True)[KEPT]
    return {name: count - less for name, count in counts.items() if count > less}, less
