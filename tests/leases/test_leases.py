"""The leases of one instance, event by event: what it decides by itself, what it asks for, and when it stops."""

from dataclasses import replace

import pytest

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.algorithms.lease import Granted, take
from ratelimit_service.model import NEVER, Decision, Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.leases import Ask, Leases
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.tally import Tally

KEY = "shop|user=ada"
LIMIT = Limit(1000, Unit.SECOND, SECOND, count_refused=False)
RULE = Rule("shop", (), LIMIT, open_algorithm("fixed_window"), lease=50)
STORE = 1_790_000_000_000_000
"""By the clock of the store, the start of a window; by that of the instance it is 0."""


def open_leases() -> Leases:
    leases = Leases(deny=5000)
    leases.round_trip = 100
    return leases


def hit(leases: Leases, cost: int, now: int, rule: Rule = RULE) -> Decision | None:
    assert rule.limit is not None
    return leases.hit(rule, rule.limit, KEY, cost, now)


def asked(leases: Leases, now: int = 20_000) -> Ask:
    """Twenty hits of 1 unit in 20 ms, which have made it ask."""
    for step in range(20):
        assert hit(leases, 1, now - 20_000 + step * 1000) is None
    (ask,) = leases.asks(now)
    return ask


def holding(units: int = 40, now: int = 20_000) -> Leases:
    """It holds so many until 100 ms."""
    leases = open_leases()
    ask = asked(leases, now)
    leases.answered(ask, Granted(units, 900, STORE + 100_000, 1_000_000, 0, STORE + now + 500), sent=now)
    return leases


def test_the_first_hits_on_a_counter_are_sent_and_make_no_lease() -> None:
    leases = open_leases()
    for _ in range(4):
        assert hit(leases, 1, 0) is None

    assert leases.by_key.get(KEY) is None
    assert leases.asks(0) == []


def test_demand_for_fewer_than_four_units_in_a_term_asks_for_nothing() -> None:
    leases = open_leases()
    for step in range(200):
        assert hit(leases, 1, step * 50_000) is None
        assert leases.asks(step * 50_000) == []


def test_demand_is_asked_for_until_the_terms_end_and_for_the_time_of_a_shortage() -> None:
    ask = asked(open_leases())

    # 16 hits in the 16 ms since the fifth, of which the rate takes in 16 parts of 66.
    assert (ask.counter.term, ask.extra, ask.least, ask.back) == (100_000, 24, 1, 0)


def test_an_instance_asks_for_no_more_than_its_share() -> None:
    leases = open_leases()
    for step in range(20):
        hit(leases, 100, step * 1000)
    (ask,) = leases.asks(20_000)

    assert (ask.extra, ask.least) == (50, 50)


def test_a_term_shorter_than_ten_round_trips_is_not_leased_for() -> None:
    leases = open_leases()
    for step in range(20):
        hit(leases, 100, step * 1000)

    leases.round_trip = 10_001
    assert leases.asks(20_000) == []


def test_while_an_ask_is_under_way_hits_are_sent_and_nothing_more_is_asked() -> None:
    leases = open_leases()
    asked(leases)

    assert hit(leases, 1, 20_100) is None
    assert leases.asks(20_100) == []


def test_what_is_held_allows_hits_until_the_terms_end_counted_from_when_the_ask_was_sent() -> None:
    leases = holding()

    assert hit(leases, 30, 20_000) == Decision(True, 910, 0, 1_000_000, 0)
    assert hit(leases, 1, 99_420) == Decision(True, 909, 0, 920_580, 0)
    assert hit(leases, 1, 99_421) is None


