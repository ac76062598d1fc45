"""Sub-windows: the window is divided into parts, each with a count; a part counts until all of it is too old.

The oldest part counts in full as long as any of it is in view, so one part more is stored than the window has.
Therefore no window's length ever contains more than the limit, for any arrival of requests; an estimate of the oldest
part could not guarantee that. The cost: after a burst, room returns up to one part late. If the parts do not divide the
window, each is a fraction of a microsecond longer.

State: the moment from which the newest count is too old, then the counts, the newest first; 0 for a part without
requests. The newest is never 0; the moment determines its part. Hot path.
"""

from functools import lru_cache
from typing import Final

from ratelimit_service.algorithms.algorithm import no_problem, room_at_reset
from ratelimit_service.algorithms.lease import length_of_term, next_term
from ratelimit_service.model import NEVER, Decision, Limit

name: Final = "sub_windows"
leases: Final = True
leased_from: Final = None
problem: Final = no_problem
room_after: Final = room_at_reset

State = tuple[int, ...]

_CEILING: Final = 2**52
"""Of all parts together, but for what a limit and a unit come to."""

_STAGGERED: Final = 8
"""Terms of a part, from which on instances have phases."""


def hit(state: State | None, limit: Limit, cost: int, now: int) -> tuple[State | None, Decision]:
    """Charge `cost` to the current part."""
    requests = limit.requests
    most = requests + limit.exceed
    parts = limit.parts
    part = -(-limit.window // parts)
    end = (now // part + parts + 1) * part  # when this charge is too old
    counts: tuple[int, ...] = ()
    age = 0
    if state is not None:
        last = state[0]
        if last >= end:  # this part's, or the clock stepped back: never make room again
            end = last
            counts = state[1:]
        elif last > now:
            age = (end - last) // part
            counts = state[1 : parts + 2 - age]
        else:
            state = None
    before = sum(counts)
    used = before + cost
    over = 0
    if used > requests and cost > 0:
        over = used - requests if before < requests else cost

    allowed = used <= most
    if cost > 0 and allowed:
        if counts and not age:
            state = (end, counts[0] + cost, *counts[1:])
        else:
            state = _opened(end, cost, age, counts)
        return state, Decision(True, most - used, over, end - now, 0)

    left = most - before
    if cost > 0 and limit.count_refused and cost <= most:
        # One more than the limit denies looks too; more than that in one part would not deny for longer.
        if age or not counts:
            counts = _opened(end, 0, age, counts)[1:]
            age = 0
        newest = max(counts[0], min(counts[0] + cost, most + 1))
        left -= newest - counts[0]
        counts = (newest, *counts[1:])
        state = (end, *counts)
    elif cost < 0:
        allowed = True
        counts, age = _refund(counts, -cost, age)
        left = most - sum(counts)
        state = (end - age * part, *counts) if counts else None

    retry = 0
    if not allowed:
        retry = NEVER if cost > most else end - (age + _may_stay(counts, most - cost)) * part - now
    return state, Decision(allowed, left if left > 0 else 0, over, 0 if state is None else state[0] - now, retry)


def owe(state: State | None, limit: Limit, cost: int, now: int) -> State | None:
    """As algorithm.py says: the newest count above the limit, until its part is too old."""
    parts = limit.parts
    part = -(-limit.window // parts)
    end = (now // part + parts + 1) * part
    counts: tuple[int, ...] = ()
    age = 0
    if state is not None and state[0] > now:
        end, last = max(end, state[0]), state[0]
        age = (end - last) // part
        counts = state[1 : parts + 2 - age]
    most = max(limit.requests + limit.exceed + 1, _CEILING // (parts + 1))
    if counts and not age:
        return (end, max(counts[0], min(counts[0] + cost, most)), *counts[1:])
    return _opened(end, min(cost, most), age, counts)


def term(limit: Limit) -> int:
    """As Leasing says."""
    return length_of_term(-(-limit.window // limit.parts), limit.window, limit.longest_term)


def staggered(limit: Limit) -> bool:
    """As Leasing says; a part of one term would be one of two, which takes 1.6 times the calls."""
    return limit.window >= _STAGGERED * limit.parts * term(limit)


def term_end(_state: State | None, limit: Limit, now: int, phase: int) -> int:
    """As Leasing says; the part's end at the latest, since a unit spent later would be in view for longer."""
    part = -(-limit.window // limit.parts)
    return min(now - now % part + part, next_term(term(limit), now, phase))


def give(state: State | None, limit: Limit, units: int, term_end: int, now: int) -> State | None:
    """As Leasing says; into the part that the units were charged to, as long as it is in view."""
    if state is None or state[0] <= now:
        return state
    part = -(-limit.window // limit.parts)
    last, *counts = state
    index = last // part - limit.parts - -(-term_end // part)
    if not 0 <= index < len(counts):
        return state
    counts[index] = max(0, counts[index] - units)
    first = next((age for age, count in enumerate(counts) if count), len(counts))
    last -= first * part
    return (last, *counts[first:]) if first < len(counts) and last > now else None


def _opened(end: int, cost: int, age: int, counts: tuple[int, ...]) -> State:
    """The state with a new part, and with empty parts between it and the previous newest one."""
    if not counts:
        return _shared(end), cost
    return _shared(end), cost, *(0,) * (age - 1), *counts


@lru_cache(1024)
def _shared(end: int) -> int:
    """One integer for all counters charged in a part, which saves 32 bytes for each."""
    return end


def _refund(counts: tuple[int, ...], cost: int, age: int) -> tuple[tuple[int, ...], int]:
    """Refund the latest charges: the remaining counts, and the age of the newest."""
    first = 0
    while first < len(counts) and counts[first] <= cost:
        cost -= counts[first]
        first += 1
    if first == len(counts):
        return (), 0
    return (counts[first] - cost, *counts[first + 1 :]), age + first


def _may_stay(counts: tuple[int, ...], room: int) -> int:
    """The number of the newest counts for which there is room."""
    # From the newest on: the sum of all may be above 2**53 where denied hits count, which Lua would round.
    index = 0
    while index < len(counts) and counts[index] <= room:
        room -= counts[index]
        index += 1
    return index
