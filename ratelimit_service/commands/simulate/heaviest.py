"""The most frequent of a stream of keys, in bounded memory: Misra and Gries, "Finding repeated elements" (1982)."""

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Heavy(NamedTuple, Generic[K]):
    """A key, how often (`times`) it came, and when first and last since it is kept."""

    key: K
    times: int
    first: int
    last: int


class Heaviest(Generic[K]):
    """Counts keys; keeps `room` of them at least, and twice as many at most.

    A key that came more than `missed` times is among them, and each count is at most `missed` too low. `missed` is at
    most the number of all additions divided by `room`; it is 0 while there were no more than `2 * room` keys.
    """

    def __init__(self, room: int) -> None:
        self.missed = 0
        self._room = room
        self._kept: dict[K, list[int]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, key: K, now: int) -> None:
        """Count the key once."""
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= 2 * self._room:
                self._shrink()
            self._kept[key] = [1, now, now]
        else:
            kept[0] += 1
            kept[2] = now

    def _shrink(self) -> None:
        """Subtract the count of the first key beyond the room from all, and forget those with nothing left."""
        counts = sorted((kept[0] for kept in self._kept.values()), reverse=True)
        less = counts[self._room]
        self.missed += less
        self._kept = {key: [kept[0] - less, *kept[1:]] for key, kept in self._kept.items() if kept[0] > less}

    def top(self, most: int) -> list[Heavy[K]]:
        """So many keys, the most frequent first."""
        found = sorted(self._kept.items(), key=lambda item: -item[1][0])[:most]
        return [Heavy(key, *kept) for key, kept in found]
