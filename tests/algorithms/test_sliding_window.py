"""The estimated sliding window: step by step, and against the log of what really came."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.algorithms import sliding_window
from ratelimit_service.model import NEVER, Limit, Unit
from ratelimit_service.system.clock import MINUTE, SECOND
from tests.algorithms.histories import histories, steps

TEN_A_MINUTE = Limit(10, Unit.MINUTE, MINUTE, count_refused=False)


def test_what_came_in_the_window_before_counts_by_the_part_in_view() -> None:
    # A quarter of the minute has passed, so three quarters of the 8 count: 6.
    answers = steps(sliding_window, TEN_A_MINUTE, (70, 8), (135, 0), (135, 4), (135, 1))

    assert answers == [
        (True, 2, 0, 102.500001, 0),
        (True, 4, 0, 37.500001, 0),
        (True, 0, 0, 90.000001, 0),
        # One more fits when of the 8 less than 6 count: after another microsecond.
        (False, 0, 1, 90.000001, 0.000001),
    ]


def test_a_full_window_is_full_at_the_start_of_the_next() -> None:
    answers = steps(sliding_window, TEN_A_MINUTE, (60, 10), (119.5, 1), (120, 1), (120.000001, 1), (120.000001, 1))

    assert [(allowed, retry) for allowed, _, _, _, retry in answers] == [
        (True, 0),
        (False, 0.500001),
        (False, 0.000001),
        (True, 0),
        (False, 6.0),
    ]


def test_two_windows_later_nothing_is_left() -> None:
    assert steps(sliding_window, TEN_A_MINUTE, (60, 10), (180, 0)) == [(True, 0, 0, 114.000001, 0), (True, 10, 0, 0, 0)]


def test_what_exceeds_the_limit_is_let_through_and_reported() -> None:
    answers = steps(sliding_window, replace(TEN_A_MINUTE, exceed=2), (60, 9), (60, 2), (60, 2), (60, 13))

    assert [(allowed, left, over) for allowed, left, over, _, _ in answers] == [
        (True, 3, 0),
        (True, 1, 1),
        (False, 1, 2),
        (False, 1, 13),
    ]
    assert answers[-1][-1] == NEVER


def test_a_refund_is_taken_from_this_window_then_from_the_one_before() -> None:
    answers = steps(sliding_window, TEN_A_MINUTE, (60, 8), (150, 3), (150, -5), (150, -9))

    assert [left for _, left, _, _, _ in answers] == [2, 3, 7, 10]


def test_a_clock_that_steps_back_sees_the_start_of_the_window_that_was_charged() -> None:
    answers = steps(sliding_window, TEN_A_MINUTE, (60, 8), (150, 4), (119, 0), (119, 1))

    assert [left for _, left, _, _, _ in answers] == [2, 2, 0, 0]


@given(histories)
def test_at_the_edge_of_a_window_the_estimate_is_exact(history: list[tuple[int, int]]) -> None:
    window = SECOND
    limit = Limit(1000, Unit.SECOND, window)
    history = sorted((now, cost) for now, cost in history if cost > 0)
    state = None
    for now, cost in history:
        state, _ = sliding_window.hit(state, limit, cost, now)
    edge = history[-1][0] // window * window + window if history else 0

    _, decision = sliding_window.hit(state, limit, 0, edge)

    assert 1000 - decision.remaining == sum(cost for now, cost in history if edge - window <= now)


@given(histories, st.integers(0, 2 * SECOND))
def test_the_estimate_is_off_by_no_more_than_the_window_that_is_partly_in_view(
    history: list[tuple[int, int]], later: int
) -> None:
    window = SECOND
    limit = Limit(1000, Unit.SECOND, window)
    history = sorted((now, cost) for now, cost in history if cost > 0)
    state = None
    for now, cost in history:
        state, _ = sliding_window.hit(state, limit, cost, now)
    now = (history[-1][0] if history else 0) + later
    start = now - now % window

    _, decision = sliding_window.hit(state, limit, 0, now)

    estimate = 1000 - decision.remaining
    truth = sum(cost for moment, cost in history if now - window < moment)
    partly = sum(cost for moment, cost in history if start - window <= moment < start)
    current = sum(cost for moment, cost in history if start <= moment)
    assert abs(estimate - truth) <= partly
    assert 0 <= estimate <= partly + current
