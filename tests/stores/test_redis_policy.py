"""Requests that are answered without Redis are counted as such, by rule, policy and outcome, and as nothing else."""

import asyncio
from collections.abc import Sequence

import pytest

from ratelimit_service.errors import RpcError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Descriptor, Request
from ratelimit_service.server.series import NUMBERS, domain_numbers
from ratelimit_service.telemetry.tally import OUTCOMES, Tally
from tests.books import book
from tests.loops import run
from tests.ports import free_port
from tests.stores.redis_stores import opened

RULES = """
    domain: shop
    descriptors:
      - key: open
        rate_limit: {unit: year, requests_per_unit: 2, on_store_failure: open}
      - key: blocked
        rate_limit: {unit: year, requests_per_unit: 0, on_store_failure: open}
      - key: closed
        rate_limit: {unit: year, requests_per_unit: 2, on_store_failure: closed}
      - key: local
        rate_limit: {unit: year, requests_per_unit: 2, on_store_failure: local}
      - key: error
        rate_limit: {unit: year, requests_per_unit: 2, on_store_failure: error}
      - key: watched
        shadow_mode: true
        rate_limit: {unit: year, requests_per_unit: 2, on_store_failure: closed}
    """


async def ask(limiter: Limiter, *keys: str, cost: int = 1) -> Verdict | RpcError:
    answer: asyncio.Future[Verdict | RpcError] = asyncio.get_running_loop().create_future()
    limiter.decide_later(
        limiter.plan(Request("shop", [Descriptor(((key, "x"),), cost) for key in keys])), answer.set_result
    )
    return await answer


def numbers(tally: Tally) -> dict[str, int]:
    """Those that are not 0."""
    return {name: getattr(tally, name) for name in NUMBERS if getattr(tally, name)}


def asked_without_redis(
    *requests: Sequence[str], cost: int = 1
) -> tuple[list[bool | None], dict[str, dict[str, int]], dict[str, int]]:
    """Whether each request was allowed, None where it failed; what was counted of each rule, and of the domain."""

    async def story() -> tuple[list[bool | None], Limiter]:
        async with opened(f"127.0.0.1:{free_port()}", wait=False) as store:
            limiter = Limiter(store)
            limiter.book = book(RULES)
            answers = [await ask(limiter, *keys, cost=cost) for keys in requests]
        return [None if isinstance(answer, RpcError) else answer.allowed for answer in answers], limiter

    answers, limiter = run(story())
    assert limiter.book is not None
    rules = {rule.path[1]: found for rule in limiter.book.rules if (found := numbers(rule.tally))}
    counted = dict(zip(OUTCOMES, domain_numbers(limiter.domains.of("shop")), strict=False))
    return answers, rules, {outcome: number for outcome, number in counted.items() if number}


@pytest.mark.parametrize(
    ("key", "allowed", "counted", "answered"),
    [
        ("open", [True, True, True], {"open_allowed": 3}, {"policy_allowed": 3}),
        ("blocked", [False, False, False], {"open_refused": 3}, {"policy_refused": 3}),
        ("closed", [False, False, False], {"closed_refused": 3}, {"policy_refused": 3}),
        ("watched", [True, True, True], {"closed_allowed": 3}, {"policy_allowed": 3}),
        (
            *("local", [True, True, False]),
            *({"local_allowed": 2, "local_refused": 1}, {"policy_allowed": 2, "policy_refused": 1}),
        ),
    ],
)
def test_an_answer_by_policy_is_in_no_other_number_of_the_rule_and_has_a_verdict(
    key: str, allowed: list[bool], counted: dict[str, int], answered: dict[str, int]
) -> None:
    assert asked_without_redis([key], [key], [key]) == (allowed, {key: counted}, answered)


def test_a_request_that_fails_is_counted_as_failed_at_the_rule_whose_policy_is_error() -> None:
    answers, rules, domain = asked_without_redis(["error", "open"])

    assert answers == [None]
    assert rules == {"error": {"error_failed": 1}}
    assert domain == {"failed": 1}


def test_each_rule_of_a_request_is_counted_by_its_own_policy() -> None:
    answers, rules, domain = asked_without_redis(["open", "local", "closed"])

    assert answers == [False]
    assert rules == {"open": {"open_allowed": 1}, "local": {"local_allowed": 1}, "closed": {"closed_refused": 1}}
    assert domain == {"policy_refused": 1}


def test_what_is_counted_is_cost() -> None:
    assert asked_without_redis(["open"], cost=2)[1] == {"open": {"open_allowed": 2}}


@pytest.mark.parametrize("cost", [0, -1])
def test_what_costs_nothing_counts_nothing(cost: int) -> None:
    answers, rules, domain = asked_without_redis(["closed"], cost=cost)

    assert answers == [True]
    assert rules == {}
    assert domain == {"policy_allowed": 1}
