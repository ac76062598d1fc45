"""`charge: first` in rules: plan, then credits, then pay as you go; what is charged, answered and counted."""

from collections.abc import Callable

import pytest

from ratelimit_service.api.metadata import deciding_rules, rule_metadata
from ratelimit_service.errors import RulesError
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import NEVER, Descriptor, Limit, Request, Unit
from ratelimit_service.rules.reasons import explain
from ratelimit_service.rules.rule import rule_in_full
from ratelimit_service.system.clock import HOUR, MINUTE, SECOND
from tests.books import book
from tests.shop import Shop, entries_of
from tests.verdicts import check

RULES = """
    domain: shop
    settle: settled
    descriptors:
      - key: user
        charge: first
        rate_limits:
          - {unit: minute, requests_per_unit: 10, name: plan}
          - {unit: hour, requests_per_unit: 5, name: credits}
          - {unit: hour, requests_per_unit: 3, name: extra}
      - key: vip
        rate_limit: {unit: minute, requests_per_unit: 100, replaces: [{name: plan}]}
      - key: watched
        shadow_mode: true
        charge: first
        rate_limits:
          - {unit: minute, requests_per_unit: 1, name: few}
          - {unit: minute, requests_per_unit: 1, name: more}
      - key: quota
        quota_mode: true
        charge: first
        rate_limits:
          - {unit: minute, requests_per_unit: 1, name: few}
          - {unit: minute, requests_per_unit: 1, name: more}
      - key: room
        quota_mode: true
        rate_limit: {unit: minute, requests_per_unit: 100}
      - key: all
        charge: together
        rate_limit: {unit: minute, requests_per_unit: 1}
      - key: turn
        rate_limit: {unit: minute, requests_per_unit: 2, algorithm: leaky_bucket, queue: {max_delay: 1s}}
    """


def charged(verdict: Verdict) -> list[tuple[bool, str, int]]:
    """Of each descriptor: is it over, the limit that answers, and what is left of that."""
    return [(hit.over, hit.rule.name, hit.remaining) for hit in verdict.hits if hit is not None]


def metadata(verdict: Verdict) -> dict[str, object]:
    return rule_metadata(deciding_rules(verdict))


def test_the_first_with_room_is_charged_and_the_request_refused_when_none_has() -> None:
    tested = Shop(RULES)

    found = [charged(tested.ask("user", cost=3)) for _ in range(6)]

    assert found == [
        [(False, "plan", 7)],
        [(False, "plan", 4)],
        [(False, "plan", 1)],
        [(False, "credits", 2)],  # whole: what is left of the plan is for a smaller one
        [(False, "extra", 0)],
        [(True, "plan", 1)],
    ]
    assert charged(tested.ask("user")) == [(False, "plan", 0)]
    assert charged(tested.ask("user")) == [(False, "credits", 1)]


def test_a_refused_request_is_told_when_the_first_limit_has_room_again() -> None:
    tested = Shop(RULES)
    for cost in (10, 5, 3):
        tested.ask("user", cost=cost)
    tested.clock.advance(20 * SECOND)

    assert tested.ask("user").retry_after() == 40 * SECOND
    assert tested.ask("user", cost=11).retry_after() == NEVER
    tested.clock.advance(40 * SECOND)
    assert charged(tested.ask("user")) == [(False, "plan", 9)]


def test_what_is_refused_uses_up_nothing() -> None:
    tested = Shop(RULES)

    refused = tested.ask("user", cost=11)

    assert not refused.allowed
    assert charged(tested.ask("user", cost=10)) == [(False, "plan", 0)]


def test_each_limit_counts_what_it_was_charged_what_another_one_was_and_what_none_had_room_for() -> None:
    tested = Shop(RULES)
    for cost in (8, 4, 2, 9):
        tested.ask("user", cost=cost)

    assert tested.counts("user", "plan") == {
        "total_hits": 23, "within_limit": 10, "near_limit": 2, "over_limit": 9, "spared": 4
    }  # fmt: skip
    assert tested.counts("user", "credits")["within_limit"] == 4
    assert tested.counts("user", "extra") == {"total_hits": 23, "over_limit": 6,
                                               "denied_below_limit": 3, "near_limit": 1, "spared": 14}  # fmt: skip


