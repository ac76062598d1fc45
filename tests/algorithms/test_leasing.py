"""Leases in every algorithm that has them: what is taken in advance and given back, in Python and in Lua."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis as Client

from ratelimit_service.algorithms import NAMES, State, lease, open_algorithm
from ratelimit_service.model import Decision, Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.leases import Ask, LeasedCounter
from ratelimit_service.stores.redis.script import BatchScript
from ratelimit_service.system.calendar import Calendar
from ratelimit_service.system.clock import DAY, MINUTE, SECOND
from tests.algorithms.test_twins import LAST_LINE, MANY, hit
from tests.clocks import Clock
from tests.parts import parts_of

LEASING = [name for name in NAMES if name != "sliding_log"]
START = 1_790_000_000_000_000
"""The start of a second, and of a part."""


def algorithm(name: str) -> Any:
    return open_algorithm(name)


def per_second(requests: int = 1000, **options: Any) -> Limit:
    return Limit(requests, Unit.SECOND, SECOND, count_refused=False, **options)


def room(name: str, state: State | None, limit: Limit, now: int) -> int:
    """What is left at that moment."""
    return open_algorithm(name).hit(state, limit, 0, now)[1].remaining


@pytest.mark.parametrize(
    ("name", "limit", "term"),
    [
        ("fixed_window", per_second(), 100_000),
        ("fixed_window", Limit(1, Unit.SECOND, 20 * SECOND), 2 * SECOND),
        ("fixed_window", Limit(1, Unit.MINUTE, MINUTE), 3 * SECOND),
        ("fixed_window", Limit(1, Unit.SECOND, 7 * SECOND), 700_000),
        ("sliding_window", Limit(1, Unit.DAY, DAY), 3 * SECOND),
        ("sub_windows", Limit(1, Unit.MINUTE, MINUTE, parts=10), 3 * SECOND),
        ("sub_windows", per_second(), 100_000),
        ("sub_windows", per_second(parts=3), 83_334),
        ("sub_windows", per_second(parts=50), 20_000),
        ("token_bucket", per_second(), 100_000),
        ("token_bucket", per_second(burst=100), 10_000),
        ("leaky_bucket", per_second(burst=100_000), 2_941_177),
    ],
)
def test_a_term_is_a_whole_fraction_and_at_most_three_seconds(name: str, limit: Limit, term: int) -> None:
    assert algorithm(name).term(limit) == term


@pytest.mark.parametrize("name", LEASING)
def test_units_are_taken_in_the_measure_of_what_is_left_of_the_term(name: str) -> None:
    _, taken = lease.take(algorithm(name), None, per_second(), 0, 80, START + 25_000)

    assert (taken.units, taken.term_end, taken.retry_after) == (60, START + 100_000, 0)


@pytest.mark.parametrize("name", LEASING)
def test_a_quarter_of_what_is_left_is_lent_at_once_but_the_least_if_it_is_there(name: str) -> None:
    limit = per_second()
    state, _ = algorithm(name).hit(None, limit, 800, START + 100_000)
    lent = [lease.take(algorithm(name), state, limit, least, 500, START + 100_000)[1].units for least in (0, 70, 400)]

    assert lent == [50, 70, 200]


@pytest.mark.parametrize("name", LEASING)
def test_without_room_nothing_is_taken_and_nothing_changes(name: str) -> None:
    limit = per_second()
    state, _ = algorithm(name).hit(None, limit, 1000, START)
    after, taken = lease.take(algorithm(name), state, limit, 10, 100, START)

    assert (after, taken.units, taken.room) == (state, 0, 0)
    assert open_algorithm(name).hit(state, limit, 1, START)[1].retry_after == taken.retry_after > 0


@pytest.mark.parametrize("name", LEASING)
def test_what_is_given_back_in_its_term_is_there_again(name: str) -> None:
    limit = per_second()
    state, _ = algorithm(name).hit(None, limit, 500, START + 1)
    after, taken = lease.take(algorithm(name), state, limit, 0, 100, START + 1)
    state = algorithm(name).give(after, limit, 60, taken.term_end, START + 50_000)

    assert room(name, after, limit, START + 99_999) == 500 - taken.units + (99 if name.endswith("bucket") else 0)
    assert room(name, state, limit, START + 99_999) == 560 - taken.units + (99 if name.endswith("bucket") else 0)


@pytest.mark.parametrize("name", ["fixed_window", "sliding_window", "sub_windows"])
def test_a_window_takes_back_what_was_lent_in_it_as_long_as_it_is_in_view(name: str) -> None:
    limit = per_second()
    after, taken = lease.take(algorithm(name), None, limit, 0, 100, START)
    state, _ = algorithm(name).hit(after, limit, 10, START + 950_000)
    state = algorithm(name).give(state, limit, 100, taken.term_end, START + 960_000)

    assert room(name, state, limit, START + 960_000) == 990


@pytest.mark.parametrize("name", LEASING)
def test_what_was_lent_in_an_earlier_window_is_not_taken_from_this_one(name: str) -> None:
    limit = per_second()
    after, taken = lease.take(algorithm(name), None, limit, 0, 100, START)
    state, _ = algorithm(name).hit(after, limit, 100, START + 2_050_000)

    assert algorithm(name).give(state, limit, 100, taken.term_end, START + 2_060_000) == state


def test_a_calendars_window_takes_back_what_was_lent_in_it() -> None:
    months = Calendar("month", "1", "UTC")
    limit = Limit(1000, Unit.MONTH, months.length, count_refused=False, calendar=months)
    start, end = months.edges(START)[:2]
    state = (end, 500)

    assert algorithm("fixed_window").give(state, limit, 100, start + SECOND, START) == (end, 400)
    assert algorithm("fixed_window").give(state, limit, 100, start, START) == state


def test_a_bucket_is_charged_as_if_at_the_terms_end() -> None:
    _, taken = lease.take(algorithm("token_bucket"), None, per_second(), 0, 50, START)

    assert taken.reset_after == 100_000 + 50_000


def test_a_bucket_takes_back_no_token_that_time_may_have_given_back_already() -> None:
    """Of 50 ms of tokens, 48 are left by age alone. But the second lease has begun at the present term's end."""
    limit, bucket = per_second(100, burst=100), algorithm("token_bucket")  # a token each 10 ms, terms of 100 ms
    after, first = lease.take(bucket, None, limit, 5, 5, START + 50_000)
    after, second = lease.take(bucket, after, limit, 5, 5, START + 101_000)
    state = bucket.give(after, limit, 5, first.term_end, START + 102_000)

    assert (first.units, second.units) == (5, 5)
    # With the five of the second lease not more than 100 at once.
    assert room("token_bucket", state, limit, START + 199_000) == 94


