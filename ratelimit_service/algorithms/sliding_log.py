"""Sliding log: the moments of the last requests, one for each; there is room when enough of them are a window old.

Exact, and as large as its limit: sensible for small ones. A moment counts until exactly one window later. With
`count_refused` a refused hit is written down too and the oldest is forgotten for it, so that a client that keeps trying
faster than the limit stays out.

State: for each request the moment from which it is too old, the newest first, 8 bytes each. Hot path.
"""

from bisect import bisect_right
from struct import Struct
from typing import Final

from ratelimit_service.model import NEVER, Decision, Limit

name: Final = "sliding_log"

LONGEST: Final = 100_000
"""Moments: 800 kB a counter, and as much to copy for each hit. `sub_windows` keeps larger limits as well."""

_MOMENT: Final = Struct("q")


def problem(limit: Limit) -> str | None:
    """Why no log can be kept for this limit."""
    most = limit.requests + limit.exceed
    if most > LONGEST:
        return f"it would remember {most} moments for each counter, and {LONGEST} is the most; take sub_windows"
    return None


def hit(state: bytes | None, limit: Limit, cost: int, now: int) -> tuple[bytes | None, Decision]:
    """Write down `cost` times now."""
    requests = limit.requests
    most = requests + limit.exceed
    end = now + limit.window
    newest = before = 0
    if state is not None:
        view = memoryview(state).cast("q")
        newest = view[0]
        if newest > now:
            before = len(view)
            if view[-1] <= now:
                # Most often only one moment is too old: that saves the search.
                before -= 1 if view[-2] > now else bisect_right(view[::-1], now)
            end = newest if newest > end else end  # the clock may have stepped back: moments stay in order
        else:
            state = None
    used = before + cost
    over = 0
    if used > requests and cost > 0:
        over = used - requests if before < requests else cost

    if cost > 0 and used <= most:
        added = _MOMENT.pack(end) * cost
        if state is not None:
            added += state[: 8 * before]
        return added, Decision(True, most - used, over, end - now, 0)

    allowed = used <= most
    left = most - before
    if cost > 0 and limit.count_refused and cost <= most:
        # It pushes out as many of the oldest as it must: what is older than the limit has decides nothing.
        state = _MOMENT.pack(end) * cost + (state or b"")[: 8 * (most - cost)]
        newest, left = end, 0
    elif cost < 0:
        allowed = True
        if used <= 0 or state is None:
            state, left = None, most
        else:
            state, left = state[-8 * cost : 8 * before], most - used
            (newest,) = _MOMENT.unpack_from(state)

    retry = 0
    if not allowed:
        # There is room when no more than the newest `most - cost` are left.
        retry = NEVER if cost > most else _MOMENT.unpack_from(state or b"", 8 * (most - cost))[0] - now
    return state, Decision(allowed, left if left > 0 else 0, over, 0 if state is None else newest - now, retry)
