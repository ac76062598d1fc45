"""The queue: step by step, and its turns against an outflow in rational numbers."""

from fractions import Fraction
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.algorithms import leaky_bucket
from ratelimit_service.algorithms.kinds import Queue
from ratelimit_service.algorithms.kinds import queue as leaky_queue
from ratelimit_service.algorithms.token_bucket import STATE
from ratelimit_service.model import MAX_REQUESTS, NEVER, Decision, Limit, Queued, Unit
from ratelimit_service.system.clock import MINUTE, SECOND

TEN_A_SECOND = Limit(10, Unit.SECOND, SECOND, kind=Queue(250_000, 250_000))
"""One every 100 ms; at most two wait."""

Asked = list[tuple[int, int, int]]
"""How much time has passed, the cost, and how long the caller waits."""

limits = st.builds(
    lambda requests, window, delay: Limit(requests, Unit.SECOND, window, kind=Queue(delay, delay)),
    st.integers(1, 50) | st.integers(1, MAX_REQUESTS),
    st.sampled_from([SECOND, MINUTE, 7, 999_983]),
    st.sampled_from([1, 1000, 200_000, 10 * SECOND]),
)
histories = st.lists(
    st.tuples(st.integers(0, 1000) | st.integers(0, 2 * SECOND), st.integers(1, 3), st.integers(0, 10 * SECOND)),
    min_size=1,
    max_size=60,
)


def with_wait(limit: Limit, wait: int) -> Limit:
    return Limit(limit.requests, limit.unit, limit.window, kind=Queue(limit.kind.max_delay, wait))


def ask(limit: Limit, asked: Asked) -> list[tuple[int, int, Decision]]:
    """The moment, the cost and the decision of each."""
    state, now, answers = None, 1_790_000_000_000_000, []
    for passed, cost, wait in asked:
        now += passed
        caller = with_wait(limit, min(wait, limit.kind.max_delay))
        state, decision = leaky_queue.hit(state, caller, cost, now)
        answers.append((now, cost, decision))
    return answers


def turn_of(now: int, decision: Decision) -> int:
    return decision.turn if isinstance(decision, Queued) else now


def test_the_first_goes_at_once_and_the_others_at_the_outflow() -> None:
    state, answers = None, []
    for _ in range(5):
        state, decision = leaky_queue.hit(state, TEN_A_SECOND, 1, 1000)
        answers.append(decision)

    assert answers == [
        Decision(True, 2, 0, 100_000, 0),
        Queued(True, 1, 0, 200_000, 0, 100_000, 101_000),
        Queued(True, 0, 0, 300_000, 0, 200_000, 201_000),
        Decision(False, 0, 1, 300_000, 50_000),
        Decision(False, 0, 1, 300_000, 50_000),
    ]


def test_a_caller_with_less_time_is_denied_where_another_one_waits() -> None:
    state, _ = leaky_queue.hit(None, TEN_A_SECOND, 1, 0)

    denied_state, denied = leaky_queue.hit(state, with_wait(TEN_A_SECOND, 99_999), 1, 0)
    _, queued = leaky_queue.hit(state, with_wait(TEN_A_SECOND, 100_000), 1, 0)

    assert denied_state == state
    assert denied == Decision(False, 0, 1, 100_000, 1)
    assert queued == Queued(True, 0, 0, 200_000, 0, 100_000, 100_000)


def test_a_hit_of_several_takes_as_long_a_part_and_one_of_more_than_the_limit_none() -> None:
    state, dear = leaky_queue.hit(None, TEN_A_SECOND, 10, 0)
    _, next_one = leaky_queue.hit(state, TEN_A_SECOND, 1, 750_000)
    untouched, too_dear = leaky_queue.hit(None, TEN_A_SECOND, 11, 0)

    assert (dear.allowed, dear.reset_after) == (True, SECOND)
    assert next_one == Queued(True, 0, 0, 350_000, 0, 250_000, SECOND)
    assert untouched is None
    assert (too_dear.allowed, too_dear.retry_after) == (False, NEVER)