def test_a_lease_of_a_bucket_ends_earlier_so_that_all_of_it_can_be_given_back() -> None:
    bucket = Rule("shop", (), LIMIT, open_algorithm("token_bucket"), lease=50)
    leases = open_leases()
    for step in range(20):
        hit(leases, 1, step * 1000, bucket)
    (ask,) = leases.asks(20_000)
    leases.answered(ask, Granted(40, 900, STORE + 100_000, 0, 0, STORE + 20_000), sent=20_000)

    assert hit(leases, 1, 94_999, bucket) is not None
    assert hit(leases, 1, 95_000, bucket) is None
    (ask,) = leases.asks(95_000)
    assert (ask.back, ask.back_end) == (39, STORE + 100_000)


@pytest.mark.parametrize(("room", "extra"), [(501, 34), (500, 24)])
def test_more_than_the_average_is_asked_for_while_half_of_the_limit_is_left(room: int, extra: int) -> None:
    leases = open_leases()
    leases.answered(asked(leases), Granted(0, room, STORE + 100_000, 0, 0, STORE + 20_000), sent=20_000)
    for step in range(5):
        hit(leases, 1, 20_000 + step * 4000)
    (ask,) = leases.asks(40_000)

    assert ask.extra == extra


def test_after_a_pause_the_rate_before_it_counts_once_more() -> None:
    leases = holding()
    hit(leases, 40, 20_000)
    hit(leases, 1, 5_020_000)
    (ask,) = leases.asks(5_020_000)
    leases.answered(ask, Granted(0, 900, STORE + 5_100_000, 1_000_000, 0, STORE + 5_020_000), sent=5_020_000)
    hit(leases, 1, 9_020_000)

    assert ask.extra == 34
    assert leases.asks(9_020_000) == []


@pytest.mark.parametrize("cost", [41, 0, -1])
def test_a_look_a_refund_and_a_hit_that_costs_more_than_is_left_are_sent_behind_what_is_given_back(cost: int) -> None:
    leases = holding()

    assert hit(leases, cost, 20_000) is None
    (ask,) = leases.asks(20_000)
    assert (ask.back, ask.back_end, ask.before_hit) == (40, STORE + 100_000, True)
    assert ask.extra > 0
    assert hit(leases, 1, 20_000) is None


def test_while_an_ask_is_under_way_nothing_is_given_back_before_a_hit() -> None:
    leases = low_and_asking()

    assert hit(leases, 0, 21_000) is None
    assert hit(leases, 11, 21_000) is None
    assert leases.asks(21_000) == []
    assert leases.held == 10


def test_of_two_terms_what_is_of_the_earlier_one_is_given_back_before_a_hit() -> None:
    leases = open_leases()
    leases.round_trip = 3000
    for step in range(20):
        hit(leases, 10, step * 1000)
    (first,) = leases.asks(20_000)
    leases.answered(first, Granted(20, 900, STORE + 100_000, 1_000_000, 0, STORE + 20_000), sent=20_000)
    hit(leases, 10, 98_000)
    (second,) = leases.asks(98_000)
    leases.answered(second, Granted(30, 870, STORE + 200_000, 1_000_000, 0, STORE + 100_000), sent=98_000)

    assert hit(leases, 0, 110_000) is None
    (ask,) = leases.asks(110_000)
    assert (ask.back, ask.back_end, ask.before_hit) == (10, STORE + 100_000, True)
    assert leases.held == 30


def low_and_asking() -> Leases:
    """It holds 10, and has asked for more in advance."""
    leases = open_leases()
    leases.round_trip = 3000
    for step in range(20):
        hit(leases, 10, step * 1000)
    (ask,) = leases.asks(20_000)
    leases.answered(ask, Granted(20, 900, STORE + 100_000, 1_000_000, 0, STORE + 20_000), sent=20_000)
    assert hit(leases, 5, 21_000) is not None
    assert leases.asks(21_000) == []

    assert hit(leases, 5, 21_000) is not None
    (ask,) = leases.asks(21_000)
    assert (ask.extra, ask.back) == (40, 0)
    return leases


def test_a_lease_that_is_low_is_asked_for_in_advance_while_it_allows() -> None:
    assert hit(low_and_asking(), 5, 21_000) is not None


