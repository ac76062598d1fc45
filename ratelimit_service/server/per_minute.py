"""Sums by minute: what counts have grown by in each of the last sixty minutes, by key, with bounded memory."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import add, sub
from typing import Final, Generic, TypeVar

from ratelimit_service.telemetry.tally import MAX_PATH_LENGTH, Path

MINUTES: Final = 60

Numbers = tuple[int, ...]
"""The counts of a key."""

Key = TypeVar("Key", str, Path)


class MinuteSums(Generic[Key]):
    """The sums of `width` counts for the first `most` keys whose counts grow.

    A key without growth for sixty minutes makes room for another. The rest is added up as `other`, if there is one.
    """

    def __init__(self, width: int, most: int, other: Key | None = None) -> None:
        self._width = width
        self._other: Key | None = other
        self._most = most + (other is not None)
        self._minute = 0
        self._rings: dict[Key, _Ring] = {} if other is None else {other: _Ring(width)}
        self.total: Numbers = (0,) * width
        """What all keys together have grown by since the start."""
        self._seen: dict[Key, Numbers] = {}
        """The last counts of each key, also of one that has no sums."""
        self._seen_before: dict[Key, Numbers] = {}
        """Those before the edition, of keys that were not added since."""

    @property
    def keys(self) -> Sequence[Key]:
        """The keys with sums of their own, and `other`."""
        return tuple(self._rings)

    @property
    def full(self) -> bool:
        """There is no room for another key."""
        return len(self._rings) >= self._most

    def add(self, minute: int, counts: Iterable[tuple[Key, Numbers]]) -> None:
        """Add what the counts have grown by since the last time to the minute of that number."""
        self._begin(minute)
        for key, numbers in counts:
            before = self._seen.get(key) or self._seen_before.pop(key, None)
            if before is None and not any(numbers):
                continue
            self._seen[key] = numbers
            if numbers == before or (self.full and self._other is None and key not in self._rings):
                continue
            grown = numbers if before is None else tuple(map(sub, numbers, before))
            if min(grown) < 0:  # those of a rule that no longer counts by value, or was taken away and came back
                grown = tuple(max(0, number) for number in grown)
            if any(grown) and (ring := self._ring_of(key)) is not None:
                ring.add(minute, grown)
                self.total = tuple(map(add, self.total, grown))

    def rows(self, key: Key) -> Iterator[Sequence[int]]:
        """The growth of each count in each minute, the oldest first; the last minute is the running one."""
        return self._rings[key].rows(self._minute)

    def saw(self, key: Key) -> bool:
        """Whether the key had counts other than 0 at the last look."""
        return key in self._seen

    def begin_edition(self) -> None:
        """Have `forget` forget the keys whose counts are not added from now on: those that are gone."""
        self._seen_before, self._seen = self._seen, {}

    def forget(self, most: int) -> bool:
        """Forget the counts of so many of those keys; whether there were any. Their sums stay for their hour."""
        there = bool(self._seen_before)
        for _ in range(min(most, len(self._seen_before))):
            self._seen_before.popitem()
        return there

    def _begin(self, minute: int) -> None:
        """Free the keys that have no growth in the minutes that are left."""
        if minute > self._minute:
            self._minute = minute
            self._rings = {
                key: ring for key, ring in self._rings.items() if key == self._other or minute - ring.last < MINUTES
            }

    def _ring_of(self, key: Key) -> "_Ring | None":
        ring = self._rings.get(key)
        if ring is None and not self.full and len("".join(key)) <= MAX_PATH_LENGTH:
            ring = self._rings[key] = _Ring(self._width)
        return self._rings.get(self._other) if ring is None and self._other is not None else ring


_FULL: Final = 2**64 - 1
"""The largest sum: 16,384 of the largest costs in a minute fill it."""


class _Ring:
    """The sums of one key: 8 bytes for each minute and count, and 130 bytes."""

    __slots__ = ("_cleared", "_numbers", "_width", "last")

    def __init__(self, width: int) -> None:
        self._width = width
        self._numbers = array("Q", bytes(8 * MINUTES * width))
        self._cleared = 0
        """The minute up to which no number is older than an hour."""
        self.last = 0
        """The minute in which a count last grew."""

    def add(self, minute: int, grown: Iterable[int]) -> None:
        self._clear(minute)
        self.last = minute
        for index, number in enumerate(grown, minute % MINUTES * self._width):
            self._numbers[index] = min(self._numbers[index] + number, _FULL)

    def rows(self, minute: int) -> Iterator[Sequence[int]]:
        self._clear(minute)
        first = (minute + 1) % MINUTES
        for index in range(self._width):
            column = self._numbers[index :: self._width]
            yield (column[first:] + column[:first]).tolist()

    def _clear(self, minute: int) -> None:
        for each in range(max(self._cleared + 1, minute - MINUTES + 1), minute + 1):
            at = each % MINUTES * self._width
            self._numbers[at : at + self._width] = array("Q", bytes(8 * self._width))
        self._cleared = minute
