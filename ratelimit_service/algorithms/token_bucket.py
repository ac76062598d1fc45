"""Token bucket: a bucket of tokens that refills without pause; a request takes as many as it costs, or is refused.

Refilled at L tokens a window W, full at B (`burst`, by default L): after any rest B may come at once, and in the long
run L a window.

All that is kept is the moment at which the bucket will be full again (GCRA). How far it lies ahead tells what is
missing: a token costs W/L more, and time does the refilling. W/L need not be a whole number of microseconds, so
everything is counted in L-ths of one: a token is W of them, a microsecond L. Nothing is ever rounded.

State: the moment, rounded up to a microsecond, and how many L-ths of the last microsecond it reaches; 0 for all of
them. Hot path.
"""

from struct import Struct
from typing import Final

from ratelimit_service.model import LONGEST_WINDOW, NEVER, Decision, Limit

name: Final = "token_bucket"

STATE: Final = Struct("qq")


def problem(limit: Limit) -> str | None:
    """Why no bucket can be kept for this limit: its moments would be beyond Lua's integers."""
    capacity = (limit.burst or limit.requests) + limit.exceed
    if capacity * limit.window > limit.requests * LONGEST_WINDOW and limit.requests:
        return f"a bucket of {capacity} that gets {limit.requests} in a window would take over 100 years to fill"
    return None


def hit(state: bytes | None, limit: Limit, cost: int, now: int) -> tuple[bytes | None, Decision]:
    """Take `cost` tokens."""
    rate = limit.requests
    window = limit.window
    reset = before = 0
    if state is not None:
        moment, part = STATE.unpack(state)
        if moment > now:
            reset = moment - now
            before = reset * rate
            if 0 < part < rate:
                before += part - rate
        else:
            state = None
    if not rate:  # a bucket that nothing flows into
        return state, Decision(cost <= 0, 0, cost if cost > 0 else 0, reset, NEVER if cost > 0 else 0)

    burst = limit.burst or rate
    most = burst + limit.exceed
    full = most * window
    deepest = 2 * full + rate * window
    if before > deepest:
        # Deeper in debt than a charge leads, by a clock a window ahead too: the clock was another, or the limit.
        before = deepest
        reset = -(-before // rate)
        state = STATE.pack(now + reset, before % rate)
    price = cost * window
    after = before + price
    over = 0
    if cost > 0 and after > burst * window:
        room = burst * window - before
        over = cost - room // window if room > 0 else cost

    if cost > 0 and after <= full:
        reset = -(-after // rate)
        return STATE.pack(now + reset, after % rate), Decision(True, (full - after) // window, over, reset, 0)

    allowed = after <= full
    missing = before
    if cost < 0:
        allowed = True
        missing = after if after > 0 else 0
    elif not allowed and limit.count_refused and cost <= most:
        # Bounded: who gives up is let in again after no more than the time that fills a bucket.
        missing = max(before, min(after, 2 * full))
    if missing != before:
        reset = -(-missing // rate)
        state = STATE.pack(now + reset, missing % rate) if missing else None

    left = (full - missing) // window
    retry = 0
    if not allowed:
        retry = NEVER if cost > most else -((full - missing - price) // rate)
    return state, Decision(allowed, left if left > 0 else 0, over, reset, retry)
