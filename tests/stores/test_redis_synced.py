"""Limits that regions sync, in real Redises: the Lua twin, and the steps of an exchange."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from redis import Redis as Client

from ratelimit_service.algorithms import open_algorithm, synced
from ratelimit_service.model import Limit, RegionMode, Regions, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.exchanges import SyncScript
from ratelimit_service.stores.redis.script import BatchScript
from ratelimit_service.system.calendar import Calendar
from ratelimit_service.system.clock import DAY, SECOND
from tests.algorithms.test_twins import hit, rule
from tests.clocks import Clock, stay_within
from tests.parts import parts_of
from tests.stores.redis_stores import charge, hit_of
from tests.stores.test_redis_home import Three, region, run, three

T0 = 1_790_000_040 * SECOND
"""A minute begins."""


def synced_limit(random: Random) -> Limit:
    requests = random.choice([1, 7, 200, 1000])
    calendar = Calendar("week", "", "America/Havana") if random.random() < 0.3 else None
    return Limit(
        requests,
        Unit.WEEK if calendar else Unit.MINUTE,
        calendar.length if calendar else 60 * SECOND,
        count_refused=random.random() < 0.5,
        exceed=random.choice([0, 0, 2]),
        calendar=calendar,
        regions=Regions(RegionMode.SYNCED, 3, requests),
    )


@given(st.integers(0, 2**64))
def test_a_twin_answers_and_plans_as_the_python_does(client: Client, seed: int) -> None:
    random, clock = Random(seed), Clock(T0)  # noqa: S311 - the seed tells the history
    interval = random.choice([SECOND // 10, SECOND])
    script, steps = BatchScript("", clock, sync_seconds=interval / SECOND), SyncScript(clock)
    limit = synced_limit(random)
    of_limit = rule("fixed_window", limit)
    client.flushall()
    call: Callable[..., Any] = client.register_script(script.text)
    step: Callable[..., Any] = client.register_script(steps.text)
    state: synced.State | None = None
    for _ in range(40):
        clock.now += random.choice([0, 1, SECOND // 20, SECOND, 9 * SECOND, -SECOND])
        end = state[0] if state else T0
        match random.choice(["hit", "hit", "hit", "collect", "deposit"]):
            case "hit":
                charged = hit(of_limit, "a", random.choice([0, 1, 1, 3, limit.requests, -1, -5]))
                keys, arguments, runs = script.encode(parts_of([charged]))
                script.decode(call(keys, arguments), runs)
                before = state
                state, decision = synced.hit(state, limit, charged.cost, clock.now)
                wait = synced.NOT_NOW
                if state != before:
                    state, wait = synced.plan(state, limit, interval, clock.now)
                assert charged.decision == decision
                asked = [[*ask.numbers] for ask in script.asked]
                script.asked.clear()
                assert asked == ([] if wait == synced.NOT_NOW else [[state and state[0], wait]])
            case "collect":
                state, own = synced.collect(state, end, clock.now)
                assert step([script.key(hit(of_limit, "a", 1))], steps.collect(end)) == own
            case "deposit":
                others = random.choice([0, 1, 5, limit.requests])
                state = synced.deposit(state, end, others, clock.now)
                step([script.key(hit(of_limit, "a", 1))], steps.deposit(end, others))


def test_home_knows_what_each_region_has_counted_in_each_window(client: Client) -> None:
    steps = SyncScript()
    step: Callable[..., Any] = client.register_script(steps.text)

    assert step(["first"], steps.exchange(T0, "eu", 5)) == 0
    assert step(["first"], steps.exchange(T0, "us", 3)) == 5
    assert step(["first"], steps.exchange(T0, "eu", 7)) == 3
    assert step(["second"], steps.exchange(T0 + 60 * SECOND, "us", 1)) == 0
    assert client.pttl("first") > 0


def test_what_is_no_state_is_not_exchanged(client: Client) -> None:
    steps = SyncScript()
    step: Callable[..., Any] = client.register_script(steps.text)
    client.lpush("a list", "of", "others")

    for key in ("a list", "nothing"):
        assert step([key], steps.collect(T0)) == 0
        step([key], steps.deposit(T0, 5))
    assert client.lrange("a list", 0, -1) == [b"others", b"of"]


def test_regions_learn_what_the_others_have_counted_and_go_on_without_home(tmp_path: Path) -> None:
    """Each allows what it knows to be left; cut off, both together allow more than the limit."""
    regions = Regions(RegionMode.SYNCED, 2, 1_000_000)
    limit = Limit(1_000_000, Unit.DAY, DAY, count_refused=False, regions=regions)
    of = Rule("shop", (), limit, open_algorithm("fixed_window"))

    async def story(servers: Three) -> None:
        stay_within(DAY // SECOND)
        home = f"127.0.0.1:{servers.home.port}"
        often = {"REGION_SYNC_SECONDS": "0.1"}
        async with region(servers.eu, home, **often) as eu, region(servers.us, home, "us", **often) as us:
            assert (await charge(eu, hit_of(of, cost=300_000))).allowed
            assert (await charge(us, hit_of(of, cost=10_000))).allowed
            left = 990_000
            async with asyncio.timeout(60):
                while left > 690_000:
                    await asyncio.sleep(0.01)
                    left = (await charge(us, hit_of(of))).hits[0].decision.remaining
            assert not (await charge(us, hit_of(of, cost=700_000))).allowed

            servers.home.kill()
            answers = [await charge(store, hit_of(of, cost=600_000)) for store in (eu, us)]
            assert [answer.allowed for answer in answers] == [True, True]

    with three(tmp_path) as servers:
        run(story(servers))
