"""Costs that are known at the end: a last entry says so, and they are charged in full."""

import pytest

from ratelimit_service.errors import RpcError, RulesError, Status
from ratelimit_service.model import Descriptor, Limit, Request, Unit
from ratelimit_service.rules.reasons import explain
from ratelimit_service.rules.regions import RegionOptions
from ratelimit_service.system.clock import MINUTE, SECOND
from tests.books import book
from tests.shop import Shop, counted, summary

RULES = """\
domain: shop
settle: settled
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1000, algorithm: token_bucket}
    descriptors:
      - key: model
        rate_limit: {unit: minute, requests_per_unit: 10}
  - key: settled
    rate_limit: {unit: minute, requests_per_unit: 5}
  - key: list
    rate_limits:
      - {unit: minute, requests_per_unit: 100, algorithm: token_bucket}
      - {unit: hour, requests_per_unit: 5000, algorithm: sub_windows}
  - key: together
    charge: together
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: call
    rate_limits:
      - {unit: minute, requests_per_unit: 100}
      - {concurrency: 1, hold: 1m, place: call}
  - key: blocked
    rate_limit: {unit: minute, requests_per_unit: 10, algorithm: token_bucket, block_for: 10 minutes}
  - key: watched
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: quota
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: queue
    rate_limit: {unit: second, requests_per_unit: 10, algorithm: leaky_bucket, queue: {max_delay: 1s}}
  - key: never
    rate_limit: {deny: true}
  - key: free
    rate_limit: {unlimited: true}
  - key: big
    rate_limit: {unit: minute, requests_per_unit: 10, replaces: [{name: small}]}
  - key: small
    rate_limit: {unit: minute, requests_per_unit: 10, name: small}
"""


def left(shop: Shop, *descriptors: str) -> list[tuple[bool, int] | None]:
    return summary(shop.ask(*descriptors, cost=0))