def test_a_look_is_answered_by_the_first_that_has_anything_left() -> None:
    tested = Shop(RULES)
    found = []
    for cost in (10, 5, 3):
        tested.ask("user", cost=cost)
        found.append(charged(tested.ask("user", cost=0)))

    assert found == [[(False, "credits", 5)], [(False, "extra", 3)], [(False, "extra", 0)]]


def test_a_settle_goes_whole_to_the_first_that_has_anything_left_until_looks_are_refused() -> None:
    tested = Shop(RULES)
    found = []
    for cost in (8, 4, 6, 7, 1):
        tested.ask("user settled", cost=cost)
        found += charged(tested.ask("user", cost=0))

    assert found == [
        (False, "plan", 2),
        (False, "credits", 5),  # the plan owes 2
        (False, "extra", 3),
        (True, "plan", 0),
        (True, "plan", 0),  # none has anything left: the last owes it
    ]
    assert [tested.counts("user", name)["settled"] for name in ("plan", "credits", "extra")] == [12, 6, 8]
    tested.clock.advance(MINUTE)
    assert charged(tested.ask("user", cost=0)) == [(False, "plan", 10)]


def test_a_refund_goes_to_the_first_of_which_something_is_used() -> None:
    tested = Shop(RULES)
    tested.ask("user", cost=10)
    tested.ask("user", cost=4)

    tested.ask("user", cost=-1)
    assert charged(tested.ask("user")) == [(False, "plan", 0)]
    tested.clock.advance(MINUTE)
    tested.ask("user", cost=-1)
    tested.ask("user", cost=10)
    assert charged(tested.ask("user", cost=0)) == [(False, "credits", 2)]


def test_what_was_charged_is_in_the_metadata() -> None:
    tested = Shop(RULES)
    verdicts = [tested.ask("user", cost=cost) for cost in (10, 5, 9)]
    both = tested.ask("user", "watched")

    assert [metadata(verdict) for verdict in (*verdicts[:2], both)] == [
        {"charged_to": "plan"},
        {"charged_to": "credits"},
        {"charged_to": "extra, few"},
    ]
    assert metadata(verdicts[2])["refused_by"] == {
        "domain": "shop", "rule": "user.plan", "name": "plan", "place": "1.yaml:8"
    }  # fmt: skip


def test_a_shadow_list_is_charged_in_order_and_refuses_nothing() -> None:
    tested = Shop(RULES)

    found = [tested.ask("watched") for _ in range(3)]

    assert [(verdict.allowed, charged(verdict)[0][1]) for verdict in found] == [
        (True, "few"),
        (True, "more"),
        (True, "few"),
    ]
    assert tested.counts("watched", "more") == {"total_hits": 3, "within_limit": 1, "near_limit": 1,
                                                "over_limit": 1, "spared": 1, "shadow_mode": 1}  # fmt: skip
    assert tested.limiter.domains.of("shop").shadow == 1


def test_a_list_of_quotas_is_one_quota_that_is_used_up_when_all_of_its_limits_are() -> None:
    tested = Shop(RULES)

    assert [tested.ask("quota", "room").allowed for _ in range(3)] == [True, True, True]
    assert not tested.ask("quota").allowed


def test_a_limit_that_is_replaced_is_not_in_the_list() -> None:
    tested = Shop(RULES)

    found = [charged(tested.ask("user", "vip", cost=4))[0] for _ in range(3)]

    assert found == [(False, "credits", 1), (True, "credits", 1), (True, "credits", 1)]


def test_beside_other_limits_of_the_request_it_is_charged_by_itself() -> None:
    tested = Shop(RULES)

    verdicts = [tested.ask("user", "all") for _ in range(3)]
    turns = [tested.ask("user", "turn") for _ in range(2)]

    assert [verdict.allowed for verdict in verdicts] == [True, False, False]
    assert [verdict.allowed for verdict in turns] == [True, False]
    assert charged(turns[-1])[0] == (False, "plan", 5)


