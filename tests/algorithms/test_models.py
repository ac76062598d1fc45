"""Each algorithm held to its definition, in Python and in Lua in a real Redis: limits, costs and moments by chance.

`tests/algorithms/test_twins.py` holds the one to the other; here both are held to models that share no line with them,
and what is promised of all algorithms together is shown of either.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from redis import Redis as Client

from ratelimit_service.algorithms import NAMES, open_algorithm
from ratelimit_service.model import NEVER, Decision, Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.system.clock import HOUR, MINUTE, SECOND
from tests.algorithms.histories import raised
from tests.algorithms.models import Model, open_model
from tests.algorithms.test_twins import hit, in_redis
from tests.sampled import sampled

Step = tuple[int, int]
"""When, and what it costs."""
Decide = Callable[[str, Sequence[Limit], Sequence[Step]], list[Decision]]
"""What a history on one counter is answered by the algorithm of that name; each step has its limit."""

BUCKETS = ("token_bucket", "leaky_bucket")
START = 1_790_000_000_000_000


@pytest.fixture(scope="module", params=["python", "lua"])
def decide(request: pytest.FixtureRequest) -> Decide:
    if request.param == "python":
        return in_python
    client: Client = request.getfixturevalue("client")

    def in_lua(name: str, limits: Sequence[Limit], history: Sequence[Step]) -> list[Decision]:
        algorithm = open_algorithm(name)
        rules = {limit: Rule("shop", (), limit, algorithm) for limit in limits}
        batches = [(now, [[hit(rules[limit], "a", cost)]]) for limit, (now, cost) in zip(limits, history, strict=True)]
        return in_redis(client, batches)

    return in_lua


def in_python(name: str, limits: Sequence[Limit], history: Sequence[Step]) -> list[Decision]:
    algorithm, state, decisions = open_algorithm(name), None, []
    for limit, (now, cost) in zip(limits, history, strict=True):
        state, decision = algorithm.hit(state, limit, cost, now)
        decisions.append(decision)
    return decisions


def play(decide: Decide, name: str, limit: Limit, history: Sequence[Step]) -> list[Decision]:
    """The same limit all the time."""
    return decide(name, [limit] * len(history), history)


limits = st.builds(
    Limit,
    st.integers(1, 30),
    st.just(Unit.SECOND),
    st.sampled_from([SECOND, 999_983, 40]),
    burst=st.sampled_from([0, 0, 1, 7, 60]),
    parts=st.sampled_from([1, 2, 3, 7, 10]),
    first_request=st.booleans(),
    count_refused=st.just(False),
    exceed=st.sampled_from([0, 0, 3]),
)


@st.composite
def cases(draw: st.DrawFn, *, backwards: bool = True, least: int = 0) -> tuple[Limit, list[Step]]:
    """A limit, and hits at moments that lie by chance, at edges of parts and windows, and where whole tokens are."""
    limit = draw(limits)
    window = limit.window
    part = -(-window // limit.parts)
    steps = [st.just(0), st.integers(0, window // 4), st.sampled_from([1, part - 1, part, window - 1, window])]
    steps.append(st.integers(0, 3).map(lambda tokens: -(-tokens * window // limit.requests)))
    if backwards:
        steps.append(st.integers(-window, 0))
    gaps = draw(
        st.lists(st.tuples(st.one_of(steps), st.integers(least, limit.requests + limit.exceed + 1)), max_size=40)
    )
    now = latest = START + draw(st.integers(0, 2 * window))
    history = []
    for gap, cost in gaps:
        history.append((now, cost))
        now = max(now + gap, latest - window)  # further back is another clock, see test_twins.py
        latest = max(now, latest)
    return limit, history


implied = settings(max_examples=settings().max_examples // 4)
"""For what follows from the models, and is told again in the words of a promise."""
each_name = pytest.mark.parametrize("name", [name for name in NAMES if name != "leaky_bucket"])
"""The leaky bucket is the token bucket's function under another name."""