def test_what_is_left_at_the_terms_end_is_given_back_with_the_next_ask() -> None:
    leases = holding()
    assert hit(leases, 1, 130_000) is None
    (ask,) = leases.asks(130_000)

    assert (ask.back, ask.back_end) == (40, STORE + 100_000)
    assert leases.held == 0


def test_a_sweep_gives_back_and_takes_nothing() -> None:
    leases = holding()
    leases.sweep(99_420)
    assert leases.asks(99_420) == []

    leases.sweep(99_421)
    (ask,) = leases.asks(99_421)

    assert (ask.back, ask.extra) == (40, 0)


def test_a_counter_without_hits_is_forgotten() -> None:
    leases = holding()
    leases.sweep(120_000)
    (ask,) = leases.asks(120_000)
    leases.answered(ask, Granted(0, 1000, STORE + 200_000, 0, 0, STORE + 120_000), sent=120_000)

    leases.sweep(10_120_000)
    assert leases.by_key.get(KEY) is not None
    leases.sweep(10_120_001)

    assert leases.by_key.get(KEY) is None


def test_a_counter_whose_last_hits_were_denied_is_forgotten_too() -> None:
    leases = open_leases()
    leases.answered(asked(leases), Granted(0, 0, STORE + 100_000, 980_000, 30_000, STORE + 20_000), sent=20_000)
    assert hit(leases, 1, 21_000) is not None

    leases.sweep(10_020_001)
    assert leases.by_key.get(KEY) is not None
    leases.sweep(20_020_002)

    assert leases.by_key.get(KEY) is None


def test_a_failed_ask_burns_what_it_was_to_give_back_and_to_take() -> None:
    leases = holding()
    hit(leases, 1, 130_000)
    (ask,) = leases.asks(130_000)
    leases.failed(ask)

    assert (leases.granted, leases.lost, leases.held) == (40 + ask.extra, 40 + ask.extra, 0)
    assert hit(leases, 1, 131_000) is None
    assert len(leases.asks(131_000)) == 1


@pytest.mark.parametrize(
    ("retry", "until"),
    [
        (1, 25_000),  # the least
        (30_000, 50_000),  # the store's own
        (980_000, 101_000),  # the term's end, at which others give back, and a millisecond
    ],
)
def test_a_denial_is_remembered_for_its_retry_but_not_beyond_the_term(retry: int, until: int) -> None:
    """L6."""
    leases = open_leases()
    asked(leases)
    leases.by_key[KEY].phase = 0
    leases.denied_by_store(KEY, 2, Decision(False, 1, 1, 980_000, retry), STORE + 20_000, sent=20_000)

    refused = hit(leases, 2, until - 1)
    assert refused is not None
    assert not refused.allowed
    assert refused.retry_after == max(1, 20_000 + retry - until + 1)
    assert hit(leases, 1, until - 1) is None
    assert hit(leases, 2, until) is None


