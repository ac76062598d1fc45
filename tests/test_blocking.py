"""Rules whose denials block: what requests are answered, and what is charged and counted."""

import pytest

from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.model import Blocked, Descriptor, Limit, Request, Unit
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis.policy import Policy
from ratelimit_service.system.clock import MINUTE, SECOND
from tests.books import book
from tests.clocks import Clock
from tests.shop import Shop, summary

RULES = """
    domain: shop
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 2, block_for: 5 minutes}
      - key: soft
        rate_limit: {unit: minute, requests_per_unit: 2, exceed: 2, block_for: 5 minutes}
      - key: watched
        shadow_mode: true
        rate_limit: {unit: minute, requests_per_unit: 1, block_for: 5 minutes}
      - key: quota
        quota_mode: true
        rate_limit: {unit: minute, requests_per_unit: 1, block_for: 5 minutes}
      - key: other_quota
        quota_mode: true
        rate_limit: {unit: hour, requests_per_unit: 9}
      - key: list
        rate_limits:
          - {unit: second, requests_per_unit: 1, block_for: 5 minutes}
          - {unit: hour, requests_per_unit: 9}
      - key: together
        charge: together
        rate_limit: {unit: hour, requests_per_unit: 9}
      - key: strict
        charge: together
        rate_limit: {unit: second, requests_per_unit: 1, block_for: 5 minutes, algorithm: token_bucket}
    """


def test_a_blocked_request_is_refused_after_its_window_and_counted_as_over_its_limit() -> None:
    tested = Shop(RULES, MINUTE)
    tested.ask("user", cost=3)
    tested.clock.advance(4 * MINUTE)

    verdict = tested.ask("user", cost=2)

    assert (verdict.allowed, summary(verdict)) == (False, [(True, 0)])
    counts = {"total_hits": 5, "over_limit": 3, "blocked": 3, "denied_below_limit": 2, "near_limit": 1}
    assert tested.counts("user") == counts
    tested.clock.advance(MINUTE)
    assert tested.ask("user").allowed


def test_a_soft_limit_blocks_only_above_what_may_exceed_it() -> None:
    tested = Shop(RULES, MINUTE)

    verdicts = [tested.ask("soft", cost=2) for _ in range(3)]

    assert [summary(verdict) for verdict in verdicts] == [[(False, 0)], [(False, 0)], [(True, 0)]]
    assert [isinstance(verdict.hits[0].decision, Blocked) for verdict in verdicts if verdict.hits[0]] == [
        False,
        False,
        True,
    ]


def test_the_block_of_a_shadow_rule_refuses_nothing_and_counts_what_it_would_have() -> None:
    tested = Shop(RULES, MINUTE)
    tested.ask("watched", cost=2)
    tested.clock.advance(2 * MINUTE)

    verdict = tested.ask("watched")

    assert (verdict.allowed, summary(verdict)) == (True, [(False, 0)])
    assert tested.counts("watched")["shadow_mode"] == 2


def test_a_blocked_quota_is_used_up() -> None:
    tested = Shop(RULES, MINUTE)
    tested.ask("quota", cost=2)
    tested.clock.advance(2 * MINUTE)

    assert tested.ask("quota", "other_quota").allowed
    assert not tested.ask("quota").allowed


def test_one_blocked_limit_of_a_list_denies_and_the_others_are_spared() -> None:
    tested = Shop(RULES, MINUTE)
    tested.ask("list", cost=2)
    tested.clock.advance(SECOND)

    verdict = tested.ask("list")

    (hit,) = verdict.hits
    assert hit is not None
    assert (verdict.allowed, hit.limit.unit, hit.decision.retry_after) == (False, Unit.SECOND, 299 * SECOND)
    assert tested.counts("list", "per_hour") == {"total_hits": 3, "spared": 3}


def test_together_a_blocked_limit_spares_the_others_until_the_block_ends() -> None:
    tested = Shop(RULES, MINUTE)
    refused = tested.ask("together", "strict", cost=2)
    tested.clock.advance(5 * MINUTE - 1)
    blocked = tested.ask("together", "strict")
    tested.clock.advance(1)
    allowed = tested.ask("together", "strict")

    assert [summary(verdict)[0] for verdict in (refused, blocked, allowed)] == [(False, 9), (False, 9), (False, 8)]
    assert [verdict.allowed for verdict in (refused, blocked, allowed)] == [False, False, True]


def test_a_limit_that_comes_with_a_request_has_no_block() -> None:
    tested = Shop(RULES, MINUTE)
    tested.ask("user", cost=3)

    assert tested.ask("user", override=Limit(9, Unit.MINUTE, MINUTE)).allowed


@pytest.mark.parametrize("instances", [1, 2])
def test_without_redis_the_policy_local_blocks_too(instances: int) -> None:
    clock = Clock(MINUTE)
    policy = Policy("local", instances, 1000, clock)
    tested = Limiter(MemoryStore(1000, clock))
    tested.book = book(RULES)
    plan = tested.plan(Request("shop", [Descriptor((("user", "x"),), 3)]))

    assert policy.answer(plan.charged, "gone") is None
    clock.advance(4 * MINUTE)
    plan = tested.plan(Request("shop", [Descriptor((("user", "x"),), 1)]))
    assert policy.answer(plan.charged, "gone") is None

    decision = plan.charged[0].decision
    assert isinstance(decision, Blocked)
    assert (decision.allowed, decision.remaining, decision.blocked_for) == (False, 0, MINUTE)
