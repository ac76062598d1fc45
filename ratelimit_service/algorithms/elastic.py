"""Elastic limits: a member may exceed its limit on loan, out of what the other members of its pool leave idle.

What is within the limit is admitted *by right*; what is above it, up to the ceiling (the limit and `exceed`), *on
loan*, if the pool has room beyond its reserve. Everything admitted is charged to both counters, or to neither.

A right that finds the pool lent out is admitted all the same, and leaves the pool in debt. Nothing is lent until time
has paid the debt: so rights take back what was lent, without a message and without a list of loans. With `strict` a
right waits for the pool as well, and the pool's burst is never exceeded by it.

The pool is a token bucket. A debt is at most one window's requests, so its counter is a bucket that is so much larger:
of what that has room for, the last `pool.requests` are debt. A refund gives back to the pool what it gives back to the
member's own counter, and no more. The Lua twin is `elastic.lua`.
"""

from dataclasses import replace

from ratelimit_service.algorithms import token_bucket
from ratelimit_service.algorithms.algorithm import Algorithm, State
from ratelimit_service.model import NEVER, Decision, Elastic, Limit, Pool


def member(limit: Limit, pool: Pool, *, strict: bool) -> Limit:
    """The limit as a member of the pool; its `exceed` is what it may borrow."""
    return replace(limit, elastic=Elastic(pool, strict, replace(limit, exceed=0, elastic=None), counter(pool, limit)))


def counter(pool: Pool, limit: Limit) -> Limit:
    """The limit by which a token bucket counts for the pool; its window is that of this limit."""
    return Limit(pool.requests, limit.unit, limit.window, burst=pool.burst + pool.requests, count_refused=False)


def free(pool: State | None, elastic: Elastic, now: int) -> int:
    """The units that the pool has room for, without a debt; below 0 in debt."""
    return token_bucket.hit(pool, elastic.counter, 0, now)[1].remaining - elastic.pool.requests


def hit(
    algorithm: Algorithm, state: State | None, pool: State | None, limit: Limit, cost: int, now: int
) -> tuple[State | None, State | None, Decision]:
    """Charge `cost` to the counter and to the pool, or to neither: the new states, and the decision.

    Its `remaining` is what is left up to the ceiling, whatever the pool has: of `exceed` a caller subtracts the loans.
    """
    elastic = limit.elastic
    assert elastic is not None, "the limit has a pool"
    exceed = limit.exceed
    after, own = algorithm.hit(state, limit, cost, now)
    room = own.remaining
    if cost < 0:
        given = room - algorithm.hit(state, limit, 0, now)[1].remaining
        pool, _ = token_bucket.hit(pool, elastic.counter, -given, now)
    elif own.allowed:
        room += cost
    left_in_pool = free(pool, elastic, now)
    if elastic.strict:  # what the pool lacks, the right lacks
        room = min(room, exceed + max(0, left_in_pool))
    if cost <= 0:
        own.remaining = room
        return after, pool, own

    by_right = cost <= room - exceed
    if by_right or (own.allowed and cost <= left_in_pool - elastic.pool.reserve):
        pool, _ = token_bucket.hit(pool, elastic.counter, min(cost, left_in_pool + elastic.pool.requests), now)
        if elastic.strict:
            own.remaining = min(own.remaining, exceed + left_in_pool - cost)
        return after, pool, own

    by_right_after = algorithm.hit(state, elastic.right, cost, now)[1].retry_after
    if elastic.strict:
        by_right_after = _both(by_right_after, _room_after(pool, elastic, cost, now))
    on_loan_after = _both(own.retry_after, _room_after(pool, elastic, cost + elastic.pool.reserve, now))
    over = min(cost, max(0, cost + exceed - room))
    reset = algorithm.hit(state, limit, 0, now)[1].reset_after
    return state, pool, Decision(False, room, over, reset, _either(by_right_after, on_loan_after))


def _room_after(pool: State | None, elastic: Elastic, units: int, now: int) -> int:
    """The time until the pool has so many units."""
    return token_bucket.hit(pool, elastic.counter, units + elastic.pool.requests, now)[1].retry_after


def _both(one: int, two: int) -> int:
    return NEVER if NEVER in (one, two) else max(one, two)


def _either(one: int, two: int) -> int:
    return max(one, two) if NEVER in (one, two) else min(one, two)
