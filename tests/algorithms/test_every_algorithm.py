"""The laws of `algorithms/algorithm.py`, on every algorithm."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ratelimit_service.algorithms import NAMES, Algorithm, expiry, open_algorithm
from ratelimit_service.model import NEVER, Limit, Unit
from ratelimit_service.system.clock import HOUR, MINUTE, SECOND
from tests.algorithms.histories import (
    History,
    capacity,
    costs,
    every_algorithm,
    histories,
    is_bucket,
    is_too_deep,
    limits,
    moments,
    replay,
)


def test_every_name_opens_the_algorithm_that_bears_it() -> None:
    assert [open_algorithm(name).name for name in NAMES] == [*NAMES]
    with pytest.raises(KeyError):
        open_algorithm("guessing")


@given(every_algorithm, limits, histories, moments)
def test_a_look_changes_nothing(algorithm: Algorithm, limit: Limit, history: History, now: int) -> None:
    state = replay(algorithm, limit, history)
    assume(not is_too_deep(algorithm, limit, state, now))

    looked, _ = algorithm.hit(state, limit, 0, now)

    assert looked == (state if state is not None and expiry(state) > now else None)


@given(every_algorithm, limits, histories, st.integers(1, 20))
def test_a_state_means_nothing_from_its_expiry_on(
    algorithm: Algorithm, limit: Limit, history: History, cost: int
) -> None:
    state = replay(algorithm, limit, history)

    if state is not None:
        assert algorithm.hit(state, limit, cost, expiry(state)) == algorithm.hit(None, limit, cost, expiry(state))


@given(every_algorithm, limits, histories)
def test_a_state_means_something_before_its_expiry(algorithm: Algorithm, limit: Limit, history: History) -> None:
    state = replay(algorithm, limit, history)
    most = capacity(algorithm, limit)
    assume(state is not None and most > 0)
    assert state is not None

    _, looked = algorithm.hit(state, limit, 0, expiry(state) - 1)

    assert looked.remaining < most
    assert looked.reset_after == 1


@given(every_algorithm, limits, histories, moments, costs)
def test_reset_after_ends_with_the_state(
    algorithm: Algorithm, limit: Limit, history: History, now: int, cost: int
) -> None:
    state, decision = algorithm.hit(replay(algorithm, limit, history), limit, cost, now)

    if state is not None:
        assert decision.reset_after == expiry(state) - now > 0
    elif algorithm.name != "fixed_window" or limit.first_request:
        assert decision.reset_after == 0
    else:
        assert 0 < decision.reset_after <= limit.window


@given(every_algorithm, limits, histories, moments, st.integers(0, 20))
def test_retry_after_is_exact(algorithm: Algorithm, limit: Limit, history: History, now: int, cost: int) -> None:
    after, decision = algorithm.hit(replay(algorithm, limit, history), limit, cost, now)

    if decision.allowed:
        assert decision.retry_after == 0
    elif cost > capacity(algorithm, limit):
        assert decision.retry_after == NEVER
    else:
        _, too_early = algorithm.hit(after, limit, cost, now + decision.retry_after - 1)
        _, in_time = algorithm.hit(after, limit, cost, now + decision.retry_after)
        assert decision.retry_after > 0
        assert not too_early.allowed
        assert in_time.allowed


@given(every_algorithm, limits, histories, moments, st.integers(1, 20))
def test_a_denied_hit_moves_nothing_unless_refused_hits_count(
    algorithm: Algorithm, limit: Limit, history: History, now: int, cost: int
) -> None:
    quiet = replace(limit, count_refused=False)
    state = replay(algorithm, quiet, history)
    assume(not is_too_deep(algorithm, quiet, state, now))
    after, decision = algorithm.hit(state, quiet, cost, now)

    if not decision.allowed:
        assert after == (state if state is not None and expiry(state) > now else None)


@given(every_algorithm, limits, histories, moments, st.integers(1, 20))
def test_a_hit_that_costs_more_than_there_can_be_is_never_charged(
    algorithm: Algorithm, limit: Limit, history: History, now: int, more: int
) -> None:
    assume(algorithm.name != "fixed_window")  # envoyproxy counts those too
    state = replay(algorithm, limit, history)
    assume(not is_too_deep(algorithm, limit, state, now))
    after, decision = algorithm.hit(state, limit, capacity(algorithm, limit) + more, now)

    assert after == (state if state is not None and expiry(state) > now else None)
    assert (decision.allowed, decision.retry_after) == (False, NEVER)


@given(every_algorithm, limits, limits, histories, moments, st.integers(0, 20))
def test_a_changed_limit_can_read_the_state_of_the_one_before(
    algorithm: Algorithm, before: Limit, after: Limit, history: History, now: int, cost: int
) -> None:
    # Window and parts are in the counter's key.
    after = replace(after, window=before.window, parts=before.parts)
    state, decision = algorithm.hit(replay(algorithm, before, history), after, cost, now)

    assert 0 <= decision.remaining <= capacity(algorithm, after)
    if not decision.allowed and cost <= capacity(algorithm, after):
        assert algorithm.hit(state, after, cost, now + decision.retry_after)[1].allowed
        assert not algorithm.hit(state, after, cost, now + decision.retry_after - 1)[1].allowed


@given(every_algorithm, limits, histories, moments, st.integers(1, 20))
def test_a_refund_is_allowed_and_never_goes_past_an_untouched_counter(
    algorithm: Algorithm, limit: Limit, history: History, now: int, cost: int
) -> None:
    before = replay(algorithm, limit, history)
    state, refund = algorithm.hit(before, limit, -cost, now)
    _, untouched = algorithm.hit(None, limit, 0, now)
    _, looked = algorithm.hit(before, limit, 0, now)

    assert (refund.allowed, refund.over, refund.retry_after) == (True, 0, 0)
    assert looked.remaining <= refund.remaining <= untouched.remaining
    assert algorithm.hit(state, limit, 0, now)[1].remaining == refund.remaining


@given(every_algorithm, limits, moments, st.integers(1, 60))
def test_a_charge_that_is_refunded_leaves_nothing(algorithm: Algorithm, limit: Limit, now: int, cost: int) -> None:
    state, decision = algorithm.hit(None, limit, cost, now)
    assume(decision.allowed)

    assert algorithm.hit(state, limit, -cost, now)[0] is None


@given(every_algorithm, limits, histories, moments, costs)
def test_remaining_is_what_could_still_be_charged(
    algorithm: Algorithm, limit: Limit, history: History, now: int, cost: int
) -> None:
    state, decision = algorithm.hit(replay(algorithm, limit, history), limit, cost, now)

    assert decision.remaining >= 0
    if decision.remaining:
        assert algorithm.hit(state, limit, decision.remaining, now)[1].allowed
    assert not algorithm.hit(state, limit, decision.remaining + 1, now)[1].allowed


@given(every_algorithm, limits, histories, moments, costs)
def test_over_is_the_part_of_the_cost_above_the_limit_itself(
    algorithm: Algorithm, limit: Limit, history: History, now: int, cost: int
) -> None:
    state = replay(algorithm, limit, history)
    _, decision = algorithm.hit(state, limit, cost, now)
    _, strictly = algorithm.hit(state, replace(limit, exceed=0), 0, now)

    assert decision.over == max(0, cost - strictly.remaining)
    if limit.exceed == 0:
        assert decision.allowed is (decision.over == 0) or cost == 0


@given(every_algorithm, limits, histories, moments, moments)
def test_room_only_grows_while_nobody_comes_and_so_a_clock_that_steps_back_reopens_none(
    algorithm: Algorithm, limit: Limit, history: History, one: int, other: int
) -> None:
    state = replay(algorithm, limit, history)
    _, earlier = algorithm.hit(state, limit, 0, min(one, other))
    _, later = algorithm.hit(state, limit, 0, max(one, other))

    assert earlier.remaining <= later.remaining
    assert earlier.allowed <= later.allowed


@given(every_algorithm, limits, histories)
def test_a_state_expires_within_a_bounded_time(algorithm: Algorithm, limit: Limit, history: History) -> None:
    history = sorted(history)
    state = replay(algorithm, limit, history)

    if state is not None:
        charged = max(now for now, cost in history if cost > 0)
        if is_bucket(algorithm):
            # Full, and as much again for who was refused.
            bound = -(-2 * capacity(algorithm, limit) * limit.window // limit.requests)
        else:
            bound = 2 * limit.window + limit.parts
        assert expiry(state) - charged <= bound


@given(every_algorithm, limits, moments)
def test_a_limit_of_zero_refuses_without_an_error(algorithm: Algorithm, limit: Limit, now: int) -> None:
    closed = replace(limit, requests=0, exceed=0)

    for cost in (1, 20):
        _, decision = algorithm.hit(None, closed, cost, now)
        assert (decision.allowed, decision.remaining, decision.over) == (False, 0, cost)
        assert decision.retry_after == NEVER
    assert algorithm.hit(None, closed, 0, now)[1].allowed
    assert algorithm.hit(None, closed, -1, now) == (None, algorithm.hit(None, closed, 0, now)[1])


@pytest.mark.parametrize("name", [name for name in NAMES if name != "fixed_window"])
@given(requests=st.integers(1, 30), seed=st.integers(1, 10**6))
def test_who_keeps_trying_stays_out_where_refused_hits_count(name: str, requests: int, seed: int) -> None:
    algorithm = open_algorithm(name)
    limit = Limit(requests, Unit.SECOND, SECOND, count_refused=True)
    state, admitted = None, []

    for number in range(12 * requests):  # for three windows, four times as fast as the limit
        now = seed + number * SECOND // (4 * requests)
        state, decision = algorithm.hit(state, limit, 1, now)
        admitted.append(decision.allowed)

    assert admitted.index(False) <= 2 * requests
    assert not any(admitted[admitted.index(False) :])


@pytest.mark.parametrize(
    ("name", "first_request", "left"),
    [
        ("fixed_window", False, [0, 10, 10, 10, 10, 10]),
        ("fixed_window", True, [0, 0, 0, 0, 10, 10]),
        ("sliding_window", False, [0, 0, 1, 5, 9, 10]),
        ("sub_windows", False, [0, 0, 0, 0, 0, 10]),
        ("sliding_log", False, [0, 0, 0, 0, 10, 10]),
        ("token_bucket", False, [0, 1, 2, 6, 10, 10]),
        ("leaky_bucket", False, [0, 1, 2, 6, 10, 10]),
    ],
)
def test_the_story_that_docs_algorithms_md_tells_is_true(name: str, first_request: bool, left: list[int]) -> None:
    algorithm = open_algorithm(name)
    limit = Limit(10, Unit.MINUTE, MINUTE, parts=6, first_request=first_request, count_refused=False)
    noon = 12 * HOUR
    state, _ = algorithm.hit(None, limit, 10, noon + 50 * SECOND)

    looks = [algorithm.hit(state, limit, 0, noon + seconds * SECOND)[1] for seconds in (55, 60, 65, 90, 110, 120)]

    assert [look.remaining for look in looks] == left


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("crossing", [1, 4, 10])
def test_where_refused_hits_count_a_look_is_denied_until_there_is_room_again(name: str, crossing: int) -> None:
    """Costs that are known at the end are looked for before, and charged when they are known."""
    algorithm = open_algorithm(name)
    limit = Limit(10, Unit.MINUTE, MINUTE, count_refused=True)
    state, _ = algorithm.hit(None, limit, 10, 7 * MINUTE)
    state, _ = algorithm.hit(state, limit, crossing, 7 * MINUTE + 1)
    _, look = algorithm.hit(state, limit, 0, 7 * MINUTE + 2)
    _, early = algorithm.hit(state, limit, 0, 7 * MINUTE + 1 + look.retry_after)
    _, in_time = algorithm.hit(state, limit, 0, 7 * MINUTE + 2 + look.retry_after)

    assert (look.allowed, look.remaining) == (False, 0)
    assert (early.allowed, in_time.allowed) == (False, True)


@pytest.mark.parametrize("name", NAMES)
def test_the_largest_limits_stay_within_what_lua_can_count(name: str) -> None:
    algorithm = open_algorithm(name)
    limit = Limit(2**50, Unit.YEAR, 100 * Unit.YEAR.window, count_refused=True)
    now = 2_000_000_000 * SECOND
    state = None

    for _ in range(3):
        # A log is not kept for such a limit.
        state, _ = algorithm.hit(state, limit, 1 if name == "sliding_log" else limit.requests, now)

    assert state is not None
    numbers = state if isinstance(state, tuple) else memoryview(state).cast("q")
    assert all(number < 2**53 for number in numbers)
