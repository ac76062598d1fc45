"""Several limits on one descriptor, and limits that are charged together: what is charged, answered and counted."""

from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Descriptor, Limit, Request, Unit
from ratelimit_service.system.clock import MINUTE, SECOND
from tests.shop import Shop, entries_of
from tests.verdicts import check

LISTS = """
    domain: shop
    descriptors:
      - key: user
        rate_limits:
          - {unit: second, requests_per_unit: 2, name: burst}
          - {unit: minute, requests_per_unit: 3, name: sustained}
      - key: each
        charge: each
        rate_limits:
          - {unit: second, requests_per_unit: 1}
          - {unit: minute, requests_per_unit: 5}
      - key: watched
        shadow_mode: true
        rate_limits:
          - {unit: second, requests_per_unit: 1}
          - {unit: minute, requests_per_unit: 5}
      - key: quota
        quota_mode: true
        rate_limits:
          - {unit: second, requests_per_unit: 1}
          - {unit: minute, requests_per_unit: 5}
      - key: room
        quota_mode: true
        rate_limit: {unit: minute, requests_per_unit: 100}
      - key: vip
        rate_limit: {unit: minute, requests_per_unit: 100, replaces: [{name: burst}]}
      - key: vvip
        rate_limit: {unlimited: true, replaces: [{name: burst}, {name: sustained}]}
    """

TOGETHER = """
    domain: shop
    charge: together
    descriptors:
      - key: ip
        rate_limit: {unit: minute, requests_per_unit: 10}
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 1}
      - key: alone
        charge: each
        rate_limit: {unit: minute, requests_per_unit: 10}
      - key: list
        rate_limits:
          - {unit: second, requests_per_unit: 5}
          - {unit: minute, requests_per_unit: 9}
      - key: watched
        shadow_mode: true
        rate_limit: {unit: minute, requests_per_unit: 1}
      - key: quota
        quota_mode: true
        rate_limit: {unit: minute, requests_per_unit: 1}
      - key: free
        rate_limit: {unlimited: true}
    """


def tallies(shop: Shop, key: str) -> dict[str, tuple[int, int, int, int]]:
    """Of the rules of a descriptor: hits in all, within, over and spared."""
    assert shop.limiter.book is not None
    found = {rule.path: rule.tally for rule in shop.limiter.book.rules if rule.path[1] == key}
    return {
        ".".join(path[1:]): (tally.total_hits, tally.within_limit, tally.over_limit, tally.spared)
        for path, tally in found.items()
    }


def summary(verdict: Verdict) -> list[tuple[bool, int, int] | None]:
    """Of each descriptor: is it over, what remains, and of how many."""
    return [
        None if hit is None or hit.rule.limit is None else (hit.over, hit.decision.remaining, hit.rule.limit.requests)
        for hit in verdict.hits
    ]


def test_of_several_limits_the_one_with_the_least_left_answers() -> None:
    tested = Shop(LISTS)

    first = tested.ask("user")
    tested.clock.advance(SECOND)
    second = tested.ask("user")
    tested.clock.advance(SECOND)
    third = tested.ask("user")

    assert [summary(verdict) for verdict in (first, second, third)] == [
        [(False, 1, 2)],
        [(False, 1, 2)],
        [(False, 0, 3)],
    ]


def test_what_one_limit_of_a_list_refuses_is_not_charged_to_the_other() -> None:
    tested = Shop(LISTS)

    verdicts = [tested.ask("user") for _ in range(5)]
    tested.clock.advance(SECOND)
    after = tested.ask("user")

    assert [verdict.allowed for verdict in verdicts] == [True, True, False, False, False]
    assert summary(verdicts[-1]) == [(True, 0, 2)]
    assert (after.allowed, summary(after)) == (True, [(False, 0, 3)])
    assert tallies(tested, "user") == {"user.per_second": (6, 3, 3, 0), "user.per_minute": (6, 3, 0, 3)}


def test_of_two_that_refuse_the_one_to_wait_for_longest_answers() -> None:
    tested = Shop(LISTS)
    for _ in range(3):
        tested.ask("user")
        tested.clock.advance(SECOND)

    verdict = tested.ask("user", cost=3)
    never = tested.ask("user", cost=4)

    assert summary(verdict) == [(True, 0, 2)]  # 3 never fit into 2
    assert summary(never) == [(True, 0, 2)]
    tested.clock.advance(SECOND)
    assert [summary(tested.ask("user")) for _ in range(3)][-1] == [(True, 0, 3)]


def test_a_list_charged_each_charges_every_limit_whatever_the_others_say() -> None:
    tested = Shop(LISTS)

    for _ in range(4):
        tested.ask("each")

    assert tallies(tested, "each") == {"each.per_second": (4, 1, 3, 0), "each.per_minute": (4, 4, 0, 0)}


def test_a_shadow_list_counts_as_it_would_in_earnest_and_refuses_nothing() -> None:
    tested = Shop(LISTS)

    verdicts = [tested.ask("watched") for _ in range(3)]

    assert [verdict.allowed for verdict in verdicts] == [True, True, True]
    assert summary(verdicts[-1]) == [(False, 0, 1)]
    assert tallies(tested, "watched") == {"watched.per_second": (3, 1, 2, 0), "watched.per_minute": (3, 1, 0, 2)}