def test_terms_of_instances_end_at_moments_of_their_own_but_those_of_buckets_and_of_short_parts_at_one() -> None:
    def ends_of(name: str) -> list[int]:
        rule = Rule("shop", (), LIMIT, open_algorithm(name), lease=50)
        found = []
        for seed in range(100):
            leases = Leases(deny=5000, seed=seed)
            for step in range(5):
                hit(leases, 1, step * 1000, rule)
            phase = leases.by_key[KEY].phase
            found.append(take(rule.algorithm, None, LIMIT, 5, 5, STORE + 300_000, phase)[1].term_end - STORE)  # type: ignore[arg-type]
        return found

    assert len({end // 10_000 for end in ends_of("fixed_window")}) == 10  # each tenth of a term has some
    assert all(300_000 < end <= 400_000 for end in ends_of("fixed_window"))
    assert {*ends_of("token_bucket")} == {*ends_of("sub_windows")} == {400_000}


@pytest.mark.parametrize("cost", [-1, 0])
def test_a_refund_and_a_look_end_the_denial_as_nothing_else_does(cost: int) -> None:
    """After a look a caller charges, and what it has used already is not to be dropped."""
    leases = open_leases()
    asked(leases)
    leases.denied_by_store(KEY, 1, Decision(False, 0, 1, 980_000, 30_000), STORE + 20_000, sent=20_000)
    leases.denied_by_store(KEY, 2, Decision(False, 0, 2, 980_000, 60_000), STORE + 20_000, sent=20_000)

    assert hit(leases, 1, 30_000) is not None
    assert hit(leases, cost, 30_000) is None
    assert hit(leases, 1, 30_000) is None


def test_a_hit_that_is_never_possible_is_the_stores_to_answer() -> None:
    leases = open_leases()
    asked(leases)
    leases.denied_by_store(KEY, 1001, Decision(False, 1000, 1, 0, NEVER), STORE + 20_000, sent=20_000)

    assert hit(leases, 1001, 20_001) is None


def test_without_any_room_hits_are_denied_until_there_may_be_some() -> None:
    leases = open_leases()
    leases.answered(asked(leases), Granted(0, 0, STORE + 100_000, 980_000, 30_000, STORE + 20_000), sent=20_000)

    assert hit(leases, 1, 49_999) == Decision(False, 0, 1, 950_001, 1)
    assert hit(leases, 1, 50_000) is None


def test_where_the_hit_counts_that_crosses_the_limit_the_first_without_room_is_the_stores_to_deny() -> None:
    rule = replace(RULE, limit=replace(LIMIT, count_refused=True, crossing_only=True))
    leases = open_leases()
    for step in range(20):
        hit(leases, 1, step * 1000, rule)
    (ask,) = leases.asks(20_000)
    leases.answered(ask, Granted(0, 0, STORE + 100_000, 980_000, 30_000, STORE + 20_000), sent=20_000)

    assert hit(leases, 1, 20_001, rule) is None
    leases.denied_by_store(KEY, 1, Decision(False, 0, 1, 980_000, 980_000), STORE + 20_001, sent=20_001)
    assert hit(leases, 1, 20_002, rule) == Decision(False, 0, 1, 979_999, 979_999)


def test_a_hit_that_is_denied_here_and_never_possible_is_told_so() -> None:
    leases = open_leases()
    asked(leases)
    leases.denied_by_store(KEY, 1, Decision(False, 0, 1, 980_000, 980_000), STORE + 20_000, sent=20_000)

    assert hit(leases, 1001, 20_001) == Decision(False, 0, 1001, 979_999, NEVER)


def test_a_changed_limit_ends_its_leases() -> None:
    """L9: also one that is asked for, when the answer comes."""
    lower = Rule("shop", (), replace(LIMIT, requests=500), RULE.algorithm, lease=25)
    leases = holding()
    hit(leases, 40, 20_000)
    hit(leases, 1, 20_000)
    (ask,) = leases.asks(20_000)

    assert hit(leases, 1, 20_001, lower) is None
    leases.answered(ask, Granted(30, 500, STORE + 100_000, 1_000_000, 0, STORE + 20_002), sent=20_000)

    assert (leases.held, leases.lost) == (0, 30)
    assert hit(leases, 1, 20_003, lower) is None


def test_a_book_with_the_same_limit_keeps_them() -> None:
    leases = holding()

    assert hit(leases, 1, 20_000, Rule("shop", (), replace(LIMIT), RULE.algorithm, lease=50)) is not None


def test_after_the_loss_of_a_server_nothing_is_held_and_nothing_given_back() -> None:
    leases = holding()
    leases.drop_all()

    assert (leases.held, leases.lost) == (0, 40)
    leases.sweep(130_000)
    assert leases.asks(130_000) == []


def test_an_instance_that_stops_gives_all_back_and_asks_for_nothing() -> None:
    leases = holding()
    leases.give_all()
    (ask,) = leases.asks(20_000)

    assert (ask.back, ask.back_end, ask.extra) == (40, STORE + 100_000, 0)


def test_a_sweep_looks_at_some_of_many_and_comes_to_all() -> None:
    leases = open_leases()
    for number in range(2001):
        for step in range(6):
            leases.hit(RULE, LIMIT, f"shop|user={number}", 1, step)
    assert len(leases.by_key) == 2001
    assert leases.asks(1_000_000) == []

    leases.sweep(12_000_000)
    left = len(leases.by_key)
    leases.sweep(12_000_000)

    assert (left, len(leases.by_key)) == (1, 0)


def hits_of(*keys: str) -> list[Hit]:
    return [Hit(RULE, key, 1, tally=Tally(), quota=False) for key in keys]


def test_a_request_counts_once_however_often_it_names_a_counter() -> None:
    leases = open_leases()
    for now in range(4):
        assert len(leases.answer(hits_of(*["a"] * 5, "b", *["a"] * 5), now)) == 11
    assert leases.by_key == {}

    leases.answer(hits_of("a", "b"), 5)
    assert [*leases.by_key] == ["a", "b"]


def requested(leases: Leases, key: str, times: int, now: int) -> int:
    """So many requests on that counter, each alone; returns how many of them were allowed by what is held."""
    return sum(not leases.is_cold(key) and not leases.answer(hits_of(key), now) for _ in range(times))


def full(*keys: str) -> Leases:
    """Of as many leases as there may be, each holds 40 units until 100 ms."""
    leases = Leases(deny=5000, most=len(keys))
    leases.round_trip = 100
    for key in keys:
        requested(leases, key, 6, 0)
        requested(leases, key, 20, 20_000)
        (ask,) = leases.asks(20_000)
        leases.answered(ask, Granted(40, 900, STORE + 100_000, 1_000_000, 0, STORE + 20_500), sent=20_000)
    for _ in range(10):
        leases.sweep(50_000)  # a second of them
    return leases


def test_a_counter_that_is_hit_more_often_takes_the_place_of_the_one_that_saves_least() -> None:
    leases = full("a", "b", "c")
    assert [requested(leases, key, times, 60_000) for key, times in (("a", 20), ("b", 5), ("c", 20))] == [20, 5, 20]
    leases.sweep(70_000)

    assert requested(leases, "d", 7, 80_000) == 0
    assert [*leases.by_key] == ["a", "b", "c"]
    requested(leases, "d", 1, 80_000)
    assert [*leases.by_key] == ["a", "c", "d"]
    back, *_ = leases.asks(80_000)
    assert (back.counter.key, back.back, back.back_end, back.extra) == ("b", 35, STORE + 100_000, 0)


def test_what_a_lease_holds_that_makes_way_is_held_until_it_is_given_back_or_dropped() -> None:
    for dropped in (False, True):
        leases = full("a")
        requested(leases, "b", 8, 60_000)
        assert leases.held == 40
        if dropped:
            leases.drop_all()
        assert len(leases.asks(60_000)) == (not dropped)

        assert leases.held == 0
        assert leases.lost == 40 * dropped


def test_strangers_names_push_no_counter_out_that_is_hit_more_often_than_they_are() -> None:
    """600 a second, each in six requests, beside ten counters that begin later and are hit 30 times a second."""
    leases, own = Leases(deny=5000, most=200), [f"own{number}" for number in range(10)]
    for step in range(40):
        for turn in range(6):
            now = step * 100_000 + turn * 10_000
            for name in range(60):
                leases.answer(hits_of(*[f"stranger{step % 10 * 60 + name}"] * 5), now)
            for key in own if step >= 10 and turn % 2 else ():
                requested(leases, key, 1, now)
            for ask in leases.asks(now):
                leases.answered(ask, Granted(ask.extra, 900, STORE + now + 90_000, SECOND, 0, STORE + now), sent=now)
        leases.sweep(step * 100_000 + 99_000)

    assert len(leases.by_key) == 200
    assert all(key in leases.by_key for key in own)
    assert leases.granted == leases.spent + leases.returned + leases.lost + leases.held
