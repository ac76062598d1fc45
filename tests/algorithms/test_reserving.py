"""Reservations: laws against a list of charges with their moments, on the Python and on its twin in a real Redis."""

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis as Client

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.algorithms.kinds.reserved import REMEMBERED, Reserved
from ratelimit_service.model import Decision, Limit, Unit, settling
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.system.clock import MINUTE, SECOND
from tests.algorithms.test_twins import Batch, hit, in_memory, in_redis

WAYS = ("fixed_window", "sliding_window", "sub_windows", "token_bucket")
T0 = 1_790_000_000 * SECOND
WINDOW = MINUTE


def rule(way: str, requests: int = 1000, *, hold: int = 2 * MINUTE, burst: int = 0) -> Rule:
    kind = Reserved(hold, bucket=way == "token_bucket")
    limit = Limit(requests, Unit.MINUTE, WINDOW, burst=burst, count_refused=False, kind=kind)
    return Rule("shop", (), limit, open_algorithm(way))


def of(rule: Rule, holder: str, cost: int, *, settles: bool = False, key: str = "a", together: int = 0) -> Hit:
    """A hit of a request with this id."""
    assert rule.limit is not None
    made = hit(rule, key, cost, together)
    made.limit = rule.limit.kind.held_by(rule.limit, holder)
    if settles:
        made.limit = settling(made.limit)
    return made


class Step(NamedTuple):
    """What one caller does."""

    now: int
    what: str
    """`reserve`, `settle` or `look`."""
    id: str
    units: int


def replay(rule: Rule, steps: Iterable[Step]) -> list[Decision]:
    """What each step is answered."""
    return in_memory([(step.now, [[_hit(rule, step)]]) for step in steps])


def _hit(rule: Rule, step: Step) -> Hit:
    return of(rule, step.id, step.units, settles=step.what == "settle")


def answers(rule: Rule, *steps: tuple[float, str, str, int]) -> list[tuple[bool, int]]:
    """(seconds, what, id, units) -> (allowed, left)."""
    found = replay(rule, [Step(T0 + round(at * SECOND), *rest) for at, *rest in steps])  # type: ignore[arg-type]
    return [(each.allowed, each.remaining) for each in found]


@pytest.mark.parametrize("way", WAYS)
def test_what_was_not_used_goes_back_and_what_was_used_above_it_is_owed(way: str) -> None:
    found = answers(
        rule(way),
        (0, "reserve", "one", 600),
        (0, "reserve", "two", 600),
        (0, "settle", "one", 100),
        (0, "reserve", "two", 900),
        (0, "settle", "two", 1300),
        (0, "look", "three", 0),
    )

    assert found == [(True, 400), (False, 400), (True, 900), (True, 0), (False, 0), (False, 0)]


@pytest.mark.parametrize("way", WAYS)
def test_an_id_is_charged_once_and_settled_once(way: str) -> None:
    found = answers(
        rule(way),
        (0, "reserve", "one", 600),
        (0, "reserve", "one", 600),  # a retry of the same request
        (0, "settle", "one", 100),
        (0, "settle", "one", 100),
        (0, "reserve", "one", 600),  # another request
        (0, "settle", "one", 0),
        (0, "settle", "unknown", 50),
        (0, "settle", "unknown", 50),
    )

    assert found == [
        (True, 400),
        (True, 400),
        (True, 900),
        (True, 900),
        (True, 300),
        (True, 900),
        (True, 850),
        (True, 850),
    ]


@pytest.mark.parametrize("way", WAYS)
def test_a_settled_id_is_remembered_for_a_while_and_one_that_nobody_settles_stays_charged(way: str) -> None:
    tested = rule(way, hold=5 * SECOND)
    remembered = REMEMBERED // SECOND
    year = replace(
        tested, limit=replace(tested.limit or Limit(0, Unit.SECOND, 1), unit=Unit.YEAR, window=Unit.YEAR.window)
    )
    found = answers(
        year,
        (0, "settle", "one", 100),
        (remembered - 0.001, "settle", "one", 100),
        (remembered, "settle", "one", 100),
        (20, "reserve", "two", 300),
        (24, "reserve", "two", 300),  # hold begins anew
        (28.9, "settle", "two", 0),
        (40, "reserve", "three", 300),
        (45, "settle", "three", 10),  # too late: its reservation stays charged
    )

    assert found == [
        (True, 900), (True, 900), (True, 800), (True, 500), (True, 500), (True, 800), (True, 500), (True, 490)
    ]  # fmt: skip


