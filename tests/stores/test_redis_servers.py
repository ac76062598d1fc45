"""Servers other than Debian's Redis, servers that are not as they should be, and one whose clock is wrong."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from ratelimit_service.algorithms import NAMES, open_algorithm
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.rule import Rule
from tests import peers
from tests.clocks import stay_within
from tests.ports import free_port
from tests.processes import eventually
from tests.redis import Environ, Redis, start_redis
from tests.stores.redis_groups import have_the_same
from tests.stores.redis_stores import charge, hit_of, opened, rule, until

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run


def shifted(seconds: str) -> Environ:
    """What makes a Valkey's clock go ahead by so much, or behind.

    Debian's Redis cannot bear it: its allocator asks for the time before the library is ready.
    """
    return {"LD_PRELOAD": str(peers.libfaketime()), "FAKETIME": seconds, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture(scope="module", params=["redis_server", "redis_6_2", "valkey"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """Each kind that is said to be supported."""
    program: Path = getattr(peers, request.param)()
    with start_redis(tmp_path_factory.mktemp("server"), program=program) as redis:
        yield redis


def test_a_supported_server_is_used_without_a_warning(server: Redis, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{server.port}") as store:
            await until(lambda: not store._checks._tasks, "it was looked at")
            for name in NAMES:
                limited = rule(3, name)
                answers = [(await charge(store, hit_of(limited, name))).allowed for _ in range(5)]
                assert answers == [True, True, True, False, False]
            assert store.errors == {}

    run(story())
    assert warned(caplog) == []


def test_what_a_script_fails_of_has_its_cause_on_every_server(server: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{server.port}") as store:
            server.cli("SCRIPT", "FLUSH")
            assert (await charge(store, hit_of(rule(), "flushed"))).allowed
            server.cli("CONFIG", "SET", "maxmemory", "1")
            assert (await charge(store, hit_of(rule(), "full"))).error
            server.cli("CONFIG", "SET", "maxmemory", "0")
            server.cli("CONFIG", "SET", "min-replicas-to-write", "1")
            assert (await charge(store, hit_of(rule(), "alone"))).error
            server.cli("CONFIG", "SET", "min-replicas-to-write", "0")
            server.cli("REPLICAOF", "127.0.0.1", str(free_port()))
            assert (await charge(store, hit_of(rule(), "second"))).error
            server.cli("REPLICAOF", "NO", "ONE")

            assert store.errors == {"oom": 1, "noreplicas": 1, "readonly": 1}
            await until(lambda: store.healthy, "it may be written again")

    run(story())


def test_everything_that_is_wrong_with_a_server_is_logged_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ("--maxmemory-policy", "allkeys-lru")
    with start_redis(tmp_path, *options, program=peers.valkey(), environ=shifted("+90s")) as redis:

        async def story() -> None:
            async with opened(f"127.0.0.1:{redis.port}"):
                await until(lambda: len(warned(caplog)) == 2, "it was looked at")

        run(story())

    clock, policy = sorted(warned(caplog), key=lambda line: "maxmemory-policy" in line)
    assert policy.startswith(f"Redis at 127.0.0.1:{redis.port}: maxmemory-policy is allkeys-lru: when memory is short")
    assert clock.startswith(f"Redis at 127.0.0.1:{redis.port}: its clock is ")
    assert clock.endswith("s ahead of this machine's: windows follow Redis's clock; synchronise both")


@pytest.mark.parametrize(("policy", "allowed"), [("noeviction", 10), ("allkeys-lfu", 10), ("volatile-ttl", 11)])
def test_when_memory_is_short_a_busy_counter_is_forgotten_by_the_policy_that_looks_at_ends(
    tmp_path: Path, policy: str, allowed: int
) -> None:
    """It ends sooner than those that were used once."""
    options = ("--maxmemory", "2mb", "--maxmemory-policy", policy, "--maxmemory-samples", "64")
    cold = "for i = 1, 1000 do redis.pcall('SET', KEYS[1] .. i, ('x'):rep(500), 'EX', 2 * 365 * 86400) end"

    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            answers = [await charge(store, hit_of(rule(10))) for _ in range(11)]
            for number in range(20):
                redis.cli("EVAL", cold, "1", f"cold{number}|")
                await charge(store, hit_of(rule(10), cost=0))
            answers.append(await charge(store, hit_of(rule(10))))

            assert sum(not answer.error and answer.allowed for answer in answers) == allowed

    with start_redis(tmp_path, *options) as redis:
        run(story())


def test_a_clock_that_goes_wrong_is_logged_and_again_when_it_was_right_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "faketime"
    file.write_text("+0s\n")
    environ = {**shifted("+0s"), "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1"}
    del environ["FAKETIME"]
    with start_redis(tmp_path / "redis", program=peers.valkey(), environ=environ) as redis:

        async def story() -> None:
            async with opened(f"127.0.0.1:{redis.port}") as store:
                (lane,) = store.lanes
                link = lane._link
                assert link is not None
                for offset, count in ((0, 0), (90, 1), (90, 1), (0, 1), (-90, 2)):
                    file.write_text(f"{offset:+}s\n")
                    async with asyncio.timeout(60):
                        while abs(int((await link.execute("TIME"))[0]) - time.time() - offset) > 10:  # noqa: ASYNC110  # it looks at the file now and then
                            await asyncio.sleep(0.01)
                    store._checks.compare_clocks(link, lane.name)  # as the lane itself does every five seconds
                    await link.execute("PING")
                    assert len(warned(caplog)) == count, offset

        run(story())
    ahead, behind = warned(caplog)
    assert f"Redis at 127.0.0.1:{redis.port}: its clock is " in ahead
    assert " s ahead of this machine's" in ahead
    assert " s behind this machine's" in behind


def test_a_replica_whose_clock_is_behind_opens_no_room_again_when_it_takes_over(tmp_path: Path) -> None:
    limit = Limit(3, Unit.HOUR, Unit.HOUR.window, count_refused=False)
    rules = {name: Rule("shop", (), limit, open_algorithm(name)) for name in NAMES}

    async def admitted(redis: Redis) -> dict[str, int]:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            answers = {name: [await charge(store, hit_of(rules[name], name)) for _ in range(5)] for name in NAMES}
        return {name: sum(answer.allowed for answer in some) for name, some in answers.items()}

    async def story(primary: Redis, replica: Redis) -> None:
        stay_within(3600)
        assert await admitted(primary) == dict.fromkeys(NAMES, 3)
        await until(lambda: have_the_same(primary, [replica]), "it has all")
        replica.cli("REPLICAOF", "NO", "ONE")

        # Were the clock behind not heeded, it would be another window's.
        assert await admitted(replica) == dict.fromkeys(NAMES, 0)

    with (
        start_redis(tmp_path / "primary", "--repl-diskless-sync-delay", "0", program=peers.valkey()) as primary,
        start_redis(
            tmp_path / "replica",
            *("--replicaof", "127.0.0.1", str(primary.port)),
            program=peers.valkey(),
            environ=shifted("-36000s"),
        ) as replica,
    ):
        eventually(lambda: "state=online" in primary.cli("INFO", "replication"), "the replica is there")
        run(story(primary, replica))
