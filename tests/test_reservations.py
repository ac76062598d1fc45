"""`reserve` in rules: what a request takes, what a settle with its id gives back, and what contradicts it."""

import pytest

from ratelimit_service.errors import RpcError, RulesError
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Descriptor, Request
from ratelimit_service.system.clock import MINUTE, SECOND
from tests.books import book
from tests.shop import Shop, entries_of
from tests.verdicts import check

RULES = """\
domain: shop
settle: settled
defaults: {reserve: {id: request_id, hold: 5 minutes, estimate: 4000}}
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
    descriptors:
      - key: request_id
        rate_limits:
          - {unit: minute, requests_per_unit: 100000, algorithm: token_bucket}
          - {unit: day, requests_per_unit: 150000}
          - {concurrency: 20, hold: 5 minutes, place: request_id}
  - key: request_id
    rate_limit: {unit: minute, requests_per_unit: 10000, reserve: {id: request_id, hold: 1m, at_most: 3000}}
"""


def ask(shop: Shop, text: str, cost: int | None = None) -> Verdict:
    """One descriptor, with its own cost if there is one."""
    descriptor = Descriptor(entries_of(text), 1 if cost is None else cost, hits_addend=cost)
    return check(shop.limiter, Request("shop", [descriptor]))


def left(shop: Shop, text: str) -> dict[str, int]:
    """What is left of each limit of a descriptor."""
    plan = shop.limiter.plan(Request("shop", [Descriptor(entries_of(text), 0, hits_addend=0)]))
    assert shop.store.charge(plan.charged)
    return {hit.rule.path[-1]: hit.decision.remaining for hit in plan.charged}


@pytest.fixture
def shop() -> Shop:
    return Shop(RULES, now=1_790_000_000 * SECOND)


def test_a_request_reserves_the_estimate_of_each_limit_and_one_place(shop: Shop) -> None:
    assert ask(shop, "user=ada request_id=1").allowed

    assert left(shop, "user=ada request_id=2") == {"per_minute": 96_000, "per_day": 146_000, "at_once": 19}


def test_a_request_that_says_its_cost_reserves_that_up_to_half_of_the_limit(shop: Shop) -> None:
    ask(shop, "user=ada request_id=1", 128_000)

    assert left(shop, "user=ada request_id=2") == {"per_minute": 50_000, "per_day": 75_000, "at_once": 19}


def test_what_was_not_used_goes_back_to_each_limit_and_the_place_by_a_refund(shop: Shop) -> None:
    ask(shop, "user=ada request_id=1", 40_000)
    ask(shop, "user=ada request_id=1 settled", 700)
    assert left(shop, "user=ada request_id=2") == {"per_minute": 99_300, "per_day": 149_300, "at_once": 19}
    ask(shop, "user=ada request_id=1", -1)

    assert left(shop, "user=ada request_id=2") == {"per_minute": 99_300, "per_day": 149_300, "at_once": 20}
    assert shop.counts("user", "request_id", "per_minute")["settled"] == 700


def test_the_id_names_no_counter_and_is_settled_for_its_own_user_alone(shop: Shop) -> None:
    ask(shop, "user=ada request_id=1", 40_000)
    ask(shop, "user=eve request_id=1 settled", 700)

    assert left(shop, "user=ada request_id=2")["per_minute"] == 60_000
    assert left(shop, "user=eve request_id=2")["per_minute"] == 99_300


def test_settled_by_the_id_of_another_request_only_that_ones_goes_back_and_each_id_is_known_to_its_rule(
    shop: Shop,
) -> None:
    ask(shop, "user=ada request_id=1", 40_000)
    ask(shop, "user=ada request_id=2", 10_000)
    ask(shop, "user=ada request_id=1 settled", 0)
    ask(shop, "user=ada request_id=1 settled", 700)
    assert left(shop, "user=ada request_id=3")["per_minute"] == 90_000
    ask(shop, "request_id=2 settled", 700)  # another rule has this id too

    assert left(shop, "user=ada request_id=3")["per_minute"] == 90_000
    assert left(shop, "request_id=3") == {"request_id": 9300}


def test_a_settle_of_nothing_leaves_nothing_and_one_below_zero_is_an_error(shop: Shop) -> None:
    ask(shop, "user=ada request_id=9 settled", 0)
    assert shop.store.counters == 0
    with pytest.raises(RpcError, match="settles a cost below 0: -5"):
        ask(shop, "user=ada request_id=9 settled", -5)


