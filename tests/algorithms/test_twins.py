"""Each algorithm's Lua twin in a real Redis, held to the answers of the Python."""

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis as Client

from ratelimit_service.algorithms import NAMES, Algorithm, open_algorithm
from ratelimit_service.algorithms.kinds import Block, Queue
from ratelimit_service.algorithms.kinds import queue as leaky_queue
from ratelimit_service.model import MAX_REQUESTS, PLAIN, Decision, Kind, Limit, Queued, Unit, settling
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis.script import BatchScript
from ratelimit_service.system.calendar import UNITS, Calendar
from ratelimit_service.system.clock import DAY, HOUR, MINUTE, SECOND
from ratelimit_service.telemetry.tally import Tally
from tests.clocks import Clock
from tests.parts import parts_of

LAST_LINE = "return charge(KEYS, cjson.decode(ARGV[1]), ARGV[2] and cjson.decode(ARGV[2]))"
MANY = """
local replies = {}
for i, text in ipairs(ARGV) do
  local batch = cjson.decode(text)
  replies[i] = charge(batch[1], batch[2], batch[3])
end
return replies
"""
"""Many batches in one call: fast, and no counter expires by the real time between them."""

BATCHES = 40
HITS = 5
"""In a batch, on average: one history is about 200 steps, so 50 of them in every run and 5,000 in the nightly one."""

Batch = list[list[Hit]]


def hit(rule: Rule, key: str, cost: int, together: int = 0) -> Hit:
    return Hit(rule, key, cost, tally=Tally(), quota=False, together=together)


def settle(rule: Rule, key: str, cost: int) -> Hit:
    """A cost that has come about."""
    assert rule.limit is not None
    made = hit(rule, key, cost)
    made.limit = settling(rule.limit)
    return made


def rule(name: str, limit: Limit) -> Rule:
    return Rule("shop", (), limit, open_algorithm(name))