def test_what_is_given_back_goes_where_it_was_charged() -> None:
    """Into its window, or nowhere if that is over: else the next window would have more than its limit."""
    found = answers(
        rule("fixed_window"),
        (0, "reserve", "one", 900),
        (61, "reserve", "two", 900),
        (62, "settle", "one", 100),
        (63, "settle", "two", 100),
    )

    assert T0 % MINUTE == 20 * SECOND
    assert found == [(True, 100), (True, 100), (True, 100), (True, 900)]


def test_an_overrun_of_an_answer_longer_than_the_window_counts_now() -> None:
    assert answers(rule("fixed_window"), (0, "reserve", "one", 900), (61, "settle", "one", 1000))[1] == (True, 900)


def test_what_time_has_given_back_to_a_bucket_is_not_given_back_again() -> None:
    found = answers(
        rule("token_bucket"),
        (0, "reserve", "one", 600),
        (30, "look", "x", 0),  # 500 of them are back
        (30, "settle", "one", 0),
        (30, "reserve", "two", 1000),
        (90, "settle", "two", 400),  # it has been full
        (90, "reserve", "three", 300),
        (90, "reserve", "four", 700),
        (120, "settle", "three", 100),
    )

    assert found == [
        (True, 400), (True, 900), (True, 1000), (True, 0), (True, 1000), (True, 700), (True, 0), (True, 700)
    ]  # fmt: skip


def test_what_went_back_to_a_bucket_is_not_given_back_by_others_that_were_reserved_then() -> None:
    """At 50 seconds 66 tokens were missing, before 700 were taken: only these can go back, once."""
    found = answers(
        rule("token_bucket"),
        (0, "reserve", "one", 600),
        (0, "reserve", "two", 300),
        (50, "reserve", "three", 700),
        (50, "settle", "one", 0),
        (50, "settle", "two", 0),
    )

    assert [left for _, left in found] == [400, 100, 233, 300, 300]


def test_nor_by_one_that_was_reserved_before() -> None:
    found = answers(
        rule("token_bucket"),
        (0, "reserve", "one", 500),
        (27, "reserve", "two", 800),
        (58, "reserve", "three", 300),
        (58, "settle", "two", 0),
        (58, "settle", "one", 0),
    )

    assert [left for _, left in found] == [500, 150, 366, 700, 700]