def test_the_largest_cost_that_is_settled_is_a_debt_of_a_window(shop: Shop) -> None:
    ask(shop, "user=ada request_id=1", 40_000)
    ask(shop, "user=ada request_id=1 settled", 2**50)
    ask(shop, "user=ada request_id=2 settled", 2**50)
    shop.clock.advance(MINUTE)
    assert left(shop, "user=ada request_id=3")["per_minute"] == 0
    shop.clock.advance(MINUTE)

    assert left(shop, "user=ada request_id=3")["per_minute"] == 100_000


def test_what_nobody_settles_uses_the_limit_up_until_its_window_ends(shop: Shop) -> None:
    answers = [ask(shop, f"request_id={number}", 2**50).allowed for number in range(5)]
    assert answers == [True] * 3 + [False] * 2  # 3,000 each, at most
    assert left(shop, "user=eve request_id=1")["per_minute"] == 100_000
    shop.clock.advance(MINUTE)

    assert left(shop, "request_id=9") == {"request_id": 10_000}


def test_a_flood_of_unknown_ids_is_charged_and_takes_no_more_memory_than_other_counters(shop: Shop) -> None:
    for number in range(3):
        ask(shop, f"user=eve request_id={number}", 50_000)  # two of them use the limit up
    for number in range(5000):
        ask(shop, f"user=ada request_id={number} settled", 1)

    assert shop.store.counters <= 1000
    assert left(shop, "user=ada request_id=x") == {"per_minute": 95_000, "per_day": 145_000, "at_once": 20}
    assert left(shop, "user=eve request_id=x")["per_minute"] == 0
    shop.clock.advance(10 * SECOND)
    for _ in range(256):
        shop.store.sweep()
    assert shop.store.counters < 10


def test_what_is_settled_a_second_after_a_hold_of_a_second_is_charged_twice() -> None:
    shop = Shop(RULES.replace("hold: 1m", "hold: 1s"), now=1_790_000_000 * SECOND)
    ask(shop, "request_id=1", 1000)
    shop.clock.advance(1 * SECOND)
    ask(shop, "request_id=1 settled", 700)

    assert left(shop, "request_id=2") == {"request_id": 8300}


def test_what_one_limit_refuses_is_reserved_nowhere(shop: Shop) -> None:
    for number in range(2):
        ask(shop, f"user=ada request_id={number}", 50_000)
    shop.clock.advance(MINUTE)
    ask(shop, "user=ada request_id=3", 40_000)
    refused = ask(shop, "user=ada request_id=4", 20_000)
    ask(shop, "user=ada request_id=4 settled", 10)  # of an id that is not known

    assert not refused.allowed
    assert left(shop, "user=ada request_id=5") == {"per_minute": 59_990, "per_day": 9_990, "at_once": 17}


def test_a_store_that_was_emptied_charges_a_settle_in_full(shop: Shop) -> None:
    ask(shop, "user=ada request_id=1", 40_000)
    emptied = Shop(RULES, now=shop.clock())
    ask(emptied, "user=ada request_id=1 settled", 700)

    assert left(emptied, "user=ada request_id=2")["per_minute"] == 99_300


def test_without_an_estimate_a_request_reserves_its_cost_and_the_option_bounds_it(shop: Shop) -> None:
    ask(shop, "request_id=1")
    ask(shop, "request_id=2", 9999)

    assert left(shop, "request_id=3") == {"request_id": 6999}


def test_a_default_does_not_apply_where_no_level_names_the_request(shop: Shop) -> None:
    ask(shop, "user=ada")

    assert left(shop, "user=ada") == {"user": 2}
    assert [ask(shop, "user=ada").allowed for _ in range(3)] == [True, True, False]
    assert left(shop, "user=ada") == {"user": 0}


def test_overruns_are_counted_beside_what_was_settled(shop: Shop) -> None:
    ask(shop, "request_id=1", 1000)
    ask(shop, "request_id=1 settled", 1500)

    assert shop.counts("request_id") == {"total_hits": 1000, "within_limit": 1000, "settled": 1500, "overrun": 500}


