"""The laws of `algorithms/algorithm.py`, on every algorithm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.algorithms import NAMES, Algorithm, State, open_algorithm
from ratelimit_service.clock import SECOND
from ratelimit_service.model import NEVER, Limit, Unit

algorithms = st.sampled_from([open_algorithm(name) for name in NAMES])
limits = st.builds(
    lambda requests, unit: Limit(requests, unit, unit.window), st.integers(0, 50), st.sampled_from([*Unit])
)
moments = st.integers(0, 10 * SECOND)
costs = st.integers(-5, 20)
histories = st.lists(st.tuples(moments, costs), max_size=30)


def replay(algorithm: Algorithm, limit: Limit, history: list[tuple[int, int]]) -> State | None:
    state: State | None = None
    for now, cost in history:
        state, _ = algorithm.hit(state, limit, cost, now)
    return state


def test_every_name_opens_the_algorithm_that_bears_it() -> None:
    assert [open_algorithm(name).name for name in NAMES] == [*NAMES]
    with pytest.raises(KeyError):
        open_algorithm("guessing")


@given(algorithms, limits, histories, moments)
def test_a_look_changes_nothing(algorithm: Algorithm, limit: Limit, history: list[tuple[int, int]], now: int) -> None:
    state = replay(algorithm, limit, history)

    looked, first = algorithm.hit(state, limit, 0, now)
    _, second = algorithm.hit(looked, limit, 0, now)

    assert first == second


@given(algorithms, limits, histories, st.integers(1, 20))
def test_a_state_means_nothing_from_its_expiry_on(
    algorithm: Algorithm, limit: Limit, history: list[tuple[int, int]], cost: int
) -> None:
    state = replay(algorithm, limit, history)

    if state is not None:
        assert algorithm.hit(state, limit, cost, state[0]) == algorithm.hit(None, limit, cost, state[0])


@given(algorithms, limits, histories, moments, st.integers(1, 20))
def test_retry_after_is_exact(
    algorithm: Algorithm, limit: Limit, history: list[tuple[int, int]], now: int, cost: int
) -> None:
    state = replay(algorithm, limit, [(moment, n) for moment, n in history if moment <= now])
    after, decision = algorithm.hit(state, limit, cost, now)

    if decision.allowed:
        assert decision.retry_after == 0
    elif cost > limit.requests:
        assert decision.retry_after == NEVER
    else:
        _, too_early = algorithm.hit(after, limit, cost, now + decision.retry_after - 1)
        _, in_time = algorithm.hit(after, limit, cost, now + decision.retry_after)
        assert not too_early.allowed
        assert in_time.allowed


@given(algorithms, limits, histories, moments, st.integers(1, 20), st.integers(1, 50))
def test_a_higher_limit_never_denies_what_a_lower_one_allows(
    algorithm: Algorithm, limit: Limit, history: list[tuple[int, int]], now: int, cost: int, more: int
) -> None:
    state = replay(algorithm, limit, history)
    higher = Limit(limit.requests + more, limit.unit, limit.window)

    if algorithm.hit(state, limit, cost, now)[1].allowed:
        assert algorithm.hit(state, higher, cost, now)[1].allowed


@given(algorithms, limits, histories, moments, st.integers(1, 20))
def test_a_refund_is_allowed_and_never_goes_past_an_untouched_counter(
    algorithm: Algorithm, limit: Limit, history: list[tuple[int, int]], now: int, cost: int
) -> None:
    state, refund = algorithm.hit(replay(algorithm, limit, history), limit, -cost, now)
    _, untouched = algorithm.hit(None, limit, 0, now)
    _, looked = algorithm.hit(state, limit, 0, now)

    assert refund.allowed
    assert 0 <= looked.remaining <= untouched.remaining


@given(algorithms, limits, histories, moments, costs)
def test_remaining_is_what_could_still_be_charged(
    algorithm: Algorithm, limit: Limit, history: list[tuple[int, int]], now: int, cost: int
) -> None:
    state, decision = algorithm.hit(replay(algorithm, limit, history), limit, cost, now)

    assert decision.remaining >= 0
    if decision.remaining:
        assert algorithm.hit(state, limit, decision.remaining, now)[1].allowed
    assert not algorithm.hit(state, limit, decision.remaining + 1, now)[1].allowed
