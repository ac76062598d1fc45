"""Token bucket: a bucket of tokens that refills without pause; a request takes as many as it costs, or is refused.

Refilled at L tokens a window W, full at B (`burst`, by default L): after any rest B may come at once, and in the long
run L a window. Kept as one moment (GCRA): the one at which the bucket is full again. What is missing is how far that
lies ahead, a request moves it W/L further, and time does the refilling. A microsecond is not fine enough for W/L, so
that moment has a fraction, in L-ths of a microsecond, and what is missing is counted in units of which a request has W
and a microsecond has L: nothing is ever rounded.

State: the moment, rounded up, and the fraction of its last microsecond in L-ths; 0 for all of it. Hot path.
"""

from typing import Final

from ratelimit_service.model import LONGEST_WINDOW, NEVER, Decision, Limit

name: Final = "token_bucket"

State = tuple[int, int]


def problem(limit: Limit) -> str | None:
    """Why no bucket can be kept for this limit: its moments would be beyond Lua's integers."""
    capacity = (limit.burst or limit.requests) + limit.exceed
    if capacity * limit.window > limit.requests * LONGEST_WINDOW and limit.requests:
        return f"a bucket of {capacity} that gets {limit.requests} in a window would take over 100 years to fill"
    return None


def hit(state: State | None, limit: Limit, cost: int, now: int) -> tuple[State | None, Decision]:
    """Take `cost` tokens."""
    rate = limit.requests
    window = limit.window
    if state is not None and state[0] <= now:
        state = None
    if not rate:  # a bucket that nothing flows into
        reset = 0 if state is None else state[0] - now
        return state, Decision(cost <= 0, 0, max(0, cost), reset, NEVER if cost > 0 else 0)

    burst = limit.burst or rate
    most = burst + limit.exceed
    full = most * window
    missing = 0
    if state is not None:
        missing = (state[0] - now) * rate
        if 0 < state[1] < rate:
            missing += state[1] - rate
    before = missing
    after = before + cost * window

    allowed = after <= full
    if cost < 0:
        allowed = True
        missing = after if after > 0 else 0
    elif allowed:
        missing = after
    elif limit.count_refused and cost <= most:
        # Bounded: who gives up is let in again after no more than the time that fills a bucket.
        missing = max(before, min(after, 2 * full))
    reset = -(-missing // rate)
    if missing != before:
        state = (now + reset, missing % rate) if missing else None

    left = (full - missing) // window
    over = cost - max(0, burst * window - before) // window
    retry = 0
    if not allowed:
        retry = NEVER if cost > most else -((full - missing - cost * window) // rate)
    return state, Decision(allowed, left if left > 0 else 0, over if over > 0 else 0, reset, retry)
