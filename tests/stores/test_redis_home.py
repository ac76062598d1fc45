"""Limits that all regions share in the home Redis: two stores as two regions, each with a Redis of its own."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvloop

from ratelimit_service.model import RegionMode, Regions
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.store import RedisStore
from tests.redis import Redis, start_redis
from tests.stores.redis_groups import start_cluster, start_sentinels
from tests.stores.redis_stores import Proxy, charge, hit_of, opened, rule, until

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run


def central(requests: int = 1000, **options: Any) -> Rule:
    """A rule whose counters are at home."""
    of = rule(requests, **options)
    assert of.limit is not None
    return replace(of, limit=replace(of.limit, regions=Regions(RegionMode.CENTRAL, 2, requests)))


class Three(NamedTuple):
    """The servers of two regions, and their home."""

    eu: Redis
    us: Redis
    home: Redis


@contextmanager
def three(folder: Path) -> Iterator[Three]:
    with ExitStack() as stack:
        yield Three(*(stack.enter_context(start_redis(folder / name)) for name in Three._fields))


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Three]:
    """Three of the test's own, which may be stopped and killed."""
    with three(tmp_path) as servers:
        yield servers


@asynccontextmanager
async def region(own: Redis, home: object, name: str = "eu", **settings: str) -> AsyncIterator[RedisStore]:
    """The store of an instance in that region, once it has all its servers."""
    of_regions = {"REGION": name, "REGIONS": "eu,us", "HOME_REDIS_URL": str(home), "STORE_DEADLINE": "20s"}
    async with opened(f"127.0.0.1:{own.port}", wait=True, **{**of_regions, **settings}) as store:
        await until(lambda: all(lane.healthy for lane in store.lanes) and not store.lost, "it has its servers")
        yield store


def keys(redis: Redis) -> list[str]:
    """The counters that it has."""
    return [name for name in redis.cli("KEYS", "*").split("\n") if name.startswith("rl2|shop")]


def test_all_regions_count_at_home_and_the_other_rules_of_a_request_in_their_own_region(servers: Three) -> None:
    shared, own = central(3), rule(3)

    async def story() -> None:
        async with (
            region(servers.eu, f"127.0.0.1:{servers.home.port}") as eu,
            region(servers.us, f"127.0.0.1:{servers.home.port}", "us") as us,
        ):
            answers = [await charge(store, hit_of(shared), hit_of(own, "eve")) for store in (eu, us, eu, us)]

            assert [[hit.decision.remaining for hit in answer.hits] for answer in answers] == [
                [2, 2],
                [1, 2],
                [0, 1],
                [0, 1],
            ]
            assert [answer.allowed for answer in answers] == [True, True, True, False]

    run(story())
    assert keys(servers.home) == [f"rl2|shop|user=ada{shared.key_suffix}"]
    assert keys(servers.eu) == keys(servers.us) == [f"rl2|shop|user=eve{own.key_suffix}"]


def test_the_home_may_be_a_cluster(tmp_path: Path) -> None:
    async def story(servers: Three, url: str) -> None:
        home = {"HOME_REDIS_TYPE": "cluster"}
        async with region(servers.eu, url, **home) as eu, region(servers.us, url, "us", **home) as us:
            for number in range(10):
                answers = [await charge(store, hit_of(central(2), f"user{number}")) for store in (eu, us, eu)]
                assert [answer.allowed for answer in answers] == [True, True, False]

    with three(tmp_path / "servers") as servers, start_cluster(tmp_path) as nodes:
        run(story(servers, nodes.url))
        assert sum(len(keys(node)) for node in nodes.redises) == 10


def test_the_home_may_be_a_primary_that_sentinels_name(tmp_path: Path) -> None:
    async def story(servers: Three, url: str) -> None:
        home = {"HOME_REDIS_TYPE": "sentinel"}
        async with region(servers.eu, url, **home) as eu, region(servers.us, url, "us", **home) as us:
            answers = [await charge(store, hit_of(central(2))) for store in (eu, us, eu)]
            assert [answer.allowed for answer in answers] == [True, True, False]

    with three(tmp_path / "servers") as servers, start_sentinels(tmp_path, replicas=1) as watched:
        run(story(servers, watched.url))
        assert keys(watched.primary)


