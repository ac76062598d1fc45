"""Limits and histories that algorithms are tried with: what Hypothesis draws, and what replays it."""

from dataclasses import replace

from hypothesis import strategies as st

from ratelimit_service.algorithms import NAMES, Algorithm, State, expiry, open_algorithm
from ratelimit_service.model import Decision, Limit, Unit
from ratelimit_service.system.clock import SECOND

History = list[tuple[int, int]]
"""When, and what it cost."""

every_algorithm = st.sampled_from([open_algorithm(name) for name in NAMES])

moments = st.integers(1, 10 * SECOND) | st.integers(0, 100).map(lambda tenth: tenth * SECOND // 10)
costs = st.integers(-5, 20)
histories = st.lists(st.tuples(moments, costs), max_size=30)
"""Time runs in them as it likes, backwards too."""

limits = st.builds(
    Limit,
    st.integers(0, 50),
    st.just(Unit.SECOND),
    # Windows that parts and limits divide, and such that they do not.
    st.sampled_from([SECOND, 2 * SECOND, 999_983, 7]),
    burst=st.sampled_from([0, 0, 1, 7, 60]),
    parts=st.sampled_from([1, 2, 3, 10]),
    first_request=st.booleans(),
    count_refused=st.booleans(),
    exceed=st.sampled_from([0, 0, 1, 5]),
)


def is_bucket(algorithm: Algorithm) -> bool:
    return algorithm.name in {"token_bucket", "leaky_bucket"}


def raised(algorithm: Algorithm, limit: Limit, more: int) -> Limit:
    """A higher limit. A burst or an exceed that stays the same while a bucket's rate grows is worth less time."""
    if is_bucket(algorithm) and (limit.burst or limit.exceed):
        return replace(limit, burst=(limit.burst or limit.requests) + more)
    return replace(limit, requests=limit.requests + more)


def capacity(algorithm: Algorithm, limit: Limit) -> int:
    """The most that an untouched counter can be charged at once."""
    if not is_bucket(algorithm):
        return limit.requests + limit.exceed
    return (limit.burst or limit.requests) + limit.exceed if limit.requests else 0


def is_too_deep(algorithm: Algorithm, limit: Limit, state: State | None, now: int) -> bool:
    """It is a bucket deeper in debt than it can get at this moment; by a clock that stepped back it may seem so."""
    if state is None or not is_bucket(algorithm) or not limit.requests:
        return False
    return (expiry(state) - now) * limit.requests > (2 * capacity(algorithm, limit) + limit.requests) * limit.window


def replay(algorithm: Algorithm, limit: Limit, history: History) -> State | None:
    """What is left of a history."""
    state: State | None = None
    for now, cost in history:
        state, _ = algorithm.hit(state, limit, cost, now)
    return state


def charge(algorithm: Algorithm, limit: Limit, history: History) -> list[Decision]:
    """What a history was answered."""
    state: State | None = None
    decisions = []
    for now, cost in history:
        state, decision = algorithm.hit(state, limit, cost, now)
        decisions.append(decision)
    return decisions


def steps(
    algorithm: Algorithm, limit: Limit, *hits: tuple[float, int], unit: int = SECOND
) -> list[tuple[bool, int, int, float, float]]:
    """(seconds, cost) -> (allowed, remaining, over, reset, retry), all times in units; NEVER stays as it is."""
    history = [(round(moment * unit), cost) for moment, cost in hits]
    return [
        (
            decision.allowed,
            decision.remaining,
            decision.over,
            decision.reset_after / unit,
            decision.retry_after / unit if decision.retry_after > 0 else decision.retry_after,
        )
        for decision in charge(algorithm, limit, history)
    ]
