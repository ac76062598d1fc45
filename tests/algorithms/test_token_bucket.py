"""The buckets: step by step, and against a bucket of rational numbers."""

from dataclasses import replace
from fractions import Fraction
from math import ceil, floor

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.algorithms import leaky_bucket, token_bucket
from ratelimit_service.model import MAX_REQUESTS, NEVER, Decision, Limit, Unit
from ratelimit_service.system.clock import MINUTE, SECOND
from tests.algorithms.histories import steps

SIX_A_MINUTE = Limit(6, Unit.MINUTE, MINUTE, count_refused=False)
"""One every ten seconds."""

rates = st.builds(
    Limit,
    st.integers(1, 50) | st.integers(1, MAX_REQUESTS),
    st.just(Unit.SECOND),
    st.sampled_from([SECOND, MINUTE, 7, 999_983, Unit.YEAR.window]),
    burst=st.sampled_from([0, 0, 1, 7, 60]),
    count_refused=st.just(False),
    exceed=st.sampled_from([0, 0, 5]),
).filter(lambda limit: token_bucket.problem(limit) is None)


class Rational:
    """A token bucket as the textbook has it, in exact numbers."""

    def __init__(self, limit: Limit) -> None:
        self.burst = limit.burst or limit.requests
        self.most = self.burst + limit.exceed
        self.rate = Fraction(limit.requests, limit.window)
        self.tokens = Fraction(self.most)
        self.now: int | None = None

    def hit(self, cost: int, now: int) -> Decision:
        if self.now is not None:
            self.tokens = min(Fraction(self.most), self.tokens + (now - self.now) * self.rate)
        self.now = now
        left = max(0, floor(self.tokens) - (self.most - self.burst))
        allowed = cost <= self.tokens
        if cost < 0 or allowed:
            self.tokens = min(Fraction(self.most), self.tokens - cost)
        retry = 0 if allowed else NEVER if cost > self.most else ceil((cost - self.tokens) / self.rate)
        reset = ceil((self.most - self.tokens) / self.rate)
        return Decision(allowed, floor(self.tokens), max(0, cost - left), reset, retry)


def test_a_full_bucket_is_emptied_at_once_and_refills_one_by_one() -> None:
    answers = steps(token_bucket, SIX_A_MINUTE, (0, 5), (0, 2), (0, 1), (9, 1), (10, 1), (35, 1), (35, 2))

    assert answers == [
        (True, 1, 0, 50, 0),
        (False, 1, 1, 50, 10),
        (True, 0, 0, 60, 0),
        (False, 0, 1, 51, 1),
        (True, 0, 0, 60, 0),
        (True, 1, 0, 45, 0),
        (False, 1, 1, 45, 5),
    ]


def test_the_burst_is_apart_from_the_rate() -> None:
    answers = steps(
        token_bucket, replace(SIX_A_MINUTE, burst=2), (0, 2), (0, 1), (0, 3), (1000, 2), (1010, 1), (1010, 1)
    )

    assert answers == [
        (True, 0, 0, 20, 0),
        (False, 0, 1, 20, 10),
        (False, 0, 3, 20, NEVER),
        (True, 0, 0, 20, 0),
        (True, 0, 0, 20, 0),
        (False, 0, 1, 20, 10),
    ]


def test_what_exceeds_the_burst_is_let_through_and_reported() -> None:
    answers = steps(token_bucket, replace(SIX_A_MINUTE, exceed=2), (0, 7), (0, 1), (0, 1), (20, 0))

    assert answers == [(True, 1, 1, 70, 0), (True, 0, 1, 80, 0), (False, 0, 1, 80, 10), (True, 2, 0, 60, 0)]


def test_a_refund_fills_the_bucket_and_no_more() -> None:
    answers = steps(token_bucket, SIX_A_MINUTE, (0, 6), (0, -2), (0, -9), (0, 7))

    assert answers == [(True, 0, 0, 60, 0), (True, 2, 0, 40, 0), (True, 6, 0, 0, 0), (False, 6, 1, 0, NEVER)]


def test_refused_hits_that_count_dig_a_hole_as_deep_as_the_bucket() -> None:
    answers = steps(
        token_bucket, replace(SIX_A_MINUTE, count_refused=True), (0, 6), (0, 1), (0, 3), (0, 6), (0, 1), (70, 1)
    )

    assert answers == [
        (True, 0, 0, 60, 0),
        (False, 0, 1, 70, 20),
        (False, 0, 3, 100, 70),
        (False, 0, 6, 120, 120),
        (False, 0, 1, 120, 70),
        (True, 0, 0, 60, 0),
    ]


def test_a_clock_that_steps_back_finds_the_bucket_as_it_was_left_or_emptier() -> None:
    answers = steps(token_bucket, SIX_A_MINUTE, (100, 3), (70, 0), (70, 1), (100, 0), (100, 3))

    assert answers == [
        (True, 3, 0, 30, 0),
        (True, 0, 0, 60, 0),
        (False, 0, 1, 60, 10),
        (True, 3, 0, 30, 0),
        (True, 0, 0, 60, 0),
    ]


def test_a_bucket_that_takes_centuries_to_fill_is_a_problem() -> None:
    slow = Limit(1, Unit.YEAR, Unit.YEAR.window, burst=100)

    assert token_bucket.problem(slow) is None
    assert token_bucket.problem(replace(slow, exceed=1)) == (
        "a bucket of 101 that gets 1 in a window would take over 100 years to fill"
    )
    assert token_bucket.problem(replace(slow, requests=0)) is None


def test_the_leaky_bucket_is_the_same_bucket_seen_from_the_other_side() -> None:
    assert leaky_bucket.hit is token_bucket.hit


@given(rates, st.lists(st.tuples(st.integers(0, 10), st.integers(0, 11), st.integers(-3, 20)), max_size=40))
def test_it_is_a_bucket_of_rational_numbers(limit: Limit, history: list[tuple[int, int, int]]) -> None:
    model = Rational(limit)
    state, now = None, 1_790_000_000_000_000
    for tokens, more, cost in history:
        # Around the moments at which whole tokens are there, and somewhere.
        now += tokens * limit.window // limit.requests + more

        state, decision = token_bucket.hit(state, limit, cost, now)

        assert decision == model.hit(cost, now)