@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGSTOP])
def test_without_its_home_a_central_rule_is_decided_by_its_policy_and_all_others_as_ever(
    servers: Three, tmp_path: Path, signalled: signal.Signals
) -> None:
    allows, denies, own = central(on_store_failure="open"), central(on_store_failure="closed"), rule(2)
    port = servers.home.port

    async def story() -> None:
        async with region(servers.eu, f"127.0.0.1:{port}", STORE_DEADLINE="200ms") as store:
            servers.home.send(signalled)
            if signalled == signal.SIGKILL:
                await until(lambda: bool(store.lost), "it is missed")
            by_policy = [await charge(store, hit_of(of, "lost"), hit_of(own)) for of in (allows, denies)]

            assert [[hit.decision.allowed for hit in answer.hits] for answer in by_policy] == [
                [True, True],
                [False, True],
            ]
            assert [[hit.by_policy is None for hit in answer.hits] for answer in by_policy] == [[False, True]] * 2
            await until(lambda: bool(store.lost), "it is missed")
            assert [lost.server for lost in store.lost] == [f"127.0.0.1:{port} (home)"]
            assert store.healthy, "this region decides what it can"

            if signalled == signal.SIGKILL:
                with start_redis(tmp_path / "again", port=port):
                    await until(lambda: not store.lost, "it is found again")
            else:
                servers.home.send(signal.SIGCONT)
                await until(lambda: not store.lost, "it is found again")

    run(story())


def test_a_home_that_answers_late_is_not_taken_for_lost_while_nothing_is_asked(servers: Three) -> None:
    async def story() -> None:
        async with Proxy(servers.home.port) as far, region(servers.eu, f"127.0.0.1:{far.port}") as store:
            far.delay = 0.1  # 200 ms for a round trip
            home = store.lanes[-1]
            before = home._heartbeat_sent
            await until(lambda: home._heartbeat_sent > before and not home._pipelines, "a heartbeat was answered")

            assert not store.lost
            assert home._breaker.serves

    run(story())


def test_requests_to_a_far_home_do_not_wait_for_each_other(servers: Three) -> None:
    async def story() -> None:
        async with Proxy(servers.home.port) as far, region(servers.eu, f"127.0.0.1:{far.port}") as store:
            far.delay = 0.5
            answers = []
            for number in range(10):
                answers.append(asyncio.ensure_future(charge(store, hit_of(central(), f"far{number}"))))
                await asyncio.sleep(0.001)
            assert store.lanes[-1].in_flight == 10
            assert all(answer.allowed for answer in await asyncio.gather(*answers))

    run(story())


def test_a_central_denial_is_remembered_and_a_reset_forgets_it_in_all_regions(servers: Three) -> None:
    one = central(1, algorithm="token_bucket")
    assert one.limit is not None
    one = replace(one, limit=replace(one.limit, count_refused=False))

    async def story() -> None:
        home = f"127.0.0.1:{servers.home.port}"
        async with region(servers.eu, home) as eu, region(servers.us, home, "us") as us:
            await until(
                lambda: all(lane._seen for store in (eu, us) for lane in store.lanes), "they know the last reset"
            )
            assert (await charge(eu, hit_of(one))).allowed
            assert not (await charge(us, hit_of(one))).allowed
            servers.home.cli("CONFIG", "RESETSTAT")
            assert not (await charge(us, hit_of(one))).allowed
            assert servers.home.script_calls() == 0

            assert await eu.reset([hit_of(one)]) == 1

            denied = us._denied
            assert denied is not None
            await until(lambda: not denied.known, "the other region has forgotten it")
            assert (await charge(us, hit_of(one))).allowed

    run(story())


def test_all_instances_of_all_regions_together_count_locally_at_most_the_limit(servers: Three) -> None:
    of = central(8, on_store_failure="local")

    async def story() -> None:
        async with region(servers.eu, f"127.0.0.1:{servers.home.port}", INSTANCES="2") as store:
            servers.home.kill()
            await until(lambda: bool(store.lost), "it is missed")
            answers = [await charge(store, hit_of(of)) for _ in range(4)]
            assert [answer.allowed for answer in answers] == [True, True, False, False]

    run(story())
