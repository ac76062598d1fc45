"""Rules that deny always, and rules that never do: what is answered, charged and counted."""

from collections.abc import Sequence
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.errors import RpcError, StoreError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.plan import denial
from ratelimit_service.model import NEVER, Decision
from ratelimit_service.rules.response import ResponseOptions
from ratelimit_service.server.admin.envoyproxy_pages import rules_text
from ratelimit_service.server.admin.status import RulesNow
from ratelimit_service.server.series import _shown
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.store import Done
from ratelimit_service.system.clock import SECOND
from tests.books import book
from tests.clocks import Clock
from tests.shop import Shop, entries_of, summary

RULES = """
    domain: shop
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 10, name: user}
      - key: user
        value: mallory
        rate_limit: {deny: true, name: banned}
      - key: user
        value: staff
        rate_limit: {allow: true}
      - key: ip
        rate_limit: {unit: minute, requests_per_unit: 5, name: ip}
      - key: watched
        shadow_mode: true
        rate_limit: {deny: true}
        metadata: {seen: watched}
      - key: quota
        quota_mode: true
        rate_limit: {unit: minute, requests_per_unit: 1}
      - key: no_quota
        quota_mode: true
        rate_limit: {deny: true}
      - key: maintenance
        rate_limit: {deny: true, replaces: [{name: user}]}
      - key: pardon
        rate_limit: {unit: minute, requests_per_unit: 5, replaces: [{name: banned}]}
      - key: exempt
        rate_limit: {allow: true, replaces: [{name: banned}, {name: user}, {name: ip}]}
    """

TOGETHER = """
    domain: shop
    charge: together
    descriptors:
      - key: user
        rate_limit: {deny: true, name: banned}
      - key: ip
        rate_limit: {unit: minute, requests_per_unit: 5}
      - key: list
        rate_limits:
          - {unit: second, requests_per_unit: 5}
          - {unit: minute, requests_per_unit: 9}
      - key: each
        charge: each
        rate_limit: {unit: minute, requests_per_unit: 5}
      - key: watched
        shadow_mode: true
        rate_limit: {deny: true}
      - key: quota
        quota_mode: true
        rate_limit: {deny: true}
      - key: pardon
        rate_limit: {unit: minute, requests_per_unit: 5, replaces: [{name: banned}]}
    """


def test_a_deny_rule_denies_without_a_counter() -> None:
    tested = Shop(RULES)

    verdict = tested.ask("user=mallory", cost=3)

    assert not verdict.allowed
    assert [hit and hit.decision for hit in verdict.hits] == [Decision(False, 0, 3, 0, NEVER)]
    assert tested.store.counters == 0
    assert tested.counts("user_mallory") == {"total_hits": 3, "over_limit": 3}


def test_an_allow_rule_allows_without_a_counter() -> None:
    tested = Shop(RULES)

    verdict = tested.ask("user=staff")

    assert (verdict.allowed, summary(verdict)) == (True, [(False, 4294967295)])
    assert tested.store.counters == 0
    assert tested.counts("user_staff") == {"unlimited": 1}


def test_an_allow_rule_decides_for_its_own_descriptor_alone() -> None:
    tested = Shop(RULES)

    verdict = tested.ask("user=staff", "ip", cost=6)

    assert (verdict.allowed, summary(verdict)) == (False, [(False, 4294967295), (True, 0)])


def test_an_allow_rule_that_replaces_the_others_exempts_the_whole_request() -> None:
    assert Shop(RULES).ask("user=mallory", "ip", "exempt", cost=6).allowed


def test_a_look_at_a_deny_rule_is_denied_and_counts_nothing() -> None:
    tested = Shop(RULES)

    verdict = tested.ask("user=mallory", cost=0)

    assert (verdict.allowed, summary(verdict)) == (False, [(True, 0)])
    assert tested.counts("user_mallory") == {}


def test_a_refund_to_a_deny_rule_is_allowed_and_gives_nothing_back() -> None:
    tested = Shop(RULES)

    verdict = tested.ask("user=mallory", cost=-2)

    assert (verdict.allowed, summary(verdict)) == (True, [(False, 0)])
    assert tested.counts("user_mallory") == {"total_negative_hits": 2}


