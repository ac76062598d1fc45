"""The counter of a region that leases from home: what it allows, what waits, what is asked, what comes back."""

from typing import Any

import pytest

from ratelimit_service.algorithms import lease, open_algorithm
from ratelimit_service.algorithms.kinds import leased as regional
from ratelimit_service.algorithms.kinds.leased import Deposit, RegionCounter
from ratelimit_service.algorithms.lease import Wanted
from ratelimit_service.model import NEVER, Decision, Limit, Unit
from ratelimit_service.system.clock import HOUR, MINUTE, SECOND

FIXED: Any = open_algorithm("fixed_window")
START = 1_790_000_040_000_000
"""The start of a minute."""
TERM = 6 * SECOND


def limited(percent: int = 0, requests: int = 1000) -> Limit:
    return regional.member(Limit(requests, Unit.MINUTE, MINUTE), 3, percent)


def lent(units: int, *, asked: int = START, term: int = 0, deny: int = 0) -> Deposit:
    """For the first term, or a later one; home is five hours ahead."""
    end = START + (term + 1) * TERM
    return Deposit(asked, units, end, end + 5 * HOUR, deny, deny, 0)


def holding(units: int, now: int = START) -> RegionCounter:
    return regional.deposit(None, TERM, lent(units), now)


def charge(state: RegionCounter | None, limit: Limit, cost: int, now: int = START) -> Any:
    return regional.hit(FIXED, state, limit, cost, now)


def test_what_home_lends_and_all_floors_are_the_limit() -> None:
    regions = limited(10).regions
    assert regions is not None
    assert regions.home is not None
    assert regions.floor is not None

    assert (regions.home.requests, regions.floor.requests) == (700, 100)
    assert regional.most_of(FIXED, limited(10)) == 800


def test_a_burst_is_shared_as_the_requests_are_and_without_one_unit_of_it_there_is_no_floor() -> None:
    with_floor, without = (
        regional.member(Limit(1000, Unit.MINUTE, MINUTE, burst=burst), 3, 10).regions for burst in (50, 5)
    )
    assert with_floor is not None
    assert with_floor.home is not None
    assert with_floor.floor is not None
    assert without is not None
    assert without.home is not None

    assert (with_floor.home.burst, with_floor.floor.burst) == (35, 5)
    assert (without.home.requests, without.home.burst, without.floor) == (1000, 5, None)


@pytest.mark.parametrize(
    ("name", "limit", "term"),
    [
        ("fixed_window", Limit(1000, Unit.SECOND, SECOND), SECOND),
        ("fixed_window", Limit(1000, Unit.MINUTE, MINUTE), 6 * SECOND),
        ("sliding_window", Limit(1000, Unit.HOUR, HOUR), 360 * SECOND),
        ("sub_windows", Limit(1000, Unit.MINUTE, MINUTE, parts=20), 3 * SECOND),
        ("token_bucket", Limit(1000, Unit.SECOND, SECOND), SECOND // 4),
        ("token_bucket", Limit(1000, Unit.MINUTE, MINUTE), 6 * SECOND),
        ("token_bucket", Limit(1000, Unit.MINUTE, MINUTE, burst=100), 3 * SECOND // 2),
    ],
)
def test_a_loan_is_for_a_tenth_of_the_window_or_a_second(name: str, limit: Limit, term: int) -> None:
    algorithm = open_algorithm(name)

    assert regional.term(algorithm, regional.member(limit, 3, 0)) == term
    assert regional.problem(algorithm, regional.member(limit, 3, 0)) is None


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("sub_windows", Limit(1000, Unit.SECOND, SECOND)),
        ("token_bucket", Limit(1000, Unit.SECOND, SECOND, burst=400)),
    ],
)
def test_what_would_be_lent_for_less_than_an_eighth_of_a_second_cannot_be(name: str, limit: Limit) -> None:
    problem = regional.problem(open_algorithm(name), regional.member(limit, 3, 0))

    assert problem == "it would be leased for 100 ms at a time, which is too short to ask another region"


def test_the_first_hit_waits_and_home_is_asked_for_it() -> None:
    state, decision = charge(None, limited(), 5)
    state, wanted = regional.ask(FIXED, state, limited(), 5, START)

    assert (decision, wanted) == (None, Wanted(back=0, back_end=0, least=5, extra=0))


