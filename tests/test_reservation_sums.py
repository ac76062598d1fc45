"""What became of reservations: sums that processes add up, though a settle may reach another one than its request."""

import json

from ratelimit_service.model import SETTLED_BEFORE, Decision, Reserving, SettledById
from ratelimit_service.system.clock import HOUR, SECOND
from ratelimit_service.telemetry.reservations import MOST_CELLS, NO_RESERVATIONS, Costs, Reservations, ReservationSums
from tests.clocks import Clock

HOLD = 80 * SECOND


def reserve(sums: ReservationSums, units: int) -> None:
    sums.note(HOLD, units, Reserving(True, 0, 0, 0, 0), settles=False)


def settle(sums: ReservationSums, cost: int, reserved: int, age: float) -> None:
    decision = SettledById(True, 0, max(0, cost - reserved), 0, 0, reserved, round(age * SECOND))
    sums.note(HOLD, cost, decision, settles=True)


def shown(found: Reservations) -> dict[str, float]:
    """Without zeros."""
    return {name.removeprefix("reservations_"): number for name, number in found._asdict().items() if number}


def test_what_is_not_settled_is_open_until_its_hold_is_over_and_unsettled_then() -> None:
    clock = Clock()
    sums = ReservationSums(clock)
    reserve(sums, 4000)
    clock.advance(20 * SECOND)
    reserve(sums, 1000)
    reserve(sums, 500)
    settle(sums, 700, 1000, 0)
    found = [shown(sums.read())]
    clock.advance(60 * SECOND)
    found.append(shown(sums.read()))
    clock.advance(20 * SECOND)

    costs = {"settled_lately": 1, "settled_p50": 700, "settled_p95": 700, "settled_most": 700}
    made = {"made": 3, "made_units": 5500, "settled": 1, **costs}
    unsettled = {"unsettled": 1, "unsettled_units": 4000}
    assert found == [
        made | {"open": 2, "open_units": 4500, "oldest_seconds": 20},
        made | {"open": 1, "open_units": 500, "oldest_seconds": 60, "due": 1, "due_units": 4000, **unsettled},
    ]
    assert shown(sums.read()) == made | {"due": 3, "due_units": 5500, "unsettled": 2, "unsettled_units": 4500}


def test_of_two_processes_one_sees_the_settles_of_the_other_and_the_sums_are_right() -> None:
    clock = Clock()
    one, other, both = (ReservationSums(clock) for _ in range(3))
    reserve(one, 4000)
    reserve(one, 3000)
    clock.advance(30 * SECOND)
    settle(other, 700, 4000, 30)
    apart = one.read(), other.read()
    for each in (one, other):
        both.add(json.loads(json.dumps(each.drain())))
    clock.advance(60 * SECOND)
    settle(other, 50, 3000, 90)  # its hold had begun anew
    late = other.read()
    both.add(json.loads(json.dumps(other.drain())))

    assert [(each.reservations_open, each.reservations_open_units) for each in apart] == [(2, 7000), (-1, -4000)]
    assert apart[0].merge(apart[1]).reservations_open == 1
    assert (late.reservations_due, late.reservations_unsettled_units) == (0, -3000)
    found = both.read()
    assert (found.reservations_due_units, found.reservations_unsettled, found.reservations_settled) == (7000, 0, 2)
    assert (one.drain(), other.read()) == (None, NO_RESERVATIONS)


def test_an_answer_that_came_sooner_or_later_makes_no_reservation_look_old() -> None:
    """Made at 29.9 by this clock, and settled as of 30.1: the part before has one too many, and that after too few."""
    clock = Clock(29_900_000)
    sums = ReservationSums(clock)
    reserve(sums, 10)
    clock.advance(200_000)
    settle(sums, 10, 10, 0)

    assert shown(sums.read())["settled"] == 1
    assert sums.read().reservations_oldest_seconds == 0
    clock.advance(10 * SECOND)
    reserve(sums, 10)
    assert sums.read().reservations_oldest_seconds == 0


def test_a_settle_of_an_id_without_a_reservation_is_late_and_one_sent_again_is_none() -> None:
    sums = ReservationSums(Clock())
    denied = Decision(False, 0, 10, 0, 0)
    reserve(sums, 10)
    sums.note(HOLD, 10, Decision(True, 0, 0, 0, 0), settles=False)  # a retry
    sums.note(HOLD, 10, denied, settles=False)
    sums.note(HOLD, 10, SettledById(True, 0, 0, 0, 0, SETTLED_BEFORE, 0), settles=True)
    sums.note(HOLD, 10, denied, settles=True)
    sums.note(HOLD, 0, Decision(True, 0, 0, 0, 0), settles=True)

    assert shown(sums.read()) == {"made": 1, "made_units": 10, "open": 1, "open_units": 10, "late": 1}


def test_overruns_and_costs_are_those_of_the_last_one_to_two_hours() -> None:
    clock = Clock()
    sums = ReservationSums(clock)
    for cost in (3000, 5000, 9000):
        settle(sums, cost, 4000, 1)
    clock.advance(HOUR)
    settle(sums, 1000, 4000, 1)
    found = sums.read()
    clock.advance(HOUR)
    again = sums.read()
    clock.advance(2 * HOUR)

    assert (found.settled_lately, found.overran_lately, found.settled_most) == (4, 2, 9000)
    assert (again.settled_lately, again.overran_lately, again.settled_most) == (1, 0, 1000)
    assert sums.read().settled_lately == 0
    assert sums.read().reservations_settled == 4


def test_a_quantile_is_at_most_an_eighth_off() -> None:
    for scale in (1, 7, 1000, 2**40):
        costs = Costs()
        for number in range(1, 101):
            costs.add(number * scale, overran=False)
        for percent in (50, 95):
            assert abs(costs.quantile(percent) - percent * scale) <= percent * scale / 8
        assert costs.quantile(100) <= costs.most == 100 * scale


def test_costs_of_all_sizes_have_few_cells_and_the_lowest_are_counted_together() -> None:
    costs = Costs()
    for bits in range(51):
        for _ in range(2):
            costs.add(2**bits, overran=False)
    cells, _, most = costs.packed()

    assert len(cells) == MOST_CELLS
    assert (costs.count, most) == (102, 2**50)
    assert 0.875 < costs.quantile(95) / 2**48 < 1.125


def test_a_change_of_hold_leaves_no_more_than_two_sets_of_parts_behind() -> None:
    clock = Clock()
    sums = ReservationSums(clock)
    kept = []
    for number in range(2000):
        clock.advance(SECOND // 3)
        hold = HOLD if number < 1000 else HOLD // 4
        sums.note(hold, 1, Reserving(True, 0, 0, 0, 0), settles=False)
        kept.append(len(sums._by_end))

    assert max(kept) <= 18
    assert sums.read().reservations_made == 2000