def test_the_other_descriptors_of_a_denied_request_are_charged_as_in_envoy() -> None:
    tested = Shop(RULES)

    verdict = tested.ask("ip", "user=mallory")

    assert (verdict.allowed, summary(verdict)) == (False, [(False, 4), (True, 0)])
    assert tested.counts("ip") == {"total_hits": 1, "within_limit": 1}


def test_a_deny_rule_in_shadow_mode_refuses_nothing_and_counts_what_it_would_have() -> None:
    tested = Shop(RULES)

    verdict = tested.ask("watched", "ip")

    assert (verdict.allowed, summary(verdict)) == (True, [(False, 0), (False, 4)])
    assert tested.counts("watched") == {"total_hits": 1, "over_limit": 1, "shadow_mode": 1}
    assert tested.limiter.domains.of("shop").shadow == 1


def test_a_deny_rule_in_quota_mode_is_a_quota_that_is_used_up() -> None:
    tested = Shop(RULES)

    assert tested.ask("quota", "no_quota").allowed
    assert not tested.ask("no_quota").allowed
    assert not tested.ask("quota", "no_quota").allowed  # now both are used up


def test_in_global_shadow_mode_a_deny_rule_is_reported_and_refuses_nothing() -> None:
    tested = Shop(RULES, shadow_mode=True)

    verdict = tested.ask("user=mallory")

    assert (verdict.allowed, summary(verdict)) == (True, [(True, 0)])
    assert tested.limiter.totals.global_shadow_mode == 1


def test_a_deny_rule_replaces_and_is_replaced() -> None:
    tested = Shop(RULES)

    replaces = tested.ask("user=ada", "maintenance")
    replaced = tested.ask("user=mallory", "pardon")

    assert (replaces.allowed, summary(replaces)) == (False, [None, (True, 0)])
    assert (replaced.allowed, summary(replaced)) == (True, [None, (False, 4)])
    assert tested.counts("user_mallory") == {"replaced": 1}


def test_a_denied_request_is_counted_as_refused() -> None:
    tested = Shop(RULES)

    tested.ask("user=mallory")

    assert tested.limiter.domains.of("shop").refused == 1


def test_a_deny_rule_is_the_tightest() -> None:
    verdict = Shop(RULES).ask("user=mallory", "ip")

    assert verdict.tightest() is verdict.hits[0]


def test_together_a_deny_rule_spares_all_others() -> None:
    tested = Shop(TOGETHER)

    verdicts = [tested.ask("user", "ip", "list", "each", cost=2) for _ in range(2)]

    assert [summary(verdict) for verdict in verdicts] == [
        [(True, 0), (False, 5), (False, 5), (False, 3)],
        [(True, 0), (False, 5), (False, 5), (False, 1)],
    ]
    assert [hit and hit.spared for hit in verdicts[0].hits] == [False, True, True, False]
    assert not verdicts[0].allowed
    assert tested.counts("ip") == {"total_hits": 4, "spared": 4}
    assert tested.store.counters == 1


@pytest.mark.parametrize("other", ["watched", "quota"])
def test_together_a_deny_rule_that_refuses_nothing_by_itself_spares_nothing(other: str) -> None:
    assert summary(Shop(TOGETHER).ask(other, "ip"))[1] == (False, 4)


def test_together_a_deny_rule_that_is_replaced_spares_nothing() -> None:
    assert summary(Shop(TOGETHER).ask("user", "ip", "pardon")) == [None, (False, 4), (False, 4)]


def test_together_a_refund_to_a_deny_rule_spares_nothing() -> None:
    tested = Shop(TOGETHER)
    tested.ask("ip", cost=3)

    assert summary(tested.ask("user", "ip", cost=-2)) == [(False, 0), (False, 4)]


class BrokenStore(MemoryStore):
    """A store that is away."""

    charge = None  # type: ignore[assignment]  # it takes its time

    def hit(self, hits: Sequence[Hit], done: Done, timeout: int | None = None) -> None:
        done(StoreError("the store is away"))