def a_kind(random: Random, window: int) -> Kind:
    length = random.choice([0, 0, 1, window // 3, 2 * window])
    return Block(length, length * random.choice([0, 0, 0, 1, 2, 5])) if length else PLAIN


def a_limit(random: Random, algorithm: Algorithm) -> Limit:
    """Any that the algorithm can count by."""
    while True:
        unit = random.choice([Unit.SECOND, Unit.MINUTE, Unit.YEAR])
        limit = Limit(
            random.choice([0, 1, 3, 7, 50, 200, 1000]),
            unit,
            unit.window * random.choice([1, 1, 3]),
            burst=random.choice([0, 0, 5, 100]),
            parts=random.choice([1, 2, 7, 10]),
            first_request=random.random() < 0.5,
            count_refused=random.random() < 0.5,
            exceed=random.choice([0, 0, 2]),
            kind=a_kind(random, unit.window),
        )
        if algorithm.name == "fixed_window" and random.random() < 0.5:
            calendar = Calendar(random.choice([*UNITS]), "", random.choice(["UTC", "America/Havana", "Pacific/Apia"]))
            limit = replace(limit, window=calendar.length, first_request=False, calendar=calendar)
        if algorithm.name != "sliding_log" and random.random() < 0.3:
            limit = replace(limit, requests=random.choice([2**50 - 101, 2**32 - 101, random.randint(1, 10**6)]))
        if algorithm is leaky_queue:
            most = random.choice([1, SECOND // 7, limit.window, 3 * limit.window])
            wait = random.choice([most, most, 0, random.randint(0, most)])
            limit = replace(limit, burst=0, exceed=0, kind=Queue(most, wait))
        if (
            limit.kind.max_delay * limit.requests // limit.window < MAX_REQUESTS
            and problem_of(algorithm, limit) is None
        ):
            return limit


def reloaded(random: Random, rule: Rule) -> Rule:
    """The rule after a reload that has changed its limit, but not what its counters mean."""
    before = rule.limit
    assert before is not None
    while True:
        other = a_limit(random, rule.algorithm)
        limit = replace(
            other,
            window=before.window,
            parts=before.parts,
            first_request=before.first_request,
            calendar=before.calendar,
        )
        fits = limit.kind.max_delay * limit.requests // limit.window < MAX_REQUESTS
        if fits and problem_of(rule.algorithm, limit) is None:
            return Rule("shop", (), limit, rule.algorithm)


def problem_of(algorithm: Algorithm, limit: Limit) -> Any:
    return getattr(algorithm, "problem", lambda _: None)(limit)


def a_cost(random: Random, limit: Limit) -> int:
    most = limit.requests
    if random.random() < 0.05:
        return random.choice([MAX_REQUESTS, MAX_REQUESTS - 100, -MAX_REQUESTS])
    few = [1, 1, 1, 2, 3, 0, -1, -2]
    # Not so many that a log of them takes long.
    return random.choice([*few, most, most // 2, most + 1, -most, most // 3] if most else few)


def a_history(random: Random) -> list[tuple[int, Batch]]:
    """Batches of requests on a few counters; now and then a limit is changed, and the clock steps back."""
    books: list[list[Rule]] = [[], []]
    for _ in range(3):
        algorithm = random.choice([*map(open_algorithm, NAMES), leaky_queue])
        books[0].append(Rule("shop", (), a_limit(random, algorithm), algorithm))
        books[1].append(reloaded(random, books[0][-1]))
    rules = books[0]
    window = max(each.limit.window for each in rules[:1] if each.limit)
    # A clock that steps back further is another one, of which there is a test of its own in Redis.
    # A window of a calendar may be shorter than others of its unit.
    furthest = min(each.limit.window for each in rules if each.limit) * 9 // 10
    latest = 0
    now = random.choice([1, 1_790_000_000_123_456])
    history = []
    for _ in range(BATCHES):
        step = random.choice(
            [0, 1, window // 7, window // 3, window // 2, window, -window // 5, random.randint(0, 2 * window)]
        )
        now = max(1, now + step, latest - furthest)
        latest = max(now, latest)
        if random.random() < 0.1:
            rules = random.choice(books)
        batch = []
        for _ in range(random.randint(1, 3)):
            hits = []
            for _ in range(random.randint(1, 4)):
                number = random.randrange(3)
                chosen = rules[number]
                assert chosen.limit is not None
                key = f"{number}/{random.randint(0, 1)}"
                cost = a_cost(random, chosen.limit)
                if cost >= 0 and random.random() < 0.15:
                    hits.append(settle(chosen, key, cost))
                else:
                    hits.append(hit(chosen, key, cost, random.choice([0, 0, 1, 2])))
            batch.append(hits)
        if random.random() < 0.3:  # many ask the same at once, among others
            limit = rules[0].limit
            assert limit is not None
            cost = a_cost(random, limit) if random.random() < 0.3 else random.choice([1, 1, 2, 3])
            for _ in range(random.randint(2, 12)):
                settles = cost >= 0 and random.random() < 0.1
                one = settle(rules[0], "0/0", cost) if settles else hit(rules[0], "0/0", cost)
                batch.insert(random.randrange(len(batch) + 1), [one])
        history.append((now, batch))
    return history


def in_memory(history: Sequence[tuple[int, Batch]]) -> list[Decision]:
    clock = Clock()
    store = MemoryStore(10_000, clock)
    decisions = []
    for now, batch in history:
        clock.now = now
        for hits in batch:
            store.hit(hits, lambda _: None)
            decisions += [each.decision for each in hits]
    return decisions


def in_redis(client: Client, history: Sequence[tuple[int, Batch]]) -> list[Decision]:
    clock = Clock()
    script = BatchScript("", clock)
    arguments, sent = [], []
    for now, batch in history:
        clock.now = now
        keys, (text,), runs = script.encode(parts_of(*batch))
        sent.append(runs)
        arguments.append(f"[{json.dumps(keys)},{text}]")
    assert LAST_LINE in script.text
    client.flushall()
    replies: Any = client.eval(script.text.replace(LAST_LINE, MANY), 0, *arguments)
    decisions = []
    for reply, (now, batch), runs in zip(replies, history, sent, strict=True):
        assert reply[0] == now
        script.decode(reply, runs)
        decisions += [each.decision for hits in batch for each in hits]
    return decisions


@given(st.integers(0, 2**64))
def test_a_twin_answers_as_the_python_does_step_by_step(client: Client, seed: int) -> None:
    history = a_history(Random(seed))  # noqa: S311 - the seed tells the history
    hits = [(now, each) for now, batch in history for requests in batch for each in requests]

    for step, (expected, got) in enumerate(zip(in_memory(history), in_redis(client, history), strict=True)):
        now, each = hits[step]
        before = [(at, h.cost, h.together, h.limit.owes) for at, h in hits[:step] if h.key == each.key]
        assert got == expected, (now, each.rule.algorithm.name, each.limit, each.cost, each.together, before)


def test_a_turn_of_a_queue_is_given_back_as_in_the_python(client: Client) -> None:
    limit = Limit(3, Unit.SECOND, SECOND, count_refused=False, kind=Queue(SECOND, SECOND))
    queue = Rule("shop", (), limit, leaky_queue)
    now = 1_790_000_000_123_456

    def given_back(end: int) -> Hit:
        return hit(replace(queue, limit=limit.kind.with_turn(limit, now + end)), "a", -1)

    history = [
        *((now, [[hit(queue, "a", 1, -1)]]) for _ in range(3)),
        *((now + 7, [[given_back(end)]]) for end in (666_667, 1_000_001, 1_000_000, 666_666, 666_667)),
        (now + 9, [[hit(queue, "a", 1, -1)]]),
    ]
    decisions = in_redis(client, history)

    assert decisions == in_memory(history)
    assert [each.allowed for each in decisions] == [True] * 3 + [False, False, True, False, True] + [True]
    assert isinstance(decisions[-1], Queued)
    assert decisions[-1].wait == 333_334 - 9


def run(client: Client, batch: Batch, clock: Clock | None = None) -> tuple[int, list[Decision]]:
    script = BatchScript("", clock)
    keys, arguments, runs = script.encode(parts_of(*batch))
    reply: Any = client.eval(script.text, len(keys), *keys, *arguments)
    script.decode(reply, runs)
    return reply[0], [each.decision for hits in batch for each in hits]


def milliseconds(microseconds: int) -> int:
    return -(-microseconds // 1000)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("together", [0, 1])
@pytest.mark.parametrize("first_request", [False, True])
def test_a_server_whose_clock_was_ahead_keeps_nobody_out_for_longer_than_three_windows(
    client: Client, name: str, together: int, first_request: bool
) -> None:
    """It has charged ten by a clock an hour ahead, and another one whose clock is right has taken over."""
    limited = rule(name, Limit(10, Unit.MINUTE, MINUTE, first_request=first_request, count_refused=False))
    noon = 1_790_000_000 * SECOND + 17

    def ask(now: int, cost: int) -> tuple[int, Batch]:
        return now, [[hit(limited, "a", cost, together)]]

    [*_, ahead, refused] = in_redis(client, [ask(noon, 10), ask(noon + HOUR, 10), ask(noon, 1)])
    wait = refused.retry_after
    [*_, early, in_time] = in_redis(
        client, [ask(noon, 10), ask(noon + HOUR, 10), ask(noon, 1), ask(noon + wait - 1, 1), ask(noon + wait, 1)]
    )

    assert ahead.allowed
    assert (refused.allowed, refused.remaining) == (False, 0)
    assert 0 < wait <= 3 * MINUTE
    assert (early.allowed, in_time.allowed) == (False, True)


def test_a_request_may_have_more_counters_than_lua_can_pass_to_a_function(client: Client) -> None:
    client.flushdb()
    limited = rule("fixed_window", Limit(5, Unit.HOUR, HOUR))

    _, decisions = run(client, [[hit(limited, str(number), 1) for number in range(9000)]])

    assert [each.remaining for each in decisions] == [4] * 9000
    assert client.dbsize() == 9000


def test_a_large_log_expires_with_its_newest_moment(client: Client) -> None:
    client.flushdb()
    limited = rule("sliding_log", Limit(1000, Unit.HOUR, HOUR))
    clock = Clock(HOUR)
    for minute in range(0, 30, 10):
        clock.now = HOUR + minute * 60 * SECOND
        _, [decision] = run(client, [[hit(limited, "a", 200)]], clock)
        client.persist("rl2|a")
        run(client, [[hit(limited, "a", 1)]], clock)
        left: Any = client.pttl("rl2|a")

        assert decision.reset_after == HOUR
        assert milliseconds(HOUR) - 1000 < left <= milliseconds(HOUR)


@pytest.mark.parametrize("name", NAMES)
def test_a_counter_expires_when_its_state_means_nothing_any_more(client: Client, name: str) -> None:
    limited = rule(name, Limit(5, Unit.HOUR, HOUR, count_refused=True))
    client.flushdb()
    for cost in (1, 2, 3, -1, 5):
        _, [decision] = run(client, [[hit(limited, "a", cost)]])
        left: Any = client.pttl("rl2|a")

        assert milliseconds(decision.reset_after) - 1000 < left <= milliseconds(decision.reset_after)


@pytest.mark.parametrize("name", NAMES)
def test_a_counter_refunded_whole_is_deleted_and_a_look_makes_none(client: Client, name: str) -> None:
    client.flushdb()
    limited = rule(name, Limit(5, Unit.HOUR, HOUR))
    run(client, [[hit(limited, "a", 2), hit(limited, "b", 0), hit(limited, "c", -1)]])
    assert client.keys() == [b"rl2|a"]

    run(client, [[hit(limited, "a", -2)]])

    assert client.keys() == []


@pytest.mark.parametrize("name", NAMES)
def test_a_counter_without_expiry_gets_one_with_the_next_charge(client: Client, name: str) -> None:
    client.flushdb()
    limited = rule(name, Limit(5, Unit.HOUR, HOUR))
    run(client, [[hit(limited, "a", 1)]])
    client.persist("rl2|a")

    run(client, [[hit(limited, "a", 1)]])

    left: Any = client.pttl("rl2|a")
    assert left > 0


def test_the_count_of_a_flood_is_the_same_exact_integer(client: Client) -> None:
    client.flushdb()
    limited = rule("fixed_window", Limit(5, Unit.HOUR, HOUR))
    flood = [hit(limited, "a", cost) for cost in (2**52, 2**52, 1, -(2**52) + 5, 0)]

    _, decisions = run(client, [flood])

    assert [each.over for each in decisions] == [2**52 - 5, 2**52, 1, 0, 0]
    assert [each.allowed for each in decisions] == [False, False, False, True, True]


def test_eleven_full_parts_are_more_than_lua_can_add_up(client: Client) -> None:
    """Each has a limit's worth of denied hits, and the next hit has to wait for some of them exactly."""
    limited = rule("sub_windows", Limit(2**50 - 1, Unit.MINUTE, MINUTE, count_refused=True))
    history = [
        (START + part * MINUTE // 10, [[hit(limited, "a", cost)]]) for part in range(12) for cost in (2**50 - 1, 1, 0)
    ]

    assert in_redis(client, history) == in_memory(history)


def test_a_window_of_a_century_has_the_largest_count_and_what_was_denied_beyond(client: Client) -> None:
    century = 100 * 365 * DAY
    limited = rule("sliding_window", Limit(2**50, Unit.YEAR, century, count_refused=True))
    costs = [1, 2**50, 2**50, 2**50]
    before = [(century - 100 + number, [[hit(limited, "a", cost)]]) for number, cost in enumerate(costs)]
    after = [(century + 7, [[hit(limited, "a", cost)]]) for cost in (0, 1, 2**50)]

    assert in_redis(client, before + after) == in_memory(before + after)


def test_of_equal_hits_that_come_together_the_one_that_crosses_the_limit_is_charged(client: Client) -> None:
    limited = rule("fixed_window", Limit(10, Unit.MINUTE, MINUTE, crossing_only=True))
    batches = [[4] * 5, [0], [-3], [0, 0], [1] * 3, [0], [2**50] * 2, [-1], [11], [0]]
    history = [(START, [[hit(limited, "a", cost)] for cost in batch]) for batch in batches]
    decisions = in_redis(client, history)

    assert decisions == in_memory(history)
    assert [each.allowed for each in decisions[:8]] == [True, True, False, False, False, False, True, True]


@pytest.mark.parametrize("costs", [[65_535, 1, 0, 1], [1] * 20 + [65_500, 40, 0, 65_535, 0, -1, 0, 1]])
def test_the_longest_log_keeps_one_unit_more_than_its_limit_where_refused_hits_count(
    client: Client, costs: list[int]
) -> None:
    """Which are as many as its numbers can tell apart."""
    limited = rule("sliding_log", Limit(65_535, Unit.MINUTE, MINUTE, count_refused=True))
    history = [(START + at, [[hit(limited, "a", cost)]]) for at, cost in enumerate([*costs, MAX_REQUESTS, 0])]
    decisions = in_redis(client, history)

    assert decisions == in_memory(history)
    assert not decisions[-1].allowed


START = 1_790_000_000_123_456

FOREIGN = [b"", b"1", b"hello, this is no counter of ours", b"\xff" * 40, b"\x93\x01\x02\x03", b"\xc0" * 3, b"1" * 15]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("foreign", FOREIGN)
def test_what_is_no_counter_is_written_over_by_the_next_charge(client: Client, name: str, foreign: bytes) -> None:
    client.flushdb()
    limited = rule(name, Limit(5, Unit.HOUR, HOUR))
    client.set("rl2|a", foreign)
    client.rpush("b", foreign)

    _, decisions = run(client, [[hit(limited, "a", 2), hit(limited, "b", 2)]])
    _, again = run(client, [[hit(limited, "a", 1), hit(limited, "b", 1)]])

    assert [each.remaining for each in decisions] == [3, 3]
    assert [each.remaining for each in again] == [2, 2]


@pytest.mark.parametrize(("limit", "times"), [(30, 1), (300, 10), (1500, 50), (60_000, 2000)])
def test_a_log_grows_and_goes_round_its_ring(client: Client, limit: int, times: int) -> None:
    client.flushdb()
    clock = Clock(1_790_000_000_000_000)
    limited = rule("sliding_log", Limit(limit, Unit.DAY, DAY, count_refused=False))
    store = MemoryStore(10, clock)
    largest = 0
    for step in range(400):
        clock.advance(DAY // 40 + step % 3)
        for cost in [1, 2] if step % 7 else [4, -3, 1]:
            expected = [hit(limited, "a", cost * times)]
            store.hit(expected, lambda _: None)
            _, got = run(client, [[hit(limited, "a", cost * times)]], clock)
            assert got == [expected[0].decision]
        largest = max(largest, int(client.strlen("rl2|a")))

    # A header, and a slot for each hit of a day, with a quarter to spare, whatever the hits cost.
    assert largest == 23 + 27 * 7


def test_a_log_finds_the_first_moment_in_view_wherever_it_is(client: Client) -> None:
    client.flushdb()
    clock = Clock(DAY)
    limited = rule("sliding_log", Limit(20, Unit.DAY, DAY, count_refused=False))
    for _ in range(20):
        run(client, [[hit(limited, "a", 1)]], clock)
        clock.advance(SECOND)

    for old in range(20):
        clock.now = 2 * DAY + old * SECOND - 1
        _, [before] = run(client, [[hit(limited, "a", 0)]], clock)
        clock.advance(1)
        _, [after] = run(client, [[hit(limited, "a", 0)]], clock)
        assert (before.remaining, after.remaining) == (old, old + 1)


def test_the_time_is_that_of_redis_unless_it_is_given(client: Client) -> None:
    client.flushdb()
    limited = rule("fixed_window", Limit(5, Unit.HOUR, HOUR))
    seconds, micros = client.time()

    now, _ = run(client, [[hit(limited, "a", 1)]])

    assert 0 <= now - (seconds * SECOND + micros) < 10 * SECOND


MONTHS = Calendar("month", "15", "Europe/Berlin")
BY_MONTH = rule("fixed_window", Limit(10, Unit.MONTH, 30 * DAY, calendar=MONTHS))
MARCH, APRIL, MAY, JUNE = MONTHS.edges(1_774_000_000 * SECOND)
"""The 15ths of these months of 2026, in Berlin."""


def at_clocks(client: Client, service: int, redis: int, cost: int = 1) -> Decision:
    """The answer by months when the clock of the service and that of Redis show these moments."""
    script = BatchScript("", Clock(service))
    keys, (text,), runs = script.encode(parts_of([hit(BY_MONTH, "a", cost)]))
    batch = [redis, *json.loads(str(text))[1:]]
    reply: Any = client.eval(script.text, len(keys), *keys, json.dumps(batch))
    script.decode(reply, runs)
    return runs[0][0].decision


@pytest.mark.parametrize(
    ("moment", "end"),
    [
        # A month behind the service, and up to its edge.
        (MARCH - 31 * DAY, MARCH),
        (MARCH - 1, MARCH),
        (MARCH, APRIL),
        (APRIL - 1, APRIL),
        # A month ahead of it.
        (APRIL, MAY),
        (MAY, JUNE),
        (JUNE - 1, JUNE),
        # Further behind all is one window, further ahead they have 30 days.
        (MARCH - 80 * DAY, MARCH),
        (JUNE, JUNE + 30 * DAY),
        (JUNE + 30 * DAY, JUNE + 60 * DAY),
    ],
)
def test_a_window_of_a_calendar_is_that_of_the_clock_of_redis(client: Client, moment: int, end: int) -> None:
    client.flushdb()

    assert at_clocks(client, APRIL - DAY, moment).reset_after == end - moment


def test_services_whose_clocks_differ_by_a_window_count_in_the_same_one(client: Client) -> None:
    client.flushdb()

    services = (APRIL - 1, APRIL + 1, MAY + 1, APRIL - 30 * DAY)
    decisions = [at_clocks(client, service, APRIL + 1, 3) for service in services]

    assert [(each.remaining, each.reset_after) for each in decisions] == [
        (7, MAY - APRIL - 1),
        (4, MAY - APRIL - 1),
        (1, MAY - APRIL - 1),
        (0, MAY - APRIL - 1),
    ]


def test_a_redis_that_was_a_year_ahead_keeps_nobody_out_for_longer_than_the_next_window(client: Client) -> None:
    client.flushdb()
    at_clocks(client, APRIL, APRIL + 365 * DAY, 10)

    refused = at_clocks(client, APRIL, APRIL + 1)
    allowed = at_clocks(client, JUNE, JUNE)

    assert (refused.allowed, refused.retry_after) == (False, JUNE - APRIL - 1)
    assert (allowed.allowed, allowed.remaining) == (True, 9)
