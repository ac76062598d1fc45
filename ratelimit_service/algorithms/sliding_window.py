"""Sliding window, estimated: the current fixed window, and the previous one weighted by the part still in view.

The last W microseconds contain the current fixed window up to now, and a part of the previous one. Only the count of
the previous one is known, so its requests are assumed to be evenly distributed: 15 seconds into a minute, three
quarters of them still count. A client that knows the edges can pass twice the limit within one window's length (all of
it late in one window, and again as that leaves the view). For traffic independent of the edges, the error of the
estimate is 0.3 / sqrt(requests per window), on average.

State: the moment from which nothing counts, the count of the previous window, and the count of the current one. The
last is never 0; the moment determines its window. Hot path.
"""

from struct import Struct
from typing import Final

from ratelimit_service.algorithms.algorithm import no_problem, room_at_reset
from ratelimit_service.algorithms.lease import length_of_term, next_term
from ratelimit_service.model import MAX_REQUESTS, NEVER, Decision, Limit

name: Final = "sliding_window"
leases: Final = True
leased_from: Final = None
problem: Final = no_problem
room_after: Final = room_at_reset

STATE: Final = Struct("qqq")


def hit(state: bytes | None, limit: Limit, cost: int, now: int) -> tuple[bytes | None, Decision]:
    """Charge `cost` to the current window."""
    window = limit.window
    requests = limit.requests
    most = requests + limit.exceed
    end = now - now % window + window
    in_view = end - now
    gone = now
    before = previous = current = 0
    if state is not None:
        gone, previous, current = STATE.unpack(state)
        if gone <= now:
            state, gone, previous, current = None, now, 0, 0
        elif gone <= end:  # the last charge was in the previous window
            previous, current = current, 0
        elif gone > end + window:  # the clock stepped back: use the start of the later window
            end, in_view = (gone - 1) // window * window, window
        before = (previous * in_view // window if previous else 0) + current
    used = before + cost
    over = 0
    if used > requests and cost > 0:
        over = used - requests if before < requests else cost

    if cost > 0 and used <= most:
        current += cost
        gone = end + window - (window - 1) // current  # as in _gone
        return STATE.pack(gone, previous, current), Decision(True, most - used, over, gone - now, 0)

    allowed = used <= most
    if cost > 0 and limit.count_refused and cost <= most:
        # Denied hits count up to twice the limit: enough to deny the client to the end of the next window.
        current = max(current, min(current + cost, 2 * most, MAX_REQUESTS))
        state, gone = _state(end, previous, current, window, now)
    elif cost < 0:
        allowed = True
        current += cost
        if current < 0:  # the rest is refunded to the previous window
            previous, current = max(0, previous + current), 0
        state, gone = _state(end, previous, current, window, now)

    left = most - previous * in_view // window - current
    retry = 0
    if not allowed:
        retry = NEVER if cost > most else _room(end, previous, current, window, most - cost) - now
    return state, Decision(allowed, left if left > 0 else 0, over, gone - now, retry)


def owe(state: bytes | None, limit: Limit, cost: int, now: int) -> bytes | None:
    """As algorithm.py says: the count of the current window above the limit, which fades in the next one."""
    window = limit.window
    end = now - now % window + window
    previous = current = 0
    if state is not None:
        gone, previous, current = STATE.unpack(state)
        if gone <= now:
            previous = current = 0
        elif gone <= end:
            previous, current = current, 0
        elif gone > end + window:
            end = (gone - 1) // window * window
    return _state(end, previous, max(current, min(current + cost, MAX_REQUESTS)), window, now)[0]


def term(limit: Limit) -> int:
    """As Leasing says."""
    return length_of_term(limit.window, limit.window, limit.longest_term)


def staggered(_limit: Limit) -> bool:
    """As Leasing says."""
    return True


def term_end(_state: bytes | None, limit: Limit, now: int, phase: int) -> int:
    """As Leasing says; the window's end at the latest.

    The weight of a unit depends on its window alone: from the moment when it is spent, it is the same as if it had been
    charged then.
    """
    return min(now - now % limit.window + limit.window, next_term(term(limit), now, phase))


def give(state: bytes | None, limit: Limit, units: int, term_end: int, now: int) -> bytes | None:
    """As Leasing says; into the window that the units were charged to, if its count is still in view."""
    if state is None:
        return state
    gone, previous, current = STATE.unpack(state)
    window = limit.window
    end = (gone - 1) // window * window
    windows = (end - term_end) // window
    if gone <= now or windows not in {0, 1}:
        return state
    if windows == 0:
        current = max(0, current - units)
    else:
        previous = max(0, previous - units)
    return _state(end, previous, current, window, now)[0]


def _gone(end: int, current: int, window: int) -> int:
    """The time when less than one request of the count is in view: shortly before its window leaves the view."""
    return end + window - (window - 1) // current


def _state(end: int, previous: int, current: int, window: int, now: int) -> tuple[bytes | None, int]:
    """The state, and its expiry."""
    gone = now
    if current:
        gone = _gone(end, current, window)
    elif previous:
        gone, previous, current = _gone(end - window, previous, window), 0, previous
    return (STATE.pack(gone, previous, current), gone) if gone > now else (None, now)


def _room(end: int, previous: int, current: int, window: int, most: int) -> int:
    """The first moment at which the estimate is at most `most`, if it is more now."""
    if current > most:
        end, previous, current = end + window, current, 0
    if previous <= most - current:
        return end - window
    return end - ((most - current + 1) * window - 1) // previous
