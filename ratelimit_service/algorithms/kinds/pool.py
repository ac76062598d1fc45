"""Elastic limits: a member may exceed its limit on loan, out of what the other members of its pool leave idle.

What is within the limit is admitted *by right*; what is above it, up to the ceiling (the limit and `exceed`), *on
loan*, if the pool has room beyond its reserve. Everything admitted is charged to both counters, or to neither.

A right that finds the pool lent out is admitted all the same, and leaves the pool in debt. Nothing is lent until time
has paid the debt: so rights take back what was lent, without a message and without a list of loans. With `strict` a
right waits for the pool as well, and the pool's burst is never exceeded by it.

The pool is a token bucket. A debt is at most one window's requests, so its counter is a bucket that is so much larger:
of what that has room for, the last `pool.requests` are debt. A refund gives back to the pool what it gives back to the
member's own counter, and no more. The Lua twin is `pool.lua`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ratelimit_service.algorithms import token_bucket
from ratelimit_service.model import NEVER, PLAIN, Algorithm, Charge, Decision, Kind, Limit, State


@dataclass(frozen=True, slots=True)
class Pool:
    """A rate that several limits of a domain share: what some leave idle, others may borrow."""

    name: str
    requests: int
    """Per window; the limits of the pool have the same one."""
    burst: int
    """What it admits at once after a pause."""
    reserve: int
    """The part of the burst that loans leave free."""


@dataclass(frozen=True, slots=True)
class Elastic(Kind):
    """The limit may be exceeded by `exceed` on loan, as far as its pool has room. `member` makes it."""

    pool: Pool
    right: Limit
    """The limit without loans."""
    counter: Limit
    """The counter of the pool: a bucket that holds the burst, and a window's requests of debt."""
    strict: bool
    """What the limit allows without a loan waits for the pool too."""

    twin = "pool"
    composite = has_second = True
    in_runs = False
    why_not_leased = "elastic: what is allowed is charged to its pool too"
    only_counted_so = "an elastic limit is counted by sub_windows"
    tallied = ("elastic",)
    outcomes = MappingProxyType(
        {
            "by_right": ("within_limit",),
            "on_loan": ("exceeded",),
            "refused": ("over_limit", "denied_below_limit"),
        }
    )
    outcomes_help = "Cost of hits on an elastic limit: by_right within it, on_loan above it, or refused."
    gauges = ("on_loan",)
    tells_excess = False
    ceiling_is_policy = True

    @property
    def common(self) -> str:
        """The pool."""
        return self.pool.name

    @property
    def common_limit(self) -> Limit:
        """The limit of the pool."""
        return self.counter

    def hit(
        self, charge: Charge, state: State | None, second: State | None, limit: Limit, cost: int, now: int
    ) -> tuple[State | None, State | None, Decision]:
        """Charge `cost` to the counter and to the pool, or to neither: the new states, and the decision.

        Its `remaining` is what is left up to the ceiling, whatever the pool has: of `exceed` a caller subtracts the
        loans.
        """
        pool, exceed = second, limit.exceed
        after, own = charge(state, limit, cost, now)
        room = own.remaining
        if cost < 0:
            given = room - charge(state, limit, 0, now)[1].remaining
            pool, _ = token_bucket.hit(pool, self.counter, -given, now)
        elif own.allowed:
            room += cost
        left_in_pool = self.free(pool, now)
        if self.strict:  # what the pool lacks, the right lacks
            room = min(room, exceed + max(0, left_in_pool))
        if cost <= 0:
            own.remaining = room
            return after, pool, own

        by_right = cost <= room - exceed
        if by_right or (own.allowed and cost <= left_in_pool - self.pool.reserve):
            pool, _ = token_bucket.hit(pool, self.counter, min(cost, left_in_pool + self.pool.requests), now)
            if self.strict:
                own.remaining = min(own.remaining, exceed + left_in_pool - cost)
            return after, pool, own

        by_right_after = charge(state, self.right, cost, now)[1].retry_after
        if self.strict:
            by_right_after = _both(by_right_after, self._room_after(pool, cost, now))
        on_loan_after = _both(own.retry_after, self._room_after(pool, cost + self.pool.reserve, now))
        over = min(cost, max(0, cost + exceed - room))
        reset = charge(state, limit, 0, now)[1].reset_after
        return state, pool, Decision(False, room, over, reset, _either(by_right_after, on_loan_after))

    def owe(
        self, algorithm: Algorithm, state: State | None, second: State | None, limit: Limit, cost: int, now: int
    ) -> tuple[State | None, State | None, Decision]:
        """As Kind says; the pool owes a window's requests at most."""
        if cost:
            left = max(0, self.free(second, now) + self.pool.requests)
            second, _ = token_bucket.hit(second, self.counter, min(cost, left), now)
        return Kind.owe(self, algorithm, state, second, limit, cost, now)

    def free(self, pool: State | None, now: int) -> int:
        """The units that the pool has room for, without a debt; below 0 in debt."""
        return token_bucket.hit(pool, self.counter, 0, now)[1].remaining - self.pool.requests

    def numbers(self, limit: Limit, algorithm: Algorithm, interval: int) -> tuple[int, ...]:
        """Whether it is strict, and its pool."""
        return int(self.strict), self.pool.requests, self.pool.burst, self.pool.reserve

    def share(self, limit: Limit, part: Callable[[int], int], whole: Callable[[int], int]) -> "Elastic":
        """The kind for the same share of the pool."""
        pool = self.pool
        # Rounded up the reserve might be all of the burst.
        of_pool = replace(pool, requests=part(pool.requests), burst=part(pool.burst), reserve=whole(pool.reserve))
        return elastic(limit, of_pool, strict=self.strict)

    def noted(self, limit: Limit, decision: Decision) -> int:
        """The units that the counter has on loan."""
        return max(0, limit.exceed - decision.remaining)

    def words(self, limit: Limit, holder: str) -> Mapping[str, str]:
        """`strict, up to 1,000 on loan from pool checkout of 1,000 per second with burst 100 and reserve 50`."""
        pool = self.pool
        has = f"pool {pool.name} of {pool.requests:,} per {limit.window_in_words} with burst {pool.burst:,}"
        reserve = f" and reserve {pool.reserve:,}" if pool.reserve else ""
        strict = "strict, " if self.strict else ""
        return {"exceed": f"{strict}up to {limit.ceiling:,} on loan from {has}{reserve}"}

    def described(self, limit: Limit, second_key: str) -> Mapping[str, Any]:
        """The words for how much it may borrow, and from which pool."""
        pool = self.pool
        of_pool = {
            "name": pool.name,
            "requests_per_unit": pool.requests,
            "burst": pool.burst,
            "reserve": pool.reserve,
            "counter": second_key,
        }
        return {"elastic": {"ceiling": limit.ceiling, "strict": self.strict, "pool": of_pool}}

    def look(self, limit: Limit, remaining: int, second_remaining: int) -> Mapping[str, Any]:
        """The loans, and what is left in the pool; below 0: a debt, for which its counter has a window's requests."""
        left = second_remaining - self.pool.requests
        return {"on_loan": max(0, limit.exceed - remaining), "pool_left": left}

    def options(self, limit: Limit, holder: str) -> Mapping[str, Any]:
        """Its own."""
        return {"elastic": {"pool": self.pool.name, "ceiling": limit.ceiling, "strict": self.strict}}

    def _room_after(self, pool: State | None, units: int, now: int) -> int:
        """The time until the pool has so many units."""
        return token_bucket.hit(pool, self.counter, units + self.pool.requests, now)[1].retry_after


def member(limit: Limit, pool: Pool, *, strict: bool) -> Limit:
    """The limit as a member of the pool; its `exceed` is what it may borrow."""
    return replace(limit, kind=elastic(limit, pool, strict=strict))


def elastic(limit: Limit, pool: Pool, *, strict: bool) -> Elastic:
    """The part of a limit that says how it borrows from the pool."""
    return Elastic(pool, replace(limit, exceed=0, kind=PLAIN), counter(pool, limit), strict)


def counter(pool: Pool, limit: Limit) -> Limit:
    """The limit by which a token bucket counts for the pool; its window is that of this limit."""
    return Limit(pool.requests, limit.unit, limit.window, burst=pool.burst + pool.requests, count_refused=False)


def _both(one: int, two: int) -> int:
    return NEVER if NEVER in (one, two) else max(one, two)


def _either(one: int, two: int) -> int:
    return max(one, two) if NEVER in (one, two) else min(one, two)
