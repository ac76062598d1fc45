"""Counters in a real Redis, found, read and reset from outside the service."""

import random
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, aclosing
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import redis as redis_py
import uvloop

from ratelimit_service.algorithms import NAMES, open_algorithm
from ratelimit_service.algorithms.kinds import Block, Reserved, places
from ratelimit_service.errors import StoreError
from ratelimit_service.model import PLAIN, Limit, Unit
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.rule import Rule
from ratelimit_service.settings import load_settings
from ratelimit_service.stores.redis.counter_looks import Content
from ratelimit_service.stores.redis.counter_names import Counter
from ratelimit_service.stores.redis.counters import CounterBatch, Counters
from ratelimit_service.stores.redis.keys import slot_of
from ratelimit_service.stores.redis.store import open_redis
from ratelimit_service.system.calendar import Calendar
from ratelimit_service.system.clock import DAY, HOUR, MINUTE
from tests.books import book
from tests.clocks import Clock
from tests.ports import free_port
from tests.redis import Redis, start_redis
from tests.stores.charging import Charge, charge_all, descriptor
from tests.stores.redis_groups import Move, Nodes, ask, secure, start_cluster, start_fourth, start_sentinels
from tests.stores.redis_stores import NOISE, charge, hit_of, opened, until

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A cluster of three."""
    with start_cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


SHOP = book(
    """
    domain: shop
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 100}
      - key: pair
        rate_limits:
          - {unit: year, requests_per_unit: 100, algorithm: sub_windows}
          - {unit: day, requests_per_unit: 50, algorithm: token_bucket}
    """,
    """
    domain: joint
    charge: together
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 100}
    """,
)


def counters_at(url: object, of: RuleBook, **settings: str) -> Counters:
    """By these settings."""
    read, _ = load_settings({"REDIS_URL": str(url), **settings})
    return Counters(read, of)


async def found(counters: Counters, domain: str = "shop", *rules: Rule) -> list[str]:
    """The descriptors of all that are found, in order."""
    return sorted([counter.descriptor async for batch in counters.find(domain, rules) for counter in batch.counters])


# By the hour: a key expires by Redis's own clock, after 40 seconds at the soonest, while the test's stands still.
LIMITS = {
    "fixed_window": [
        Limit(9, Unit.HOUR, HOUR),
        Limit(9, Unit.HOUR, HOUR, first_request=True, exceed=2),
        Limit(30, Unit.DAY, DAY, calendar=Calendar("day", "06:00", "Europe/Berlin")),
    ],
    "sliding_window": [Limit(9, Unit.HOUR, HOUR, count_refused=False), Limit(300, Unit.HOUR, HOUR)],
    "sub_windows": [
        Limit(9, Unit.HOUR, HOUR, parts=3, count_refused=False),
        Limit(70_000, Unit.HOUR, HOUR, exceed=7),
        Limit(9, Unit.HOUR, HOUR, count_refused=False, kind=Reserved(MINUTE)),
    ],
    "sliding_log": [Limit(9, Unit.HOUR, HOUR, count_refused=False), Limit(60, Unit.HOUR, HOUR, exceed=3)],
    "token_bucket": [Limit(7, Unit.HOUR, HOUR, burst=12), Limit(9, Unit.HOUR, HOUR, count_refused=False)],
    "leaky_bucket": [Limit(7, Unit.HOUR, HOUR, burst=3, exceed=1)],
}


async def content_of(counters: Counters, counter: Counter) -> Content:
    """Of a counter of the one server that there is."""
    [redis] = counters._all
    [address] = await redis.discover()
    [(_, content)] = await counters.read(CounterBatch(redis, address, [counter]))
    return content


@pytest.mark.parametrize("algorithm", NAMES)
def test_what_is_read_is_what_a_call_would_be_told(redis: Redis, algorithm: str) -> None:
    async def story() -> None:
        clock = Clock(10**7 * MINUTE)
        settings, _ = load_settings(
            {"REDIS_URL": str(redis.socket), "STORE_DEADLINE": "5s", "REFUSED_MAX_COUNTERS": "0"}
        )
        store = open_redis(settings, clock)
        counters = Counters(settings, SHOP, clock)
        chance = random.Random(7)  # noqa: S311 - the same every time
        try:
            store.sweep()
            await until(lambda: store.healthy, "the store is well")
            for number, limit in enumerate(LIMITS[algorithm]):
                rule = Rule("shop", (), limit, open_algorithm(algorithm))
                capacity = limit.burst or limit.requests
                for _ in range(60):
                    clock.advance(chance.choice((0, 1, MINUTE // 3, 7 * MINUTE, 45 * MINUTE)))
                    cost = chance.choice((1, 1, 2, 3, capacity // 2, -1))
                    await charge(store, hit_of(rule, f"{algorithm}{number}", cost))
                    told = (await charge(store, hit_of(rule, f"{algorithm}{number}", 0))).hits[0]
                    key = f"rl2|shop|user={algorithm}{number}{rule.key_suffix}".encode()

                    seen = await content_of(counters, Counter(key, "shop", "", rule, algorithm, limit))

                    assert seen.remaining == told.remaining
                    assert seen.reset_after == (told.decision.reset_after if seen.exists else 0)
                    assert seen.used is not None
                    if told.decision.remaining:
                        assert seen.used + told.decision.remaining == capacity + limit.exceed
                    else:
                        assert seen.used >= capacity
                    assert (seen.retry_after == 0) == (told.decision.remaining > 0)
                    if seen.retry_after and not limit.count_refused:
                        refused = (await charge(store, hit_of(rule, f"{algorithm}{number}", 1))).hits[0]
                        assert refused.decision.retry_after == seen.retry_after
        finally:
            await counters.aclose()
            await store.close()

    run(story())


@pytest.mark.parametrize("stored", [b"", b"\x01", b"\xff\x01", b"\xcf\x00", b"hello", b"\x00" * 19, b"\x01" * 40])
@pytest.mark.parametrize("algorithm", [*NAMES, places.name])
def test_bytes_that_are_no_state_are_no_error(redis: Redis, algorithm: str, stored: bytes) -> None:
    limit = Limit(9, Unit.MINUTE, MINUTE, kind=places.Places() if algorithm == places.name else PLAIN)
    rule = Rule("shop", (), limit, open_algorithm(algorithm))
    client = redis_py.Redis(unix_socket_path=str(redis.socket))
    client.set("rl2|shop|junk", stored)

    async def story() -> None:
        async with aclosing(counters_at(redis.socket, SHOP)) as counters:
            seen = await content_of(counters, Counter(b"rl2|shop|junk", "shop", "", rule, algorithm, limit))

            assert seen[:2] == (0, 9)
            assert seen.expires_after is None

    run(story())
    assert client.getdel("rl2|shop|junk") == stored
    client.close()


def test_a_descriptors_counters_are_read_by_their_names_without_looking_for_them(redis: Redis) -> None:
    async def story() -> None:
        environ = {"CACHE_KEY_PREFIX": "one:"}
        sent = Limit(3, Unit.YEAR, Unit.YEAR.window)
        entries = descriptor("pair=ada")
        charges = [Charge("shop", entries, 2), Charge("shop", entries, 1, sent), Charge("shop", descriptor("user=x"))]
        await charge_all(SHOP, redis.socket, charges, **environ)
        redis.cli("CONFIG", "RESETSTAT")
        async with aclosing(counters_at(redis.socket, SHOP, **environ)) as counters:
            rule = SHOP.match("shop", entries)
            assert rule is not None

            [batch] = await counters.of_descriptor("shop", entries, (rule, *rule.beside))
            contents = {counter.key: seen.used for counter, seen in await counters.read(batch) if seen.exists}

            assert contents == {
                b"one:rl2|shop|pair=ada|sub_windows/31536000000000/10": 2,
                b"one:rl2|shop|pair=ada|token_bucket/86400000000": 2,
                b"one:rl2|shop|pair=ada|fixed_window/31536000000000": 1,
            }
            assert "cmdstat_scan" not in redis.cli("INFO", "commandstats")

    run(story())


def test_looking_writes_nothing(redis: Redis) -> None:
    async def story() -> None:
        await charge_all(SHOP, redis.socket, [Charge("shop", descriptor("pair=ada"))], CACHE_KEY_PREFIX="look:")
        redis.cli("CONFIG", "RESETSTAT")
        async with aclosing(counters_at(redis.socket, SHOP, CACHE_KEY_PREFIX="look:")) as counters:
            async for batch in counters.find("shop"):
                await counters.read(batch)

    run(story())
    commands = {line.partition(":")[0] for line in redis.cli("INFO", "commandstats").splitlines() if ":" in line}
    # Those that are left out say nothing of keys.
    assert commands - {"cmdstat_config|resetstat", "cmdstat_info", "cmdstat_client|setname"} == {
        "cmdstat_scan",
        "cmdstat_evalsha",
        "cmdstat_mget",
        "cmdstat_pttl",
        "cmdstat_time",
    }


EVERY_KIND = book(
    """
    domain: kinds
    pools: [{name: all, unit: hour, requests_per_unit: 100, burst: 10}]
    descriptors:
      - {key: fixed_window, rate_limit: {unit: hour, requests_per_unit: 5}}
      - {key: sliding_window, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: sliding_window}}
      - {key: sub_windows, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: sub_windows}}
      - {key: sliding_log, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: sliding_log}}
      - {key: token_bucket, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: token_bucket}}
      - {key: leaky_bucket, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: leaky_bucket}}
      - {key: blocked, rate_limit: {unit: hour, requests_per_unit: 1, block_for: 1 hour}}
      - {key: elastic, rate_limit: {unit: hour, requests_per_unit: 5, elastic: {pool: all, ceiling: 200%}}}
      - {key: places, rate_limit: {concurrency: 5, hold: 1 hour, place: places}}
    """
)


@pytest.mark.parametrize("later", [0, DAY])
def test_looking_needs_no_right_to_write_also_where_all_is_over(redis: Redis, later: int) -> None:
    prefix, rights = f"over{later}:", ("+scan", "+pttl", "+time", "+eval", "+evalsha", "+get", "+mget", "+getrange")
    of_places = ("+zrange", "+zcard", "+zcount", "+zrangebyscore")
    kinds = [rule.path[-1] for rule in EVERY_KIND.rules if not rule.pool]

    async def story() -> None:
        charges = [Charge("kinds", descriptor(f"{kind}=x"), 2) for kind in kinds]
        await charge_all(EVERY_KIND, redis.socket, charges, CACHE_KEY_PREFIX=prefix)
        redis.cli("ACL", "SETUSER", "looker", "reset", "on", ">hunter2", f"~{prefix}*", *rights, *of_places)
        environ = {"REDIS_URL": str(redis.socket), "REDIS_AUTH": "looker:hunter2", "CACHE_KEY_PREFIX": prefix}
        now = redis.cli("TIME").split()[0]
        counters = Counters(load_settings(environ)[0], EVERY_KIND, Clock((int(now) + 1) * 1_000_000 + later))
        async with aclosing(counters):
            seen = {
                c.descriptor: content async for b in counters.find("kinds") for c, content in await counters.read(b)
            }

        assert len(seen) == len(kinds) + 1
        used = {content.used for name, content in seen.items() if name != "blocked=x"}
        assert used == ({0} if later else {2})
        assert bool(seen["blocked=x"].blocked_for) is not bool(later)

    run(story())


def test_of_a_counter_without_a_rule_what_is_used_is_known_but_of_a_bucket(redis: Redis) -> None:
    async def story() -> None:
        kinds = (
            "fixed_window",
            "sliding_window",
            "sub_windows",
            "sliding_log",
            "places",
            "token_bucket",
            "leaky_bucket",
        )
        charges = [Charge("kinds", descriptor(f"{kind}=x"), 2) for kind in kinds]
        await charge_all(EVERY_KIND, redis.socket, charges, CACHE_KEY_PREFIX="gone:")
        redis.cli("SCRIPT", "FLUSH")  # no service has sent this release's script to the server
        async with aclosing(counters_at(redis.socket, book("domain: kinds"), CACHE_KEY_PREFIX="gone:")) as counters:
            seen = {c.algorithm: content async for b in counters.find("kinds") for c, content in await counters.read(b)}

            assert {kind: seen[kind].used for kind in kinds} == {
                **dict.fromkeys(kinds[:5], 2),
                **dict.fromkeys(kinds[5:], None),
            }
            assert {content.remaining for content in seen.values()} == {None}
            assert all(content.reset_after for content in seen.values())

    run(story())


ODD = ("shop", "shop_b", "sho", "s*", "s?op", "[shop]", "sh\\op", "s|hop", "{shop}", "shop=", "%7C", "ümlaut")


@pytest.mark.parametrize("prefix", ["odd:", "o*d[d]?\\:", "o{d}d:"])
def test_a_domain_never_takes_the_counters_of_another(redis: Redis, prefix: str) -> None:
    texts = [
        f"domain: '{name}'\ndescriptors: [{{key: k, rate_limit: {{unit: year, requests_per_unit: 9}}}}]" for name in ODD
    ]
    of = book(*texts)

    async def story() -> None:
        charges = [Charge(name, (("k", name),)) for name in ODD]
        await charge_all(of, redis.socket, charges, CACHE_KEY_PREFIX=prefix)
        async with aclosing(counters_at(redis.socket, of, CACHE_KEY_PREFIX=prefix)) as counters:
            for name in ODD:
                assert await found(counters, name) == [f"k={name}"]
                assert await found(counters, name, *(rule for rule in of.rules if rule.domain == name)) == [f"k={name}"]
            async for batch in counters.find("s*"):
                assert await counters.reset(batch) == 1
            assert await found(counters, "s*") == []
            assert all([await found(counters, name) for name in ODD if name != "s*"])

    run(story())


def test_of_tens_of_thousands_each_is_seen_once(redis: Redis) -> None:
    client = redis_py.Redis(unix_socket_path=str(redis.socket))
    pipeline = client.pipeline(transaction=False)
    for number in range(40_000):
        pipeline.set(f"many:rl2|shop|user=u{number}|fixed_window/31536000000000", b"\x01\x02", ex=3600)
        pipeline.set(f"many:rl2|other|user=u{number}|fixed_window/31536000000000", b"\x01\x02", ex=3600)
    pipeline.execute()

    async def story() -> None:
        async with aclosing(counters_at(redis.socket, SHOP, CACHE_KEY_PREFIX="many:")) as counters:
            names = await found(counters)
            assert len(names) == len(set(names)) == 40_000
            assert sum([await counters.reset(batch) async for batch in counters.find("shop")]) == 40_000
            assert await found(counters) == []

    run(story())
    assert len(list(client.scan_iter("many:rl2|other|*", count=10_000))) == 40_000
    client.close()


def test_rules_of_one_second_are_looked_for_where_they_are(redis: Redis, tmp_path: Path) -> None:
    of = book(
        """
        domain: shop
        descriptors:
          - key: k
            charge: each
            rate_limits:
              - {unit: second, requests_per_unit: 1, algorithm: token_bucket, burst: 100000}
              - {unit: year, requests_per_unit: 9000}
        """
    )
    second, year = of.rules
    with start_redis(tmp_path) as fast:
        environ = {
            "CACHE_KEY_PREFIX": "fast:",
            "REDIS_PERSECOND": "true",
            "REDIS_PERSECOND_URL": str(fast.socket),
        }

        async def story() -> None:
            await charge_all(of, redis.socket, [Charge("shop", (("k", "x"),), 5000)], **environ)
            async with aclosing(counters_at(redis.socket, of, **environ)) as counters:
                assert await found(counters, "shop") == ["k=x", "k=x"]
                redis.cli("CONFIG", "RESETSTAT")
                assert [b.counters[0].rule async for b in counters.find("shop", [second])] == [second]
                assert "cmdstat_scan" not in redis.cli("INFO", "commandstats")
                batches = await counters.of_descriptor("shop", (("k", "x"),), of.rules)
                used = [seen.used or 0 for b in batches for _, seen in await counters.read(b) if seen.exists]
                assert used == [used[0], 5000]
                assert 4000 < used[0] <= 5000, "one a second comes back"
                assert [await counters.reset(b) async for b in counters.find("shop", [second])] == [1]
                assert [b.counters[0].rule async for b in counters.find("shop")] == [year]
                before = [server.cli("GET", "fast:rl2|resets") for server in (fast, redis)]
                await counters.announce_resets()
                after = [server.cli("GET", "fast:rl2|resets") for server in (fast, redis)]
                assert after[0] not in {"", before[0]}
                assert after[1] == before[1]
                # One and the same server for both is asked once.
                async with aclosing(
                    counters_at(redis.socket, of, **{**environ, "REDIS_PERSECOND_URL": str(redis.socket)})
                ) as both:
                    assert await found(both, "shop") == ["k=x"]

        run(story())


def test_envoyproxys_counters_are_found_read_and_reset(redis: Redis) -> None:
    of = book(
        """
        domain: up
        descriptors:
          - key: user
            rate_limit: {unit: year, requests_per_unit: 9}
            descriptors:
              - key: path
                rate_limit: {unit: day, requests_per_unit: 9, algorithm: sub_windows}
        """,
        """
        domain: up_b
        descriptors:
          - key: user
            rate_limit: {unit: year, requests_per_unit: 9}
        """,
    )
    environ = {"KEY_FORMAT": "envoyproxy", "CACHE_KEY_PREFIX": "env:"}

    async def story() -> None:
        charges = [
            Charge("up", descriptor("user=ada"), 12),
            Charge("up", descriptor("user=ada path=/c")),
            Charge("up_b", descriptor("user=ada")),
        ]
        await charge_all(of, redis.socket, charges, **environ)
        redis.cli("SET", "env:up_order_1700000000", "5")  # somebody else's
        redis.cli("HSET", "env:up_user_eve_0", "a", "b")
        async with aclosing(counters_at(redis.socket, of, **environ)) as counters:
            assert await found(counters, "up") == ["user=ada path=/c", "user_ada"]
            assert await found(counters, "up_b") == ["user_ada"]
            assert await found(counters, "up", of.rules[0]) == ["user_ada"]
            [batch] = await counters.of_descriptor("up", descriptor("user=ada"), [of.rules[0]])
            [content] = [seen for _, seen in await counters.read(batch) if seen.exists]
            assert (content.used, content.remaining) == (12, 0)
            assert [await counters.reset(b) async for b in counters.find("up")] == [1, 1]
            assert await found(counters, "up_b") == ["user_ada"]
            assert redis.cli("EXISTS", "env:up_order_1700000000", "env:up_user_eve_0") == "2"

    run(story())


def test_envoyproxys_names_need_the_time_of_redis_once(redis: Redis) -> None:
    of = book("domain: up\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 9}}]")

    async def story() -> None:
        redis.cli("CONFIG", "RESETSTAT")
        async with aclosing(counters_at(redis.socket, of, KEY_FORMAT="envoyproxy")) as counters:
            await counters.of_descriptor("up", descriptor("user=ada"), of.rules)

        assert "cmdstat_time:calls=1," in redis.cli("INFO", "commandstats")

    run(story())


def test_on_a_cluster_every_node_is_looked_at(nodes: Nodes) -> None:
    environ = {"REDIS_TYPE": "cluster", "CACHE_KEY_PREFIX": "all:"}
    users = [f"user=u{number}" for number in range(30)] + ["user={tag}"]

    async def story() -> None:
        charges = [Charge(domain, descriptor(user)) for user in users for domain in ("shop", "joint")]
        await charge_all(SHOP, nodes.url, [*charges, Charge("shop", descriptor("pair=x"))], **environ)
        async with aclosing(counters_at(nodes.url, SHOP, **environ)) as counters:
            assert await found(counters) == sorted([*users, "pair=x", "pair=x"])
            assert await found(counters, "joint") == sorted(users)
            for user in users:
                [batch] = await counters.of_descriptor("joint", descriptor(user), [SHOP.rules[-1]])
                assert [seen.used for _, seen in await counters.read(batch) if seen.exists] == [1]
            assert sum([await counters.reset(b) async for b in counters.find("shop")]) == 33
            await counters.announce_resets()
            assert await found(counters) == []
            assert await found(counters, "joint") == sorted(users)
            assert not counters.slots_moved

    run(story())


def test_while_a_slot_moves_a_counter_is_seen_once_and_reset_where_it_is(nodes: Nodes) -> None:
    environ = {"REDIS_TYPE": "cluster", "CACHE_KEY_PREFIX": "moves:"}
    key = "moves:rl2|shop|user=ada|fixed_window/31536000000000"
    slot = str(slot_of(key))
    source = nodes.with_slot(int(slot))
    target = next(redis for redis in nodes.redises if redis is not source)
    source_id, target_id = (redis.cli("CLUSTER", "MYID") for redis in (source, target))

    async def story() -> None:
        await charge_all(SHOP, nodes.url, [Charge("shop", descriptor("user=ada"), 3)], **environ)
        target.cli("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        source.cli("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        # Both have it for a moment.
        source.cli("MIGRATE", "127.0.0.1", str(target.port), key, "0", "5000", "COPY")
        async with aclosing(counters_at(nodes.url, SHOP, **environ)) as counters:
            assert await found(counters) == ["user=ada"]
            # The source has it no more, and says ASK.
            source.cli("DEL", key)
            rule = SHOP.match("shop", descriptor("user=ada"))
            assert rule is not None
            [batch] = [
                b for b in await counters.of_descriptor("shop", descriptor("user=ada"), [rule]) if b.counters[0].rule
            ]
            assert [seen.used for _, seen in await counters.read(batch) if seen.exists] == [3]
            # Now the target has the slot, and the source says MOVED.
            for redis in nodes.redises:
                redis.cli("CLUSTER", "SETSLOT", slot, "NODE", target_id)
            assert await counters.reset(batch) == 1
            assert await found(counters) == []

    run(story())


def test_counters_at_both_ends_of_the_move_of_their_slot_are_missed_and_that_is_told(nodes: Nodes) -> None:
    environ = {"REDIS_TYPE": "cluster", "CACHE_KEY_PREFIX": "ends:"}
    key = "ends:rl2|{joint}joint|user=ada|fixed_window/31536000000000"
    slot = slot_of(key)
    source = nodes.with_slot(slot)
    target = next(redis for redis in nodes.redises if redis is not source)

    async def story() -> None:
        users = [descriptor(f"user={name}") for name in ("ada", "bob")]
        await charge_all(SHOP, nodes.url, [Charge("joint", user) for user in users], **environ)
        async with aclosing(counters_at(nodes.url, SHOP, **environ)) as counters:
            [batch] = [batch async for batch in counters.find("joint")]
            Move(nodes, slot, target).take(key)

            assert await counters.read(batch) == []
            assert counters.slots_moved

    run(story())


def test_slots_that_move_while_counters_are_looked_for_are_told(nodes: Nodes) -> None:
    environ = {"REDIS_TYPE": "cluster", "CACHE_KEY_PREFIX": "told:"}
    source = nodes.with_slot(1)  # an empty one, which may be given away just so
    target = next(redis for redis in nodes.redises if redis is not source)

    async def story() -> None:
        await charge_all(SHOP, nodes.url, [Charge("shop", descriptor("user=ada"))], **environ)
        async with aclosing(counters_at(nodes.url, SHOP, **environ)) as counters:
            async for _ in counters.find("shop"):
                for redis in nodes.redises:
                    redis.cli("CLUSTER", "SETSLOT", "1", "NODE", target.cli("CLUSTER", "MYID"))
            assert counters.slots_moved

    run(story())


def test_a_counter_that_moves_to_a_node_without_slots_is_found(tmp_path: Path) -> None:
    """No map has such a node yet: all that is known of it stands in the redirection."""
    environ = {"REDIS_TYPE": "cluster"}
    key = "rl2|shop|user=ada|fixed_window/31536000000000"

    async def story(nodes: Nodes, fourth: Redis) -> None:
        await charge_all(SHOP, nodes.url, [Charge("shop", descriptor("user=ada"), 3)], **environ)
        rule = SHOP.match("shop", descriptor("user=ada"))
        assert rule is not None
        async with aclosing(counters_at(nodes.url, SHOP, **environ)) as counters:
            [batch] = await counters.of_descriptor("shop", descriptor("user=ada"), [rule], overriding=False)
            Move(nodes, slot_of(key), fourth).take(key)

            assert [seen.used for _, seen in await counters.read(batch) if seen.exists] == [3]
            assert await counters.reset(batch) == 1

    with start_cluster(tmp_path) as nodes, start_fourth(tmp_path / "fourth", nodes) as fourth:
        run(story(nodes, fourth))


def test_in_a_cluster_over_tls_the_documented_rights_are_enough(tmp_path: Path) -> None:
    secured = secure(tmp_path, "IP:127.0.0.1")
    rights = ("~tls:*", "+scan", "+pttl", "+time", "+eval", "+evalsha", "+unlink", "+set", "+cluster|slots", "+asking")
    with start_cluster(tmp_path, secured=secured) as nodes:
        for node in nodes.redises:
            node.cli("ACL", "SETUSER", "looker", "on", ">hunter2", *rights)
        environ = {**secured.settings, "REDIS_TYPE": "cluster", "REDIS_TLS": "true", "CACHE_KEY_PREFIX": "tls:"}

        async def story() -> None:
            users = [f"user=u{number}" for number in range(9)]
            await charge_all(SHOP, nodes.url, [Charge("shop", descriptor(user)) for user in users], **environ)
            as_looker = counters_at(nodes.url, SHOP, **environ, REDIS_AUTH="looker:hunter2")
            async with aclosing(as_looker) as counters:
                assert await found(counters) == users
                assert sum([await counters.reset(batch) async for batch in counters.find("shop")]) == 9
                await counters.announce_resets()
                assert await found(counters) == []

        run(story())


@pytest.mark.parametrize(
    ("url", "kind"),
    [("localhost:{port}", "single"), ("shop,localhost:{port}", "sentinel"), ("localhost:{port}", "cluster")],
)
def test_a_server_that_is_not_there_is_named(url: str, kind: str) -> None:
    port = free_port()
    words = {"sentinel": "no sentinel knows the primary"}.get(kind, "connection refused")

    async def story() -> None:
        async with aclosing(counters_at(url.format(port=port), SHOP, REDIS_TYPE=kind)) as counters:
            with pytest.raises(StoreError, match=f"Redis at localhost:{port}: {words}"):
                await found(counters)

    run(story())


def test_a_user_without_a_password_does_not_log_in(redis: Redis) -> None:
    environ = {"REDIS_AUTH": "ada:", "CACHE_KEY_PREFIX": "login:"}

    async def story() -> None:
        await charge_all(SHOP, redis.socket, [Charge("shop", descriptor("user=ada"))], **environ)
        async with aclosing(counters_at(redis.socket, SHOP, **environ)) as counters:
            assert await found(counters) == ["user=ada"]

    run(story())


def test_nodes_that_hang_do_not_hold_up_the_search_for_slots() -> None:
    """As those do that are stopped: connections are accepted, and nothing is answered."""
    with ExitStack() as stack:
        hanging = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in hanging]
        environ = {"REDIS_TYPE": "cluster", "REDIS_TIMEOUT": "100ms"}

        async def story() -> None:
            async with aclosing(counters_at(",".join(addresses), SHOP, **environ)) as counters:
                began = monotonic()
                with pytest.raises(StoreError, match="no answer in time"):
                    await found(counters)
                assert monotonic() - began < NOISE

        run(story())


@pytest.mark.parametrize("auth", ["ada:hunter2", "hunter2"])
def test_a_password_that_is_wrong_is_told(redis: Redis, auth: str) -> None:
    async def story() -> None:
        async with aclosing(counters_at(redis.socket, SHOP, REDIS_AUTH=auth)) as counters:
            with pytest.raises(StoreError, match=r"user or password is wrong: check REDIS_AUTH$"):
                await found(counters)

    run(story())


@pytest.mark.slow
def test_a_sentinel_s_password_that_is_wrong_is_told(tmp_path: Path) -> None:
    with start_sentinels(tmp_path, replicas=0, password="hunter2") as watched:
        environ = {"REDIS_TYPE": "sentinel", "REDIS_SENTINEL_AUTH": "hunter3"}

        async def story() -> None:
            async with aclosing(counters_at(watched.url, SHOP, **environ)) as counters:
                with pytest.raises(StoreError, match=r"no sentinel knows the primary.*user or password is wrong"):
                    await found(counters)

        run(story())


@pytest.mark.slow
def test_behind_sentinels_the_primary_is_asked(tmp_path: Path) -> None:
    with start_sentinels(tmp_path, replicas=1, password="hunter2") as watched:
        environ = {"REDIS_TYPE": "sentinel", "REDIS_SENTINEL_AUTH": "hunter2"}

        async def story() -> None:
            await charge_all(SHOP, watched.url, [Charge("shop", descriptor("user=ada"))], **environ)
            async with aclosing(counters_at(watched.url, SHOP, **environ)) as counters:
                assert await found(counters) == ["user=ada"]
                assert [await counters.reset(b) async for b in counters.find("shop")] == [1]

        run(story())
        assert "shop" not in watched.primary.cli("KEYS", "*")


@pytest.mark.slow
def test_sentinels_are_asked_for_no_more_than_the_service_asks_them(tmp_path: Path) -> None:
    with start_sentinels(tmp_path, replicas=0) as watched:
        for port in watched.sentinels:
            rights = ("+sentinel|get-master-addr-by-name", "+client|setname")
            ask(port, "ACL", "SETUSER", "looker", "on", ">hunter2", *rights)
        environ = {"REDIS_TYPE": "sentinel", "REDIS_SENTINEL_AUTH": "looker:hunter2"}

        async def story() -> None:
            await charge_all(SHOP, watched.url, [Charge("shop", descriptor("user=ada"))], **environ)
            async with aclosing(counters_at(watched.url, SHOP, **environ)) as counters:
                assert await found(counters) == ["user=ada"]

        run(story())


@pytest.mark.slow
def test_a_primary_that_the_sentinels_take_for_dead_is_asked(tmp_path: Path) -> None:
    """It goes on counting for the instances that still reach it."""
    with start_sentinels(tmp_path, replicas=0) as watched:

        def taken_for_dead() -> bool:
            return all("s_down" in watched.ask(port, "MASTER", "shop") for port in watched.sentinels)

        async def story() -> None:
            await charge_all(SHOP, watched.url, [Charge("shop", descriptor("user=ada"))], REDIS_TYPE="sentinel")
            watched.redises[0].cli("ACL", "SETUSER", "default", "-ping")
            with watched.alert():
                await until(taken_for_dead, "the sentinels miss its PONG")
                async with aclosing(counters_at(watched.url, SHOP, REDIS_TYPE="sentinel")) as counters:
                    assert await found(counters) == ["user=ada"]

        run(story())


@pytest.mark.slow
def test_after_a_reset_a_service_forgets_whom_it_remembers_as_refused(redis: Redis, nodes: Nodes) -> None:
    limit = Limit(1, Unit.YEAR, Unit.YEAR.window, count_refused=False)
    rule = Rule("shop", (), limit, open_algorithm("sub_windows"))

    async def story(url: object, **environ: str) -> None:
        async with opened(url, wait=True, CACHE_KEY_PREFIX="forget:", **environ) as store:
            # The first look at a server forgets too.
            await until(lambda: any(lane._seen for lane in store.lanes), "it has looked whether counters were reset")
            assert [(await charge(store, hit_of(rule))).allowed for _ in range(3)] == [True, False, False]
            async with aclosing(counters_at(url, SHOP, CACHE_KEY_PREFIX="forget:", **environ)) as counters:
                assert [await counters.reset(b) async for b in counters.find("shop")] == [1]
                await counters.announce_resets()
                refusals = store._denied
                assert refusals is not None
                assert refusals.known
                await until(lambda: not refusals.known, "it has forgotten")
                assert (await charge(store, hit_of(rule))).allowed

    run(story(redis.socket))
    run(story(nodes.url, REDIS_TYPE="cluster"))


@pytest.mark.parametrize("kind", ["single", "cluster", "envoyproxy"])
def test_a_service_resets_counters_and_blocks_where_they_are_and_forgets_at_once(
    redis: Redis, nodes: Nodes, kind: str
) -> None:
    block = Rule("shop", (), Limit(1, Unit.YEAR, Unit.YEAR.window, kind=Block(DAY)), open_algorithm("fixed_window"))
    plain = Rule("shop", (), Limit(1, Unit.YEAR, Unit.YEAR.window), open_algorithm("fixed_window"))

    async def story(url: object, **environ: str) -> None:
        async with opened(url, wait=True, CACHE_KEY_PREFIX=f"{kind}:", **environ) as store:
            hits = [hit_of(block, "a{b"), hit_of(plain, "eve")]
            assert [(await charge(store, hit.again())).allowed for hit in hits * 2] == [True, True, False, False]
            assert await store.reset([*hits, hit_of(plain, "new")]) == 2
            assert [(await charge(store, hit.again())).allowed for hit in hits] == [True, True]

    match kind:
        case "single":
            run(story(redis.socket))
        case "cluster":
            run(story(nodes.url, REDIS_TYPE="cluster"))
        case "envoyproxy":
            run(story(redis.socket, KEY_FORMAT="envoyproxy"))