def test_a_limit_that_comes_with_the_request_is_in_place_of_the_list() -> None:
    tested = Shop(RULES)
    asked = Request("shop", [Descriptor(entries_of("user"), override=Limit(1, Unit.HOUR, HOUR))])

    verdicts = [check(tested.limiter, asked) for _ in range(2)]

    assert [verdict.allowed for verdict in verdicts] == [True, False]
    assert charged(tested.ask("user", cost=10)) == [(False, "plan", 0)]


def test_soft_limits_are_exceeded_before_the_next_limit_is_charged() -> None:
    tested = Shop(RULES.replace("10, name: plan", "10, exceed: 2, name: plan"))

    found = [tested.ask("user", cost=4) for _ in range(4)]

    assert [charged(verdict)[0][1] for verdict in found] == ["plan", "plan", "plan", "credits"]
    assert list(metadata(found[2])) == ["soft_limit", "charged_to"]


RESERVED = """
    domain: shop
    settle: settled
    defaults: {reserve: {id: request_id, hold: 5 minutes, estimate: 4, at_most: 100%}, count_refused: true}
    descriptors:
      - key: user
        descriptors:
          - key: request_id
            charge: first
            rate_limits:
              - {unit: minute, requests_per_unit: 10, name: plan, algorithm: token_bucket}
              - {unit: hour, requests_per_unit: 10, name: credits}
              - {unit: hour, requests_per_unit: 10, name: extra}
    """


def asks(shop: Shop) -> Callable[[str, int | None], tuple[bool, str, int]]:
    """What a descriptor is answered, with its own cost if there is one."""

    def ask(text: str, cost: int | None = None) -> tuple[bool, str, int]:
        descriptor = Descriptor(entries_of(f"user=ada {text}"), 1 if cost is None else cost, hits_addend=cost)
        (found,) = charged(check(shop.limiter, Request("shop", [descriptor])))
        return found

    return ask


def test_a_reservation_is_settled_where_it_was_made() -> None:
    ask = asks(Shop(RESERVED))

    assert [ask(f"request_id={number}", None) for number in range(3)] == [
        (False, "plan", 6),
        (False, "plan", 2),
        (False, "credits", 6),
    ]
    assert ask("request_id=0 settled", 1) == (False, "plan", 5)
    assert ask("request_id=2", None) == (False, "credits", 6)  # a retry, though the plan has room again
    assert ask("request_id=2 settled", 9) == (False, "credits", 1)  # an overrun is of the same limit
    assert ask("request_id=2 settled", 9) == (False, "credits", 1)
    assert ask("request_id=2", None) == (False, "plan", 1)  # a new request
    assert ask("request_id=2 settled", 0) == (False, "plan", 5)
    assert ask("request_id=9 settled", 3) == (False, "extra", 7)  # nobody has reserved it
    assert ask("request_id=9 settled", 3) == (False, "extra", 7)
    assert ask("request_id=8", 0) == (False, "plan", 5)


def test_what_was_settled_before_does_not_hide_a_reservation_of_the_same_id() -> None:
    ask = asks(Shop(RESERVED))
    ask("request_id=1", 10)
    ask("request_id=1 settled", 10)

    assert ask("request_id=1", 7) == (False, "credits", 3)
    assert ask("request_id=1 settled", 2) == (False, "credits", 8)


def test_a_refused_reservation_leaves_nothing() -> None:
    shop = Shop(RESERVED)
    ask = asks(shop)
    for number in range(3):
        ask(f"request_id={number}", 9)

    assert ask("request_id=4", None) == (True, "plan", 1)
    assert [rule.limit.count_refused for rule in shop.limiter.book.rules if rule.limit] == [False, False, False]  # type: ignore[union-attr] # it has rules