def test_one_process_asks_at_a_time_until_its_answer_is_late() -> None:
    state, _ = charge(None, limited(), 5)
    state, _ = regional.ask(FIXED, state, limited(), 5, START)

    assert regional.ask(FIXED, state, limited(), 5, START + SECOND - 1)[1] is None
    assert regional.ask(FIXED, state, limited(), 5, START + SECOND)[1] is not None


def test_after_a_deposit_another_ask_may_go_at_once_but_not_after_that_of_an_earlier_ask() -> None:
    state, _ = regional.ask(FIXED, charge(None, limited(), 5)[0], limited(), 5, START)
    first = regional.deposit(state, TERM, lent(3), START + 70_000)
    other = regional.deposit(state, TERM, lent(3, asked=START - SECOND), START + 70_000)

    assert (first.lease.asked_until, other.lease.asked_until) == (0, START + SECOND)


def test_a_hit_is_charged_to_the_loan_and_beyond_that_to_the_floor() -> None:
    state, decision = charge(holding(10), limited(10), 25)

    assert decision == Decision(True, 85, 0, MINUTE, 0)
    assert (state.lease.left, state.floor) == (0, (START + MINUTE, 15))


def test_a_loan_is_valid_until_its_term_ends_counted_from_the_ask() -> None:
    state = holding(10)

    assert charge(state, limited(), 1, START + TERM - 1)[1] == Decision(True, 9, 0, 0, 0)
    assert charge(state, limited(), 1, START + TERM)[1] is None


def test_a_loan_that_seems_longer_than_a_term_is_not_spent() -> None:
    """The clock of the store has stepped back."""
    assert charge(holding(10), limited(), 1, START - 1)[1] is None


def test_what_is_left_of_an_ended_loan_is_given_back_with_the_next_ask() -> None:
    state, _ = charge(holding(10), limited(), 3, START + TERM)
    state, wanted = regional.ask(FIXED, state, limited(), 3, START + TERM)

    assert wanted == Wanted(back=10, back_end=START + TERM + 5 * HOUR, least=3, extra=0)
    assert regional.collect(state, TERM, START + TERM) == (state, 0, 0)


def test_what_is_left_of_an_ended_loan_is_collected_once_and_a_live_one_is_not() -> None:
    live = regional.collect(holding(10), TERM, START + TERM - 1)
    state, units, term_end = regional.collect(holding(10), TERM, START + TERM)

    assert live == (holding(10), 0, 0)
    assert (units, term_end) == (10, START + TERM + 5 * HOUR)
    assert regional.collect(state, TERM, START + TERM)[1:] == (0, 0)


def test_two_loans_of_a_term_are_one_and_end_with_the_later_of_their_ends() -> None:
    early = lent(5)._replace(end=START + TERM - 50)
    state = regional.deposit(regional.deposit(None, TERM, lent(10), START), TERM, early, START + 9)

    assert (state.lease.left, state.lease.end, state.lease.back) == (15, START + TERM, 0)


def test_loans_of_two_terms_are_not_mixed() -> None:
    """In whatever order they come, what is left of the earlier one is to be given back."""
    later = lent(7, asked=START + TERM, term=1)
    newer = regional.deposit(holding(10), TERM, later, START + TERM + 9)
    older = regional.deposit(regional.deposit(None, TERM, later, START + TERM + 5), TERM, lent(10), START + TERM + 9)
    first, second = START + TERM + 5 * HOUR, START + 2 * TERM + 5 * HOUR

    assert (newer.lease.left, newer.lease.term_end, newer.lease.back, newer.lease.back_end) == (7, second, 10, first)
    assert (older.lease.left, older.lease.term_end, older.lease.back, older.lease.back_end) == (7, second, 10, first)


def test_a_home_whose_clock_was_set_back_lends_as_ever() -> None:
    state = regional.deposit(holding(10), TERM, lent(7)._replace(term_end=START), START + 9)

    assert (state.lease.left, state.lease.term_end, state.lease.back) == (7, START, 10)


def test_of_the_rests_of_two_terms_the_earlier_one_is_burnt() -> None:
    later = lent(7, asked=START + TERM, term=1)
    state = regional.deposit(holding(10), TERM, later, START + TERM)

    assert regional.collect(state, TERM, START + 2 * TERM)[1:] == (7, START + 2 * TERM + 5 * HOUR)


def test_a_loan_that_comes_after_its_end_is_to_be_given_back() -> None:
    state = regional.deposit(None, TERM, lent(10), START + TERM)

    assert (state.lease.left, state.lease.back, state.lease.back_end) == (0, 10, START + TERM + 5 * HOUR)


