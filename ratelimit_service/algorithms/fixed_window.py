"""Fixed window: count the cost in each window, deny what exceeds the limit.

Windows are aligned to the epoch in UTC, so a minute is a minute of the clock, and a week starts on Thursday. With
`first_request`, a window starts with the first request after the previous one; with `calendar`, windows are those of
a calendar in a time zone. By default a denied hit is charged too, as in envoyproxy/ratelimit: the count is the cost of
all hits, not of those allowed. With `crossing_only` it is that up to the first denied hit, which leaves nothing to the
others. At the edge of two windows twice the limit can pass within one window's length.

State: the end of the window, and the count. Hot path.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Final

from ratelimit_service.algorithms.algorithm import no_problem, room_at_reset
from ratelimit_service.algorithms.lease import length_of_term, next_term
from ratelimit_service.model import NEVER, Decision, Limit

name: Final = "fixed_window"
leases: Final = True
leased_from: Final = None
problem: Final = no_problem
room_after: Final = room_at_reset

State = tuple[int, int]

CEILING: Final = 2**52
"""The maximum of a count, under any load: Lua's integers are exact to 2^53."""


def hit(state: State | None, limit: Limit, cost: int, now: int) -> tuple[State | None, Decision]:
    """Charge `cost` to the window that `now` is in."""
    requests = limit.requests
    most = requests + limit.exceed
    # A window that ends in the future is the current one, even if the clock has stepped back behind its start.
    if state is not None and state[0] > now:
        end, before = state
    else:
        state, before = None, 0
        window = limit.window
        if limit.calendar is not None:
            end = limit.calendar.edges(now)[1]
        else:
            end = now + window if limit.first_request else _end(now // window, window)
    count = before + cost

    if cost > 0:
        over = count - requests
        if over <= 0:
            return (end, count), Decision(True, most - count, 0, end - now, 0)
        if over > cost:
            over = cost
        if count <= most:
            return (end, count), Decision(True, most - count, over, end - now, 0)
        retry = end - now if cost <= most else NEVER
        if limit.count_refused and (before <= most or not limit.crossing_only):
            return (end, count if count < CEILING else CEILING), Decision(False, 0, over, end - now, retry)
        left = most - before
        return state, Decision(False, left if left > 0 else 0, over, _reset(state, limit, end, now), retry)

    reset = _reset(state, limit, end, now)
    if count <= 0:
        return None, Decision(True, most, 0, 0 if limit.first_request else end - now, 0)
    left = most - count
    if cost < 0:
        return (end, count), Decision(True, left if left > 0 else 0, 0, reset, 0)
    return state, Decision(left >= 0, left if left > 0 else 0, 0, reset, 0 if left >= 0 else reset)


def owe(state: State | None, limit: Limit, cost: int, now: int) -> State | None:
    """As algorithm.py says: a count above the limit, which ends with the window."""
    return hit(state, _in_full(limit), cost, now)[0]


@lru_cache(1024)
def _in_full(limit: Limit) -> Limit:
    """The limit by which all that is denied is charged."""
    return replace(limit, count_refused=True, crossing_only=False)


def term(limit: Limit) -> int:
    """As Leasing says."""
    return length_of_term(limit.window, limit.window, limit.longest_term)


def staggered(_limit: Limit) -> bool:
    """As Leasing says."""
    return True


def term_end(state: State | None, limit: Limit, now: int, phase: int) -> int:
    """As Leasing says; the window's end at the latest."""
    _, look = hit(state, limit, 0, now)
    return min(now + (look.reset_after or limit.window), next_term(term(limit), now, phase))


def give(state: State | None, limit: Limit, units: int, term_end: int, now: int) -> State | None:
    """As Leasing says; units of an earlier window count no more."""
    if state is None or state[0] <= now:
        return state
    end, count = state
    start = end - limit.window if limit.calendar is None else limit.calendar.edges(end - 1)[0]
    if not start < term_end <= end:
        return state
    return (end, count - units) if count > units else None


@lru_cache(1024)
def _end(index: int, window: int) -> int:
    """The end of a window aligned to the epoch. All its counters share this integer, which saves 32 bytes for each."""
    return (index + 1) * window


def _reset(state: State | None, limit: Limit, end: int, now: int) -> int:
    """The time until the window ends. 0 for a window that begins with a request, before there is one."""
    return 0 if state is None and limit.first_request else end - now