@pytest.mark.parametrize("name", NAMES)
@given(cases(least=-9))
def test_every_decision_is_the_models(decide: Decide, name: str, case: tuple[Limit, list[Step]]) -> None:
    """I1, I2, I3, I6, I7, G1, G2, G4, G6, S1, S2, S3 of the definitions: they hold of the models by their shortness."""
    limit, history = case
    if name == "fixed_window":
        limit = replace(limit, count_refused=bool(limit.burst))
    history = at_the_edge(open_model(name, limit), history)
    model = open_model(name, limit)
    most = limit.burst or limit.requests if name in BUCKETS else limit.requests

    for (now, cost), decision in zip(history, play(decide, name, limit, history), strict=True):
        left = model.left(now)
        assert decision.allowed is (cost <= left if cost else left >= 0)
        model.charge(cost, now, allowed=decision.allowed)
        assert decision.remaining == max(0, model.left(now))
        if decision.allowed:
            assert decision.retry_after == 0
        elif cost > most + limit.exceed:
            assert decision.retry_after == NEVER
        else:
            assert model.left(now + decision.retry_after) >= cost
            assert model.left(now + decision.retry_after - 1) < cost


def at_the_edge(model: Model, history: list[Step]) -> list[Step]:
    """The history with hits in place of those below 0 that just fit, or just do not."""
    steps = []
    for now, drawn in history:
        left = max(0, model.left(now))
        cost = drawn if drawn >= 0 else left + drawn % 2
        model.charge(cost, now, allowed=cost <= left)
        steps.append((now, cost))
    return steps


def worst(name: str, limit: Limit) -> int:
    """The most that any window's length may see, by the table of the docs."""
    match name:
        case "sub_windows" | "sliding_log":
            return limit.requests + limit.exceed
        case "token_bucket" | "leaky_bucket":
            return (limit.burst or limit.requests) + limit.exceed + limit.requests
        case _:
            return 2 * (limit.requests + limit.exceed)


@each_name
@implied
@given(cases(backwards=False))
def test_no_window_s_length_sees_more_than_the_table_of_the_docs_says(
    decide: Decide, name: str, case: tuple[Limit, list[Step]]
) -> None:
    """I1 and G1."""
    limit, history = case
    decisions = play(decide, name, limit, history)
    charged = [step for step, decision in zip(history, decisions, strict=True) if decision.allowed and step[1]]

    assert max_in_a_window(limit, charged) <= worst(name, limit)


@each_name
@implied
@given(cases())
def test_nor_when_the_clock_steps_back(decide: Decide, name: str, case: tuple[Limit, list[Step]]) -> None:
    """I1 and G1: time stands still until it has caught up with the last charge.

    All hits here are charges: one that is not may let a counter forget what was over by the clock as it was then.
    """
    limit, history = case
    history = charges_alone(decide, name, limit, history)
    moments = accumulate((now for now, _ in history), max)
    charged = [(now, cost) for now, (_, cost) in zip(moments, history, strict=True)]

    assert max_in_a_window(limit, charged) <= worst(name, limit)


def charges_alone(decide: Decide, name: str, limit: Limit, history: list[Step]) -> list[Step]:
    """The history without what is not charged in it."""
    while True:
        decisions = play(decide, name, limit, history)
        kept = [step for step, each in zip(history, decisions, strict=True) if each.allowed and step[1]]
        if len(kept) == len(history):
            return history
        history = kept


def max_in_a_window(limit: Limit, charged: Sequence[Step]) -> int:
    """How much the window's length saw that saw the most."""
    seen = (sum(cost for now, cost in charged if end - limit.window < now <= end) for end, _ in charged)
    return max(seen, default=0)


