"""The contract of an algorithm: a pure function from a state and a cost to a new state and a decision.

Laws, each held by a property test on every algorithm:

1. `hit` reads nothing but its arguments and changes none of them.
2. A state is a tuple whose first integer is its expiry: the moment from which the state means the same as None. A store
   may forget it then, and not before.
3. None is an untouched counter. A hit that leaves the counter untouched answers None.
4. Cost 0 changes nothing. A cost below 0 gives back, is always allowed, and never goes past an untouched counter.
5. Time that goes backwards never reopens room.

Integers only, all time in microseconds, so that a Lua twin computes the same numbers.
"""

from typing import Any, Protocol

from ratelimit_service.model import Decision, Limit

State = tuple[Any, ...]


class Algorithm(Protocol):
    """A way of counting. The modules of this folder are its implementations: a name and a function."""

    @property
    def name(self) -> str:
        """What a rule calls it."""

    def hit(self, state: State | None, limit: Limit, cost: int, now: int) -> tuple[State | None, Decision]:
        """Charge `cost` at `now`: the state to keep, and the answer."""
