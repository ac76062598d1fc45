"""Limits that regions sync, in real Redises: the Lua twin, and the steps of an exchange."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis as Client

from ratelimit_service.algorithms import Algorithm, open_algorithm
from ratelimit_service.algorithms.kinds import Synced, synced
from ratelimit_service.model import PLAIN, Limit, RegionMode, Regions, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.exchanges import MAX_EXCHANGES, Exchanges, SyncScript
from ratelimit_service.stores.redis.script import BatchScript
from ratelimit_service.stores.redis.store import RedisStore
from ratelimit_service.system.calendar import Calendar
from ratelimit_service.system.clock import DAY, SECOND
from tests.algorithms.test_twins import hit, rule, settle
from tests.clocks import Clock, stay_within
from tests.parts import parts_of
from tests.redis import start_redis
from tests.stores.redis_groups import start_cluster
from tests.stores.redis_stores import charge, hit_of, until
from tests.stores.test_redis_home import Three, keys, region, run, servers, three

__all__ = ["servers"]  # a fixture

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
        kind=Synced(),
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
        match random.choice(["hit", "hit", "hit", "settle", "collect", "deposit"]):
            case "hit" | "settle" as what:
                charged = hit(of_limit, "a", random.choice([0, 1, 1, 3, limit.requests, -1, -5]))
                if what == "settle":
                    charged = settle(of_limit, "a", abs(charged.cost))
                keys, arguments, runs = script.encode(parts_of([charged]))
                answer = script.decode(call(keys, arguments), runs)
                before = state
                if what == "settle":
                    state, _, decision = PLAIN.owe(
                        cast("Algorithm", synced), state, None, limit, charged.cost, clock.now
                    )
                else:
                    state, decision = synced.hit(state, limit, charged.cost, clock.now)
                wait = synced.NOT_NOW
                if state != before:
                    state, wait = synced.plan(state, limit, interval, clock.now)
                assert charged.decision == decision
                asked = [[*ask.numbers] for ask in answer.asked]
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


def synced_rule(requests: int, window: int = DAY) -> Rule:
    """A rule whose counts two regions exchange."""
    regions = Regions(RegionMode.SYNCED, 2, requests)
    limit = Limit(requests, Unit.DAY, window, count_refused=False, regions=regions, kind=Synced())
    return Rule("shop", (), limit, open_algorithm("fixed_window"))


def exchanges_of(store: RedisStore) -> Exchanges:
    assert store._home is not None
    return store._home._exchanges


async def left(store: RedisStore, of: Rule, cost: int = 0, key: str = "ada") -> int:
    """After a charge, or a look."""
    return (await charge(store, hit_of(of, key, cost))).hits[0].decision.remaining


async def until_at_most(most: int, store: RedisStore, of: Rule, key: str = "ada") -> None:
    """Charge one after the other until the region knows that no more is left."""
    async with asyncio.timeout(60):
        while await left(store, of, 1, key) > most:  # noqa: ASYNC110 - each charge may begin an exchange
            await asyncio.sleep(0.01)


OFTEN = {"REGION_SYNC_SECONDS": "0.1"}
SELDOM = {"REGION_SYNC_SECONDS": "60"}
"""A counter's first exchange is at once, and no other one in the time of a test."""