@each_name
@implied
@given(cases(backwards=False), st.integers(1, 30))
def test_what_surely_fits_is_admitted(decide: Decide, name: str, case: tuple[Limit, list[Step]], cost: int) -> None:
    """I2: the log looks back one window, sub-windows one part more, the windows of a calendar two windows."""
    limit, history = case
    assume(history)
    back = {"sliding_log": limit.window, "sub_windows": -(-limit.window // limit.parts) * (limit.parts + 1)}
    now = history[-1][0]
    *before, decision = play(decide, name, limit, [*history, (now, cost)])
    recent = sum(
        spent
        for (moment, spent), earlier in zip(history, before, strict=True)
        if earlier.allowed and now - back.get(name, 2 * limit.window) < moment
    )
    most = min(limit.requests, limit.burst or limit.requests) if name in BUCKETS else limit.requests

    if recent + cost <= most:
        assert decision.allowed


@each_name
@implied
@given(cases(), st.integers(1, 30), st.integers(1, 40))
def test_a_raised_limit_denies_nothing_that_was_allowed(
    decide: Decide, name: str, case: tuple[Limit, list[Step]], cost: int, more: int
) -> None:
    """I5."""
    limit, history = case
    assume(history)
    higher = raised(open_algorithm(name), limit, more)
    last = (history[-1][0], cost)
    as_it_was = decide(name, [limit] * (len(history) + 1), [*history, last])[-1]
    with_more = decide(name, [*[limit] * len(history), higher], [*history, last])[-1]

    assert with_more.allowed >= as_it_was.allowed


@each_name
@implied
@given(cases(), st.integers(1, 5))
def test_a_hit_of_many_is_allowed_when_as_many_single_ones_are(
    decide: Decide, name: str, case: tuple[Limit, list[Step]], cost: int
) -> None:
    """G4, of every algorithm."""
    limit, history = case
    assume(history)
    now = history[-1][0]
    at_once = play(decide, name, limit, [*history, (now, cost)])[-1]
    one_by_one = play(decide, name, limit, [*history, *[(now, 1)] * cost])[-cost:]

    assert at_once.allowed is all(each.allowed for each in one_by_one)


@implied
@given(cases(), st.integers(0, 10**9))
def test_after_any_rest_exactly_the_burst_can_come_at_once(
    decide: Decide, case: tuple[Limit, list[Step]], more: int
) -> None:
    """G3."""
    limit, history = case
    most = (limit.burst or limit.requests) + limit.exceed
    latest = max((now for now, _ in history), default=START)
    rested = latest + -(-most * limit.window // limit.requests) + more
    decisions = play(decide, "token_bucket", limit, [*history, *[(rested, 1)] * (most + 3)])

    assert sum(each.allowed for each in decisions[len(history) :]) == most


@pytest.mark.parametrize("name", sampled(BUCKETS, 2))
@pytest.mark.parametrize("cost", [1, 2, 3, 7])
@pytest.mark.parametrize("gap", [9_999, 33_333, 71_429])
def test_under_endless_overload_exactly_the_rate_is_admitted(decide: Decide, name: str, cost: int, gap: int) -> None:
    """G5: 7 a second for 10 seconds, from a bucket of 14."""
    limit = Limit(7, Unit.SECOND, SECOND, burst=14, count_refused=False)
    decisions = play(decide, name, limit, [(START + gap * step, cost) for step in range(10 * SECOND // gap)])

    assert 14 + 7 * 10 - cost - 2 <= sum(cost for each in decisions if each.allowed) <= 14 + 7 * 10


@each_name
@pytest.mark.parametrize("cost", [1, 20])
def test_a_limit_of_zero_refuses_without_an_error(decide: Decide, name: str, cost: int) -> None:
    """G7."""
    closed = Limit(0, Unit.MINUTE, MINUTE, burst=5, count_refused=False)
    decisions = play(decide, name, closed, [(START, cost), (START + HOUR, cost)])

    assert [(each.allowed, each.remaining, each.retry_after) for each in decisions] == [(False, 0, NEVER)] * 2


@each_name
@implied
@given(st.integers(1, 50), st.sampled_from([MINUTE, HOUR]), st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_a_key_lives_as_long_as_its_state_means_something(
    client: Client, name: str, requests: int, window: int, costs: list[int]
) -> None:
    """I4, in Redis; of the state itself `test_every_algorithm.py` shows when it means nothing any more."""
    limit = Limit(requests, Unit.MINUTE, window, count_refused=True)
    rule = Rule("shop", (), limit, open_algorithm(name))
    decisions = in_redis(client, [(START, [[hit(rule, "a", cost)]]) for cost in costs])

    left = client.pttl("rl2|a")
    assert isinstance(left, int)
    wanted = -(-decisions[-1].reset_after // 1000)
    if client.exists("rl2|a"):
        assert wanted - 5_000 < left <= wanted
    else:
        assert not any(each.allowed for each in decisions)
