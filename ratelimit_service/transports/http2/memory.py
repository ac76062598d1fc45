"""The memory that all connections of a transport hold for their clients, and what is done when it is too much.

Laws: it is weighed as it comes: whenever a connection holds messages, or bytes that wait for their turn, and all of
them twice a second. Beyond the most there may be, what is remembered of headers goes first, for that costs no call;
then the connections that hold most are ended, until an eighth of it is free again. So one that holds little is safe,
however many there are that hold much.
"""

from collections.abc import Collection
from typing import Protocol


class Holder(Protocol):
    """A connection, as far as it holds memory."""

    weight: int
    """Bytes, when it was weighed last."""

    def weigh(self) -> None:
        """Say what it holds now, by `Memory.add`."""

    def shed(self) -> None:
        """Forget what it can do without."""

    def end_heavy(self) -> None:
        """End it, for it holds more than others."""


class Memory:
    """Bytes of all connections."""

    __slots__ = ("_holders", "_most", "_relieving", "used")

    def __init__(self, most: int, holders: Collection[Holder]) -> None:
        self.used = 0
        self._most = most
        self._holders = holders
        self._relieving = False

    def add(self, change: int) -> None:
        """A connection holds so much more than it did, or less."""
        self.used += change
        if change > 0 and self.used > self._most and not self._relieving:
            self._relieving = True
            self._relieve()
            self._relieving = False

    def _relieve(self) -> None:
        target = self._most - self._most // 8
        heaviest = sorted(self._holders, key=lambda holder: holder.weight, reverse=True)
        for holder in heaviest:
            if self.used <= target:
                return
            holder.shed()
            holder.weigh()
        for holder in sorted(heaviest, key=lambda holder: holder.weight, reverse=True):
            if self.used <= target:
                return
            holder.end_heavy()
            holder.weigh()