def test_a_refund_moves_the_next_turn_forward_and_a_look_changes_nothing() -> None:
    state, _ = leaky_queue.hit(None, TEN_A_SECOND, 2, 0)
    looked, look = leaky_queue.hit(state, TEN_A_SECOND, 0, 0)
    back, _ = leaky_queue.hit(state, TEN_A_SECOND, -1, 0)
    _, queued = leaky_queue.hit(back, TEN_A_SECOND, 1, 0)

    assert looked == state
    assert look == Decision(True, 1, 0, 200_000, 0)
    assert turn_of(0, queued) == 100_000
    assert leaky_queue.hit(state, TEN_A_SECOND, -3, 0)[0] is None


def test_a_turn_is_given_back_only_while_it_is_the_last() -> None:
    state, _ = leaky_queue.hit(None, TEN_A_SECOND, 1, 0)
    two, second = leaky_queue.hit(state, TEN_A_SECOND, 1, 0)
    three, third = leaky_queue.hit(two, TEN_A_SECOND, 1, 0)

    kept, too_late = leaky_queue.hit(three, TEN_A_SECOND.kind.with_turn(TEN_A_SECOND, second.reset_after), -1, 0)
    back, given = leaky_queue.hit(three, TEN_A_SECOND.kind.with_turn(TEN_A_SECOND, third.reset_after), -1, 50_000)

    assert (kept, too_late) == (three, Decision(False, 0, 0, 300_000, 0))
    assert (back, given) == (two, Decision(True, 2, 0, 150_000, 0))
    assert not leaky_queue.hit(None, TEN_A_SECOND.kind.with_turn(TEN_A_SECOND, 300_000), -1, SECOND)[1].allowed


def test_a_counter_keeps_its_state_when_its_rule_gets_a_queue() -> None:
    state, _ = leaky_bucket.hit(None, Limit(10, Unit.SECOND, SECOND, count_refused=False), 2, 0)

    _, queued = leaky_queue.hit(state, TEN_A_SECOND, 1, 0)

    assert turn_of(0, queued) == 200_000


def test_a_state_of_a_clock_that_was_ahead_is_cut() -> None:
    state, _ = leaky_queue.hit(None, TEN_A_SECOND, 1, 3600 * SECOND)

    after, decision = leaky_queue.hit(state, TEN_A_SECOND, 1, 0)

    assert (decision.allowed, decision.retry_after) == (False, 2 * SECOND)
    assert STATE.unpack(after or b"") == (2_250_000, 0)


@given(limits, histories)
def test_turns_are_those_of_the_exact_outflow(limit: Limit, asked: Asked) -> None:
    """Never early, never a microsecond late, and none is longer than its caller waits: in the order of arrival."""
    length = Fraction(limit.window, limit.requests)
    free = Fraction(0)
    for (_, _, wait), (now, cost, decision) in zip(asked, ask(limit, asked), strict=True):
        begin = max(free, Fraction(now))
        if cost > limit.requests:
            assert decision.retry_after == NEVER
        elif ceil(begin) - now > min(wait, limit.kind.max_delay):
            assert not decision.allowed
            assert decision.retry_after == ceil(begin) - now - min(wait, limit.kind.max_delay)
        else:
            assert turn_of(now, decision) == ceil(begin)
            free = begin + cost * length


@given(limits, st.integers(1, 200))
def test_under_endless_load_the_outflow_is_the_limit(limit: Limit, times: int) -> None:
    """Whoever is denied comes again when told to: so the bucket never runs dry."""
    state, now = None, 0
    turns: list[int] = []
    while len(turns) < times:
        state, decision = leaky_queue.hit(state, limit, 1, now)
        if decision.allowed:
            turns.append(turn_of(now, decision))
        else:
            now += decision.retry_after

    assert turns == [-(-number * limit.window // limit.requests) for number in range(times)]


@given(limits, histories)
def test_what_remains_is_how_many_more_have_a_place(limit: Limit, asked: Asked) -> None:
    state, now = None, 0
    decision = Decision(True, 0, 0, 0, 0)
    for passed, cost, _ in asked:
        now += passed
        state, decision = leaky_queue.hit(state, limit, cost, now)
    for _ in range(min(decision.remaining, 50)):
        state, more = leaky_queue.hit(state, limit, 1, now)
        assert more.allowed

    if decision.remaining < 50:
        assert not leaky_queue.hit(state, limit, 1, now)[1].allowed
