"""Latencies of any number of calls in constant memory."""

from collections.abc import Iterator
from typing import Final

_BITS: Final = 7
"""Binary digits of a latency that are kept: a percentile is at most 0.8 % too high."""

_MAX_BITS: Final = 46
"""The bits of the longest latency, 19 hours in nanoseconds."""


class Latencies:
    """The latencies of calls: a count for each bucket."""

    def __init__(self) -> None:
        self.counts = [0] * ((_MAX_BITS - _BITS + 1) << _BITS)
        """By bucket."""
        self.calls = 0
        self.longest = 0
        """Nanoseconds."""

    def observe(self, nanoseconds: int) -> None:
        """Count one call."""
        shift = nanoseconds.bit_length() - _BITS - 1
        self.counts[(shift << _BITS) + (nanoseconds >> shift) if shift > 0 else nanoseconds] += 1
        self.calls += 1
        if nanoseconds > self.longest:  # noqa: PLR1730 - for each call, and max() takes seven times as long
            self.longest = nanoseconds

    def add(self, other: "Latencies") -> None:
        """Count the calls of another one too."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.calls += other.calls
        self.longest = max(self.longest, other.longest)

    def percentile(self, percent: float) -> int:
        """Nanoseconds within which this share of the calls was answered; 0 without calls."""
        wanted = self.calls * percent / 100
        return next((upper for upper, seen in self._cumulative() if seen >= wanted), self.longest)

    def curve(self) -> Iterator[tuple[float, int]]:
        """Each latency that occurred, and before it the share of calls, 0 to 1, that took less."""
        before = 0
        for upper, seen in self._cumulative():
            yield before / self.calls, upper
            before = seen

    def _cumulative(self) -> Iterator[tuple[int, int]]:
        """The upper end of each bucket that is not empty, and how many calls are in all until it."""
        seen = 0
        for index, count in enumerate(self.counts):
            if count:
                seen += count
                shift = max(0, (index >> _BITS) - 1)
                yield min(self.longest, ((index - (shift << _BITS) + 1) << shift) - 1), seen
