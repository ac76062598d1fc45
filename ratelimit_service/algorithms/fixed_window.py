"""Fixed window: count what comes in each window, refuse what comes above the limit.

Windows are aligned to the epoch in UTC, so a minute is a minute of the clock, and a week starts on Thursday; or a
window starts with the first request that finds none. By default a refused hit is charged too, as Envoy's users have it:
a counter tells how much was asked, not how much was granted. At the edge of two windows twice the limit can pass within
one window's length.

State: the end of the window, and the count. Hot path.
"""

from typing import Final

from ratelimit_service.model import NEVER, Decision, Limit

name: Final = "fixed_window"

State = tuple[int, int]

CEILING: Final = 2**52
"""A count stays below it, whatever is thrown at the counter: Lua's integers are exact to 2^53."""


def hit(state: State | None, limit: Limit, cost: int, now: int) -> tuple[State | None, Decision]:
    """Charge `cost` to the window that `now` is in."""
    window = limit.window
    requests = limit.requests
    most = requests + limit.exceed
    # A window that ends in the future is the current one, even if the clock has stepped back behind its start.
    if state is not None and state[0] > now:
        end, before = state
        reset = end - now
    else:
        state, before = None, 0
        end = now + window if limit.first_request else now - now % window + window
        # The calendar's window ends whether anything was charged or not; one that has not begun has no end.
        reset = 0 if limit.first_request else end - now
    count = before + cost

    if cost <= 0:
        if count <= 0:
            return None, Decision(True, most, 0, 0 if limit.first_request else end - now, 0)
        left = most - count
        if cost < 0:
            return (end, count), Decision(True, left if left > 0 else 0, 0, reset, 0)
        return state, Decision(left >= 0, left if left > 0 else 0, 0, reset, 0 if left >= 0 else reset)

    over = count - requests
    if count <= most:
        if over <= 0:
            return (end, count), Decision(True, most - count, 0, end - now, 0)
        return (end, count), Decision(True, most - count, over if over < cost else cost, end - now, 0)
    left = most - before
    if limit.count_refused:
        state = (end, count if count < CEILING else CEILING)
        reset = end - now
        left = 0
    retry = end - now if cost <= most else NEVER
    return state, Decision(False, left if left > 0 else 0, over if over < cost else cost, reset, retry)
