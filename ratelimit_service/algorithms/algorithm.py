"""The contract of an algorithm: a pure function from a state and a cost to a new state and a decision.

Laws, each held by a property test on every algorithm:

1. `hit` reads nothing but its arguments and changes none of them.
2. A state has an expiry: the moment from which it means the same as None. A store may evict it then, and not before.
   A state is a tuple of integers or bytes, and begins with its expiry. It is a tuple where many counters expire
   together and share that integer. Elsewhere it is bytes, with the expiry in 64 bits of the machine's order: one small
   object in place of three.
3. None is an untouched counter. A hit that leaves the counter untouched returns None.
4. Cost 0 changes nothing. A cost below 0 is a refund: always allowed, and never beyond an untouched counter.
5. A clock that goes backwards never makes room again.

`owe(state, limit, cost, now) -> state` charges a cost above 0 that has come about, whatever there is room for, and so
may leave a *debt*: what is held above the limit. In debt every hit is denied, with nothing left. A debt is bounded: it
lasts for no longer than the algorithm remembers, two windows at most, or in a bucket a window or what it takes to fill.

Integers only, all time in microseconds, so that the Lua twin, the file of the same name beside it, computes the same
numbers. A twin is a Lua chunk that returns a table of functions; `stores/redis/batch.lua` puts them together:

    hit(state, limit, cost, now)  -> state, allowed, room, left, reset_after, retry_after
                                               as in Python, 1 and 0 for the boolean; states are values, never mutated.
                                               `left` is what remains, `room` what remained before: the cost over the
                                               limit follows from these, also for a run of equal hits
    owe(state, limit, cost, now)  -> state     as in Python
    load(key, limit, now)         -> state     the value of the key in Redis, or nil; may read only what it needs; a
                                               value that is not a state is nil too, and the next charge overwrites it
    save(key, state, limit, now)               write it with its expiry in one command, or delete the key when it is nil

    ahead(limit, now)             -> time      the longest time until a state's expiry, with a clock a window ahead too
    clamp(state, limit, now)      -> state     the same counts with an expiry no later than that; for a state that was
                                               charged by a server whose clock was ahead

A state of integers only needs no `load` and no `save`. A limit comes as a table with the fields of `Limit`,
booleans as 1 and 0, a calendar as its `edges`. Functions that the twins share are at the head of
`stores/redis/batch.lua`, such as `muldiv`, which is exact beyond 2^53.

`room_after(limit, reset_after)` is the microseconds until the next bit of room, where room returns bit by bit at times
that follow from the reset. Elsewhere it is `room_at_reset`.

An algorithm that can lease units in advance has the functions of `lease.Leasing`, and its twin `term_end`, `give` and
`leased_from` of them; the length of terms comes with the limit. `lease.py` says what they promise, and takes by them.

`problem(limit)` is why the algorithm does not support this limit, or None. The parser calls it. Of one that supports
every limit it is `no_problem`.
"""

from struct import Struct

from ratelimit_service.model import Algorithm, Limit, State

__all__ = ["Algorithm", "State", "expiry", "no_problem", "room_at_reset"]

_MOMENT = Struct("q")


def expiry(state: State) -> int:
    """The moment from which a state means the same as None."""
    moment: int = state[0] if isinstance(state, tuple) else _MOMENT.unpack_from(state)[0]
    return moment


def no_problem(_limit: Limit, /) -> str | None:
    """Every limit is supported."""
    return None


def room_at_reset(_limit: Limit, reset_after: int, /) -> int:
    """Room returns at the reset."""
    return reset_after
