"""Sliding log: the moments of the last requests, one for each; there is room when enough of them are a window old.

Exact, and as large as its limit: sensible for small ones. A moment counts until exactly one window later. With
`count_refused` a refused hit is written down too and the oldest is forgotten for it, so that a client that keeps trying
faster than the limit stays out.

State: the moment from which the newest is too old, and the moments, the oldest first, 8 bytes each. Hot path.
"""

from bisect import bisect_right
from struct import Struct
from typing import Final

from ratelimit_service.model import NEVER, Decision, Limit

name: Final = "sliding_log"

State = tuple[int, bytes]

LONGEST: Final = 100_000
"""Moments: 800 kB a counter, and as much to copy for each hit. `sub_windows` keeps larger limits as well."""

_MOMENT: Final = Struct("q")


def problem(limit: Limit) -> str | None:
    """Why no log can be kept for this limit."""
    most = limit.requests + limit.exceed
    if most > LONGEST:
        return f"it would remember {most} moments for each counter, and {LONGEST} is the most; take sub_windows"
    return None


def hit(state: State | None, limit: Limit, cost: int, now: int) -> tuple[State | None, Decision]:
    """Write down `cost` times now."""
    window = limit.window
    most = limit.requests + limit.exceed
    newest = now
    moments = b""
    if state is not None and state[0] > now:
        moments = state[1]
        if state[0] - window > now:  # the clock stepped back: moments stay in order
            newest = state[0] - window
        # Copied only when something is written.
        view = memoryview(moments).cast("q")
        old = bisect_right(view, now - window)
        before = len(view) - old
    else:
        state, old, before = None, 0, 0
    used = before + cost

    allowed = used <= most
    left = most - before
    if cost > 0 and (allowed or (limit.count_refused and cost <= most)):
        # A refused hit pushes out as many of the oldest as it must: what is older than the limit has decides nothing.
        pushed_out = 0 if allowed else used - most
        moments = moments[8 * (old + pushed_out) :] + _MOMENT.pack(newest) * cost
        state = (newest + window, moments)
        old = 0
        left = most - len(moments) // 8
    elif cost < 0:
        allowed = True
        if used <= 0:
            state, left = None, most
        else:
            moments = moments[8 * old : cost * 8]
            state = (_MOMENT.unpack_from(moments, len(moments) - 8)[0] + window, moments)
            left = most - used

    over = used - limit.requests
    if over > 0:
        over = over if over < cost else max(0, cost)
    else:
        over = 0
    retry = 0
    if not allowed:
        # So many of the oldest must leave.
        excess = cost - left
        retry = NEVER if cost > most else _MOMENT.unpack_from(moments, 8 * (old + excess - 1))[0] + window - now
    return state, Decision(allowed, left if left > 0 else 0, over, 0 if state is None else state[0] - now, retry)
