"""Leases in a store on a real Redis: what is answered without it, what it is given back, and when nothing is held."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import uvloop
from redis import Redis as Client

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.store import RedisStore
from ratelimit_service.system.clock import SECOND
from tests.redis import Redis, start_redis
from tests.stores.redis_groups import start_cluster
from tests.stores.redis_stores import Proxy, charge, hit_of, opened, until

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run

KINDS = ("fixed_window", "sliding_window", "sub_windows", "token_bucket", "leaky_bucket")


def leased(
    requests: int = 1_000_000,
    algorithm: str = "fixed_window",
    unit: Unit = Unit.YEAR,
    *,
    count_refused: bool | None = None,
) -> Rule:
    """As most rules are: of the default algorithm, and of denied hits the one counts that crosses the limit."""
    crossing_only = count_refused is None and algorithm == "fixed_window"
    limit = Limit(
        requests, unit, unit.window, count_refused=count_refused or crossing_only, crossing_only=crossing_only
    )
    return Rule("shop", (), limit, open_algorithm(algorithm), lease=requests // 20)


async def warm(store: RedisStore, of: Rule, key: str = "ada", cost: int = 1) -> int:
    """Hits until one is answered at once by what is held; returns how many were allowed."""
    for allowed in range(10_000):
        hit = hit_of(of, key, cost)
        if store.charge([hit]):
            assert hit.decision.allowed
            return allowed + 1
        answer = await charge(store, hit)
        assert answer.allowed
    raise AssertionError("no lease was taken")


@pytest.mark.parametrize("algorithm", KINDS)
def test_what_is_held_is_spent_without_a_call_and_the_rest_is_given_back_at_the_end(
    redis: Redis, algorithm: str
) -> None:
    rule = leased(10_000, algorithm)
    key = f"spent {algorithm}"

    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            spent = await warm(store, rule, key)
        # Closed, it has given all back: a store without leases finds what was spent, and nothing more.
        async with opened(f"127.0.0.1:{redis.port}") as store:
            (look,) = (await charge(store, hit_of(Rule("shop", (), rule.limit, rule.algorithm), key, 0))).hits

            assert look.decision.remaining == 10_000 - spent

    run(story())


@pytest.mark.parametrize("cost", [0, 600_000, 1_000_001])
def test_a_look_and_a_dear_hit_find_all_that_is_left_whatever_is_held(redis: Redis, cost: int) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            key, spent = f"dear {cost}", 0
            while not store._leases.held:
                spent += await warm(store, leased(), key)
                await until(lambda: not store._leases.asking, "what is held is known")
            (dear, look) = [(await charge(store, hit_of(leased(), key, each))).hits[0].decision for each in (cost, 0)]

            assert dear.allowed is (cost < 1_000_000)
            assert dear.remaining == look.remaining == max(0, 1_000_000 - spent - cost)
            assert look.allowed is dear.allowed

    run(story())


@pytest.mark.parametrize("requests", [0, 2_000_000])
def test_what_a_limit_that_came_with_a_request_charges_to_the_counter_is_told_by_the_next_hit(
    redis: Redis, requests: int
) -> None:
    sent = Rule(
        "shop", (), Limit(requests, Unit.YEAR, Unit.YEAR.window), open_algorithm("fixed_window"), override=True
    )  # fmt: skip

    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            key = f"sent {requests}"
            spent = await warm(store, leased(), key)
            (overriding,) = (await charge(store, hit_of(sent, key, 7))).hits
            (next_one,) = (await charge(store, hit_of(leased(), key))).hits

            assert overriding.decision.remaining == max(0, requests - spent - 7)
            assert next_one.decision.remaining == 1_000_000 - spent - 7 - 1

    run(story())


def test_what_is_not_spent_is_given_back_when_the_term_ends(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            spent = await warm(store, leased(), "idle")
            await until(lambda: not store._leases.held and not store._leases.asking, "all is given back")
            (look,) = (await charge(store, hit_of(leased(), "idle", 0))).hits

            assert look.decision.remaining == 1_000_000 - spent
            assert store._leases.granted == store._leases.returned + store._leases.spent

    run(story())


def test_a_request_is_answered_at_once_if_all_its_counters_are_held_and_else_left_alone(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            one, other = leased(), leased(unit=Unit.MONTH)
            await warm(store, one, "all")
            cold = hit_of(other, "all")
            held = store._leases.held

            assert not store.charge([hit_of(one, "all"), cold])
            assert not store.charge([hit_of(one, "all"), hit_of(one, "all")])
            assert store._leases.held == held
            answer = await charge(store, hit_of(one, "all"), cold)
            assert answer.allowed
            assert answer.hits[1].decision.remaining == 999_999

    run(story())


def test_a_request_of_which_a_part_is_charged_already_cannot_be_cancelled(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            rule, other = leased(), leased(unit=Unit.MONTH)
            for _ in range(1000):  # a term may end between the two
                await warm(store, rule, "cancel")
                done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
                cancel = store.hit([hit_of(rule, "cancel"), hit_of(other, "cancel")], done.set_result)
                await done
                if cancel is None:
                    return
            raise AssertionError("what was charged was cancelled")

    run(story())


@pytest.mark.parametrize("algorithm", [*KINDS, "counting"])
def test_two_stores_allow_the_limit_however_they_share_it(redis: Redis, algorithm: str) -> None:
    """What one still holds when the other is denied is given back when a term ends, and is spent then.

    Where denied hits count, those that were counted meanwhile are taken off it, as in a window without leases.
    """
    counting = algorithm == "counting"
    rule = leased(1000, "fixed_window" if counting else algorithm, count_refused=counting)
    url = f"127.0.0.1:{redis.port}"

    async def story() -> None:
        async with opened(url) as one, opened(url) as other:
            allowed, turn = 0, 0
            while allowed < (980 if counting else 1000) or turn < 5000:
                turn += 1
                store = (one, other)[turn // 7 % 2]
                hit = hit_of(rule, f"shared {algorithm}", 1 + turn % 2)
                if not store.charge([hit]):
                    await charge(store, hit)
                allowed += hit.cost * hit.decision.allowed
                await asyncio.sleep(0)

            assert allowed <= 1000

    run(story())


def test_a_flood_on_a_full_counter_costs_few_calls(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            rule = leased(100)
            for _ in range(200):
                await charge(store, hit_of(rule, "flood"))
            before = redis.script_calls()
            flood = [(await charge(store, hit_of(rule, "flood"))).hits[0] for _ in range(2000)]

            assert not any(hit.decision.allowed for hit in flood)
            assert redis.script_calls() - before < 1000
            assert sum(hit.tally.over_limit_with_local_cache for hit in flood) > 1000

    run(story())


def test_a_reset_leaves_nothing_held(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            rule = leased()
            await warm(store, rule, "reset")
            hit = hit_of(rule, "reset")
            lease = store._leases.by_key[hit.key]
            await store.reset([hit])

            assert store._leases.by_key.get(hit.key) is not lease

    run(story())


def test_a_redis_that_was_flushed_leaves_nothing_held(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            rule = leased()
            await warm(store, rule, "flushed")
            key = hit_of(rule, "flushed").key
            lease = store._leases.by_key[key]
            redis.cli("FLUSHALL")
            (lane,) = store.lanes
            lane._polled = 0.0  # it looks every five seconds

            def is_dropped() -> bool:
                """A counter that goes on being hit is not forgotten otherwise."""
                store.hit([hit_of(rule, "flushed")], lambda _: None)
                return store._leases.by_key.get(key) is not lease

            await until(is_dropped, "the lease is dropped")

    run(story())


def test_a_new_connection_drops_what_is_held(tmp_path: Path) -> None:
    """The server may be another one, or empty, and would grant it again."""

    async def story() -> None:
        with start_redis(tmp_path) as first:
            port = first.port
            async with opened(f"127.0.0.1:{port}", STORE_DEADLINE="10s") as store:
                while not store._leases.held:
                    await warm(store, leased(), "held")
                (lane,) = store.lanes
                lane.disconnect()
                await until(lambda: store.healthy, "it is connected again")

                assert not store._leases.held
                assert store._leases.granted == (store._leases.spent + store._leases.returned + store._leases.lost)

    run(story())


def test_while_redis_hangs_what_is_held_is_spent_until_its_term_ends(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}", STORE_DEADLINE="100ms") as store:
            rule = leased()
            await warm(store, rule, "hangs")
            redis.send(signal.SIGSTOP)
            try:
                hit = hit_of(rule, "hangs")
                for _ in range(10_000):
                    hit = hit_of(rule, "hangs")
                    if not store.charge([hit]) and (await charge(store, hit)).error is not None:
                        break
                    await asyncio.sleep(0.001)
                assert hit.by_policy is not None
            finally:
                redis.send(signal.SIGCONT)
            await until(lambda: not store._leases.asking, "each ask has an end")
            leases = store._leases
            assert leases.granted == leases.spent + leases.returned + leases.lost + leases.held

    run(story())


def test_a_lease_ends_with_its_term_by_the_clock_of_redis_however_late_the_answer_comes(
    redis: Redis, client: Client
) -> None:
    """What is left would otherwise be spent in the next window."""

    async def story() -> None:
        async with Proxy(redis.port) as far, opened(f"127.0.0.1:{far.port}") as store:
            rule = leased()
            for _ in range(5):
                await charge(store, hit_of(rule, "late"))
            far.delay = 0.3
            await charge(store, hit_of(rule, "late"))
            lease = store._leases.by_key[hit_of(rule, "late").key].lease
            time: Any = client.time()
            to_come = lease.term_end - time[0] * SECOND - time[1]

            assert lease.left > 0
            assert lease.end <= monotonic() * SECOND + to_come

    run(story())


def test_what_is_leased_at_once_on_a_new_connection_is_kept_when_the_last_reset_is_learned(redis: Redis) -> None:
    """Whether the key of resets is there already, or not."""

    async def story() -> None:
        for number in range(2):
            async with opened(f"127.0.0.1:{redis.port}") as store:
                while not store._leases.granted:
                    await charge(store, hit_of(leased(), f"new{number}"))
                await until(lambda: store.lanes[0]._polled > 0, "resets were looked for")
                await charge(store, hit_of(leased(), f"new{number}", 0))  # answered after them
                await until(lambda: bool(store.lanes[0]._seen), "the last reset is known")

                assert store._leases.lost == 0

    redis.cli("DEL", "rl2|resets")
    run(story())


def test_a_call_has_one_ask_of_a_counter_whose_limit_has_changed_meanwhile(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            await warm(store, leased(), "changed")
            await until(lambda: not store._leases.asking, "it was given what it asked for")
            store._leases.by_key[hit_of(leased(), "changed").key].lease.left = 1
            asked = store._leases.asked
            hits = [hit_of(of, "changed") for of in (leased(), leased(500_000)) for _ in range(8)]
            answers = [charge(store, hit) for hit in hits]
            assert all(answer.allowed for answer in await asyncio.gather(*answers))

            assert store._leases.asked >= asked + 2
            await until(lambda: not store._leases.asking, "both are answered")
            assert store.errors == {}

    run(story())


def test_an_ask_travels_to_the_node_of_its_counter(tmp_path: Path) -> None:
    with start_cluster(tmp_path) as nodes:

        async def story() -> None:
            async with opened(nodes.url, REDIS_TYPE="cluster") as store:
                for number in range(20):
                    await warm(store, leased(), f"{{spread{number}")
                leases = store._leases
            async with opened(nodes.url, REDIS_TYPE="cluster") as store:
                of = Rule("shop", (), leased().limit, leased().algorithm)
                looks = [(await charge(store, hit_of(of, f"{{spread{number}", 0))).hits[0] for number in range(20)]

                charged = sum(1_000_000 - look.decision.remaining for look in looks)
                assert 0 <= charged - leases.spent - leases.sent <= leases.lost

        run(story())
        for redis in nodes.redises:
            assert "errorstat_CROSSSLOT" not in redis.cli("INFO", "errorstats")


def test_limits_of_a_second_lease_from_the_second_redis(redis: Redis, tmp_path: Path) -> None:
    rule = leased(100_000, unit=Unit.SECOND)

    async def story() -> None:
        with start_redis(tmp_path) as other:
            settings = {"REDIS_PERSECOND": "true", "REDIS_PERSECOND_URL": f"127.0.0.1:{other.port}"}
            async with opened(f"127.0.0.1:{redis.port}", wait=True, **settings) as store:
                await warm(store, rule, "quick")

            assert "quick" not in redis.cli("KEYS", "*")

    run(story())


def test_a_rule_without_leases_never_has_one(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            of = Rule("shop", (), leased().limit, leased().algorithm)
            for _ in range(100):
                hit = hit_of(of, "plain")
                assert not store.charge([hit])
                await charge(store, hit)

            assert not store._leases.by_key
            assert store._leases.sent == 0

    run(story())
