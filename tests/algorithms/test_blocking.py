"""Blocks: tables of cases, laws on every algorithm, and a model that keeps no state but the history."""

from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ratelimit_service.algorithms import Algorithm, State, open_algorithm
from ratelimit_service.algorithms.kinds.block import Block, BlockState
from ratelimit_service.model import NEVER, Blocked, Decision, Limit, Unit
from ratelimit_service.system.clock import HOUR, MINUTE, SECOND
from tests.algorithms.histories import History, capacity, costs, every_algorithm, histories, limits, moments

FIXED = open_algorithm("fixed_window")
BUCKET = open_algorithm("token_bucket")


def _hit(
    algorithm: Algorithm, state: State | None, block: BlockState | None, limit: Limit, cost: int, now: int
) -> tuple[State | None, BlockState | None, Decision]:
    return limit.kind.hit(algorithm.hit, state, block, limit, cost, now)


class Counter:
    """A counter with its block, and what it answers."""

    def __init__(self, algorithm: Algorithm, limit: Limit) -> None:
        self.algorithm = algorithm
        self.limit = limit
        self.state: State | None = None
        self.block: BlockState | None = None

    def hit(self, cost: int, now: int) -> Decision:
        self.state, self.block, decision = _hit(self.algorithm, self.state, self.block, self.limit, cost, now)
        return decision


def steps(limit: Limit, *hits: tuple[float, int], algorithm: Algorithm = FIXED) -> list[tuple[bool, int, int, float]]:
    """(minutes, cost) -> (allowed, remaining, over, retry in minutes); NEVER stays as it is."""
    counter = Counter(algorithm, limit)
    answers = []
    for moment, cost in hits:
        decision = counter.hit(cost, round(moment * MINUTE))
        retry = decision.retry_after
        answers.append((decision.allowed, decision.remaining, decision.over, retry / MINUTE if retry > 0 else retry))
    return answers


def per_minute(block_for: int, block_up_to: int = 0, *, count_refused: bool = True) -> Limit:
    limit = Limit(2, Unit.MINUTE, MINUTE, count_refused=count_refused)
    return replace(limit, kind=Block(block_for * MINUTE, block_up_to * MINUTE))


def test_a_denial_blocks_the_counter_for_a_time_that_denied_hits_do_not_prolong() -> None:
    assert steps(per_minute(15), (0, 2), (0, 1), (5, 1), (14, 1), (14.5, 9), (15, 1)) == [
        (True, 0, 0, 0),
        (False, 0, 1, 15),
        (False, 0, 1, 10),
        (False, 0, 1, 1),
        (False, 0, 9, NEVER),
        (True, 1, 0, 0),
    ]


def test_a_block_shorter_than_the_wait_leaves_the_wait_as_it_is() -> None:
    hourly = Limit(1, Unit.HOUR, HOUR, kind=Block(5 * MINUTE))

    assert steps(hourly, (0, 1), (10, 1), (12, 1), (15, 1), (60, 1)) == [
        (True, 0, 0, 0),
        (False, 0, 1, 50),
        (False, 0, 1, 48),
        (False, 0, 1, 45),
        (True, 0, 0, 0),
    ]


def test_a_blocked_counter_is_charged_nothing_although_denied_hits_count() -> None:
    counter = Counter(FIXED, Limit(5, Unit.HOUR, HOUR, kind=Block(MINUTE), count_refused=True))
    counter.hit(6, 0)

    for _ in range(3):
        counter.hit(1, SECOND)

    assert counter.state == (HOUR, 6)


def test_a_look_is_denied_while_blocked_and_starts_no_block() -> None:
    counter = Counter(FIXED, Limit(2, Unit.HOUR, HOUR, kind=Block(MINUTE)))
    counter.hit(3, 0)
    blocked = counter.hit(0, SECOND)
    over = counter.hit(0, 2 * MINUTE)

    assert blocked == Blocked(False, 0, 0, HOUR - SECOND, HOUR - SECOND, 59 * SECOND)
    assert (over.allowed, counter.block) == (False, None)


def test_a_refund_goes_back_to_the_counter_and_does_not_end_the_block() -> None:
    assert steps(per_minute(15, count_refused=False), (0, 2), (0.1, 1), (0.2, -2), (0.3, 1), (15.1, 2)) == [
        (True, 0, 0, 0),
        (False, 0, 1, 15),
        (True, 0, 0, 0),
        (False, 0, 1, 14.8),
        (True, 0, 0, 0),
    ]


def test_what_a_denied_hit_leaves_cannot_be_charged_while_blocked() -> None:
    limit = Limit(10, Unit.MINUTE, MINUTE, kind=Block(2 * MINUTE), count_refused=False)

    assert steps(limit, (0, 8), (0, 5), (0, 1), (2, 10), algorithm=BUCKET) == [
        (True, 2, 0, 0),
        (False, 0, 3, 2),
        (False, 0, 1, 2),
        (True, 0, 0, 0),
    ]


def lengths(limit: Limit, *denied: float) -> list[float]:
    """The lengths, in minutes, of the blocks that hits start which cost too much, at these minutes."""
    counter = Counter(FIXED, limit)
    found = []
    for moment in denied:
        decision = counter.hit(9, round(moment * MINUTE))
        assert isinstance(decision, Blocked)
        found.append(decision.blocked_for / MINUTE)
    return found


def test_blocks_double_up_to_the_longest_one() -> None:
    assert lengths(per_minute(15, 100), 0, 15, 45, 110, 250) == [15, 30, 60, 100, 100]


