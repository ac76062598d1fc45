"""Sliding window, estimated: two fixed windows side by side, the older counted by the part that is still in view.

A window's length looks back from now: it covers all that has passed of the current window of the calendar, and the rest
of it lies in the previous one. Of that one only the count is known, so it is taken to have come evenly: with 15 seconds
of a minute gone, three quarters of it still count. Whoever knows the edges can pass twice the limit within one
window's length (all of it late in one window, and all again as that fades); for traffic that knows nothing of them the
estimate is off by 0.3 / sqrt(requests a window), on average.

State: the moment from which nothing is left of it, the count of the previous window, and that of the current one, which
is never 0 and tells by that moment which window it is of. Hot path.
"""

from typing import Final

from ratelimit_service.model import NEVER, Decision, Limit

name: Final = "sliding_window"

State = tuple[int, int, int]


def hit(state: State | None, limit: Limit, cost: int, now: int) -> tuple[State | None, Decision]:
    """Charge `cost` to the current window."""
    window = limit.window
    most = limit.requests + limit.exceed
    end = now - now % window + window
    in_view = end - now
    previous = current = 0
    if state is not None and state[0] > now:
        last = (state[0] - 1) // window * window  # the end of the window that was charged last
        if last < end:
            previous = state[2]
        else:
            _, previous, current = state
            if last > end:  # the clock stepped back: it is the start of that window still
                end, in_view = last, window
    else:
        state = None
    before = previous * in_view // window + current
    used = before + cost

    allowed = used <= most
    if cost > 0 and (allowed or (limit.count_refused and cost <= most)):
        # A refused hit counts up to twice the limit: so much keeps a client out of the next window to its end.
        current = current + cost if allowed else max(current, min(current + cost, 2 * most))
        state = (_gone(end, current, window), previous, current)
    elif cost < 0:
        allowed = True
        current += cost
        if current < 0:  # what is left over is given back to the window before
            previous, current = max(0, previous + current), 0
        state = _state(end, previous, current, window)
        if state is not None and state[0] <= now:
            state = None

    left = most - previous * in_view // window - current
    over = used - limit.requests
    if over > 0:
        over = over if over < cost else max(0, cost)
    else:
        over = 0
    retry = 0
    if not allowed:
        retry = NEVER if cost > most else _room(end, previous, current, window, most - cost) - now
    return state, Decision(allowed, left if left > 0 else 0, over, 0 if state is None else state[0] - now, retry)


def _gone(end: int, current: int, window: int) -> int:
    """When less than 1 of the count is in view, which is before its window is out of it."""
    return end + window - (window - 1) // current


def _state(end: int, previous: int, current: int, window: int) -> State | None:
    if current:
        return _gone(end, current, window), previous, current
    if previous:
        return _gone(end - window, previous, window), 0, previous
    return None


def _room(end: int, previous: int, current: int, window: int, most: int) -> int:
    """The first moment when the estimate is at most so much, if it is more now."""
    if current > most:
        end, previous, current = end + window, current, 0
    if previous <= most - current:
        return end - window
    return end - ((most - current + 1) * window - 1) // previous
