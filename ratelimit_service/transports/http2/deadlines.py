"""Deadlines of calls that are not answered at once.

In buckets of a hundredth of a second: there may be thousands, and most are taken away again before they are over.
"""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from ratelimit_service.clock import SECOND

GRAIN: Final = SECOND // 100
"""Microseconds: a call may end so much later than its deadline."""

_K = TypeVar("_K")


class Deadlines(Generic[_K]):
    """Keys, each with the time when it is over; times are microseconds of any clock that does not go back."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[_K, None]] = {}
        self._place: dict[_K, int] = {}

    def __len__(self) -> int:
        return len(self._place)

    def add(self, key: _K, when: int) -> None:
        """Once for each key."""
        number = when // GRAIN + 1
        self._place[key] = number
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
        bucket[key] = None

    def discard(self, key: _K) -> None:
        """It is done, whether it had a deadline or not."""
        number = self._place.pop(key, None)
        if number is not None:
            bucket = self._buckets[number]
            del bucket[key]
            if not bucket:
                del self._buckets[number]

    def over(self, now: int) -> Iterator[_K]:
        """Those whose time has come; they are forgotten."""
        for number in sorted(number for number in self._buckets if number * GRAIN <= now):
            for key in self._buckets.pop(number):
                del self._place[key]
                yield key
