"""Sub-windows: step by step, and the promise that no window ever sees more than the limit."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.algorithms import sub_windows
from ratelimit_service.model import NEVER, Limit, Unit
from ratelimit_service.system.clock import MINUTE, SECOND
from tests.algorithms.histories import steps

TEN_A_MINUTE = Limit(10, Unit.MINUTE, MINUTE, parts=6, count_refused=False)
"""In parts of ten seconds."""

windows = st.builds(
    Limit,
    st.integers(1, 12),
    st.just(Unit.SECOND),
    st.sampled_from([SECOND, 999_983, 30]),
    parts=st.integers(1, 12),
    count_refused=st.booleans(),
    exceed=st.sampled_from([0, 3]),
)
arrivals = st.lists(st.tuples(st.integers(0, 300_000), st.integers(1, 13)), max_size=80)
"""How long after the one before, and what it costs."""


def test_a_part_counts_whole_until_all_of_it_is_too_old() -> None:
    answers = steps(sub_windows, TEN_A_MINUTE, (69, 6), (70, 4), (129.999999, 1), (130, 6), (130, 1), (140, 4))

    assert answers == [
        (True, 4, 0, 61, 0),
        (True, 0, 0, 70, 0),
        (False, 0, 1, 10.000001, 0.000001),
        (True, 0, 0, 70, 0),
        (False, 0, 1, 70, 10),
        (True, 0, 0, 70, 0),
    ]


def test_the_wait_is_until_enough_parts_have_gone() -> None:
    answers = steps(sub_windows, TEN_A_MINUTE, (60, 2), (75, 3), (95, 5), (95, 2), (95, 3), (95, 6), (95, 11))

    assert [retry for *_, retry in answers] == [0, 0, 0, 35, 45, 65, NEVER]


def test_what_exceeds_the_limit_is_let_through_and_reported() -> None:
    answers = steps(sub_windows, replace(TEN_A_MINUTE, exceed=2), (60, 9), (60, 2), (60, 2))

    assert [(allowed, left, over) for allowed, left, over, _, _ in answers] == [
        (True, 3, 0),
        (True, 1, 1),
        (False, 1, 2),
    ]


def test_a_refund_takes_the_newest_first() -> None:
    answers = steps(sub_windows, TEN_A_MINUTE, (60, 3), (75, 4), (95, -5), (95, 0), (95, -9))

    assert answers[2:] == [(True, 8, 0, 35, 0), (True, 8, 0, 35, 0), (True, 10, 0, 0, 0)]


def test_refused_hits_that_count_keep_a_client_out() -> None:
    answers = steps(
        sub_windows, replace(TEN_A_MINUTE, count_refused=True), (60, 10), (125, 1), (130, 0), (130, 9), (130, 1)
    )

    # The one that was refused at 125 has taken one of the places that came free at 130.
    assert [(allowed, left, retry) for allowed, left, _, _, retry in answers] == [
        (True, 0, 0),
        (False, 0, 5),
        (True, 9, 0),
        (True, 0, 0),
        (False, 0, 70),
    ]


def test_a_clock_that_steps_back_charges_the_part_that_was_charged_last() -> None:
    answers = steps(sub_windows, TEN_A_MINUTE, (100, 9), (30, 1), (30, 1), (169.999999, 1), (170, 1))

    assert [allowed for allowed, *_ in answers] == [True, True, False, False, True]


def admitted(limit: Limit, gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    state, now, charged = None, 1_000_000_007, []
    for gap, cost in gaps:
        now += gap
        state, decision = sub_windows.hit(state, limit, cost, now)
        if decision.allowed:
            charged.append((now, cost))
    return charged


@given(windows, arrivals)
def test_no_window_ever_sees_more_than_the_limit(limit: Limit, gaps: list[tuple[int, int]]) -> None:
    gaps = [(gap % (limit.window + 2), cost) for gap, cost in gaps]
    charged = admitted(limit, gaps)

    # A window sees the most when it ends with a charge.
    for end, _ in charged:
        seen = sum(cost for now, cost in charged if end - limit.window < now <= end)
        assert seen <= limit.requests + limit.exceed
