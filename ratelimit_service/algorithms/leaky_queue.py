"""Leaky bucket, as a queue: what the bucket cannot let out yet waits for its turn, in the order of arrival.

The outflow is L per window W: a hit of cost n takes n·W/L of it, and may be answered when its part begins. The state is
the leaky bucket's, the moment when the bucket is empty, because that is when the next free part begins. So a counter
keeps its state when `queue` comes into a rule or goes.

A hit is denied when it would wait for longer than `max_wait`, or costs more than L. A refund moves the next free part
forward, so that two hits may be answered at once: what was admitted, less what was given back, keeps to the outflow.
A turn that was not used is given back whole, if it is the last one, as `last_end` says; else the refund is denied.

State: as for token_bucket. The Lua twin is `leaky_queue.lua`. Hot path.
"""

from typing import Final

from ratelimit_service.algorithms.token_bucket import STATE, missing_until, room_after
from ratelimit_service.model import NEVER, Decision, Limit, Queued

__all__ = ["hit", "name", "room_after"]

name: Final = "leaky_bucket"


def hit(state: bytes | None, limit: Limit, cost: int, now: int) -> tuple[bytes | None, Decision]:
    """Take the next free part of the outflow, which is `cost` long."""
    rate, window = limit.requests, limit.window
    wait = missing = 0  # in microseconds, rounded up; and in L-ths of one
    if state is not None:
        moment, part = STATE.unpack(state)
        if moment > now:
            wait = moment - now
            missing = missing_until(moment, part, rate, now)
        else:
            state = None
    if not rate:
        return state, Decision(cost <= 0, 0, cost if cost > 0 else 0, wait, NEVER if cost > 0 else 0)

    deepest = (limit.max_delay + 2 * window) * rate
    if missing > deepest:
        # No charge takes a part so late, even with a clock a window ahead: the clock or the limit has changed.
        missing = deepest
        wait = deepest // rate
        state = STATE.pack(now + wait, 0)
    if cost < 0 and limit.last_end not in {0, now + wait}:
        return state, Decision(False, _left(limit, missing), 0, wait, 0)
    if cost > rate or (cost >= 0 and wait > limit.max_wait):
        retry = NEVER if cost > rate else wait - limit.max_wait
        return state, Decision(False, _left(limit, missing), cost, wait, retry)
    if not cost:
        return state, Decision(True, _left(limit, missing), 0, wait, 0)
    missing += cost * window
    if missing <= 0:
        return None, Decision(True, _left(limit, 0), 0, 0, 0)
    reset = -(-missing // rate)
    state = STATE.pack(now + reset, missing % rate)
    if wait and cost > 0:
        return state, Queued(True, _left(limit, missing), 0, reset, 0, wait, now + wait)
    return state, Decision(True, _left(limit, missing), 0, reset, 0)


def _left(limit: Limit, missing: int) -> int:
    """How many hits of cost 1 could still have a place."""
    room = limit.max_wait * limit.requests - missing
    return room // limit.window + 1 if room >= 0 else 0
