"""A counter that has refused is not asked again before it is worth it."""

import asyncio
import operator
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from ratelimit_service.algorithms.kinds import Block
from ratelimit_service.algorithms.kinds import leased as regional
from ratelimit_service.model import NEVER, Blocked, Decision, Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.denied import ENTRY_BYTES, DeniedCache
from ratelimit_service.stores.redis.keys import slot_of
from ratelimit_service.stores.redis.store import RedisStore
from ratelimit_service.system.calendar import Calendar
from ratelimit_service.system.clock import HOUR, MINUTE
from tests.redis import Redis, start_redis
from tests.stores.redis_groups import Nodes, start_cluster
from tests.stores.redis_stores import charge, hit_of, opened, rule, until

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run

LOG = Rule("shop", (), Limit(3, Unit.MINUTE, MINUTE, count_refused=False), rule(algorithm="sub_windows").algorithm)
WINDOW = Rule("shop", (), Limit(3, Unit.YEAR, Unit.YEAR.window), rule().algorithm)
YEAR = Rule("shop", (), Limit(3, Unit.YEAR, Unit.YEAR.window, calendar=Calendar("year")), rule().algorithm)


def refused(wait: int = MINUTE, cost: int = 1, of: Rule = LOG) -> tuple[DeniedCache, str]:
    """What has learnt, at moment 0, of a hit that was refused."""
    refusals = DeniedCache(10 * ENTRY_BYTES)
    hit = hit_of(of, cost=cost)
    hit.decision = Decision(False, 1, cost - 1, 2 * MINUTE, wait)
    refusals.learn([hit], 0.0)
    return refusals, hit.key