def test_as_long_as_home_has_nothing_hits_are_denied_and_nothing_is_asked() -> None:
    denying = regional.deposit(None, TERM, lent(2, deny=START + 3 * SECOND), START)
    state, denied = charge(denying, limited(), 3, START + SECOND)

    assert denied == Decision(False, 2, 1, 0, 2 * SECOND)
    assert regional.ask(FIXED, state, limited(), 0, START + SECOND)[1] is None
    assert charge(denying, limited(), 2, START + SECOND)[1].allowed
    assert charge(denying, limited(), 3, START + 3 * SECOND)[1] is None


def test_that_home_has_nothing_is_remembered_long_enough_for_all_that_wait() -> None:
    """The round trip took longer than the retry."""
    terms = (TERM, SECOND // 8, HOUR)
    states = [regional.deposit(None, term, lent(0, deny=START + 1), START + 70_000) for term in terms]

    assert [state.lease.deny_until for state in states] == [START + 670_000, START + 90_000, START + 1_070_000]


def test_a_hit_that_costs_more_than_home_and_floor_have_is_denied_for_ever() -> None:
    state, decision = charge(None, limited(10), 801)

    assert (state, decision) == (None, Decision(False, 100, 701, MINUTE, NEVER))
    assert charge(None, limited(10), 800)[1] is None


def test_of_a_bucket_what_a_hit_needs_is_lent_for_less_than_a_term_if_it_does_not_fit_for_one() -> None:
    """In a term of 6 s the bucket regains 100, in an eighth of a second 3."""
    bucket: Any = open_algorithm("token_bucket")
    home = regional.home_of(limited())

    def lent_for(least: int) -> tuple[int, int]:
        _, taken = lease.take(bucket, None, home, least, least, START)
        return taken.units, taken.term_end - START

    assert regional.most_of(bucket, limited()) == 997
    assert [lent_for(least) for least in (900, 901, 950, 951, 996)] == [
        (900, TERM),
        (901, TERM // 2),
        (950, TERM // 2),
        (951, TERM // 4),
        (996, TERM // 32),
    ]


def test_a_refund_fills_the_loan_and_then_the_floor_and_no_more() -> None:
    state, _ = charge(holding(10), limited(10), 25)
    some, few = charge(state, limited(10), -12)
    all_of_it, most = charge(state, limited(10), -1000)

    assert (few.remaining, some.lease.left, some.floor) == (97, 10, (START + MINUTE, 13))
    assert (most.remaining, all_of_it.lease.left, all_of_it.floor) == (110, 10, None)
    assert charge(None, limited(10), -1) == (None, Decision(True, 100, 0, MINUTE, 0))


def test_a_look_changes_nothing_and_never_waits() -> None:
    state = holding(10)

    assert charge(None, limited(), 0) == (None, Decision(True, 0, 0, 0, 0))
    assert charge(state, limited(10), 0) == (state, Decision(True, 110, 0, MINUTE, 0))


def test_home_is_asked_in_advance_when_half_of_the_floor_is_used() -> None:
    limit = limited(10)
    half, _ = charge(None, limit, 50)
    more, _ = charge(half, limit, 1)

    assert regional.ask(FIXED, half, limit, 0, START)[1] is None
    assert regional.ask(FIXED, more, limit, 0, START)[1] == Wanted(0, 0, 10, 102)


def test_home_is_asked_in_advance_when_a_loan_will_not_last_for_two_round_trips() -> None:
    """100 units a second are 600 in a term; of the 15 in two round trips of 70 ms."""
    state = regional.deposit(None, TERM, lent(614, asked=START - 70_000), START)
    state, _ = charge(state, limited(), 600, START)
    low, _ = charge(state, limited(), 1, START + TERM // 2)

    assert regional.ask(FIXED, state, limited(), 0, START + TERM // 2)[1] is None
    assert regional.ask(FIXED, low, limited(), 0, START + TERM // 2)[1] == Wanted(0, 0, 60, 588)


def test_demand_is_forgotten_after_two_terms_without_an_ask() -> None:
    state, _ = charge(holding(600), limited(), 600, START)
    after, _ = charge(state, limited(), 1, START + 2 * TERM)

    assert regional.ask(FIXED, after, limited(), 1, START + 2 * TERM)[1] == Wanted(0, 0, 1, 0)


def test_a_counter_expires_a_term_after_its_loan() -> None:
    state = holding(10)

    assert state.expiry == START + 2 * TERM
    assert regional.collect(state, TERM, START + 2 * TERM)[1] == 0
