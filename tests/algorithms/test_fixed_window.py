"""The fixed window, step by step: (seconds, cost) -> (allowed, remaining, over, reset, retry)."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.algorithms import State, fixed_window
from ratelimit_service.model import NEVER, Limit, Unit
from ratelimit_service.system.calendar import Calendar
from ratelimit_service.system.clock import DAY, HOUR, MINUTE, SECOND

THREE_A_MINUTE = Limit(3, Unit.MINUTE, MINUTE)


def steps(limit: Limit, *hits: tuple[float, int]) -> list[tuple[bool, int, int, int, int]]:
    state: State | None = None
    answers = []
    for seconds, cost in hits:
        state, decision = fixed_window.hit(state, limit, cost, int(seconds * SECOND))
        answers.append(
            (
                decision.allowed,
                decision.remaining,
                decision.over,
                decision.reset_after // SECOND,
                decision.retry_after if decision.retry_after == NEVER else decision.retry_after // SECOND,
            )
        )
    return answers


def test_hits_are_allowed_up_to_the_limit_and_denied_above_it() -> None:
    answers = steps(THREE_A_MINUTE, (60, 1), (61, 1), (62, 1), (63, 1))

    assert answers == [(True, 2, 0, 60, 0), (True, 1, 0, 59, 0), (True, 0, 0, 58, 0), (False, 0, 1, 57, 57)]


def test_a_window_ends_with_the_minute_of_the_clock() -> None:
    answers = steps(THREE_A_MINUTE, (119, 3), (119.5, 1), (120, 3))

    assert answers == [(True, 0, 0, 1, 0), (False, 0, 1, 0, 0), (True, 0, 0, 60, 0)]


def test_a_hit_that_crosses_the_limit_is_denied_whole_and_stays_counted() -> None:
    answers = steps(THREE_A_MINUTE, (60, 2), (60, 3), (60, 1))

    assert answers == [(True, 1, 0, 60, 0), (False, 0, 2, 60, 60), (False, 0, 1, 60, 60)]


def test_of_denied_hits_only_the_first_counts_where_that_is_said() -> None:
    limit = replace(THREE_A_MINUTE, crossing_only=True)
    answers = steps(limit, (60, 3), (60, 2), (60, 2), (60, 0), (60, -2), (60, 0), (60, 9), (60, -6), (60, 1))

    assert [(allowed, left) for allowed, left, *_ in answers] == [
        (True, 0),
        (False, 0),
        (False, 0),
        (False, 0),
        (True, 0),
        (True, 0),
        (False, 0),
        (True, 0),
        (False, 0),
    ]


def test_a_hit_that_costs_more_than_the_limit_is_never_possible() -> None:
    assert steps(THREE_A_MINUTE, (60, 4)) == [(False, 0, 1, 60, NEVER)]


def test_a_look_charges_nothing_and_is_allowed_at_exactly_the_limit() -> None:
    answers = steps(THREE_A_MINUTE, (60, 0), (60, 3), (60, 0), (60, 1), (60, 0))

    assert answers == [
        (True, 3, 0, 60, 0),
        (True, 0, 0, 60, 0),
        (True, 0, 0, 60, 0),
        (False, 0, 1, 60, 60),
        (False, 0, 0, 60, 60),
    ]


def test_a_refund_is_allowed_and_gives_room_but_no_credit() -> None:
    answers = steps(THREE_A_MINUTE, (60, 3), (60, -1), (60, -9), (60, 3), (60, 1))

    assert answers == [
        (True, 0, 0, 60, 0),
        (True, 1, 0, 60, 0),
        (True, 3, 0, 60, 0),
        (True, 0, 0, 60, 0),
        (False, 0, 1, 60, 60),
    ]


def test_a_limit_of_zero_denies_everything() -> None:
    assert steps(Limit(0, Unit.SECOND, SECOND), (1, 1)) == [(False, 0, 1, 1, NEVER)]


def test_a_clock_that_steps_back_does_not_reopen_the_window_before() -> None:
    answers = steps(THREE_A_MINUTE, (120, 3), (119, 1))

    assert answers == [(True, 0, 0, 60, 0), (False, 0, 1, 61, 61)]


def test_the_count_of_a_flood_stays_an_exact_integer() -> None:
    state: State | None = None
    for _ in range(3):
        state, _ = fixed_window.hit(state, THREE_A_MINUTE, 2**52, 0)

    assert state == (MINUTE, fixed_window.CEILING)


@pytest.mark.parametrize(
    ("unit", "seconds", "reset"),
    [
        (Unit.SECOND, 1234, 1),
        (Unit.MINUTE, 1234, 26),
        (Unit.HOUR, 1_000_000, 800),
        (Unit.DAY, 1_000_000, 36_800),
        # The epoch was a Thursday, and weeks start with it.
        (Unit.WEEK, 1_000_000, 209_600),
        (Unit.MONTH, 1_000_000, 1_592_000),
        (Unit.YEAR, 1_000_000, 30_536_000),
    ],
)
def test_windows_are_aligned_to_the_epoch(unit: Unit, seconds: int, reset: int) -> None:
    _, decision = fixed_window.hit(None, Limit(1, unit, unit.window), 1, seconds * SECOND)

    assert decision.reset_after == reset * SECOND


FROM_THE_FIRST = replace(THREE_A_MINUTE, first_request=True)


def test_a_window_may_begin_with_its_first_request() -> None:
    answers = steps(FROM_THE_FIRST, (100, 0), (100, 1), (159, 2), (159, 1), (160, 1))

    assert answers == [
        (True, 3, 0, 0, 0),
        (True, 2, 0, 60, 0),
        (True, 0, 0, 1, 0),
        (False, 0, 1, 1, 1),
        (True, 2, 0, 60, 0),
    ]


def test_what_is_refunded_whole_has_no_window_of_its_own_any_more() -> None:
    assert steps(FROM_THE_FIRST, (100, 2), (130, -2), (130, 1)) == [
        (True, 1, 0, 60, 0),
        (True, 3, 0, 0, 0),
        (True, 2, 0, 60, 0),
    ]


def test_refused_hits_that_do_not_count_leave_room_for_smaller_ones() -> None:
    answers = steps(replace(THREE_A_MINUTE, count_refused=False), (60, 2), (60, 2), (60, 1), (60, 9))

    assert answers == [(True, 1, 0, 60, 0), (False, 1, 1, 60, 60), (True, 0, 0, 60, 0), (False, 0, 9, 60, NEVER)]


def test_what_exceeds_the_limit_is_let_through_so_far_and_reported() -> None:
    answers = steps(replace(THREE_A_MINUTE, exceed=2), (60, 2), (60, 2), (60, 1), (60, 1), (120, 6))

    assert answers == [
        (True, 3, 0, 60, 0),
        (True, 1, 1, 60, 0),
        (True, 0, 1, 60, 0),
        (False, 0, 1, 60, 60),
        (False, 0, 3, 60, NEVER),
    ]


BERLIN = Calendar("day", "", "Europe/Berlin")
SHORT_DAY = 1_774_738_800
"""29 March 2026, 00:00 in Berlin: a day of 23 hours."""


def test_a_window_of_a_calendar_is_as_long_as_it_is_there() -> None:
    by_day = replace(THREE_A_MINUTE, unit=Unit.DAY, window=DAY, calendar=BERLIN)

    answers = steps(
        by_day,
        *((SHORT_DAY + second, cost) for second, cost in ((-1, 3), (0, 0), (0, 3), (82799, 1), (82800, 1), (82799, 2))),
    )

    assert answers == [
        (True, 0, 0, 1, 0),
        (True, 3, 0, 82800, 0),
        (True, 0, 0, 82800, 0),
        (False, 0, 1, 1, 1),
        (True, 2, 0, 86400, 0),
        (True, 0, 0, 86401, 0),  # by a clock that stepped back
    ]


@given(st.lists(st.tuples(st.integers(-3 * DAY, 3 * DAY), st.integers(1, 3))))
def test_each_window_of_a_calendar_counts_for_itself(history: list[tuple[int, int]]) -> None:
    by_day = replace(THREE_A_MINUTE, requests=5, unit=Unit.DAY, window=DAY, calendar=BERLIN)
    counts: Counter[int] = Counter()
    state: State | None = None
    for after, cost in sorted(history):
        now = SHORT_DAY * SECOND + after
        # The days around it have 24 hours; after it the clocks are an hour ahead.
        begin = after // DAY * DAY if after < 23 * HOUR else (after + HOUR) // DAY * DAY - HOUR
        end = begin + (23 * HOUR if begin == 0 else DAY)
        counts[begin] += cost

        state, decision = fixed_window.hit(state, by_day, cost, now)

        assert decision.allowed is (counts[begin] <= 5)
        assert decision.remaining == max(0, 5 - counts[begin])
        assert decision.reset_after == end - after
        assert decision.retry_after == (0 if decision.allowed else end - after)