def test_a_flood_of_refusals_costs_no_call(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            hits = [hit_of(LOG, "flood") for _ in range(4)]
            for hit in hits:
                await charge(store, hit)
            before = redis.script_calls()
            flood = [(await charge(store, hit_of(LOG, "flood"))).hits[0] for _ in range(100)]

            assert [hit.decision.allowed for hit in hits] == [True, True, True, False]
            assert not any(hit.decision.allowed for hit in flood)
            assert sum(hit.tally.over_limit_with_local_cache for hit in flood) == 100
            assert redis.script_calls() == before

    run(story())


def test_a_single_refusal_is_known_at_once_and_all_else_is_left_untouched(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            assert store.charge is not None
            unknown = hit_of(LOG, "at once")
            assert not store.charge([unknown])
            last = [(await charge(store, hit_of(LOG, "at once"))).hits[0] for _ in range(4)][-1]
            known, cheaper, refund = (hit_of(LOG, "at once", cost=cost) for cost in (1, 0, -1))

            assert store.charge([known])
            assert (known.decision.allowed, known.tally.over_limit_with_local_cache) == (False, 1)
            assert last.decision.retry_after - MINUTE < known.decision.retry_after <= last.decision.retry_after
            assert not store.charge([known, unknown])
            assert not store.charge([cheaper])
            assert not store.charge([refund])
            assert not any(hasattr(hit, "decision") for hit in (unknown, cheaper, refund))

    run(story())


def test_a_region_remembers_for_a_moment_that_home_has_nothing_and_tells_the_whole_wait() -> None:
    limit = regional.member(Limit(1000, Unit.MINUTE, MINUTE), 3, 10)
    borrowed = Rule("shop", (), limit, rule().algorithm)
    refusals, _ = refused(of=borrowed, cost=5)
    known, cheaper, later = (hit_of(borrowed, cost=cost) for cost in (5, 1, 5))

    assert refusals.answer([known, cheaper], 0.04) == [cheaper]
    assert known.decision == Decision(False, 1, 4, 2 * MINUTE - 40_000, MINUTE - 40_000)
    assert refusals.answer([later], 0.05) == [later]


def test_a_refund_is_seen_at_once(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            for _ in range(5):
                await charge(store, hit_of(LOG, "refund"))
            await charge(store, hit_of(LOG, "refund", cost=-1))

            assert (await charge(store, hit_of(LOG, "refund"))).allowed

    run(story())


@pytest.mark.parametrize("algorithm", ["sub_windows", "token_bucket", "sliding_log"])
def test_a_refund_that_comes_while_a_hit_is_under_way_is_seen(redis: Redis, algorithm: str) -> None:
    """The hit is refused, and that is heard of after the refund was sent."""
    limit = Limit(1, Unit.DAY, Unit.DAY.window, count_refused=False)
    once = Rule("shop", (), limit, rule(algorithm=algorithm).algorithm)

    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            for number in range(20):
                name = f"{algorithm}{number}"
                await charge(store, hit_of(once, name))
                refused, *_ = await asyncio.gather(
                    charge(store, hit_of(once, name)), charge(store, hit_of(once, name, cost=-1))
                )

                assert not refused.allowed
                assert (await charge(store, hit_of(once, name))).allowed

    run(story())


DAILY = Rule("shop", (), Limit(1, Unit.DAY, Unit.DAY.window, count_refused=False), rule().algorithm)


async def refused_twice(store: RedisStore, key: str) -> None:
    """The counter is used up, and that is remembered."""
    assert (await charge(store, hit_of(DAILY, key))).allowed
    assert not (await charge(store, hit_of(DAILY, key))).allowed
    assert store.charge is not None
    assert store.charge([hit_of(DAILY, key)])


STRICT = Rule("shop", (), Limit(2, Unit.DAY, Unit.DAY.window, kind=Block(HOUR)), rule().algorithm)
"""Denied hits count, but none is charged while a counter is blocked."""


def test_a_flood_on_a_blocked_counter_costs_no_call_whatever_its_hits_cost(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            first = (await charge(store, hit_of(STRICT, "blocked", 3))).hits[0]
            before = redis.script_calls()
            flood = [(await charge(store, hit_of(STRICT, "blocked", cost))).hits[0] for cost in (1, 3, 2, 0, 9)]

            assert redis.script_calls() == before
            assert isinstance(first.decision, Blocked)
            assert [hit.decision.allowed for hit in flood] == [False] * 5
            assert [hit.tally.over_limit_with_local_cache for hit in flood] == [1, 3, 2, 0, 9]

    run(story())


def test_a_known_block_counts_down_and_then_the_counter_is_asked() -> None:
    cache = DeniedCache(10 * ENTRY_BYTES)
    hit = hit_of(STRICT, cost=2)
    hit.decision = Blocked(False, 0, 1, 3 * HOUR, 2 * HOUR, HOUR)
    cache.learn([hit], 0.0)
    same, other, late = hit_of(STRICT, cost=2), hit_of(STRICT, cost=1), hit_of(STRICT, cost=2)

    assert cache.answer([same, other], 600.0) == []
    assert cache.answer([late], 3600.0) == [late]
    assert same.decision == Blocked(False, 0, 2, 170 * MINUTE, 110 * MINUTE, 50 * MINUTE)
    assert other.decision == Blocked(False, 0, 1, 170 * MINUTE, 50 * MINUTE, 50 * MINUTE)


def test_a_block_is_known_by_a_hit_that_could_never_be_allowed() -> None:
    cache = DeniedCache(10 * ENTRY_BYTES)
    hit = hit_of(STRICT, cost=9)
    hit.decision = Blocked(False, 0, 9, HOUR, NEVER, HOUR)
    cache.learn([hit], 0.0)
    same = hit_of(STRICT, cost=9)

    assert cache.answer([same], 60.0) == []
    assert same.decision == Blocked(False, 0, 9, 59 * MINUTE, NEVER, 59 * MINUTE)


def test_a_flush_ends_what_is_remembered_in_every_service(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as one, opened(f"127.0.0.1:{redis.port}") as other:
            for key in ("first", "second"):
                await refused_twice(one, f"{key} one")
                await refused_twice(other, f"{key} other")
                await until(lambda: all(store.lanes[0]._seen for store in (one, other)), "both know what is there")
                redis.cli("FLUSHALL")

                for store in (one, other):
                    assert store._denied is not None
                    await until(partial(operator.not_, store._denied.known), "it has forgotten")
                assert (await charge(one, hit_of(DAILY, f"{key} one"))).allowed
                assert (await charge(other, hit_of(DAILY, f"{key} other"))).allowed

    run(story())


def test_an_empty_restart_ends_what_is_remembered(tmp_path: Path) -> None:
    async def story() -> None:
        with start_redis(tmp_path / "a") as redis:
            port = redis.port
            async with opened(f"127.0.0.1:{port}") as store:
                await refused_twice(store, "restarted")
                redis.kill()
                await until(lambda: not store.healthy, "noticed")
                with start_redis(tmp_path / "b", port=port):
                    await until(lambda: store.healthy, "found again")

                    assert (await charge(store, hit_of(DAILY, "restarted"))).allowed

    run(story())


def test_a_flush_of_any_node_of_a_cluster_ends_what_is_remembered(tmp_path: Path) -> None:
    async def story(nodes: Nodes) -> None:
        async with opened(nodes.url, REDIS_TYPE="cluster") as store:
            for number, redis in enumerate(nodes.redises):
                keys = (f"{number}-{index}" for index in range(1000))
                key = next(
                    key for key in keys if nodes.with_slot(slot_of(store._script.key(hit_of(DAILY, key)))) is redis
                )
                await until(lambda: all(lane._seen for lane in store.lanes), "it knows what is there")
                await refused_twice(store, key)
                redis.cli("FLUSHALL")

                assert store._denied is not None
                await until(partial(operator.not_, store._denied.known), "it has forgotten")
                assert (await charge(store, hit_of(DAILY, key))).allowed

    with start_cluster(tmp_path) as nodes:
        run(story(nodes))


def test_where_refused_hits_count_every_one_is_asked(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            before = redis.script_calls()
            for _ in range(10):
                await charge(store, hit_of(WINDOW, "counted"))

            assert redis.script_calls() == before + 10

    run(story())


@pytest.mark.parametrize("window", [WINDOW, YEAR])
def test_envoyproxys_cache_spares_a_fixed_window_that_is_over(redis: Redis, window: Rule) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}", LOCAL_CACHE_SIZE_IN_BYTES="1000000") as store:
            before = redis.script_calls()
            key = f"spared{window.key_suffix}"
            hits = [(await charge(store, hit_of(window, key, cost))).hits[0] for cost in (2, 2, 5, 1)]

            assert [hit.decision.allowed for hit in hits] == [True, False, False, False]
            assert [hit.tally.over_limit_with_local_cache for hit in hits] == [0, 0, 5, 1]
            assert redis.script_calls() == before + 2

    run(story())


def test_it_is_turned_off_by_a_size_of_none(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}", REFUSED_MAX_COUNTERS="0") as store:
            before = redis.script_calls()
            for _ in range(10):
                await charge(store, hit_of(LOG, "off"))

            assert redis.script_calls() == before + 10

    run(story())


def test_a_known_refusal_counts_down() -> None:
    refusals, _ = refused(cost=3)
    hit = hit_of(LOG, cost=3)

    assert refusals.answer([hit], 10.0) == []
    assert hit.decision == Decision(False, 1, 2, 110_000_000, 50_000_000)


def test_it_ends_with_its_wait() -> None:
    refusals, _ = refused()

    assert len(refusals.answer([hit_of(LOG)], 60.0)) == 1
    assert refusals.known == {}


@pytest.mark.parametrize("hit", [hit_of(LOG, cost=1), hit_of(LOG, cost=0), hit_of(LOG, cost=3)])
def test_another_cost_is_asked(hit: Any) -> None:
    refusals, _ = refused(cost=2)

    assert refusals.answer([hit], 1.0) == [hit]


def test_another_limit_is_asked() -> None:
    refusals, _ = refused()
    raised = Rule("shop", (), Limit(4, Unit.MINUTE, MINUTE, count_refused=False), LOG.algorithm)

    assert len(refusals.answer([hit_of(raised)], 1.0)) == 1


def test_what_can_never_be_is_not_remembered() -> None:
    refusals, _ = refused(wait=NEVER)

    assert refusals.known == {}


def test_hits_that_are_charged_together_are_asked() -> None:
    refusals, _ = refused()
    known, together = hit_of(LOG), hit_of(LOG, "eve", together=1)

    assert refusals.answer([known, together], 1.0) == [together]
    assert not known.decision.allowed


def test_there_are_never_more_than_so_many_bytes_and_what_is_over_goes() -> None:
    def keep(count: int, padding: str = "") -> DeniedCache:
        refusals = DeniedCache(1_000_000)
        for number in range(count):
            hit = hit_of(LOG, f"{number}{padding}")
            hit.decision = Decision(False, 0, 1, MINUTE, MINUTE)
            refusals.learn([hit], 0.0)
        return refusals

    short, long = keep(5000), keep(5000, "ü" * 300)

    assert len(short.known) in range(1500, 1_000_000 // ENTRY_BYTES)
    assert len(long.known) in range(700, 1500)
    for refusals in (short, long):
        assert next(reversed(refusals.known)).startswith("shop|user=4999")
        for _ in range(2):
            refusals.sweep(59.0)
        assert refusals.known
        for _ in range(3):
            refusals.sweep(61.0)
        assert refusals.known == {}
        assert refusals._bytes == 0