@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGSTOP])
def test_regions_learn_of_each_other_and_cut_off_go_on_with_what_they_know(
    tmp_path: Path, signalled: signal.Signals
) -> None:
    of, cut_off = synced_rule(1_000_000), synced_rule(1000)

    async def story(servers: Three) -> None:
        stay_within(DAY // SECOND)
        port = servers.home.port
        home = f"127.0.0.1:{port}"
        async with region(servers.eu, home, **OFTEN) as eu, region(servers.us, home, "us", **OFTEN) as us:
            assert (await charge(eu, hit_of(of, cost=300_000))).allowed
            assert (await charge(us, hit_of(of, cost=10_000))).allowed
            await until_at_most(690_000, us, of)
            assert not (await charge(us, hit_of(of, cost=700_000))).allowed

            servers.home.send(signalled)
            answers = [await charge(store, hit_of(of, cost=600_000)) for store in (eu, us)]
            assert [answer.allowed for answer in answers] == [True, True]
            flood = [charge(store, hit_of(cut_off, "flooded", 100)) for store in (eu, us) for _ in range(20)]
            assert sum(answer.allowed for answer in await asyncio.gather(*flood)) == 2 * 10, "the limit of each"
            await until(lambda: bool(exchanges_of(us).failed), "home is missed")
            assert (eu.errors, us.errors) == ({}, {})

            async def until_us_knows_that_nothing_is_left() -> None:
                async with asyncio.timeout(60):
                    while await left(us, of, 1) > 0:
                        await left(eu, of, 1)  # a region tells home what it has counted after a charge
                        await asyncio.sleep(0.01)

            if signalled == signal.SIGSTOP:
                servers.home.send(signal.SIGCONT)
                await until_us_knows_that_nothing_is_left()
            else:
                with start_redis(tmp_path / "again", port=port):
                    await until_us_knows_that_nothing_is_left()

    with three(tmp_path) as servers:
        run(story(servers))


def test_of_what_is_left_by_the_others_each_region_allows_exactly_that(tmp_path: Path) -> None:
    of = synced_rule(1000)

    async def story(servers: Three, url: str) -> None:
        stay_within(DAY // SECOND)
        kind = {"HOME_REDIS_TYPE": "cluster", **OFTEN}
        async with region(servers.eu, url, **kind) as eu, region(servers.us, url, "us", **kind) as us:
            for key in ("ada", "eve", "bob{us}", "dan"):
                assert (await charge(eu, hit_of(of, key, 500))).allowed
                assert (await charge(us, hit_of(of, key, 100))).allowed
                await until_at_most(499, us, of, key)
                own = 1000 - 500 - await left(us, of, key=key)
                answers = await asyncio.gather(*(charge(us, hit_of(of, key)) for _ in range(600)))
                assert sum(answer.allowed for answer in answers) == 500 - own

    with three(tmp_path / "servers") as servers, start_cluster(tmp_path) as nodes:
        run(story(servers, nodes.url))


def test_what_others_have_counted_in_a_window_is_no_count_of_the_next_one(servers: Three) -> None:
    of = synced_rule(1000, window=2 * SECOND)

    async def story() -> None:
        home = f"127.0.0.1:{servers.home.port}"
        async with region(servers.eu, home, **OFTEN) as eu, region(servers.us, home, "us", **OFTEN) as us:
            for _ in range(2):
                async with asyncio.timeout(60):
                    while await left(us, of, 10) > 400:
                        await charge(eu, hit_of(of, cost=600))
                        await asyncio.sleep(0.01)
                async with asyncio.timeout(60):
                    while await left(us, of) < 1000:  # noqa: ASYNC110 - the window has to end
                        await asyncio.sleep(0.01)

    run(story())


def test_a_reset_forgets_what_a_region_and_home_know_and_the_other_keeps_its_own(servers: Three) -> None:
    of = synced_rule(1000)

    async def story() -> None:
        stay_within(DAY // SECOND)
        home = f"127.0.0.1:{servers.home.port}"
        async with region(servers.eu, home, **SELDOM) as eu, region(servers.us, home, "us", **SELDOM) as us:
            assert await left(eu, of, 600) == 400
            await until(lambda: exchanges_of(eu).done == 1, "home knows of it")
            await left(us, of, 300)
            await until(lambda: exchanges_of(us).done == 1, "the other region does")
            assert await left(us, of) == 100

            assert await eu.reset([hit_of(of)]) == 1

            assert keys(servers.home) == []
            assert [await left(store, of) for store in (eu, us)] == [1000, 100]

    run(story())


def test_exchanges_that_are_due_have_a_bound(servers: Three) -> None:
    of = synced_rule(1000)
    names = [f"user{number}" for number in range(MAX_EXCHANGES + 10)]

    async def story() -> None:
        stay_within(DAY // SECOND)
        async with region(servers.eu, f"127.0.0.1:{servers.home.port}", **SELDOM) as store:
            exchanges = exchanges_of(store)
            for start in range(0, len(names), 500):
                await asyncio.gather(*(charge(store, hit_of(of, name, 10)) for name in names[start : start + 500]))
                known = min(start + 500, len(names))
                await until(lambda known=known: exchanges.done == known, "the first exchanges are done")  # type: ignore[misc]

            await asyncio.gather(*(charge(store, hit_of(of, name, 10)) for name in names))
            assert exchanges._due == MAX_EXCHANGES
            assert exchanges.failed == {"overload": 10}

    run(story())


def test_cold_counters_are_not_exchanged(servers: Three) -> None:
    of = synced_rule(1000)

    async def story() -> None:
        async with region(servers.eu, f"127.0.0.1:{servers.home.port}", **OFTEN) as store:
            assert await left(store, of, 9, "cold") == 991
            await left(store, of, 10, "warm")
            await until(lambda: exchanges_of(store).done == 1, "what is not cold is exchanged")
            assert [name.split("|")[2] for name in keys(servers.home)] == ["user=warm"]

    run(story())
