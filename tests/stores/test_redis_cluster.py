"""Counters on the nodes of a cluster."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from ratelimit_service.algorithms.kinds import Block
from ratelimit_service.model import Blocked, Limit, Unit
from ratelimit_service.rules.rule import LIST, REQUEST, Rule
from ratelimit_service.settings import load_settings
from ratelimit_service.stores.redis.counters import Primaries
from ratelimit_service.stores.redis.keys import cluster_key, name_in_slot, slot_of
from ratelimit_service.stores.redis.lane import COMMAND
from ratelimit_service.stores.redis.script import MAX_IN_PIPELINE
from ratelimit_service.stores.redis.store import open_redis
from ratelimit_service.stores.redis.target import main_target
from ratelimit_service.stores.redis.topology import Cluster, read_redirection
from ratelimit_service.system.address import Tcp
from ratelimit_service.system.clock import SECOND
from tests.clocks import Clock
from tests.redis import Redis
from tests.stores.redis_groups import Move, Nodes, have_the_same, start_cluster, start_fourth
from tests.stores.redis_stores import charge, hit_of, opened, rule, until

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A cluster of three."""
    with start_cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def nameless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A cluster whose map and redirections have no hosts."""
    option = ("--cluster-preferred-endpoint-type", "unknown-endpoint")
    with start_cluster(tmp_path_factory.mktemp("nameless"), 0, *option) as nodes:
        yield nodes


def test_counters_are_spread_over_all_nodes_and_a_request_may_have_some_on_each(nodes: Nodes) -> None:
    async def story() -> None:
        async with opened(nodes.url, REDIS_TYPE="cluster") as store:
            limited = rule(2)
            keys = [f"spread{number}" for number in range(30)]
            first = await charge(store, *(hit_of(limited, key) for key in keys))
            second = await charge(store, *(hit_of(limited, key) for key in keys))
            third = await charge(store, *(hit_of(limited, key) for key in keys))

            assert {hit.decision.remaining for hit in first.hits} == {1}
            assert {hit.decision.remaining for hit in second.hits} == {0}
            assert not any(hit.decision.allowed for hit in third.hits)

    run(story())
    assert all("spread" in redis.cli("KEYS", "*spread*") for redis in nodes.redises)


def test_a_counter_is_blocked_in_its_slot_whatever_its_name(nodes: Nodes) -> None:
    strict = Rule("shop", (), Limit(2, Unit.YEAR, Unit.YEAR.window, kind=Block(Unit.DAY.window)), rule().algorithm)
    names = ["ada", "{a", "a}", "{a}b", "{}", "ü" * 100]

    async def story() -> None:
        async with opened(nodes.url, REDIS_TYPE="cluster", REFUSED_MAX_COUNTERS="0") as store:
            for _ in range(2):
                answer = await charge(store, *(hit_of(strict, f"blocked{name}", 3) for name in names))
                refund = await charge(store, *(hit_of(strict, f"blocked{name}", -3) for name in names))

                assert all(isinstance(hit.decision, Blocked) for hit in (*answer.hits, *refund.hits))

    run(story())
    found = [
        (redis, key) for redis in nodes.redises for key in redis.cli("KEYS", "*blocked*").split("\n") if "|block" in key
    ]
    assert len(found) == len(names)
    assert all(86_000_000 < int(redis.cli("PTTL", key)) <= 86_400_000 for redis, key in found)


def test_hits_that_come_before_the_nodes_are_known_wait_for_them(nodes: Nodes) -> None:
    async def story() -> None:
        async with opened(nodes.url, wait=False, REDIS_TYPE="CLUSTER", STORE_DEADLINE="10s") as store:
            answers = await asyncio.gather(*(charge(store, hit_of(rule(), f"early{number}")) for number in range(20)))

            assert all(answer.allowed for answer in answers)

    run(story())


def test_a_counter_under_envoyproxys_name_is_named_once(nodes: Nodes) -> None:
    """Seconds and minutes end between the moment when hits are put and the one when they are sent."""
    clock = Clock(1_699_999_999 * SECOND)
    settings, _ = load_settings(
        {"REDIS_URL": nodes.url, "REDIS_TYPE": "cluster", "KEY_FORMAT": "envoyproxy", "STORE_DEADLINE": "10s"}
    )
    rules = [Rule("shop", (), Limit(9, unit, unit.window), rule().algorithm) for unit in (Unit.SECOND, Unit.MINUTE)]

    async def story() -> None:
        store = open_redis(settings, clock)
        store.sweep()
        await until(lambda: store.healthy, "the store is well")
        for redis in nodes.redises:
            redis.cli("CONFIG", "RESETSTAT")
        for round_ in range(5):
            requests = [
                asyncio.ensure_future(charge(store, *(hit_of(of, f"{round_}-{number}") for of in rules)))
                for number in range(100)
            ]
            asyncio.get_running_loop().call_soon(clock.advance, SECOND)  # after the hits are put, before they are sent
            assert all(answer.allowed for answer in await asyncio.gather(*requests))

        assert store.errors == {}
        await store.close()

    run(story())
    for redis in nodes.redises:
        assert "errorstat_MOVED" not in redis.cli("INFO", "errorstats")
        assert "errorstat_CROSSSLOT" not in redis.cli("INFO", "errorstats")


def test_a_crowd_of_slots_is_sent_to_a_node_bit_by_bit(nodes: Nodes) -> None:
    async def story() -> None:
        async with opened(nodes.url, REDIS_TYPE="cluster", STORE_DEADLINE="10s") as store:
            answer = asyncio.ensure_future(charge(store, *(hit_of(rule(), f"crowd{number}") for number in range(3000))))
            await until(lambda: any(lane.in_flight for lane in store.lanes), "a call is in flight")
            most = max(lane.in_flight for lane in store.lanes)

            assert most <= MAX_IN_PIPELINE / (1 + COMMAND)
            assert (await answer).allowed

    run(story())


def test_a_request_that_is_charged_together_has_one_slot() -> None:
    name = cluster_key("")
    first = hit_of(rule(together=REQUEST), "ada")
    second = hit_of(rule(together=REQUEST), "eve")
    minute, day = hit_of(rule(together=LIST), "ada"), hit_of(rule(algorithm="fixed_window", together=LIST), "ada")
    alone = hit_of(rule(), "ada")

    assert name(first).startswith("rl2|{shop}shop|user=ada|")
    assert slot_of(name(first)) == slot_of(name(second)) == slot_of("shop")
    assert slot_of(name(minute)) == slot_of(name(day)) == slot_of("shop|user=ada")
    assert slot_of(name(alone)) != slot_of("shop")


def test_no_value_of_a_client_passes_for_a_hash_tag() -> None:
    name = cluster_key("")

    assert len({slot_of(name(hit_of(rule(), f"{{tag}}{number}"))) for number in range(50)}) > 40


def test_a_prefix_may_have_a_hash_tag() -> None:
    name = cluster_key("{limits}")

    assert len({slot_of(name(hit_of(rule(), str(number)))) for number in range(50)}) == 1


def test_slots_are_those_of_redis(nodes: Nodes) -> None:
    for key in ("", "rl2|shop", "{a}b", "a{}b", "a{b", "ä{ö}ü", "{}{a}"):
        assert slot_of(key) == int(nodes.redises[0].cli("CLUSTER", "KEYSLOT", key)), key


@pytest.mark.parametrize("start", ["", "rl2|probe", "limits:rl2|probe", "a{b", "ä}ö"])
def test_there_is_a_name_in_each_slot(start: str) -> None:
    for slot in range(16384):
        name = name_in_slot(start, slot)

        assert name is not None
        assert name.startswith(start)
        assert slot_of(name) == slot


def test_a_name_with_a_hash_tag_is_in_one_slot() -> None:
    slot = slot_of("limits")

    assert name_in_slot("{limits}rl2|probe", slot) == "{limits}rl2|probe"
    assert name_in_slot("{limits}rl2|probe", slot + 1) is None


def test_a_slot_that_moves_is_followed_without_an_error(nodes: Nodes) -> None:
    async def story() -> None:
        async with opened(nodes.url, REDIS_TYPE="cluster", STORE_DEADLINE="10s") as store:
            limited = rule(100)
            hit = hit_of(limited, "moving")
            assert (await charge(store, hit)).allowed
            move = Move(nodes, slot_of(store._script.key(hit)))
            assert (await charge(store, hit_of(limited, "moving"))).hits[0].decision.remaining == 98
            # The key has gone: the source says ASK.
            move.take(*move.keys())
            assert (await charge(store, hit_of(limited, "moving"))).hits[0].decision.remaining == 97
            move.end()
            # The slot has gone: the source says MOVED.
            answers = [(await charge(store, hit_of(limited, "moving"))).hits[0].decision.remaining for _ in range(5)]
            assert answers == [96, 95, 94, 93, 92]
            assert store.errors == {}
            assert store.healthy

    run(story())


def test_a_slot_that_moves_in_a_cluster_without_host_names_is_followed(nameless: Nodes) -> None:
    """Redis says `MOVED 8169 :6379`: the host is that of the node which was asked."""

    async def story() -> None:
        async with opened(nameless.url, REDIS_TYPE="cluster") as store:
            hit = hit_of(rule(100), "moving")
            assert (await charge(store, hit)).allowed
            move = Move(nameless, slot_of(store._script.key(hit)))
            move.take(*move.keys())
            assert (await charge(store, hit_of(rule(100), "moving"))).hits[0].decision.remaining == 98
            move.end()
            answers = [await charge(store, hit_of(rule(100), "moving")) for _ in range(5)]

            assert [answer.hits[0].decision.remaining for answer in answers] == [97, 96, 95, 94, 93]
            assert store.errors == {}

    run(story())


def test_a_counter_that_has_moved_in_a_cluster_without_host_names_is_found(nameless: Nodes) -> None:
    async def story() -> None:
        settings, _ = load_settings({"REDIS_TYPE": "cluster", "REDIS_URL": nameless.url})
        primaries = Primaries(settings, main_target(settings))
        before = await primaries.primary_of(b"found")
        await primaries.execute(before, [("SET", "found", "x")])
        Move(nameless, slot_of("found")).end()

        assert await primaries.execute(before, [("GET", "found")]) == [b"x"]
        await primaries.aclose()

    run(story())


@pytest.mark.parametrize(
    ("error", "slot", "address"),
    [
        ("MOVED 8169 10.0.0.1:41639", 8169, Tcp("10.0.0.1", 41639)),
        ("ASK 0 redis-1.example:6379", 0, Tcp("redis-1.example", 6379)),
        ("MOVED 8169 fe80::1:6379", 8169, Tcp("fe80::1", 6379)),
        ("MOVED 8169 :41639", 8169, Tcp("asked.example", 41639)),
        ("MOVED 8169 ?:41639", 8169, Tcp("asked.example", 41639)),
    ],
)
def test_a_redirection_names_a_slot_and_a_node(error: str, slot: int, address: Tcp) -> None:
    assert read_redirection(error, Tcp("asked.example", 6379)) == (slot, address)


@pytest.mark.parametrize(
    "error", ["MOVED", "MOVED 8169", "MOVED 8169 redis", "MOVED x redis:1", "MOVED 1 redis:1 more"]
)
def test_what_is_not_a_redirection_is_a_value_error(error: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        read_redirection(error, Tcp("asked.example", 6379))


def test_a_slot_that_moves_to_a_node_without_the_script_is_followed(nodes: Nodes) -> None:
    async def story() -> None:
        async with opened(nodes.url, REDIS_TYPE="cluster") as store:
            limited = rule(100)
            hit = hit_of(limited, "flushed")
            assert (await charge(store, hit)).allowed
            move = Move(nodes, slot_of(store._script.key(hit)))
            move.take(*move.keys())
            move.target.cli("SCRIPT", "FLUSH")

            assert (await charge(store, hit_of(limited, "flushed"))).hits[0].decision.remaining == 98
            move.end()
            assert store.errors == {}

    run(story())


def test_a_slot_that_moves_to_a_new_node_is_followed(tmp_path: Path) -> None:
    """The node is in no map: it has no slot before the move has ended."""

    async def story(nodes: Nodes, fourth: Redis) -> None:
        async with opened(nodes.url, REDIS_TYPE="cluster") as store:
            limited = rule(100)
            hit = hit_of(limited, "new")
            assert (await charge(store, hit)).allowed
            move = Move(nodes, slot_of(store._script.key(hit)), fourth)
            move.take(*move.keys())
            crowd = await asyncio.gather(*(charge(store, hit_of(limited, "new")) for _ in range(9)))

            assert sorted(answer.hits[0].decision.remaining for answer in crowd) == list(range(90, 99))
            move.end()
            assert (await charge(store, hit_of(limited, "new"))).hits[0].decision.remaining == 89
            assert store.errors == {}

    with start_cluster(tmp_path) as nodes, start_fourth(tmp_path / "fourth", nodes) as fourth:
        run(story(nodes, fourth))


def test_a_script_that_is_lost_is_sent_once_to_each_node(nodes: Nodes) -> None:
    async def story() -> None:
        async with opened(nodes.url, REDIS_TYPE="cluster") as store:
            for redis in nodes.redises:
                redis.cli("SCRIPT", "FLUSH")
                redis.cli("CONFIG", "RESETSTAT")
            hits = [charge(store, hit_of(rule(), f"script{number}")) for number in range(600)]

            assert all(answer.allowed for answer in await asyncio.gather(*hits))
            assert store.errors == {}

    run(story())
    for redis in nodes.redises:
        assert "cmdstat_eval:calls=1," in redis.cli("INFO", "commandstats")


def test_what_is_charged_together_waits_for_the_end_of_a_move(nodes: Nodes) -> None:
    """Redis answers TRYAGAIN while one of its keys has gone and another has not."""

    async def story() -> None:
        async with opened(nodes.url, REDIS_TYPE="cluster", CACHE_KEY_PREFIX="{wait}", STORE_DEADLINE="10s") as store:
            limited = rule(100)
            await charge(store, hit_of(limited, "a"), hit_of(limited, "b"))
            move = Move(nodes, slot_of("wait"))
            move.take(store._script.key(hit_of(limited, "a")))
            before = sum(turned_away(redis) for redis in nodes.redises)
            both = asyncio.create_task(
                charge(store, hit_of(limited, "a", together=1), hit_of(limited, "b", together=1))
            )
            await until(lambda: sum(turned_away(redis) for redis in nodes.redises) > before, "it was turned away")
            move.end()

            assert [hit.decision.remaining for hit in (await both).hits] == [98, 98]
            assert store.errors == {}

    run(story())


def test_a_move_that_does_not_end_leaves_only_those_without_an_answer_whose_keys_it_parts(nodes: Nodes) -> None:
    async def story() -> None:
        async with opened(nodes.url, REDIS_TYPE="cluster", CACHE_KEY_PREFIX="{part}", STORE_DEADLINE="2s") as store:
            limited = rule(100)
            await charge(store, hit_of(limited, "a"), hit_of(limited, "b"))
            move = Move(nodes, slot_of("part"))
            move.take(store._script.key(hit_of(limited, "a")))
            both, *alone = await asyncio.gather(
                charge(store, hit_of(limited, "a", together=1), hit_of(limited, "b", together=1)),
                *(charge(store, hit_of(limited, key)) for key in "aabbcc"),
            )

            assert str(both.error) == "no answer from the store: the counter's slot is moving"
            assert [answer.hits[0].decision.remaining for answer in alone] == [98, 97, 98, 97, 99, 98]
            assert store.errors == {"moved": 1}
            assert store.healthy
            move.end()
            assert (await charge(store, hit_of(limited, "a", together=1), hit_of(limited, "b", together=1))).allowed

    run(story())


def turned_away(redis: Redis) -> int:
    """How many commands a node has answered with TRYAGAIN."""
    return sum(int(count) for count in re.findall(r"errorstat_TRYAGAIN:count=(\d+)", redis.cli("INFO", "errorstats")))


def maps_read(nodes: Nodes) -> list[int]:
    """How often each node was asked for the map."""
    pattern = r"cmdstat_cluster\|slots:calls=(\d+)"
    return [sum(map(int, re.findall(pattern, redis.cli("INFO", "commandstats")))) for redis in nodes.redises]


def connections(nodes: Nodes) -> int:
    """All that were ever made by TCP; `cli` comes by a unix socket and is one of them."""
    pattern = r"total_connections_received:(\d+)"
    return sum(int(re.findall(pattern, redis.cli("INFO", "stats"))[0]) for redis in nodes.redises)


def test_any_node_is_asked_for_the_map_over_the_connection_that_there_is(nodes: Nodes) -> None:
    async def story() -> None:
        async with opened(nodes.url, REDIS_TYPE="cluster") as store:
            cluster = store._main
            assert isinstance(cluster, Cluster)
            before, made = maps_read(nodes), connections(nodes)
            maps = [await cluster._read_map() for _ in range(60)]

            assert all(sorted(found) == sorted(maps[0]) for found in maps)
            assert connections(nodes) - made == len(nodes.redises)  # those of `cli`
            assert all(now > then for now, then in zip(maps_read(nodes), before, strict=True))

    run(story())


def test_a_slot_without_a_node_is_logged_and_the_map_is_read_with_backoff(tmp_path: Path) -> None:
    async def story(nodes: Nodes) -> None:
        async with opened(nodes.url, REDIS_TYPE="cluster") as store:
            hit = hit_of(rule(), "unserved")
            slot = slot_of(store._script.key(hit))
            node = nodes.with_slot(slot)
            for redis in nodes.redises:
                redis.cli("CLUSTER", "DELSLOTS", str(slot))
            answer = await charge(store, hit)
            assert str(answer.error).startswith("no answer from the store: the cluster is down, or does not cover")
            await until(lambda: not store.healthy, "it is lost")
            (lost,) = store.lost
            assert (lost.cause, lost.words) == (
                "clusterdown",
                "the cluster is down, or does not cover all slots (1 of 16384 slots have no node)",
            )
            assert all(lane.healthy for lane in store.lanes)

            before, made = sum(maps_read(nodes)), connections(nodes)
            for _ in range(20):
                await asyncio.gather(*(charge(store, hit_of(rule(), "unserved")) for _ in range(100)))
            assert connections(nodes) - made == len(nodes.redises)
            assert sum(maps_read(nodes)) - before < 10

            node.cli("CLUSTER", "ADDSLOTS", str(slot))
            await until(lambda: store.healthy and not store.lost, "it has a node again")
            assert (await charge(store, hit_of(rule(), "unserved"))).allowed

    with start_cluster(tmp_path, 0, "--cluster-require-full-coverage", "no") as nodes:
        run(story(nodes))


@pytest.mark.slow
def test_when_a_node_dies_its_replica_is_used_and_the_others_work_meanwhile(tmp_path: Path) -> None:
    with start_cluster(tmp_path, replicas=1) as nodes:

        async def story() -> None:
            async with opened(nodes.url, REDIS_TYPE="cluster") as store:
                limited = rule(10)
                keys = [f"k{number}" for number in range(30)]
                await charge(store, *(hit_of(limited, key) for key in keys))
                dead = nodes.with_slot(0)
                own = [
                    redis for redis in nodes.redises if f"master_port:{dead.port}" in redis.cli("INFO", "replication")
                ]
                await until(lambda: have_the_same(dead, own), "its replica has all")
                lost = {
                    key for key in keys if nodes.with_slot(slot_of(store._script.key(hit_of(limited, key)))) is dead
                }
                dead.kill()
                await until(lambda: not store.healthy, "missed")
                for key in keys:
                    answer = await charge(store, hit_of(limited, key))
                    assert (answer.error is not None) == (key in lost)
                with nodes.alert():
                    await until(lambda: store.healthy, "the replica has taken over")
                for key in keys:
                    answer = await charge(store, hit_of(limited, key))
                    assert answer.hits[0].decision.remaining == (8 if key in lost else 7)

        run(story())
