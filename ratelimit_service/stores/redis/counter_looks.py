"""The contents of counters in Redis, by hits of cost 0: the scripts and the algorithms of the service answer. Pure.

A limit answers what is left of it, not by how much it is exceeded, nor when it has room again. So a counter with a rule
is looked at three times, in one step of Redis:

=======  ============================================  ====================================================
look     limit                                         tells
=======  ============================================  ====================================================
whole    the rule's                                    `remaining`, `reset_after`, `blocked_for`
smaller  the same with one less                        `retry_after`: it denies until there is room for one
endless  above any count; of a bucket the rule's       `used`
=======  ============================================  ====================================================

Without a rule it is looked at by the last one alone: how many it allowed stands nowhere in Redis. So what is used of
such a bucket is not known, because its state is the time until it is full.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

from ratelimit_service.algorithms import BUCKETS, open_algorithm
from ratelimit_service.model import NEVER, Blocked, Limit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.counter_names import Counter
from ratelimit_service.stores.used import endless, used_of
from ratelimit_service.telemetry.tally import Tally

_TALLY: Final = Tally()
"""A tally of no rule: looks are not counted."""

_NO_KEY: Final = -2
"""PTTL's reply for a key that does not exist."""


class Content(NamedTuple):
    """The content of a counter. Times are microseconds from the moment of the look."""

    used: int | None
    """None of an algorithm of a later release, of a bucket without a rule, and of what home has granted to a region."""
    remaining: int | None
    """What a request would be answered; None without a rule."""
    reset_after: int
    """Until nothing is used any more: its window ends, or its bucket is as at the start."""
    retry_after: int | None
    """Until a hit of cost 1 is allowed: 0 if it is now, `NEVER` if it cannot be; None if it is not known."""
    expires_after: int | None
    """Until Redis removes the key; None if it never does."""
    blocked_for: int = 0
    """Until its block ends; 0 without one."""
    exists: bool = True
    """It has a key: something was charged to it."""

    @property
    def fullness(self) -> float:
        """The used part of the limit, 0 to 1; -1 if it is not known."""
        if self.blocked_for:
            return 1.0
        if self.used is None or self.remaining is None:
            return -1.0
        total = self.used + self.remaining
        return self.used / total if total else 1.0


def looks_at(counter: Counter, key: str) -> Sequence[Hit]:
    """The hits of cost 0 on the counter with this key."""
    rule = counter.rule
    if rule is None:
        rule = _rule_for(counter.algorithm, counter.limit)
        limits: tuple[Limit, ...] = (rule.limit or counter.limit,)
    else:
        limits = _limits(counter.limit, counter.algorithm, _debt_of(counter))
    hits = []
    for limit in limits:
        hit = Hit(rule, key, 0, tally=_TALLY, quota=False)
        hit.limit = limit
        hits.append(hit)
    return hits


def content_of(counter: Counter, looks: Sequence[Hit], milliseconds: int) -> Content:
    """The content of the counter, by these looks, when they are decided, and by the reply to PTTL."""
    exists = milliseconds != _NO_KEY
    expires = milliseconds * 1000 if milliseconds >= 0 else None
    if not counter.algorithm:
        return Content(None, None, 0, None, expires, exists=exists)
    last = looks[-1].decision
    used: int | None = used_of(looks[-1].limit, counter.algorithm, last)
    if counter.rule is None:
        used = None if counter.algorithm in BUCKETS else used
        return Content(used, None, last.reset_after, None, expires, exists=exists)
    whole, smaller = looks[0].decision, looks[1].decision
    if counter.limit.kind.waits_for_home:
        used = None  # its state has what is left of the lease
    blocked = whole.blocked_for if isinstance(whole, Blocked) else 0
    retry = None  # where others charge a second counter too, that depends on it
    if not counter.limit.kind.common:
        retry = smaller.retry_after if not smaller.allowed else 0 if whole.remaining or blocked else None
    if blocked and retry is not None and retry != NEVER:
        retry = max(blocked, retry)
    remaining = max(0, whole.remaining - counter.limit.exceed - _debt_of(counter))
    reset = whole.reset_after
    if not exists:
        used, reset = 0, blocked  # a window has its end, and a bucket without a rate has nothing left, though untouched
    return Content(used, remaining, reset, retry, expires, blocked, exists)


def _debt_of(counter: Counter) -> int:
    """The most debt that a pool may have: that much more than it admits is in the limit of its counter."""
    return counter.limit.requests if counter.rule is not None and counter.rule.pool else 0


@lru_cache(1000)
def _limits(limit: Limit, algorithm: str, debt: int) -> tuple[Limit, ...]:
    """The limits by which a counter with this one is looked at; the same objects for all that have it."""
    alone = limit.alone
    smaller = replace(alone, exceed=limit.exceed - debt - 1)
    return limit, smaller, endless(alone, algorithm)


@lru_cache(1000)
def _rule_for(algorithm: str, limit: Limit) -> Rule:
    """A rule in place of one that is not there: it counts so, without an end."""
    return Rule("", (), endless(limit, algorithm), open_algorithm(algorithm or "fixed_window"))