@pytest.mark.parametrize(("hits", "taken"), [([], "0, 0"), ([0], "3, 9")])
def test_what_is_given_back_before_a_hit_is_taken_anew_behind_it_and_not_before(hits: list[int], taken: str) -> None:
    rule = Rule("shop", (), per_second(), algorithm("fixed_window"), lease=50)
    ask = Ask(LeasedCounter(rule, per_second(), "a", 100_000, 50), 5, START, 3, 9, before_hit=True)

    encoded = BatchScript("", Clock(START)).encode(parts_of([hit(rule, "a", cost) for cost in hits]), [ask])

    assert encoded.arguments[1] == f"[100000, 0, 5, {START}, {taken}]"


def a_limit(random: Random, name: str) -> Limit:
    """Windows and terms of all lengths, which parts and limits divide, or do not."""
    unit = random.choice([Unit.SECOND, Unit.MINUTE])
    limit = Limit(
        random.choice([1, 7, 80, 1000, 10**6, 2**50 - 101]),
        unit,
        random.choice([unit.window, 3 * unit.window, 999_983, 70]),
        burst=random.choice([0, 0, 5, 100]),
        parts=random.choice([1, 3, 10]),
        first_request=random.random() < 0.5,
        count_refused=False,
        exceed=random.choice([0, 0, 2]),
    )
    if name == "fixed_window" and random.random() < 0.3:
        days = Calendar("day", "", "Europe/Berlin")
        return Limit(1000, Unit.DAY, days.length, count_refused=False, calendar=days)
    return limit


