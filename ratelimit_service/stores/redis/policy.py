"""The answer to a hit that the store cannot decide: by the rule's policy, or else by the service's.

`error` ends the request with an error, `open` allows what an untouched counter allows, `closed` denies, and `local`
counts in this process, with this instance's share of the limit: all instances together, of all regions that share it,
allow at most the limit, and less than one hit more for each instance.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ratelimit_service.errors import StoreError
from ratelimit_service.model import ByPolicy, Decision, Limit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.memory import MAX_BYTES, MemoryStore
from ratelimit_service.system.clock import SECOND, Clock, system_clock

_TRY_AGAIN: Final = SECOND
"""`retry_after` of a hit denied by policy. How long an outage lasts is unknown; often it is short."""

_MAX_SHARES: Final = 10_000
"""Rules whose share is cached; limits that come with requests make new rules all the time."""


class Policy:
    """Answers hits without the store. `name` is the service's policy."""

    def __init__(
        self,
        name: str,
        instances: int,
        max_counters: int,
        clock: Clock = system_clock,
        *,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.name = name
        self._instances = instances
        self._local = MemoryStore(max_counters, clock, max_bytes=max_bytes)
        self._clock = clock
        self._shares: dict[Rule, Rule] = {}

    def answer(self, hits: Sequence[Hit], why: str, *, without_home: bool = False) -> StoreError | None:
        """Write a decision and the policy on each hit; returns the error instead that the request ends with, if any.

        `without_home`: only the home Redis is missed. A limit of which each region has a floor is denied then: what the
        floor allows was allowed before.
        """
        if without_home:
            why = f"home Redis: {why}"
        error: StoreError | None = None
        local: list[Hit] = []
        for hit in hits:
            denied = without_home and hit.limit.floor is not None
            policy = "closed" if denied else self._policy_of(hit.rule)
            hit.by_policy = ByPolicy(policy, why)
            match policy:
                case "open":
                    # An untouched counter with a limit of 0, which blocks everything, still denies.
                    _, hit.decision = hit.rule.algorithm.hit(None, hit.limit, hit.cost, self._clock())
                case "closed":
                    hit.decision = (
                        Decision(False, 0, hit.cost, _TRY_AGAIN, _TRY_AGAIN)
                        if hit.cost > 0
                        else Decision(True, 0, 0, _TRY_AGAIN, 0)
                    )
                case "local":
                    local.append(hit)
                case _:
                    error = StoreError(f"no answer from the store: {why}")
        if local and error is None:
            self._count_locally(local)
        return error

    def sweep(self) -> None:
        """Evict expired counters."""
        self._local.sweep()

    def _policy_of(self, rule: Rule) -> str:
        return rule.on_store_failure or self.name

    def _count_locally(self, hits: Sequence[Hit]) -> None:
        shares = [
            Hit(self._share(hit), hit.key, hit.cost, tally=hit.tally, quota=hit.quota, together=hit.together)
            for hit in hits
        ]
        for hit, share in zip(hits, shares, strict=True):
            if hit.limit is not hit.rule.limit:  # one of its own
                share.limit = replace(share.limit, kind=hit.limit.kind, owes=hit.limit.owes)
        self._local.hit(shares, _decided)
        for hit, share in zip(hits, shares, strict=True):
            hit.decision, hit.spared = share.decision, share.spared
            # `Hit.remaining` subtracts all of the limit's `exceed`, but the share has only its part of it.
            hit.decision.remaining += hit.limit.exceed - share.limit.exceed

    def _share(self, hit: Hit) -> Rule:
        """The hit's rule with this instance's share of its limit."""
        share = self._shares.get(hit.rule)
        if share is None:
            if len(self._shares) >= _MAX_SHARES:
                self._shares.clear()
            limit = hit.rule.limit or hit.limit
            share = self._shares[hit.rule] = replace(
                hit.rule, limit=share_of(limit, self._instances * limit.sharing_regions)
            )
        return share


def share_of(limit: Limit, instances: int) -> Limit:
    """One instance's part of a limit, rounded up: rounded down, no instance would allow anything of a limit of 1.

    The sum of `requests` and `exceed` is rounded once, so that it is less than one more than the share.
    """

    def part(number: int) -> int:
        return -(-number // instances)

    share = replace(
        limit,
        requests=part(limit.requests),
        burst=part(limit.burst),
        exceed=part(limit.most) - part(limit.capacity),
    )
    return replace(share, kind=limit.kind.share(share, part, lambda number: number // instances))


def _decided(_: StoreError | None) -> None:
    """The store in memory decides at once."""
