"""The kinds of limit, each a module with its Lua twin beside it. To add one: its module, its twin, and its class here.

`model.Kind` is the contract, and the plain kind. A twin is a Lua chunk that returns a table of functions:

    read(limit, batch, from, now, algorithm)  -> from
                                               reads the kind's `numbers` into the table of the limit, which has what
                                               algorithm.py says, and `hit`, the function of its algorithm
    charge(state, second, limit, cost, now)  -> state, second, allowed, room, left, reset_after, retry_after
                                               of a kind with a second counter: as `Kind.hit`, with `limit.hit`
    owe(state, second, limit, cost, now)  ->   the same, as `Kind.owe`, with `limit.owe` too; -3 or -4 in place of
                                               allowed, and what is above the limit in place of room
    reservation(second, now)  -> number        as `Kind.reservation`; may be missing
    own(state, limit, now)  -> state           what the algorithm reads of it; beside `reservation`
    deny(second, limit, cost, charged, now)  -> second, charged
                                               as `Kind.deny`; may be missing
    hit, owe, load, save, ahead, clamp         as of an algorithm, in whose place they are

`tell(key, what)` is for what the kind has found of a counter: a number that is tallied (`Kind.found`).

A second counter has a state of integers. If `read` sets `limit.second`, that is the limit by which it is clamped.
"""

from typing import Final

from ratelimit_service.algorithms.kinds.block import Block
from ratelimit_service.algorithms.kinds.leased import Leased
from ratelimit_service.algorithms.kinds.places import Places
from ratelimit_service.algorithms.kinds.pool import Elastic
from ratelimit_service.algorithms.kinds.queue import Queue
from ratelimit_service.algorithms.kinds.reserved import Reserved
from ratelimit_service.algorithms.kinds.synced import Synced
from ratelimit_service.model import Kind

__all__ = ["ENDINGS", "KINDS", "Block", "Elastic", "Leased", "Places", "Queue", "Reserved", "Synced"]

KINDS: Final[dict[str, type[Kind]]] = {
    kind.twin: kind for kind in (Block, Elastic, Places, Queue, Reserved, Leased, Synced)
}
"""All kinds, by the names of their twins."""

ENDINGS: Final = tuple(kind.ending for kind in KINDS.values() if kind.ending)
"""The ends of the names of second counters that counters have by themselves. Such a one refuses, while it is there."""
