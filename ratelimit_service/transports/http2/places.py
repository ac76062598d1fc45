"""Which connection makes way when there are as many as may be: the one that has had no call for longest.

Those that never had one are before all others, so that a flood of connections drives out itself. One that waits for an
answer never makes way; but a stream that is only kept open (Watch, or headers without their message) keeps no place.
Calls are noticed twice a second, and once more before a connection is chosen.
"""

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class Guest(Protocol):
    """A connection, as far as it has a place."""

    @property
    def last_call(self) -> int:
        """The number of its stream; 0 when there was none."""

    @property
    def at_work(self) -> bool:
        """It waits for an answer of ours, or has sent bytes that may be a call."""


G = TypeVar("G", bound=Guest)


class Places(Generic[G]):
    """Connections, by when they had their last call."""

    def __init__(self) -> None:
        self._new: OrderedDict[G, int] = OrderedDict()
        """Those that never called, in the order in which they came."""
        self._called: OrderedDict[G, int] = OrderedDict()
        """The others, the one without a call for longest first; and their last calls that are known of."""

    def take(self, guest: G) -> None:
        """One more."""
        self._new[guest] = 0

    def leave(self, guest: G) -> None:
        """One less."""
        self._new.pop(guest, None)
        self._called.pop(guest, None)

    def notice(self, guest: G) -> bool:
        """Whether it called since this was asked last: then it is behind all others."""
        last = guest.last_call
        if last == self._called.get(guest, 0):
            return False
        self._new.pop(guest, None)
        self._called[guest] = last
        self._called.move_to_end(guest)
        return True

    def idlest(self) -> G | None:
        """The one to make way, if any may."""
        for guests in self._new, self._called:
            for _ in range(len(guests)):
                guest = next(iter(guests))
                if self.notice(guest):
                    continue
                if not guest.at_work:
                    return guest
                guests.move_to_end(guest)
        return None
