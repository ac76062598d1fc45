"""The contract of an algorithm: a pure function from a state and a cost to a new state and a decision.

Laws, each held by a property test on every algorithm:

1. `hit` reads nothing but its arguments and changes none of them.
2. A state has an expiry: the moment from which it means the same as None. A store may forget it then, and not before.
   A state is a tuple of integers or bytes, and begins with its expiry. It is a tuple where many counters expire
   together and share that integer. Elsewhere it is bytes, with the expiry in 64 bits of the machine's order: one small
   object in place of three.
3. None is an untouched counter. A hit that leaves the counter untouched answers None.
4. Cost 0 changes nothing. A cost below 0 gives back, is always allowed, and never goes past an untouched counter.
5. Time that goes backwards never reopens room.

Integers only, all time in microseconds, so that the Lua twin, the file of the same name beside it, computes the same
numbers. A twin is a Lua chunk that returns a table of functions; `stores/redis/batch.lua` puts them together:

    hit(state, limit, cost, now)  -> state, allowed, room, left, reset_after, retry_after
                                               as in Python, 1 and 0 for the boolean; states are values, never changed.
                                               `left` is what remains, `room` what remained before: what lies over the
                                               limit is worked out from that, for a run of like hits too
    load(key, limit, now)         -> state     what Redis has under the key, or nil; may read only what it needs; what
                                               cannot be a state is nil too, and written over by the next charge
    save(key, state, limit, now)               write it with its expiry in one command, or delete it when it is nil

    ahead(limit)                  -> time      how far ahead a state may end at the most, its clock a window ahead too
    settle(state, limit, now)     -> state     of one that ends later, because it was charged by a server whose clock
                                               was ahead: the same counts, ending no later than that

A state that is nothing but integers needs no `load` and no `save`. A limit comes as a table with the fields of `Limit`,
booleans as 1 and 0. What the twins share stands at the head of `stores/redis/batch.lua`, such as `muldiv`, which is
exact beyond 2^53.

An algorithm that cannot count by every limit has `problem(limit)`: why not, or None. The parser asks it.
"""

from struct import Struct
from typing import Any, Protocol

from ratelimit_service.model import Decision, Limit

State = Any
"""A tuple of integers, or bytes. Only its algorithm knows what is in it, except for its `expiry`."""

_MOMENT = Struct("q")


def expiry(state: State) -> int:
    """The moment from which a state means the same as None."""
    moment: int = state[0] if isinstance(state, tuple) else _MOMENT.unpack_from(state)[0]
    return moment


class Algorithm(Protocol):
    """A way of counting. The modules of this folder are its implementations: a name and a function."""

    @property
    def name(self) -> str:
        """What a rule calls it."""

    def hit(self, state: State | None, limit: Limit, cost: int, now: int) -> tuple[State | None, Decision]:
        """Charge `cost` at `now`: the state to keep, and the answer."""
