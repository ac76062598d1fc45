"""Chooses which limit of a list with `charge: first` is charged: the first one that has room, in the order of the list.

==============================  ====================================================================================
what comes                      is charged to
==============================  ====================================================================================
a request                       the first limit with room for its cost; none if there is none: then it is refused
its id again, not settled yet   the limit that has its reservation, which charges nothing more
a settle of a reservation       the limit that has it, an overrun too
a settle of an unknown id       the last limit, in full
a settle where nothing          the first limit that has anything left, in full, which may leave it in debt; else the
reserves                        last: looks pass while any limit has something left
a look, of cost 0               none; the first limit that has anything left answers, else the last
a refund                        the first limit of which something is used, whichever was charged
==============================  ====================================================================================

All of it is charged to one limit; the others are looked at. The Lua twin is `first.lua`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ratelimit_service.model import PLAIN, Algorithm, Decision, Limit, State


class Alternative(NamedTuple):
    """One limit of the list, with its counters, and what it is to be charged."""

    algorithm: Algorithm
    limit: Limit
    state: State | None
    second: Any
    cost: int


def choose(members: Sequence[Alternative], now: int) -> tuple[int | None, list[Decision]]:
    """The index of the limit to charge, and decisions of the others: on a look. None: all deny, and how they do."""
    limit, cost, last = members[0].limit, members[0].cost, len(members) - 1
    chosen = _reserved_in(members, now) if cost > 0 or limit.owes else None
    if chosen is None and limit.owes and limit.kind.reserves:
        chosen = last
    denials: list[Decision] = []
    if chosen is None:
        for index, member in enumerate(members):
            tried = _used(member, now) if cost < 0 else _tried(member, now, is_last=index == last)
            if tried.allowed:
                chosen = index
                break
            denials.append(tried)
    if chosen is None and (limit.owes or cost < 0):
        chosen = last if limit.owes else 0
    return chosen, denials if chosen is None else [_looked_at(member, now) for member in members]


def _reserved_in(members: Sequence[Alternative], now: int) -> int | None:
    """The index of the limit that has the reservation; of a settle the one that had it, if there is none."""
    found = [member.limit.kind.reservation(member.second, now) for member in members]
    best = max(found)
    return found.index(best) if best > (0 if members[0].limit.owes else 1) else None


def _tried(member: Alternative, now: int, *, is_last: bool) -> Decision:
    """The decision on its cost, if that were charged; of a look or a settle on a unit, or of the last on nothing."""
    cost = 0 if member.limit.owes else member.cost
    decision = _hit(member, cost or int(not is_last), now)
    return decision if cost else replace(decision, over=0)


def _used(member: Alternative, now: int) -> Decision:
    """A decision that is allowed if something of the limit is used."""
    look, untouched = _hit(member, 0, now), _hit(member._replace(state=None), 0, now)
    look.allowed = look.remaining < untouched.remaining
    return look


def _looked_at(member: Alternative, now: int) -> Decision:
    look = _hit(member, 0, now)
    return Decision(True, look.remaining, 0, look.reset_after, 0)


def _hit(member: Alternative, cost: int, now: int) -> Decision:
    algorithm, limit = member.algorithm, member.limit
    kind = limit.kind if limit.composite else PLAIN
    return kind.hit(algorithm.hit, member.state, None, limit, cost, now)[2]