@given(st.integers(0, 2**64))
def test_a_twin_takes_and_gives_as_the_python_does(  # noqa: PLR0915 - one history
    client: Client, seed: int
) -> None:
    random = Random(seed)  # noqa: S311 - the seed tells the history
    clock = Clock(START)
    script = BatchScript("", clock)
    names = random.sample(LEASING, 2)
    rules = [Rule("shop", (), a_limit(random, name), open_algorithm(name)) for name in names]
    states: dict[str, State | None] = {}
    ends: dict[str, int] = {}
    expected: list[Any] = []
    sent, runs_sent = [], []
    # A clock that steps back further is another one, see test_twins.py.
    furthest = min(rule.limit.window for rule in rules if rule.limit) * 9 // 10
    latest = START
    for _ in range(40):
        limited = random.choice(rules)
        limit = limited.limit
        assert limit is not None
        step = random.choice([0, 1, limit.window // 30, limit.window // 9, limit.window // 3, limit.window])
        back = random.randint(0, furthest)
        clock.now = max(clock.now + random.choice([step, step, -back]), latest - furthest)
        latest = max(clock.now, latest)
        hits, asks, leased = [], [], []
        for rule in rules:
            assert rule.limit is not None
            counting, key = algorithm(rule.algorithm.name), rule.algorithm.name
            most = random.choice([min(rule.limit.requests, 2000), rule.limit.requests])
            back, least, extra = (random.choice([0, 1, most // 20, most]) for _ in range(3))
            charged = [hit(rule, key, random.choice([1, 1, most // 9, most])) for _ in range(random.choice([0, 1, 3]))]
            has_ask = random.random() < 0.8
            state = states.get(key)
            phase = random.randrange(counting.term(rule.limit)) if counting.staggered(rule.limit) else 0
            if has_ask:
                end = ends.get(key, 0)
                state = counting.give(state, rule.limit, back, end, clock.now) if back else state
                one = LeasedCounter(rule, rule.limit, key, counting.term(rule.limit), rule.lease, phase=phase)
                asks.append(Ask(one, back, end, least, extra))
            for each in charged:
                state, decision = counting.hit(state, rule.limit, each.cost, clock.now)
                expected.append(decision)
            if has_ask:
                state, taken = lease.take(counting, state, rule.limit, least, extra, clock.now, phase)
                leased.append(taken[:5])
                ends[key] = random.choice([taken.term_end, ends.get(key, 0)])
            states[key] = state
            hits += charged
        if not hits and not asks:
            continue
        expected += leased
        encoded = script.encode(parts_of(hits), asks)
        sent.append(json.dumps([encoded.keys, *map(json.loads, map(str, encoded.arguments))]))
        runs_sent.append((hits, encoded.runs, len(asks)))
    client.flushall()
    replies: Any = client.eval(script.text.replace(LAST_LINE, MANY), 0, *sent)
    got: list[Decision | tuple[int, ...]] = []
    for reply, (hits, runs, asked) in zip(replies, runs_sent, strict=True):
        edge = len(reply) - 5 * asked
        script.decode(reply[:edge], runs)
        got += [each.decision for each in hits]
        got += [tuple(reply[at : at + 5]) for at in range(edge, len(reply), 5)]
    for step, (one, other) in enumerate(zip(expected, got, strict=True)):
        assert other == one, (step, names, [rule.limit for rule in rules])
