"""Queues whose turns a real Redis gives: one, a Cluster, and one beside another for limits per second."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop
from redis import Redis as Client

from ratelimit_service.algorithms.kinds import Queue
from ratelimit_service.algorithms.kinds import queue as leaky_queue
from ratelimit_service.errors import RpcError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.turns import TurnQueues
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Descriptor, Limit, Queued, Request, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.store import RedisStore
from ratelimit_service.system.clock import HOUR, MINUTE, SECOND
from ratelimit_service.system.timer import LoopTimer, TimerFile
from tests.books import book
from tests.redis import Redis, start_redis
from tests.shop import entries_of
from tests.stores.redis_groups import start_cluster
from tests.stores.redis_stores import charge, hit_of, opened, until
from tests.stores.test_redis_leases import leased, warm

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run

RULES = """
    domain: shop
    descriptors:
      - key: queue
        rate_limit: {algorithm: leaky_bucket, unit: second, requests_per_unit: 100, queue: {max_delay: 1 minute}}
      - key: other
        rate_limit: {algorithm: leaky_bucket, unit: second, requests_per_unit: 50, queue: {max_delay: 1 minute}}
      - key: full
        rate_limit: {algorithm: leaky_bucket, unit: hour, requests_per_unit: 1, queue: {max_delay: 1s}}
      - key: few
        rate_limit: {unit: year, requests_per_unit: 2}
    """


class Instance:
    """A limiter on this store."""

    def __init__(self, store: RedisStore, timer: type[TimerFile | LoopTimer] = TimerFile) -> None:
        self.turns = TurnQueues(timer)
        self._limiter = Limiter(store, turns=self.turns)
        self._limiter.book = book(RULES)

    async def ask(self, *descriptors: str) -> Verdict:
        answer: asyncio.Future[Verdict | RpcError] = asyncio.get_running_loop().create_future()
        plan = self._limiter.plan(Request("shop", [Descriptor(entries_of(each)) for each in descriptors]))
        self._limiter.decide_later(plan, answer.set_result)
        verdict = await answer
        assert isinstance(verdict, Verdict), verdict
        return verdict


@pytest.mark.parametrize("timer", [TimerFile, LoopTimer])
def test_instances_get_turns_one_after_the_other(redis: Redis, timer: type[TimerFile | LoopTimer]) -> None:
    """By the clock of Redis, to the microsecond: each is a hundredth of a second after the one before, or later."""

    async def story() -> None:
        url = f"127.0.0.1:{redis.port}"
        async with opened(url) as one, opened(url) as two:
            instances = [Instance(one, timer), Instance(two, timer)]
            name = f"queue={timer.__name__}"
            verdicts = await asyncio.gather(*(instances[number % 2].ask(name) for number in range(20)))

            assert all(verdict.allowed for verdict in verdicts)
            decisions = [hit.decision for verdict in verdicts for hit in verdict.hits if hit is not None]
            turns = sorted(decision.turn for decision in decisions if isinstance(decision, Queued))
            assert len(turns) >= 5
            assert all(later - earlier >= 10_000 for earlier, later in pairwise(turns))
            assert all(
                verdict.delay > 0
                for verdict in verdicts
                for hit in verdict.hits
                if hit is not None and isinstance(hit.decision, Queued)
            )
            for instance in instances:
                assert (instance.turns.requests, instance.turns.bytes) == (0, 0)
                instance.turns.close()

    run(story())


def calls(redis: Redis) -> int:
    """Scripts that it has run."""
    with Client(port=redis.port) as client:
        found: Any = client.info("commandstats")
        return sum(stats["calls"] for name, stats in found.items() if name.startswith("cmdstat_eval"))


async def several_limits(store: RedisStore) -> None:
    """Each request has limits on several servers, or in several slots; from the third on one of them refuses it."""
    instance = Instance(store)
    verdicts = await asyncio.gather(*(instance.ask("queue", "other", "few") for _ in range(6)))

    assert [verdict.allowed for verdict in verdicts].count(True) == 2
    assert (await instance.ask("queue")).allowed
    assert (await instance.ask("other")).allowed
    assert (instance.turns.requests, instance.turns.bytes) == (0, 0)
    instance.turns.close()


def test_a_request_may_wait_for_turns_on_several_nodes_of_a_cluster(tmp_path: Path) -> None:
    async def story() -> None:
        with start_cluster(tmp_path) as nodes:
            async with opened(nodes.url, REDIS_TYPE="cluster") as store:
                await several_limits(store)

    run(story())


def test_queues_by_the_second_may_be_in_a_redis_of_their_own(redis: Redis, tmp_path: Path) -> None:
    async def story() -> None:
        with start_redis(tmp_path) as per_second:
            async with opened(
                f"127.0.0.1:{redis.port}",
                REDIS_PERSECOND="true",
                REDIS_PERSECOND_URL=f"127.0.0.1:{per_second.port}",
            ) as store:
                await several_limits(store)

    run(story())


def test_a_flood_on_a_full_queue_costs_redis_nothing(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            instance = Instance(store)
            decisions = []
            for _ in range(12):
                verdict = await instance.ask("full")
                decisions += [hit.decision for hit in verdict.hits if hit is not None]
            sent = calls(redis)
            for _ in range(50):
                verdict = await instance.ask("full")
                decisions += [hit.decision for hit in verdict.hits if hit is not None]

            assert [decision.allowed for decision in decisions] == [True] + [False] * 61
            assert calls(redis) - sent < 50 / 2  # once a second
            assert {decision.over for decision in decisions[1:]} == {1}
            assert all(0 < decision.retry_after < HOUR for decision in decisions[1:])
            assert decisions[-1].retry_after < decisions[1].retry_after
            assert decisions[-1].reset_after - decisions[-1].retry_after == SECOND

    run(story())


def test_units_that_are_held_are_not_spent_by_a_request_that_a_queue_may_refuse(redis: Redis) -> None:
    limit = Limit(1, Unit.MINUTE, MINUTE, burst=1, count_refused=False, kind=Queue(SECOND, SECOND))
    queue, many = Rule("shop", (), limit, leaky_queue), leased()

    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            await warm(store, many, "held")
            await until(lambda: not any(lane.in_flight for lane in store.lanes), "nothing is on its way")
            hits = [hit_of(queue, "full", together=-1), hit_of(many, "held", together=-1)]
            assert not store.charge(hits)
            first = await charge(store, *hits)
            hits = [hit_of(queue, "full", together=-1), hit_of(many, "held", together=-1)]
            second = await charge(store, *hits)

            assert first.allowed
            assert [hit.decision.allowed for hit in second.hits] == [False, True]
            assert second.hits[1].decision.remaining >= first.hits[1].decision.remaining

    run(story())
