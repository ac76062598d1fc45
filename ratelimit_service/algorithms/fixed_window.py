"""Fixed window: count what comes in each window of the calendar, refuse what comes above the limit.

Windows are aligned to the epoch in UTC, so a minute is a minute of the clock, and a week starts on Thursday. A refused
hit is charged too, as Envoy's users have it: a counter tells how much was asked, not how much was granted. At the edge
of two windows twice the limit can pass within one window's length.

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
    # A window that ends in the future is the current one, even if the clock has stepped back behind its start.
    if state is not None and state[0] > now:
        end, before = state
    else:
        end, before = now - now % window + window, 0
    reset = end - now

    if cost <= 0:
        count = before + cost
        if count <= 0:
            return None, Decision(True, requests, 0, reset, 0)
        left = requests - count
        if cost < 0:
            return (end, count), Decision(True, left if left > 0 else 0, 0, reset, 0)
        return state, Decision(left >= 0, left if left > 0 else 0, 0, reset, 0 if left >= 0 else reset)

    count = before + cost
    if count <= requests:
        return (end, count), Decision(True, requests - count, 0, reset, 0)
    if count > CEILING:
        count = CEILING
    over = count - requests
    return (end, count), Decision(False, 0, over if over < cost else cost, reset, reset if cost <= requests else NEVER)
