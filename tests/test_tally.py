"""What each number counts: envoyproxy's own vectors, as (limit, cost, count after) -> (within, near, over)."""

import pytest

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.model import Decision, Limit, Unit
from ratelimit_service.rules.rule import near_threshold
from ratelimit_service.telemetry.tally import ByteBudget, Scale, Tallies, Tally


def count(limit: int, cost: int, after: int, *, shadow: bool = False) -> Tally:
    state = (60_000_000, after - cost) if after > cost else None
    _, decision = open_algorithm("fixed_window").hit(state, Limit(limit, Unit.MINUTE, 60_000_000), cost, 0)
    tally = Tally()
    tally.count(cost, decision, Scale(near_threshold(limit, 0.8), limit, limit), shadow)
    return tally


@pytest.mark.parametrize(
    ("limit", "cost", "after", "within", "near", "over"),
    [
        (20, 3, 5, 3, 0, 0),
        (8, 2, 7, 2, 1, 0),
        (20, 3, 19, 3, 3, 0),
        (20, 3, 22, 0, 1, 2),
        (20, 7, 22, 0, 4, 2),
        (10, 3, 30, 0, 0, 3),
        (15, 1, 16, 0, 0, 1),
    ],
)
def test_a_hit_is_counted_as_envoyproxy_counts_it(
    limit: int, cost: int, after: int, within: int, near: int, over: int
) -> None:
    tally = count(limit, cost, after)

    assert tally.total_hits == cost == tally.within_limit + tally.over_limit + tally.denied_below_limit
    assert (tally.within_limit, tally.near_limit, tally.over_limit) == (within, near, over)


def test_a_shadow_rule_counts_what_it_let_pass_as_over_too() -> None:
    tally = count(20, 3, 22, shadow=True)

    assert (tally.over_limit, tally.shadow_mode) == (2, 2)
    assert (tally.denied_below_limit, tally.shadow_below_limit) == (1, 1)


@pytest.mark.parametrize(
    ("cost", "remaining", "over", "within", "near", "exceeded"),
    [
        (1, 4, 0, 1, 0, 0),  # 8 of 10 used, and 2 may exceed
        (1, 3, 0, 1, 1, 0),
        (3, 2, 0, 3, 2, 0),
        (1, 1, 1, 0, 0, 1),
        (4, 1, 1, 3, 2, 1),
        (2, 0, 2, 0, 0, 2),
    ],
)
def test_what_may_exceed_the_limit_is_counted_apart(
    cost: int, remaining: int, over: int, within: int, near: int, exceeded: int
) -> None:
    tally = Tally()
    # A limit of 10 with exceed: 2; a hit is near it from 8 on.
    tally.count(cost, Decision(True, remaining, over, 0, 0), Scale(8, 10, 12), shadow=False)

    assert (tally.within_limit, tally.near_limit, tally.exceeded, tally.over_limit) == (within, near, exceeded, 0)


def test_a_hit_that_is_refused_above_a_soft_limit_counts_from_the_limit_on() -> None:
    tally = Tally()
    # 9 of 10 used and 2 may exceed; 4 more are refused: 1 below the limit, 3 above it.
    tally.count(4, Decision(False, 3, 3, 0, 0), Scale(8, 10, 12), shadow=False)

    assert (tally.within_limit, tally.near_limit, tally.exceeded, tally.over_limit) == (0, 1, 0, 3)


def test_what_is_spared_is_counted_as_asked_and_as_nothing_else() -> None:
    tally = Tally()
    for cost in (3, 0, -2):
        tally.spare(cost)

    assert (tally.total_hits, tally.spared) == (3, 3)
    assert (tally.within_limit, tally.near_limit, tally.over_limit, tally.total_negative_hits) == (0, 0, 0, 0)


def test_a_refund_is_counted_apart() -> None:
    tally = Tally()
    tally.count(-3, Decision(True, 10, 0, 0, 0), Scale(8, 10, 10), shadow=False)

    assert (tally.total_negative_hits, tally.total_hits, tally.within_limit) == (3, 0, 0)