def test_all_blocks_are_equal_without_a_longest_one() -> None:
    assert lengths(per_minute(15), 0, 15, 30) == [15, 15, 15]


@pytest.mark.parametrize(("pause", "length"), [(29.99, 60), (30, 15)])
def test_doubling_is_forgotten_after_a_pause_as_long_as_the_last_block(pause: float, length: float) -> None:
    """The second block lasts from 15 to 45."""
    assert lengths(per_minute(15, 100), 0, 15, 45 + pause) == [15, 30, length]


def test_a_block_lasts_as_long_as_when_it_started_and_the_next_one_as_the_new_rule_says() -> None:
    counter = Counter(FIXED, per_minute(60, 600))
    counter.hit(9, 0)
    counter.limit = per_minute(5, 600)
    before = counter.hit(1, 59 * MINUTE)
    doubled = counter.hit(9, 60 * MINUTE)
    counter.limit = per_minute(5, 20)
    shorter = counter.hit(9, 180 * MINUTE)

    assert [each.retry_after for each in (before, doubled, shorter)] == [MINUTE, NEVER, NEVER]
    assert isinstance(doubled, Blocked)
    assert isinstance(shorter, Blocked)
    assert (doubled.blocked_for, shorter.blocked_for) == (120 * MINUTE, 20 * MINUTE)


def test_a_clock_that_steps_back_far_leaves_a_block_of_the_usual_length() -> None:
    counter = Counter(FIXED, per_minute(15, count_refused=False))
    counter.hit(9, 10 * HOUR)

    a_little = counter.hit(1, 10 * HOUR - 15 * MINUTE)
    assert isinstance(a_little, Blocked)
    assert a_little.blocked_for == 30 * MINUTE

    far = counter.hit(1, HOUR)
    assert isinstance(far, Blocked)
    assert far.blocked_for == 15 * MINUTE
    assert counter.hit(1, HOUR + 15 * MINUTE).allowed


class Blocking(NamedTuple):
    """The options of a rule."""

    block_for: int
    block_up_to: int


blocks = st.builds(
    Blocking,
    st.sampled_from([1, SECOND // 3, SECOND, 3 * SECOND]),
    st.sampled_from([0, SECOND, 2 * SECOND, 10 * SECOND]),
)


def blocking_limit(limit: Limit, block: Blocking) -> Limit:
    longest = max(block.block_for, block.block_up_to) if block.block_up_to else 0
    return replace(limit, kind=Block(block.block_for, longest))


def ordered(history: History) -> History:
    return sorted(history, key=lambda hit: hit[0])


class Past(NamedTuple):
    """A block of the past."""

    start: int
    end: int


@given(every_algorithm, limits, blocks, histories)
def test_a_block_is_what_a_model_without_states_says(
    algorithm: Algorithm, limit: Limit, options: Blocking, history: History
) -> None:
    """It remembers all blocks, and asks the algorithm only between them."""
    limit = blocking_limit(limit, options)
    counter = Counter(algorithm, limit)
    past: list[Past] = []
    longest = max(options)
    state: State | None = None
    for now, cost in ordered(history):
        decision = counter.hit(cost, now)
        blocked = next((block.end - now for block in past if block.start <= now < block.end), 0)
        after, expected = algorithm.hit(state, limit, cost, now)
        if cost < 0 or not blocked:
            state = after
        if not blocked and cost > 0 and not expected.allowed:
            length = options.block_for
            if past and options.block_up_to and now < past[-1].end + (past[-1].end - past[-1].start):
                length = max(length, min(2 * (past[-1].end - past[-1].start), longest))
            past.append(Past(now, now + length))
            assert decision.over == expected.over
            blocked = length
        assert decision.allowed == (cost < 0 or (not blocked and expected.allowed))
        assert algorithm.hit(counter.state, limit, 0, now) == algorithm.hit(state, limit, 0, now)
        if blocked:
            assert isinstance(decision, Blocked)
            assert (decision.remaining, decision.blocked_for) == (0, blocked)
            assert decision.reset_after >= blocked
        else:
            assert decision == expected


@given(every_algorithm, limits, blocks, histories, moments, st.integers(1, 20))
def test_the_same_hit_is_allowed_when_retry_after_has_passed_and_not_before(
    algorithm: Algorithm, limit: Limit, options: Blocking, history: History, now: int, cost: int
) -> None:
    counter = Counter(algorithm, blocking_limit(limit, options))
    for moment, charged in ordered(history):
        counter.hit(charged, moment)
    now += max((moment for moment, _ in history), default=0)
    most = capacity(algorithm, limit)
    assume(most > 0)
    cost = 1 + cost % most

    while (decision := counter.hit(cost, now)).allowed:
        pass

    state, block = counter.state, counter.block
    retry = decision.retry_after
    _, _, early = _hit(algorithm, state, block, counter.limit, cost, now + retry - 1)
    _, _, in_time = _hit(algorithm, state, block, counter.limit, cost, now + retry)
    assert (early.allowed, in_time.allowed) == (False, True)


@given(every_algorithm, limits, blocks, histories, costs)
def test_a_block_means_nothing_from_its_expiry_on(
    algorithm: Algorithm, limit: Limit, options: Blocking, history: History, cost: int
) -> None:
    counter = Counter(algorithm, blocking_limit(limit, options))
    for moment, charged in history:
        counter.hit(charged, moment)
    block, state = counter.block, counter.state
    assume(block is not None)
    assert block is not None

    expired = _hit(algorithm, state, block, counter.limit, cost, block[0])

    assert expired == _hit(algorithm, state, None, counter.limit, cost, block[0])