def test_a_list_of_quotas_is_one_quota_that_is_used_up_when_one_of_its_limits_is() -> None:
    tested = Shop(LISTS)

    verdicts = [tested.ask("quota", "room") for _ in range(2)]
    alone = tested.ask("quota")

    assert [verdict.allowed for verdict in verdicts] == [True, True]
    assert summary(verdicts[1]) == [(True, 0, 1), (False, 98, 100)]
    assert not alone.allowed


def test_one_limit_of_a_list_can_be_replaced_and_the_others_stay() -> None:
    tested = Shop(LISTS)

    verdicts = [tested.ask("user", "vip") for _ in range(4)]
    none = tested.ask("user", "vvip")

    assert [verdict.allowed for verdict in verdicts] == [True, True, True, False]
    assert summary(verdicts[0]) == [(False, 2, 3), (False, 99, 100)]
    assert (none.allowed, none.hits[0]) == (True, None)


def test_every_limit_of_a_list_has_a_counter_of_its_own() -> None:
    tested = Shop(LISTS)

    tested.ask("user")

    assert tested.store.counters == 2


def test_together_a_refused_descriptor_spares_the_others() -> None:
    tested = Shop(TOGETHER)

    verdicts = [tested.ask("ip", "user") for _ in range(4)]

    assert [summary(verdict) for verdict in verdicts] == [
        [(False, 9, 10), (False, 0, 1)],
        [(False, 9, 10), (True, 0, 1)],
        [(False, 9, 10), (True, 0, 1)],
        [(False, 9, 10), (True, 0, 1)],
    ]
    assert not verdicts[-1].allowed
    assert tallies(tested, "ip") == {"ip": (4, 1, 0, 3)}
    assert tallies(tested, "user") == {"user": (4, 1, 3, 0)}


def test_together_the_order_of_descriptors_does_not_matter() -> None:
    tested = Shop(TOGETHER)

    verdicts = [tested.ask("user", "alone", "ip") for _ in range(2)]

    assert summary(verdicts[1]) == [(True, 0, 1), (False, 8, 10), (False, 9, 10)]


def test_together_a_list_is_spared_and_spares() -> None:
    tested = Shop(TOGETHER)

    spared = [tested.ask("list", "user") for _ in range(2)][-1]
    for _ in range(4):
        tested.ask("list")
    spares = tested.ask("ip", "list")

    assert summary(spared) == [(False, 4, 5), (True, 0, 1)]
    assert summary(spares) == [(False, 10, 10), (True, 0, 5)]
    assert tallies(tested, "list") == {"list.per_second": (7, 5, 1, 1), "list.per_minute": (7, 5, 0, 2)}


def test_together_a_shadow_rule_and_a_quota_spare_nobody() -> None:
    tested = Shop(TOGETHER)

    verdicts = [tested.ask("ip", "watched", "quota", "free") for _ in range(3)]

    assert [found and found[1] for found in summary(verdicts[-1])] == [7, 0, 0, None]
    assert tallies(tested, "watched") == {"watched": (3, 1, 2, 0)}


def test_together_in_global_quota_mode_nothing_is_spared() -> None:
    tested = Shop(TOGETHER, quota_mode=True)

    verdict = [tested.ask("ip", "user") for _ in range(3)][-1]

    assert summary(verdict) == [(False, 7, 10), (True, 0, 1)]


def test_together_a_limit_sent_with_the_request_is_one_of_them() -> None:
    tested = Shop(TOGETHER)
    one = Limit(1, Unit.MINUTE, MINUTE)
    asked = [Descriptor(entries_of("own"), override=one), Descriptor(entries_of("ip"))]

    verdicts = [check(tested.limiter, Request("shop", asked)) for _ in range(2)]

    assert [summary(verdict) for verdict in verdicts] == [
        [(False, 0, 1), (False, 9, 10)],
        [(True, 0, 1), (False, 9, 10)],
    ]


def test_what_is_spared_is_still_the_tightest_by_what_it_has_left() -> None:
    tested = Shop(TOGETHER)

    verdict = [tested.ask("ip", "user") for _ in range(2)][-1]

    assert verdict.tightest() is verdict.hits[1]


def test_a_bucket_and_a_window_are_decided_together() -> None:
    tested = Shop("""
        domain: shop
        descriptors:
          - key: user
            rate_limits:
              - {unit: second, requests_per_unit: 1, algorithm: token_bucket, burst: 3}
              - {unit: day, requests_per_unit: 5, algorithm: sub_windows}
        """)

    burst = [tested.ask("user") for _ in range(4)]
    tested.clock.advance(10 * SECOND)
    later = [tested.ask("user") for _ in range(3)]

    assert [summary(verdict) for verdict in burst] == [
        [(False, 2, 1)],
        [(False, 1, 1)],
        [(False, 0, 1)],
        [(True, 0, 1)],
    ]
    assert [verdict.allowed for verdict in later] == [True, True, False]
    assert tallies(tested, "user") == {"user.per_second": (7, 5, 1, 1), "user.per_day": (7, 5, 1, 1)}