def test_a_descriptor_that_ends_with_the_key_is_charged_in_full_to_the_counter_without_it() -> None:
    shop = Shop(RULES)

    assert summary(shop.ask("user=ada settled", cost=900)) == [(False, 100)]
    assert summary(shop.ask("user=ada settled=yes", cost=800)) == [(True, 0)]
    assert left(shop, "user=ada") == [(True, 0)]
    assert left(shop, "user=bob") == [(False, 1000)]
    shop.clock.advance(42 * MINUTE // 60)
    assert left(shop, "user=ada") == [(False, 0)]
    assert shop.counts("user") == {"settled": 1700, "overrun": 700, "looks": 2}


def test_without_the_option_the_entry_is_one_as_any_other() -> None:
    shop = Shop(RULES.replace("settle: settled\n", ""))

    assert summary(shop.ask("user=ada settled", cost=900)) == [None]
    assert summary(shop.ask("settled", cost=5)) == [(False, 0)]


def test_in_the_middle_the_key_marks_nothing() -> None:
    shop = Shop(RULES)

    assert summary(shop.ask("user=ada settled model=x", cost=900)) == [None]
    assert summary(shop.ask("user=ada model=x settled", cost=900)) == [(True, 0)]
    assert left(shop, "user=ada", "user=ada model=x") == [(False, 1000), (True, 0)]


def test_the_entry_alone_settles_nothing() -> None:
    assert summary(Shop(RULES).ask("settled", cost=5)) == [None]


def test_a_settle_of_nothing_is_a_look() -> None:
    shop = Shop(RULES)

    assert summary(shop.ask("user=ada settled", cost=0)) == [(False, 1000)]
    assert shop.counts("user") == {}
    assert shop.store.counters == 0


def test_a_cost_below_zero_is_an_error() -> None:
    with pytest.raises(RpcError, match=r"descriptors\[1\] settles a cost below 0: -5") as caught:
        Shop(RULES).ask("user=ada", "user=ada settled", cost=-5)

    assert caught.value.status is Status.INVALID_ARGUMENT


def test_of_a_list_each_limit_is_charged_whatever_the_others_say() -> None:
    shop = Shop(RULES)

    assert summary(shop.ask("list settled", cost=4000)) == [(True, 0)]
    assert shop.counts("list", "per_hour") == {"settled": 4000}
    assert shop.counts("list", "per_minute") == {"settled": 4000, "overrun": 3900}
    shop.clock.advance(2 * MINUTE)
    assert left(shop, "list") == [(False, 100)]
    assert summary(shop.ask("list settled", cost=2000)) == [(True, 0)]


def test_a_settle_spares_no_other_limit_and_is_spared_by_none() -> None:
    shop = Shop(RULES)
    verdict = shop.ask("together=a settled", "together=b", cost=11)

    assert summary(verdict) == [(True, 0), (True, 0)]
    assert shop.counts("together") == {
        "settled": 11,
        "overrun": 1,
        "total_hits": 11,
        "over_limit": 1,
        "denied_below_limit": 10,
        "near_limit": 2,
    }
    assert summary(shop.ask("together=c settled", "together=b", cost=5)) == [(False, 5), (True, 0)]


def test_places_in_a_list_are_given_back_by_a_refund_alone() -> None:
    shop = Shop(RULES)
    shop.ask("call=1")

    assert summary(shop.ask("call=1 settled", cost=50)) == [(False, 49)]
    assert left(shop, "call=2") == [(False, 0)]
    assert summary(shop.ask("call=2")) == [(True, 0)]


def test_what_leaves_a_counter_above_its_limit_blocks_it() -> None:
    shop = Shop(RULES)

    assert summary(shop.ask("blocked settled", cost=11)) == [(True, 0)]
    shop.clock.advance(9 * MINUTE)
    assert left(shop, "blocked") == [(True, 0)]
    shop.clock.advance(1 * MINUTE)
    assert left(shop, "blocked") == [(False, 10)]


def test_in_shadow_and_quota_mode_it_is_charged_and_what_is_replaced_or_banned_is_not() -> None:
    shop = Shop(RULES)

    assert shop.ask("watched settled", cost=11).allowed
    assert left(shop, "watched") == [(False, 0)]
    assert not shop.ask("watched", cost=0).hits[0].decision.allowed  # type: ignore[union-attr]  # it has a hit
    assert summary(shop.ask("quota settled", cost=11)) == [(True, 0)]
    assert summary(shop.ask("big settled", "small settled", cost=4)) == [(False, 6), None]
    assert left(shop, "small") == [(False, 10)]
    assert shop.counts("small") == {"replaced": 4, "looks": 1}


def test_a_rule_without_a_counter_has_nothing_to_charge() -> None:
    shop = Shop(RULES)

    assert shop.ask("free settled", cost=7).allowed
    assert not shop.ask("never settled", cost=7).allowed
    assert shop.counts("free") == {"unlimited": 7}
    assert shop.counts("never") == {}


def test_a_limit_that_comes_with_the_request_is_charged_if_the_settle_has_it_too() -> None:
    shop, own = Shop(RULES), Limit(20, Unit.HOUR, 60 * MINUTE)
    shop.ask("user=ada settled", cost=30, override=own)

    assert summary(shop.ask("user=ada", cost=0, override=own)) == [(True, 0)]
    assert left(shop, "user=ada") == [(False, 1000)]


def test_a_settle_in_debt_is_no_refused_request() -> None:
    shop = Shop(RULES)
    verdict = shop.ask("user=ada settled", cost=1100)

    assert not verdict.allowed
    assert counted(shop.limiter.domains.of("shop")) == {"allowed": 1}
    assert shop.limiter.refusals.drain() == []
    shop.ask("user=ada settled", "user=ada", cost=1)
    assert counted(shop.limiter.domains.of("shop")) == {"allowed": 1, "refused": 1}


def test_shadow_mode_of_the_service_allows_a_settle_too() -> None:
    assert Shop(RULES, shadow_mode=True).ask("user=ada settled", cost=1100).allowed


def test_any_domain_may_settle() -> None:
    shop = Shop(RULES.replace("domain: shop", 'domain: "*"'))

    assert summary(shop.ask("user=ada settled", domain="mail", cost=1100)) == [(True, 0)]
    assert summary(shop.ask("user=ada", domain="mail", cost=0)) == [(True, 0)]


def test_files_of_a_domain_agree_about_the_key() -> None:
    one, two = "domain: shop\nsettle: settled\n", "domain: shop\nsettle: known\n"

    with pytest.raises(RulesError, match=r"settle of domain .shop. has another value at 1\.yaml:2:1"):
        book(one, two, merge_domains=True)
    assert book(one, "domain: shop\n", merge_domains=True).domains["shop"].settle == "settled"


def test_a_limit_that_home_grants_to_regions_cannot_be_settled() -> None:
    rules = """\
    domain: shop
    settle: settled
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 100_000, regions: leased}
    """
    regions = RegionOptions(3, may_share=True)

    with pytest.raises(RulesError, match=r"1.yaml:5:5: this limit cannot have what settle charges, at 1\.yaml:2:1"):
        book(rules, regions=regions)
    assert len(book(rules.replace("leased", "synced"), regions=regions).rules) == 1


def test_in_a_queue_a_settle_takes_of_the_outflow_and_waits_for_nothing() -> None:
    shop = Shop(RULES)

    assert summary(shop.ask("queue settled", cost=10)) == [(False, 1)]
    assert summary(shop.ask("queue settled", cost=10)) == [(True, 0)]
    shop.clock.advance(1 * SECOND)
    assert left(shop, "queue") == [(False, 1)]
    with pytest.raises(RpcError, match="a request that settles may not wait for its turn in a queue too"):
        shop.ask("queue", "user=ada settled")


def test_explain_says_that_a_descriptor_settles() -> None:
    found = explain(book(RULES), Request("shop", [Descriptor((("user", "ada"), ("settled", "1")))]))

    (explanation,) = found.descriptors
    assert [matched.rule.path for matched in explanation.matched] == [("shop", "user")]
    assert explanation.hints == (
        "The last entry, settled, settles: the cost is charged in full, also above the limit.",
    )


def test_charges_that_a_rule_drops_although_it_lets_looks_pass_are_counted() -> None:
    shop = Shop(RULES.replace("settle: settled\n", ""))

    assert [shop.ask("user=ada", cost=cost).allowed for cost in (0, 1700, 0, 1)] == [True, False, True, True]
    assert shop.counts("user")["charges_dropped"] == 1700