def broken(**options: Any) -> Shop:
    tested = Shop(RULES, **options)
    rules = tested.limiter.book
    tested.limiter = Limiter(BrokenStore(10, Clock()), **options)
    tested.limiter.book = rules
    return tested


def test_a_deny_rule_refuses_although_the_store_fails() -> None:
    tested = broken()

    verdict = tested.ask("ip", "user=mallory")

    assert (verdict.allowed, summary(verdict)) == (False, [(False, 0), (True, 0)])
    assert tested.counts("user_mallory") == {"total_hits": 1, "over_limit": 1}
    assert tested.counts("ip") == {"error_failed": 1}
    assert tested.limiter.domains.of("shop").policy_refused == 1
    assert tested.limiter.totals.store_errors == 0


@pytest.mark.parametrize("other", ["watched", "no_quota"])
def test_a_deny_rule_that_refuses_nothing_by_itself_does_not_hide_that_the_store_fails(other: str) -> None:
    with pytest.raises(RpcError, match="the store is away"):
        broken().ask("ip", other)


def test_in_global_shadow_mode_a_deny_rule_does_not_hide_that_the_store_fails() -> None:
    with pytest.raises(RpcError, match="the store is away"):
        broken(shadow_mode=True).ask("ip", "user=mallory")


def answer(rules: str, *entries: str, encoder: ResponseEncoder) -> RateLimitResponse:
    """The response to a request that comes for the third time, so that its plan is cached."""
    tested = Shop(rules)
    method = ShouldRateLimit(tested.limiter, encoder)
    request = RateLimitRequest(domain="shop")
    for ((key, value),) in map(entries_of, entries):
        request.descriptors.add().entries.add(key=key, value=value)
    replies: list[Any] = []
    for _ in range(3):
        method.call(request.SerializeToString(), replies.append)
    return RateLimitResponse.FromString(replies[-1])


def test_the_status_of_a_deny_rule_has_a_limit_of_0_and_no_time_to_come_back() -> None:
    with_headers = RULES.replace("domain: shop", "domain: shop\n    headers: [ratelimit]")

    response = answer(with_headers, "user=mallory", "ip", encoder=ResponseEncoder())

    denied = RateLimitResponse.DescriptorStatus(
        code=RateLimitResponse.OVER_LIMIT, current_limit=RateLimitResponse.RateLimit(name="banned")
    )
    assert response.overall_code == RateLimitResponse.OVER_LIMIT
    assert response.statuses[0] == denied
    assert [(header.key, header.value) for header in response.response_headers_to_add] == [
        ("RateLimit-Limit", "0"),
        ("RateLimit-Remaining", "0"),
    ]


def test_a_shadow_deny_rule_is_ok_and_sends_its_metadata() -> None:
    response = answer(RULES, "watched", encoder=ResponseEncoder(dynamic_metadata=True))

    assert response.overall_code == RateLimitResponse.OK
    assert response.statuses[0].code == RateLimitResponse.OK
    assert not response.statuses[0].HasField("duration_until_reset")
    assert MessageToDict(response.dynamic_metadata)["metadata"] == {"seen": "watched"}


def test_a_denial_may_have_a_time_to_come_back() -> None:
    tested = Shop(RULES)
    verdict = tested.ask("user=mallory")
    (hit,) = verdict.hits
    assert hit is not None
    hit.decision = denial(1, 90 * SECOND - 1)

    verdict.response = ResponseOptions(("ratelimit",), retry_after=True)
    response = RateLimitResponse.FromString(ResponseEncoder().encode(verdict, b""))

    assert response.statuses[0].duration_until_reset.seconds == 90
    assert [header.value for header in response.response_headers_to_add] == ["0", "0", "90", "90"]


def test_pages_and_metrics_say_that_a_rule_denies_always() -> None:
    rules = book("domain: shop\ndescriptors: [{key: user, value: mallory, rate_limit: {deny: true}}]").rules

    assert RulesNow(rules).described(rules[0])["limit"] == "always denied"
    assert "".join(rules_text(rules)) == (
        "shop.user_mallory: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false, deny: true\n"
    )
    assert _shown(rules[0]) == {"total_hits", "over_limit"}
