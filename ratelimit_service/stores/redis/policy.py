"""What is answered when the store cannot: by the rule's policy, or else by the service's.

`error` says so to the caller, `open` allows what an untouched counter does, `closed` denies, and `local` counts in this
process with this instance's share of the limit: all instances together let through at most the limit, and less than one
more for each of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ratelimit_service.errors import StoreError
from ratelimit_service.model import ByPolicy, Decision, Limit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.memory import MOST_BYTES, MemoryStore
from ratelimit_service.system.clock import SECOND, Clock, system_clock

_TRY_AGAIN: Final = SECOND
"""When a caller denied for want of a store may come again: nobody knows, and an outage often is short."""

_MOST_SHARES: Final = 10_000
"""Rules whose share is remembered; limits that come with requests make new ones all the time."""


class Policy:
    """Answers hits without the store."""

    def __init__(
        self,
        name: str,
        instances: int,
        most_counters: int,
        clock: Clock = system_clock,
        *,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.name = name
        self._instances = instances
        self._local = MemoryStore(most_counters, clock, most_bytes=most_bytes)
        self._clock = clock
        self._shares: dict[Rule, Rule] = {}

    def answer(self, hits: Sequence[Hit], why: str) -> StoreError | None:
        """Write a decision and the policy on each hit; or return the error that the request ends with."""
        error: StoreError | None = None
        local: list[Hit] = []
        for hit in hits:
            policy = self._of(hit.rule)
            hit.by_policy = ByPolicy(policy, why)
            match policy:
                case "open":
                    # So a limit of 0, which blocks, goes on blocking.
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
            self._count(local)
        return error

    def sweep(self) -> None:
        """Forget what has expired."""
        self._local.sweep()

    def _of(self, rule: Rule) -> str:
        return rule.on_store_failure or self.name

    def _count(self, hits: Sequence[Hit]) -> None:
        shares = [
            Hit(self._share(hit), hit.key, hit.cost, tally=hit.tally, quota=hit.quota, together=hit.together)
            for hit in hits
        ]
        self._local.hit(shares, _nothing)
        for hit, share in zip(hits, shares, strict=True):
            hit.decision = share.decision
            # What may exceed the limit is promised to nobody, and `Hit.remaining` takes off the whole of it.
            hit.decision.remaining += hit.limit.exceed - share.limit.exceed

    def _share(self, hit: Hit) -> Rule:
        """The hit's rule with this instance's share of its limit."""
        share = self._shares.get(hit.rule)
        if share is None:
            if len(self._shares) >= _MOST_SHARES:
                self._shares.clear()
            share = self._shares[hit.rule] = replace(hit.rule, limit=share_of(hit.limit, self._instances))
        return share


def share_of(limit: Limit, instances: int) -> Limit:
    """One instance's part of a limit, rounded up: with less, a limit of 1 would let nothing through anywhere.

    Rounded once: the limit, and what may exceed it, are together less than one more than their share.
    """
    most = limit.burst or limit.requests
    return replace(
        limit,
        requests=_part(limit.requests, instances),
        burst=_part(limit.burst, instances),
        exceed=_part(most + limit.exceed, instances) - _part(most, instances),
    )


def _part(number: int, instances: int) -> int:
    return -(-number // instances)


def _nothing(_: StoreError | None) -> None:
    """The memory store answers at once."""
