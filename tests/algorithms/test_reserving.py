"""Reservations: laws against a list of charges with their moments, on the Python and on its twin in a real Redis."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis as Client

from ratelimit_service.algorithms import expiry, open_algorithm
from ratelimit_service.algorithms.kinds import Block
from ratelimit_service.algorithms.kinds.pool import Pool, member
from ratelimit_service.algorithms.kinds.reserved import REMEMBERED, Reserved
from ratelimit_service.model import Decision, Limit, Unit, settling
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit, second_key
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis.script import BatchScript
from ratelimit_service.system.clock import MINUTE, SECOND
from tests.algorithms.test_twins import LAST_LINE, MANY, Batch, hit, in_memory, in_redis, run
from tests.clocks import Clock
from tests.parts import parts_of

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
    """`reserve`, `settle`, `look`, or `reset`: the counter is gone, and looked at."""
    id: str
    units: int


Replay = Callable[[Rule, Sequence[Step]], list[Decision]]
"""What each step is answered."""


@pytest.fixture(scope="module", params=["python", "lua"])
def replay(request: pytest.FixtureRequest) -> Replay:
    if request.param == "python":
        return lambda rule, steps: in_python(rule, steps)[0]
    client: Client = request.getfixturevalue("client")
    return lambda rule, steps: in_lua(client, rule, steps)


def in_python(rule: Rule, steps: Sequence[Step]) -> tuple[list[Decision], MemoryStore]:
    clock = Clock()
    store, decisions = MemoryStore(10_000, clock), []
    for step in steps:
        clock.now, hit = step.now, _hit(rule, step)
        if step.what == "reset":
            asyncio.run(store.reset([hit]))
        assert store.charge([hit])
        decisions.append(hit.decision)
    return decisions, store


UNLESS_RESET = "local batch = cjson.decode(text)"


def in_lua(client: Client, rule: Rule, steps: Sequence[Step]) -> list[Decision]:
    clock = Clock()
    script = BatchScript("", clock)
    arguments, sent = [], []
    for step in steps:
        clock.now, hit = step.now, _hit(rule, step)
        keys, (text,), runs = script.encode(parts_of([hit]))
        sent.append((hit, runs))
        reset = json.dumps(script.kept(hit) if step.what == "reset" else [])
        arguments.append(f"[{json.dumps(keys)},{text},false,{reset}]")
    assert LAST_LINE in script.text
    assert UNLESS_RESET in MANY
    many = MANY.replace(UNLESS_RESET, f"{UNLESS_RESET} for _, key in ipairs(batch[4]) do call('UNLINK', key) end")
    client.flushall()
    replies: Any = client.eval(script.text.replace(LAST_LINE, many), 0, *arguments)
    for reply, (_, runs) in zip(replies, sent, strict=True):
        script.decode(reply, runs)
    return [hit.decision for hit, _ in sent]


def _hit(rule: Rule, step: Step) -> Hit:
    return of(rule, step.id, step.units, settles=step.what == "settle")


Answers = Callable[..., list[tuple[bool, int]]]
"""(rule, (seconds, what, id, units), ...) -> (allowed, left), ..."""


@pytest.fixture(scope="module")
def answers(replay: Replay) -> Answers:
    def found(rule: Rule, *steps: tuple[float, str, str, int]) -> list[tuple[bool, int]]:
        sent = [Step(T0 + round(at * SECOND), *rest) for at, *rest in steps]  # type: ignore[arg-type]
        return [(each.allowed, each.remaining) for each in replay(rule, sent)]

    return found


@pytest.mark.parametrize("way", WAYS)
def test_what_was_not_used_goes_back_and_what_was_used_above_it_is_owed(answers: Answers, way: str) -> None:
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
def test_an_id_is_charged_once_and_settled_once(answers: Answers, way: str) -> None:
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
def test_a_settled_id_is_remembered_for_a_while_and_one_that_nobody_settles_stays_charged(
    answers: Answers, way: str
) -> None:
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


@pytest.mark.parametrize("way", WAYS)
def test_to_a_counter_that_was_reset_nothing_goes_back_that_was_reserved_before(answers: Answers, way: str) -> None:
    found = answers(
        rule(way),
        (0, "reserve", "one", 400),
        (0, "reserve", "two", 400),
        (1, "reset", "x", 0),
        (2, "reserve", "three", 900),
        (2, "settle", "one", 0),  # the counter was not charged for it
        (2, "settle", "two", 500),  # and owes what was not reserved
        (2, "settle", "three", 100),
    )

    assert [left for _, left in found] == [600, 200, 1000, 100, 100, 0, 800]


def test_what_is_given_back_goes_where_it_was_charged(answers: Answers) -> None:
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


def test_an_overrun_of_an_answer_longer_than_the_window_counts_now(answers: Answers) -> None:
    assert answers(rule("fixed_window"), (0, "reserve", "one", 900), (61, "settle", "one", 1000))[1] == (True, 900)


def test_what_time_has_given_back_to_a_bucket_is_not_given_back_again(answers: Answers) -> None:
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


def test_what_went_back_to_a_bucket_is_not_given_back_by_others_that_were_reserved_then(answers: Answers) -> None:
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


def test_nor_by_one_that_was_reserved_before(answers: Answers) -> None:
    found = answers(
        rule("token_bucket"),
        (0, "reserve", "one", 500),
        (27, "reserve", "two", 800),
        (58, "reserve", "three", 300),
        (58, "settle", "two", 0),
        (58, "settle", "one", 0),
    )

    assert [left for _, left in found] == [500, 150, 366, 700, 700]


@pytest.mark.parametrize(("hold", "groups"), [(300 * SECOND, 16), (5 * SECOND, 6)])
def test_a_bucket_keeps_groups_for_hold_and_sixteen_at_most(client: Client, hold: int, groups: int) -> None:
    tested = rule("token_bucket", hold=hold)
    steps = [Step(T0 + number * SECOND, "reserve", f"{number}", 20) for number in range(40)]
    settles = [Step(T0 + 39 * SECOND, "settle", f"{number}", 0) for number in range(40)]
    _, store = in_python(tested, steps)
    in_lua(client, tested, steps)
    packed: Any = client.strlen("rl2|a")

    assert len(contents(store)["a"]) == 16 + 16 * groups
    assert 9 + 6 * groups < packed <= 3 + 9 * (2 + 2 * groups)
    assert in_lua(client, tested, [*steps, *settles]) == in_python(tested, [*steps, *settles])[0]


def test_a_bucket_loses_little_where_more_moments_are_open_than_it_has_groups(answers: Answers) -> None:
    """Without a bound, all of the 1,000 would go back; with the oldest groups joined into one, 400."""
    reserved = [(number / 1000, "reserve", f"{number}", 25) for number in range(40)]
    settled = [(0.04, "settle", f"{number}", 0) for number in reversed(range(40))]
    found = answers(rule("token_bucket"), *reserved, *settled, (0.04, "look", "x", 0))

    assert found[-1] == (True, 925)


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
        self._first = 0
        """The first of these that counts."""
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
            if memo[1] >= self._first:
                self.charges[memo[1]] = Charged(self.charges[memo[1]].at, min(units, reserved))
        if units > reserved:
            self.charges.append(Charged(now, units - reserved))
        if memo is not None or units:
            self._memos[name] = (now + REMEMBERED, 0, -1)

    def reset(self) -> None:
        """All that was charged until now counts no more, and what was reserved of it can go back nowhere."""
        self.charges = [Charged(each.at, 0) for each in self.charges]
        self._first = len(self.charges)

    def unused(self, way: str, name: str, units: int, now: int) -> int:
        """What a settle may give back, of what is not over."""
        memo = self._memo(name, now)
        if memo is None or memo[2] < 0 or memo[1] < self._first:
            return 0
        at, part = self.charges[memo[1]].at, WINDOW // 10
        age = {"fixed_window": now // WINDOW - at // WINDOW, "sliding_window": (now // WINDOW - at // WINDOW) // 2}
        age["sub_windows"] = (now // part - at // part) // 11
        return 0 if age.get(way) else max(0, memo[2] - units)

    def memos(self) -> list[tuple[str, int]]:
        """All that there were, and when they end."""
        return [(name, until) for name, (until, _, _) in self._memos.items()]

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
        if random.random() < 0.02:
            steps.append(Step(now, "reset", name, 0))
            now += 1
        units = random.choice([1, limit // 20, limit // 10, limit // 3, limit // 2])
        what = random.choice(["reserve", "reserve", "settle", "settle", "look"])
        cost = 0 if what == "look" else units
        if what == "settle":
            cost = random.choice([0, 0, units // 10, units // 2, units, 3 * units if random.random() < 0.2 else units])
        steps.append(Step(now, what, name, cost))
    return steps


@pytest.mark.parametrize("way", ["fixed_window", "sub_windows", "token_bucket"])
@given(st.integers(0, 2**64))
def test_what_is_left_is_what_the_charges_with_their_moments_leave(replay: Replay, way: str, seed: int) -> None:
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
        elif step.what == "reset":
            oracle.reset()
        if way == "token_bucket":
            tokens = oracle.tokens(1000, step.now)
            if tokens <= -1000:  # a debt that is cut, of which there is another law
                return
            # Each settle rounds a microsecond down, of which a token has 60,000.
            assert tokens - 1 <= found.remaining <= max(0, tokens), step
        else:
            assert found.remaining == max(0, 1000 - oracle.used(way, step.now)), step


some = settings(max_examples=settings().max_examples // 2)
"""For laws that follow from the last one where it speaks of the same."""


@pytest.mark.parametrize("way", WAYS)
@some
@given(st.integers(0, 2**64))
def test_no_more_goes_back_than_was_not_used_and_nothing_into_what_is_over(replay: Replay, way: str, seed: int) -> None:
    """R8."""
    random = Random(seed)  # noqa: S311 - the seed tells the history
    hold = random.choice([WINDOW // 4, WINDOW, 3 * WINDOW])
    steps = [step for each in a_life(random, 1000, hold) for step in (Step(each.now, "look", "x", 0), each)]
    found = replay(rule(way, 1000, hold=hold), steps)
    oracle = Oracle(hold)
    for index, step in enumerate(steps):
        if step.what == "settle":
            back = found[index].remaining - found[index - 1].remaining
            assert back <= oracle.unused(way, step.id, step.units, step.now), step
            oracle.settle(step.id, step.units, step.now)
        elif step.what == "reserve":
            oracle.reserve(step.id, step.units, step.now, allowed=found[index].allowed)
        elif step.what == "reset":
            oracle.reset()


@pytest.mark.parametrize("way", WAYS)
@some
@given(st.integers(0, 2**64))
def test_a_memo_ends_hold_after_the_last_request_or_ten_seconds_after_the_settle(way: str, seed: int) -> None:
    """R9."""
    random = Random(seed)  # noqa: S311 - the seed tells the history
    hold = random.choice([WINDOW // 4, WINDOW, 3 * WINDOW])
    tested = rule(way, 1000, hold=hold)
    steps = a_life(random, 1000, hold)
    decisions, store = in_python(tested, steps)
    oracle = Oracle(hold)
    for step, found in zip(steps, decisions, strict=True):
        if step.what == "reserve":
            oracle.reserve(step.id, step.units, step.now, allowed=found.allowed)
        elif step.what == "settle":
            oracle.settle(step.id, step.units, step.now)
    kept = {key: expiry(state) for key, state in contents(store).items() if key != "a"}
    ends = {second_key(of(tested, name, 0)): until for name, until in oracle.memos()}
    now = steps[-1].now

    assert {key: end for key, end in kept.items() if end > now} == {key: end for key, end in ends.items() if end > now}


@pytest.mark.parametrize(
    ("steps", "milliseconds"),
    [("reserve", 60_000), ("reserve reserve", 60_000), ("reserve settle", 10_000), ("settle settle", 10_000)],
)
def test_redis_keeps_a_memo_as_long(client: Client, steps: str, milliseconds: int) -> None:
    tested = rule("token_bucket", hold=60 * SECOND)
    in_lua(client, tested, [Step(T0, what, "one", 10) for what in steps.split()])

    left = client.pttl("rl2|" + second_key(of(tested, "one", 0)))

    assert isinstance(left, int)
    assert milliseconds - 5000 < left <= milliseconds


def contents(store: MemoryStore) -> dict[str, Any]:
    return {key: state for segment in store._segments for key, state in segment.items()}


POOL = Pool("all", 400, 100, 0)
SETTLED_RULES = {
    **{way: rule(way) for way in WAYS},
    "block": Rule("shop", (), Limit(9, Unit.MINUTE, WINDOW, kind=Block(WINDOW)), open_algorithm("sliding_log")),
    "member": Rule(
        "shop", (), member(Limit(9, Unit.MINUTE, WINDOW, exceed=9), POOL, strict=False),
        open_algorithm("sub_windows"), pool="all",
    ),
}  # fmt: skip
"""Also those whose second counter is not a memo."""


@some
@given(st.integers(0, 2**64))
def test_a_settle_touches_its_counter_its_memo_its_block_and_its_pool_alone(client: Client, seed: int) -> None:
    """R6."""
    random = Random(seed)  # noqa: S311 - the seed tells the history

    def a_hit(*, settles: bool) -> Hit:
        name = random.choice([*SETTLED_RULES])
        cost = random.choice([1, 5, 300, 2000])
        return of(SETTLED_RULES[name], random.choice("pq"), cost, settles=settles, key=f"{name}/{random.randrange(2)}")

    history = [(T0 + number * SECOND, [[a_hit(settles=random.random() < 0.3)]]) for number in range(40)]
    last = a_hit(settles=True)
    clock = Clock()
    store = MemoryStore(10_000, clock)
    for now, batch in history:
        clock.now = now
        store.hit(batch[0], lambda _: None)
    before = contents(store)
    store.hit([last], lambda _: None)
    changed = {key for key, _ in before.items() ^ contents(store).items()}
    in_redis(client, history)
    keys = stored(client)
    run(client, [[last]], clock)
    changed_there = {key.removeprefix("rl2|") for key, _ in keys.items() ^ stored(client).items()}

    assert changed <= {last.key, second_key(last)}
    assert changed_there == changed


def stored(client: Client) -> dict[str, Any]:
    """All that Redis has."""
    names: Any = client.keys()
    return {name.decode(): client.get(name) for name in names}
