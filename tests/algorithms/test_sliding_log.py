"""The sliding log: step by step, and against a list of everything that was admitted."""

from dataclasses import replace
from struct import pack, unpack_from

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.algorithms import sliding_log
from ratelimit_service.model import NEVER, Limit, Unit
from ratelimit_service.system.clock import MINUTE, SECOND
from tests.algorithms.histories import limits, steps

THREE_A_MINUTE = Limit(3, Unit.MINUTE, MINUTE, count_refused=False)


def test_each_request_counts_for_exactly_one_window() -> None:
    answers = steps(sliding_log, THREE_A_MINUTE, (10, 1), (20, 2), (30, 1), (69.999999, 1), (70, 1), (70, 1))

    assert answers == [
        (True, 2, 0, 60, 0),
        (True, 0, 0, 60, 0),
        (False, 0, 1, 50, 40),
        (False, 0, 1, 10.000001, 0.000001),
        (True, 0, 0, 60, 0),
        (False, 0, 1, 60, 10),
    ]


def test_the_wait_is_until_as_many_as_needed_have_left() -> None:
    answers = steps(sliding_log, THREE_A_MINUTE, (10, 1), (20, 1), (30, 1), (35, 1), (35, 2), (35, 3), (35, 4))

    assert [retry for *_, retry in answers] == [0, 0, 0, 35, 45, 55, NEVER]


def test_what_exceeds_the_limit_is_let_through_and_reported() -> None:
    answers = steps(sliding_log, replace(THREE_A_MINUTE, exceed=2), (10, 2), (10, 2), (10, 2))

    assert [(allowed, left, over) for allowed, left, over, _, _ in answers] == [
        (True, 3, 0),
        (True, 1, 1),
        (False, 1, 2),
    ]


def test_a_refund_strikes_the_newest() -> None:
    answers = steps(sliding_log, THREE_A_MINUTE, (10, 2), (20, 1), (25, -2), (25, 0), (70, 0))

    assert answers[2:] == [(True, 2, 0, 45, 0), (True, 2, 0, 45, 0), (True, 3, 0, 0, 0)]


def test_refused_hits_that_count_push_out_the_oldest() -> None:
    answers = steps(sliding_log, replace(THREE_A_MINUTE, count_refused=True), (10, 3), (40, 1), (70, 2), (70, 1))

    assert answers[1:] == [(False, 0, 1, 60, 30), (True, 0, 0, 60, 0), (False, 0, 1, 60, 60)]


def test_moments_stay_in_order_when_the_clock_steps_back() -> None:
    answers = steps(sliding_log, THREE_A_MINUTE, (100, 2), (30, 1), (30, 1), (159, 1), (160, 3))

    assert answers == [
        (True, 1, 0, 60, 0),
        (True, 0, 0, 130, 0),
        (False, 0, 1, 130, 130),
        (False, 0, 1, 1, 1),
        (True, 0, 0, 60, 0),
    ]


def test_a_log_that_would_be_huge_is_a_problem() -> None:
    assert sliding_log.problem(replace(THREE_A_MINUTE, requests=65_535)) is None
    assert sliding_log.problem(replace(THREE_A_MINUTE, requests=65_534, exceed=2)) == (
        "it would remember 65536 moments for each counter, the maximum is 65535; use sub_windows"
    )


def test_a_hit_is_one_entry_whatever_it_costs() -> None:
    limit = replace(THREE_A_MINUTE, requests=60_000, count_refused=True)

    state, _ = sliding_log.hit(None, limit, 50_000, 10 * SECOND)
    more, _ = sliding_log.hit(state, limit, 20_000, 20 * SECOND)
    less, _ = sliding_log.hit(more, limit, -30_000, 20 * SECOND)

    assert [len(each or b"") for each in (state, more, less)] == [16, 28, 16]


@given(limits, st.lists(st.tuples(st.integers(0, 300_000), st.integers(-30, 30)), max_size=80), st.integers(0, 2**32))
def test_numbers_may_begin_anywhere_and_pass_their_end(limit: Limit, gaps: list[tuple[int, int]], start: int) -> None:
    state, other, now = None, None, 5 * SECOND
    for gap, cost in gaps:
        now += gap % (limit.window + 2)
        state, decision = sliding_log.hit(state, limit, cost, now)
        if other is not None:
            other = moved(other, start)
        other, of_moved = sliding_log.hit(other, limit, cost, now)

        assert of_moved == decision


def moved(state: bytes, start: int) -> bytes:
    """The same log with its units numbered from there on."""
    count = len(state) // 12
    numbers = unpack_from(f"{count + 1}I", state, 8 * count)
    return state[: 8 * count] + pack(f"{count + 1}I", *((number - numbers[-1] + start) % 2**32 for number in numbers))


@given(limits, st.lists(st.tuples(st.integers(0, 300_000), st.integers(1, 30)), max_size=80))
def test_it_admits_exactly_what_fits_into_the_window_before(limit: Limit, gaps: list[tuple[int, int]]) -> None:
    limit = replace(limit, count_refused=False)
    most = limit.requests + limit.exceed
    state, now = None, 5 * SECOND
    charged: list[tuple[int, int]] = []
    for gap, cost in gaps:
        now += gap % (limit.window + 2)
        seen = sum(spent for moment, spent in charged if now - limit.window < moment)

        state, decision = sliding_log.hit(state, limit, cost, now)

        assert decision.allowed is (seen + cost <= most)
        assert decision.remaining == most - seen - (cost if decision.allowed else 0)
        if decision.allowed:
            charged.append((now, cost))


@given(limits, st.lists(st.tuples(st.integers(0, 300_000), st.integers(1, 30)), max_size=80))
def test_with_refused_hits_counted_it_remembers_the_last_that_came(limit: Limit, gaps: list[tuple[int, int]]) -> None:
    limit = replace(limit, count_refused=True)
    most = limit.requests + limit.exceed
    state, now = None, 5 * SECOND
    came: list[int] = []
    for gap, cost in gaps:
        now += gap % (limit.window + 2)
        seen = sum(now - limit.window < moment for moment in came)

        state, decision = sliding_log.hit(state, limit, cost, now)

        assert decision.allowed is (seen + cost <= most)
        if cost <= most:
            came = [*came, *[now] * cost][-most:]