TOP = "domain: shop\ndescriptors:\n  - key: user\n    charge: first\n    rate_limits:\n"
PLAN = "      - {unit: minute, requests_per_unit: 10, name: plan}\n"
MORE = "      - {unit: minute, requests_per_unit: 10, name: more, "
WITHOUT_ROOM = (
    "where a limit without room is passed over, and denies nothing by itself: remove it, or write charge: together"
)


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        (
            "domain: shop\ndescriptors:\n  - {key: user, charge: first, rate_limit: {unit: day, requests_per_unit: 1}}",
            "1.yaml:3:25: charge: first needs rate_limits, a list of limits in the order in which they are charged",
        ),
        ("domain: shop\ncharge: first", '1.yaml:2:9: charge "first" is not one of each, together'),
        (
            f"{TOP}{PLAN}      - {{unit: hour, requests_per_unit: 10}}",
            "1.yaml:7:9: with charge: first each limit needs a name, which says what was charged; write name: plan",
        ),
        (
            f"{TOP}{PLAN}      - {{unit: hour, requests_per_unit: 10, name: plan}}",
            '1.yaml:7:9: "plan" is the name of two limits of this list, first at 1.yaml:6:9',
        ),
        (
            f"{TOP}{PLAN}{MORE}count_refused: true}}",
            f"1.yaml:7:59: count_refused contradicts charge: first, {WITHOUT_ROOM}",
        ),
        (f"{TOP}{PLAN}{MORE}block_for: 1m}}", f"1.yaml:7:59: block_for contradicts charge: first, {WITHOUT_ROOM}"),
        (
            f"{TOP}{PLAN}{MORE}algorithm: leaky_bucket, queue: {{max_delay: 1s}}}}",
            "1.yaml:7:84: queue contradicts charge: first, where a request would wait for its turn while",
        ),
        (
            f"{TOP}{PLAN}      - {{concurrency: 5, hold: 1m, place: user, name: busy}}",
            "1.yaml:7:10: concurrency contradicts charge: first, where a refund gives back a place",
        ),
        (
            f"pools: {{name: p, unit: day, requests_per_unit: 9}}\n{TOP}{MORE}elastic: {{pool: p, ceiling: 20}}}}",
            "1.yaml:7:59: elastic cannot be charged together",
        ),
        (
            f"{TOP}{PLAN}{MORE}regions: central}}",
            "1.yaml:7:68: regions: central is impossible: limits that are charged together",
        ),
        (
            f"settle: s\n{TOP.replace('user', 'id')}{PLAN}{MORE}reserve: {{id: id, hold: 1m}}}}",
            "1.yaml:8:9: some limits of this list have reserve, and some have not, first at 1.yaml:7:9",
        ),
        (
            f"{TOP}{PLAN}    descriptors:\n      - {{key: plan, rate_limit: {{unit: day, requests_per_unit: 1}}}}",
            'descriptor "plan" has the name of the limit of rate_limits at 1.yaml:6:9',
        ),
    ],
)
def test_what_cannot_be_charged_first_is_an_error_at_its_place(rules: str, problem: str) -> None:
    with pytest.raises(RulesError) as caught:
        book(rules)

    assert problem in str(caught.value)


def test_limits_of_one_window_have_counters_by_their_names() -> None:
    """So a limit keeps its counter when others are put before it."""
    rules = book(f"{TOP}{PLAN}{MORE}}}\n").rules

    assert [(rule.path, rule.key_suffix) for rule in rules] == [
        (("shop", "user", "plan"), "|fixed_window/60000000/first/plan"),
        (("shop", "user", "more"), "|fixed_window/60000000/first/more"),
    ]
    assert [rule_in_full(rule) for rule in rules] == [
        "10 requests per minute (charged if it is the first with room)",
        "10 requests per minute (charged if it is the first with room)",
    ]


def test_explain_tells_the_order() -> None:
    outcome = explain(book(f"{TOP}{PLAN}{MORE}}}\n"), Request("shop", [Descriptor(entries_of("user"))]))

    assert "2 limits at 1.yaml:6:9 apply: 10 requests per minute (charged if it is the first with room)" in str(outcome)


def test_what_no_descriptor_fits_may_have_a_list_too() -> None:
    shop = Shop(f"domain: shop\notherwise:\n  charge: first\n  rate_limits:\n{PLAN}{MORE}}}\n")

    assert [charged(shop.ask("any", cost=6))[0][1] for _ in range(3)] == ["plan", "more", "plan"]
