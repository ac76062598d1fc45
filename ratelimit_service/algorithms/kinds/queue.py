"""Leaky bucket, as a queue: what the bucket cannot let out yet waits for its turn, in the order of arrival.

The outflow is L per window W: a hit of cost n takes n·W/L of it, and may be answered when its part begins. The state is
the leaky bucket's, the moment when the bucket is empty, because that is when the next free part begins. So a counter
keeps its state when `queue` comes into a rule or goes.

A hit is denied when it would wait for longer than `max_wait`, or costs more than L. A refund moves the next free part
forward, so that two hits may be answered at once: what was admitted, less what was given back, keeps to the outflow.
A turn that was not used is given back whole, if it is the last one, as `last_end` says; else the refund is denied.

State: as for token_bucket. The Lua twin is `queue.lua`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ratelimit_service.algorithms.token_bucket import STATE, missing_until, owed, problem, room_after
from ratelimit_service.model import NEVER, PLAIN, Algorithm, Decision, Kind, Limit, Queued
from ratelimit_service.system.clock import delay_in_words

__all__ = ["Queue", "hit", "leases", "name", "owe", "problem", "room_after"]

name: Final = "leaky_bucket"
leases: Final = False


@dataclass(frozen=True, slots=True)
class Queue(Kind):
    """A hit may wait in the queue of its counter."""

    max_delay: int
    """Microseconds."""
    max_wait: int
    """Microseconds."""
    last_end: int = 0
    """Of a refund, the end of the turn that it gives back: it does so only if that is the last turn of the queue.
    0: whatever is last."""

    twin = "queue"
    in_runs = may_be_central = False
    why_not_leased = "queue: each request gets its turn from Redis"
    gauges = ("waiting", "longest_wait_seconds")

    @property
    def by_another(self) -> Kind:
        """There is no queue."""
        return PLAIN

    def burst_of(self, requests: int, window: int, burst: int) -> int:
        """The burst, by which the rate says how many have a place."""
        return self.max_delay * requests // window + 1

    def with_wait(self, limit: Limit, wait: int) -> Limit:
        """As Kind says."""
        return replace(limit, kind=replace(self, max_wait=wait))

    def with_turn(self, limit: Limit, end: int) -> Limit:
        """As Kind says."""
        return replace(limit, kind=replace(self, last_end=end))

    def numbers(self, limit: Limit, algorithm: Algorithm, interval: int) -> tuple[int, ...]:
        """Its own."""
        return self.max_delay, self.max_wait, self.last_end

    def why_refused(self, limit: Limit, over: str) -> tuple[str, str]:
        """`its turn would come in more than 200 ms, over 5 per second`."""
        return "queue", f"its turn would come in more than {delay_in_words(self.max_delay)}, {over}"

    def words(self, limit: Limit, holder: str) -> Mapping[str, str]:
        """`up to 200 ms later, in a queue`."""
        return {"burst": f"up to {delay_in_words(self.max_delay)} later, in a queue"}

    def options(self, limit: Limit, holder: str) -> Mapping[str, Any]:
        """Its own."""
        return {"queue": self.max_delay}


def hit(state: bytes | None, limit: Limit, cost: int, now: int) -> tuple[bytes | None, Decision]:
    """Take the next free part of the outflow, which is `cost` long."""
    rate, window, queue = limit.requests, limit.window, limit.kind
    assert isinstance(queue, Queue), "it has a queue"
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

    deepest = (queue.max_delay + 2 * window) * rate
    if missing > deepest:
        # No charge takes a part so late, even with a clock a window ahead: the clock or the limit has changed.
        missing = deepest
        wait = deepest // rate
        state = STATE.pack(now + wait, 0)
    if cost < 0 and queue.last_end not in {0, now + wait}:
        return state, Decision(False, _left(limit, missing), 0, wait, 0)
    if cost > rate or (cost >= 0 and wait > queue.max_wait):
        retry = NEVER if cost > rate else wait - queue.max_wait
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


def owe(state: bytes | None, limit: Limit, cost: int, now: int) -> bytes | None:
    """As algorithm.py says: parts of the outflow; beyond the longest delay a window at most. Nothing waits for them."""
    return owed(state, limit, cost, (limit.kind.max_delay + limit.window) * limit.requests, now)


def _left(limit: Limit, missing: int) -> int:
    """The number of hits of cost 1 that could still have a place."""
    room = limit.kind.max_wait * limit.requests - missing
    return room // limit.window + 1 if room >= 0 else 0
