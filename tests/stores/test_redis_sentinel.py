"""Counters on a primary that sentinels watch over."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from ratelimit_service.settings import load_settings
from ratelimit_service.stores.redis.target import main_target
from ratelimit_service.stores.redis.topology import OneServer, Sentinels
from tests.ports import free_port
from tests.stores.redis_groups import Watched, ask, have_the_same, start_sentinels
from tests.stores.redis_stores import charge, hit_of, opened, rule, until

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run


def test_the_primary_is_found_by_its_name(tmp_path: Path) -> None:
    with start_sentinels(tmp_path, 1, password="hunter2") as watched:

        async def story() -> None:
            dead = f"shop,127.0.0.1:{free_port()},{watched.url.partition(',')[2]}"
            async with opened(dead, REDIS_TYPE="sentinel", REDIS_SENTINEL_AUTH="hunter2") as store:
                assert (await charge(store, hit_of(rule(), "found"))).allowed

        run(story())
        assert "found" in watched.primary.cli("KEYS", "*")


def test_a_name_that_no_sentinel_knows_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with start_sentinels(tmp_path, 0) as watched:

        async def story() -> None:
            async with opened(watched.url.replace("shop", "shpo"), wait=False, REDIS_TYPE="SENTINEL") as store:
                assert (await charge(store, hit_of(rule()))).error

        run(story())
    assert "store lost: Redis at shpo (by sentinels): no sentinel knows the primary" in caplog.text


def test_a_sentinel_is_asked_again_on_the_connection_that_there_is(tmp_path: Path) -> None:
    def made(watched: Watched) -> int:
        """Connections to all sentinels."""
        pattern = r"total_connections_received:(\d+)"
        return sum(int(re.findall(pattern, ask(port, "INFO", "stats"))[0]) for port in watched.sentinels)

    with start_sentinels(tmp_path, 0) as watched:

        async def story() -> None:
            async with opened(watched.url, REDIS_TYPE="sentinel") as store:
                assert isinstance(store._main, OneServer)
                sentinels = store._main._sentinels
                assert sentinels is not None
                before = made(watched)
                primaries = {str(await sentinels.primary()) for _ in range(20)}

                assert primaries == {f"127.0.0.1:{watched.primary.port}"}
                assert made(watched) - before < 10  # those that ask here, and no twenty more

        run(story())


def test_workers_ask_the_sentinels_in_different_orders() -> None:
    settings, _ = load_settings({"REDIS_TYPE": "sentinel", "REDIS_URL": "shop,one:1,two:2,three:3"})
    target = main_target(settings)

    firsts = {Sentinels(target)._sentinels[0] for _ in range(100)}

    assert len(firsts) == 3


@pytest.mark.slow
def test_when_the_primary_dies_the_next_one_is_used_within_seconds(tmp_path: Path) -> None:
    with start_sentinels(tmp_path, 2) as watched:

        async def story() -> None:
            async with opened(watched.url, REDIS_TYPE="sentinel") as store:
                one = rule(10)
                for _ in range(4):
                    assert (await charge(store, hit_of(one))).allowed
                old = watched.primary
                replicas = [redis for redis in watched.redises if redis is not old]
                await until(lambda: have_the_same(old, replicas), "the replicas have all")
                old.kill()
                await until(lambda: not store.healthy, "the primary is missed")
                assert (await charge(store, hit_of(one))).error
                with watched.alert():
                    await until(lambda: store.healthy, "the next one is used")

                answers = [await charge(store, hit_of(one)) for _ in range(10)]
                assert sum(answer.allowed for answer in answers) == 6
                assert watched.primary is not old

        run(story())


@pytest.mark.slow
def test_a_primary_that_must_step_down_is_left(tmp_path: Path) -> None:
    with start_sentinels(tmp_path, 1) as watched:

        def counted() -> bool:
            return "later" in watched.primary.cli("KEYS", "*")

        async def story() -> None:
            async with opened(watched.url, REDIS_TYPE="sentinel") as store:
                old = watched.primary
                # For ten seconds no sentinel makes it a replica, and here none ever can.
                old.cli("ACL", "SETUSER", "default", "-slaveof", "-replicaof")
                begin = (watched.sentinels[0], "FAILOVER", "shop")
                await until(lambda: watched.ask(*begin) == "OK", "its replica is good enough")
                await until(lambda: watched.primary is not old, "the failover")
                async with asyncio.timeout(60):
                    while not await asyncio.to_thread(counted):
                        await charge(store, hit_of(rule(), "later"))
                assert "role:master" in old.cli("INFO", "replication")

        run(story())