def test_the_near_threshold_is_a_product_of_32_bit_floats() -> None:
    assert near_threshold(100, 0.29) == 29
    assert int(100 * 0.29) == 28


def test_beyond_the_bound_values_are_summed_in_one_tally() -> None:
    tallies = Tallies(("shop", "other"), 2)
    for value in ("a", "b", "c", "d", "a"):
        tallies.of(("shop", value)).total_hits += 1

    assert {path: tally.total_hits for path, tally in tallies.items()} == {
        ("shop", "a"): 2,
        ("shop", "b"): 1,
        ("shop", "other"): 2,
    }


def test_values_of_all_rules_together_take_no_more_bytes_than_they_may() -> None:
    room = ByteBudget(4 * 1024 * 1024)
    rules = [Tallies((f"{rule}", "other"), 1000, room) for rule in range(20)]
    paths = [(f"{rule}", f"{value:0120}") for rule in range(20) for value in range(1000)]
    for path in paths:
        rules[int(path[0])].of(path)

    assert room.left < 3000
    assert rules[19].of(paths[-1]) is rules[19].of(("19", "y" * 120))


def test_the_bytes_of_rules_that_are_gone_are_there_for_others_after_a_reload() -> None:
    room, after = ByteBudget(4500), ByteBudget(4500)
    gone, kept = Tallies(("gone",), 9, room), Tallies(("kept",), 9, room)
    gone.of(("a",))
    gone.of(("b",))
    first = kept.of(("a",))
    full = kept.of(("b",))

    kept.use_budget(after)

    assert kept.of(("a",)) is first
    assert kept.of(("b",)) is not full
    assert full is kept.of(("kept",))


def test_long_values_are_cut_and_counted_together_where_they_are_alike_then() -> None:
    tallies = Tallies(("shop", "other"), 9)
    for end in ("a", "b"):
        tallies.of(("shop", "x" * 60_000 + end)).total_hits += 1
    tallies.of(("shop", "x" * 128)).total_hits += 1

    assert {path: tally.total_hits for path, tally in tallies.items()} == {
        ("shop", "x" * 127 + "…"): 2,
        ("shop", "x" * 128): 1,
    }


@pytest.mark.parametrize("level", ["x" * 128, "\U0001f600" * 128, '"' * 128])
def test_what_is_too_long_as_a_label_never_becomes_the_name_of_a_metric(level: str) -> None:
    tallies = Tallies(("shop", "other"), 2)
    tallies.of((level,) * 8).total_hits += 1

    assert [path for path, _ in tallies.items()] == [("shop", "other")]


def test_what_another_process_has_summed_as_other_is_summed_there_too() -> None:
    tallies = Tallies(("other",), 1)

    tallies.of(("other",)).total_hits += 5
    tallies.of(("one too many",)).total_hits += 2

    assert [(path, tally.total_hits) for path, tally in tallies.items()] == [(("other",), 7)]


def test_of_a_rule_that_lets_looks_pass_denied_charges_that_are_dropped_are_counted() -> None:
    tally, drops, counts = Tally(), Scale(8, 10, 10, drops=True), Scale(8, 10, 10)
    denied, look = Decision(False, 3, 2, 0, 0), Decision(True, 3, 0, 0, 0)
    tally.count(5, denied, drops, shadow=False)
    assert tally.charges_dropped == 0  # without looks it is a rule as any
    tally.count(0, Decision(False, 0, 0, 0, 0), drops, shadow=False)
    tally.count(5, denied, drops, shadow=False)
    assert tally.charges_dropped == 0

    tally.count(0, look, drops, shadow=False)
    tally.count(5, denied, counts, shadow=False)
    tally.count(5, denied, drops, shadow=False)

    assert (tally.looks, tally.charges_dropped) == (1, 5)