@given(st.integers(0, 2**64))
def test_a_twin_reserves_and_settles_as_the_python_does(client: Client, seed: int) -> None:
    random = Random(seed)  # noqa: S311 - the seed tells the history
    rules = [
        rule(
            random.choice(WAYS), random.choice([0, 1, 7, 100, 1000, 2**50 - 101]),
            hold=random.choice([SECOND, WINDOW // 3, 3 * WINDOW]), burst=random.choice([0, 0, 5, 3000]),
        )
        for _ in range(2)
    ]  # fmt: skip
    now = latest = T0
    history: list[tuple[int, Batch]] = []
    for _ in range(60):
        step = random.choice([0, 1, SECOND, WINDOW // 7, WINDOW // 3, WINDOW, -WINDOW // 5])
        now = max(now + step, latest - WINDOW // 2)
        latest = max(now, latest)
        batch: Batch = []
        for _ in range(random.randint(1, 3)):
            hits = []
            for _ in range(random.randint(1, 3)):
                number = random.randrange(2)
                limit = rules[number].limit
                assert limit is not None
                most = limit.requests
                cost = random.choice([0, 1, 2, 3, most // 10, most // 3, most // 2, most, 3 * most])
                cost = -cost if random.random() < 0.05 else cost
                settles = cost >= 0 and random.random() < 0.5
                together = 0 if settles else random.choice([0, 0, 1])
                hits.append(
                    of(rules[number], random.choice("pqrs"), cost, settles=settles, key=f"{number}", together=together)
                )
            batch.append(hits)
        history.append((now, batch))
    sent = [(now, each) for now, batch in history for requests in batch for each in requests]

    for index, (expected, got) in enumerate(zip(in_memory(history), in_redis(client, history), strict=True)):
        now, each = sent[index]
        assert got == expected, (index, now, each.rule.algorithm.name, each.limit, each.cost, each.together)


class Charged(NamedTuple):
    """Units of the oracle, which counts from this moment on."""

    at: int
    units: int


class Oracle:
    """A list of charges with their moments: what the laws say, without any state of a counter."""

    def __init__(self, hold: int) -> None:
        self._hold = hold
        self.charges: list[Charged] = []
        self._memos: dict[str, tuple[int, int, int]] = {}
        """By id: until when, the index of its charge, and the units that are reserved, -1 once settled."""

    def reserve(self, name: str, units: int, now: int, *, allowed: bool) -> None:
        """A request with this id, and whether the counter has let it pass."""
        memo = self._memo(name, now)
        if memo is not None and memo[2] >= 0:
            assert allowed, "a retry is never refused"
            self._memos[name] = (now + self._hold, *memo[1:])
        elif allowed:
            self.charges.append(Charged(now, units))
            self._memos[name] = (now + self._hold, len(self.charges) - 1, units)

    def settle(self, name: str, units: int, now: int) -> None:
        """What the request with this id has cost."""
        memo = self._memo(name, now)
        if memo is not None and memo[2] < 0:
            return
        reserved = 0
        if memo is not None:
            reserved = memo[2]
            at = self.charges[memo[1]].at
            self.charges[memo[1]] = Charged(at, min(units, reserved))
        if units > reserved:
            self.charges.append(Charged(now, units - reserved))
        if memo is not None or units:
            self._memos[name] = (now + REMEMBERED, 0, -1)

    def _memo(self, name: str, now: int) -> tuple[int, int, int] | None:
        memo = self._memos.get(name)
        return memo if memo is not None and memo[0] > now else None

    def used(self, way: str, now: int) -> int:
        """What is charged in view: of the window, or of the parts in view, of 10."""
        if way == "fixed_window":
            return sum(each.units for each in self.charges if each.at // WINDOW == now // WINDOW)
        part = WINDOW // 10
        return sum(each.units for each in self.charges if each.at // part >= now // part - 10)

    def tokens(self, limit: int, now: int) -> int:
        """Those of a bucket from which all had been taken at their moments; below 0 in debt."""
        missing, last = 0, 0  # in parts of a token, of which one microsecond gives `limit`
        for each in sorted(self.charges):
            missing = max(0, missing - (each.at - last) * limit) + each.units * WINDOW
            last = each.at
        return (limit * WINDOW - max(0, missing - (now - last) * limit)) // WINDOW


def a_life(random: Random, limit: int, hold: int) -> list[Step]:
    """Callers that reserve, try again, settle, late or twice, or never, with overruns."""
    steps, now, names = [], T0, [f"r{number}" for number in range(12)]
    for _ in range(60):
        now += random.choice([0, 1, SECOND, WINDOW // 20, WINDOW // 7, WINDOW // 3, min(hold, 2 * WINDOW // 3)])
        name = random.choice(names)
        units = random.choice([1, limit // 20, limit // 10, limit // 3, limit // 2])
        what = random.choice(["reserve", "reserve", "settle", "settle", "look"])
        cost = 0 if what == "look" else units
        if what == "settle":
            cost = random.choice([0, 0, units // 10, units // 2, units, 3 * units if random.random() < 0.2 else units])
        steps.append(Step(now, what, name, cost))
    return steps


@pytest.mark.parametrize("way", ["fixed_window", "sub_windows", "token_bucket"])
@given(st.integers(0, 2**64))
def test_what_is_left_is_what_the_charges_with_their_moments_leave(way: str, seed: int) -> None:
    """R1 to R5: what is charged is what was used, where it was reserved, and what is not settled yet; each id once."""
    random = Random(seed)  # noqa: S311 - the seed tells the history
    hold = random.choice([WINDOW // 4, WINDOW, 3 * WINDOW])
    tested = rule(way, 1000, hold=hold)
    steps = a_life(random, 1000, hold)
    oracle = Oracle(hold)
    for step, found in zip(steps, replay(tested, steps), strict=True):
        if step.what == "reserve":
            oracle.reserve(step.id, step.units, step.now, allowed=found.allowed)
        elif step.what == "settle":
            oracle.settle(step.id, step.units, step.now)
        if way == "token_bucket":
            tokens = oracle.tokens(1000, step.now)
            if tokens <= -1000:  # a debt that is cut, of which there is another law
                return
            # Each settle rounds a microsecond down, of which a token has 60,000.
            assert tokens - 1 <= found.remaining <= max(0, tokens), step
        else:
            assert found.remaining == max(0, 1000 - oracle.used(way, step.now)), step