LIMIT = "rate_limit: {unit: minute, requests_per_unit: 100"
BUCKET = f"{LIMIT}, algorithm: token_bucket"
ONE = f"descriptors: [{{key: id, {LIMIT}}}}}]"


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        (f"descriptors: [{{key: id, {LIMIT}, reserve: {{id: id, hold: 1m}}}}}}]", "reserve needs settle at the top"),
        (
            f"settle: s\ndescriptors: [{{key: user, {LIMIT}, reserve: {{id: id, hold: 1m}}}}}}]",
            "no descriptor above this limit has the key id and no value",
        ),
        (
            f"settle: s\ndescriptors: [{{key: id, {LIMIT}, count_refused: true, reserve: {{id: id, hold: 1m}}}}}}]",
            "count_refused contradicts reserve: a refused reservation would use up the window",
        ),
        (
            f"settle: s\ndescriptors: [{{key: id, {LIMIT}, block_for: 1m, reserve: {{id: id, hold: 1m}}}}}}]",
            "block_for contradicts reserve",
        ),
        (
            f"settle: s\ndescriptors: [{{key: id, {LIMIT}, algorithm: sliding_log, reserve: {{id: id, hold: 1m}}}}}}]",
            "reserve has no meaning for sliding_log",
        ),
        (f"settle: s\ndescriptors: [{{key: id, {LIMIT}, reserve: {{hold: 1m}}}}}}]", "reserve has no id"),
        (f"settle: s\ndescriptors: [{{key: id, {LIMIT}, reserve: {{id: id}}}}}}]", "reserve has no hold"),
        (
            f"settle: s\ndescriptors: [{{key: id, {LIMIT}, reserve: {{id: id, hold: 1m, estimate: 101}}}}}}]",
            "1.yaml:3:114: estimate 101 is more than the limit has room for, 100",
        ),
        (
            f"settle: s\ndescriptors: [{{key: k, {BUCKET}, burst: 50, reserve: {{id: k, hold: 1m, estimate: 51}}}}}}]",
            "estimate 51 is more than the limit has room for, 50",
        ),
        (
            f"settle: s\ndescriptors: [{{key: k, {LIMIT}, reserve: {{id: k, hold: 9s, estimate: 4, at_most: 3%}}}}}}]",
            "1.yaml:3:124: at_most, 3, is less than the estimate, 4",
        ),
        (
            f"settle: s\ndescriptors: [{{key: id, {LIMIT}, reserve: {{id: id, hold: 0s}}}}}}]",
            'hold "0s" must be a time from 100ms to 100 years',
        ),
        (
            f"settle: s\ndefaults: {{reserve: {{id: id, hold: 1m, estimate: 101}}}}\n{ONE}",
            "1.yaml:4:71: estimate 101 is more than the limit has room for, 100",
        ),
        (
            f"settle: s\ndescriptors: [{{key: id, {LIMIT}, lease: auto, reserve: {{id: id, hold: 1m}}}}}}]",
            "1.yaml:3:76: lease contradicts reserve: any process may settle what another one has reserved",
        ),
    ],
)
def test_what_contradicts_a_reservation_is_an_error(rules: str, problem: str) -> None:
    with pytest.raises(RulesError) as caught:
        book(f"domain: shop\n{rules}")

    assert problem in str(caught.value)


def test_what_became_of_reservations_is_measured_and_a_settle_sent_again_is_counted_once(shop: Shop) -> None:
    for number, cost in enumerate([1000, 2000, 3000, 3000, 3000]):
        ask(shop, f"request_id={number}", cost)
    ask(shop, "request_id=0", 1000)  # a retry
    for number, cost in [(0, 1500), (0, 1500), (1, 700), (9, 50)]:
        ask(shop, f"request_id={number} settled", cost)
    assert shop.limiter.book is not None
    (rule,) = [rule for rule in shop.limiter.book.rules if rule.path[1:] == ("request_id",)]
    assert rule.measured is not None
    assert rule.measured.reservations is not None
    found = rule.measured.reservations.read()

    assert shop.counts("request_id")["settled"] == 2250
    assert (found.reservations_made, found.reservations_made_units) == (4, 9000)
    assert (found.reservations_open, found.reservations_open_units) == (2, 6000)
    assert (found.reservations_settled, found.reservations_late) == (2, 1)
    assert (found.overran_lately, found.settled_most) == (1, 1500)
