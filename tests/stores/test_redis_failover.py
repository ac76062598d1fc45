"""How much too much passes when a primary dies whose replica lacks what it has charged: exactly that, and no more.

Replication is cut by hand before, so what the next primary lacks is known: all that was answered since.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvloop

from ratelimit_service.algorithms import NAMES
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.keys import slot_of
from ratelimit_service.stores.redis.store import RedisStore
from tests.books import book
from tests.redis import Redis
from tests.stores.redis_groups import have_the_same, start_cluster, start_sentinels
from tests.stores.redis_stores import charge, hit_of, opened, rule, until
from tests.stores.test_redis_settles import answered

LIMIT = 1000
RULES = {name: rule(LIMIT, name) for name in NAMES}
HELD = 50
"""The most that a process holds of a limit that leases."""


def leased(of: Rule) -> Rule:
    """The same rule, with leases if its algorithm has them."""
    assert of.limit is not None
    lease = HELD if of.algorithm.leases else 0
    return Rule("shop", (), replace(of.limit, count_refused=False), of.algorithm, lease=lease)


run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run


class Group(NamedTuple):
    """A primary with all counters, and who may follow it."""

    url: str
    kind: str
    primary: Redis
    replicas: Sequence[Redis]
    alert: Callable[[], AbstractContextManager[None]]

    def cut(self) -> None:
        """The replicas get no more; connections that are let in stay."""
        self.primary.cli("CONFIG", "SET", "requirepass", "changed")
        self.primary.cli("-a", "changed", "--no-auth-warning", "CLIENT", "KILL", "TYPE", "replica")


@contextmanager
def start_group(folder: Path, kind: str) -> Iterator[Group]:
    """With one replica."""
    if kind == "sentinel":
        with start_sentinels(folder, 1) as watched:
            primary = watched.primary
            replicas = [redis for redis in watched.redises if redis is not primary]
            yield Group(watched.url, kind, primary, replicas, watched.alert)
    else:
        with start_cluster(folder, replicas=1) as nodes:
            primary = nodes.with_slot(slot_of("all"))
            followers = [
                redis for redis in nodes.redises if f"master_port:{primary.port}" in redis.cli("INFO", "replication")
            ]
            yield Group(nodes.url, kind, primary, followers, nodes.alert)


class Load:
    """Hits on a counter of each algorithm, without a pause, and what became of them."""

    def __init__(self, store: RedisStore, rules: Mapping[str, Rule] = RULES) -> None:
        self._rules = rules
        self.admitted: Counter[str] = Counter()
        self.denied: Counter[str] = Counter()
        self._store = store

    async def one(self, name: str) -> None:
        """A request."""
        answer = await charge(self._store, hit_of(self._rules[name], name))
        if answer.error is None:
            (self.admitted if answer.allowed else self.denied)[name] += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Four at a time of each, until it is left."""
        tasks = [asyncio.create_task(self._run(name)) for name in NAMES * 4]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, name: str) -> None:
        while True:
            await self.one(name)
            await asyncio.sleep(0)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "held"), [("sentinel", 0), ("cluster", 0), ("sentinel", HELD)])
def test_a_failover_admits_the_limit_and_what_the_next_primary_lacks(tmp_path: Path, kind: str, held: int) -> None:
    """It lacks what was held of a lease too, which may be spent until its slot ends."""
    rules = {name: leased(of) for name, of in RULES.items()} if held else RULES

    async def story(group: Group) -> None:
        async with opened(group.url, REDIS_TYPE=kind, CACHE_KEY_PREFIX="{all}") as store:
            load = Load(store, rules)
            for name in NAMES * 20:
                await load.one(name)
            await until(lambda: have_the_same(group.primary, group.replicas), "the replicas have all")
            group.cut()
            async with load.running():
                await until(lambda: min(load.admitted.values()) > 100, "charges that no replica has")
                group.primary.kill()
                await until(lambda: not store.healthy, "the primary is missed")
                before = Counter(load.admitted)
                with group.alert():
                    while not store.healthy:
                        answer = await charge(store, hit_of(RULES[NAMES[0]], NAMES[0], cost=0))
                        assert answer.error or store.healthy
                        await asyncio.sleep(0.01)
                await until(lambda: len(load.denied) == len(NAMES), "all are used up")

            for name in NAMES:
                lacked = before[name] - 20
                assert lacked > 80
                assert LIMIT - held <= load.admitted[name] <= LIMIT + lacked + held, name
            assert bool(held) == bool(store._leases.spent)

    with start_group(tmp_path, kind) as group:
        run(story(group))


@pytest.mark.slow
def test_a_primary_that_asks_for_a_replica_admits_nothing_that_none_has(tmp_path: Path) -> None:
    async def story(group: Group) -> None:
        async with opened(group.url, REDIS_TYPE="sentinel") as store:
            load = Load(store)
            for name in NAMES * 20:
                await load.one(name)
            await until(lambda: have_the_same(group.primary, group.replicas), "the replicas have all")
            group.primary.cli("CONFIG", "SET", "min-replicas-to-write", "1")
            group.cut()
            async with load.running():
                await until(lambda: not store.healthy, "it refuses")
                group.primary.kill()
                with group.alert():
                    await until(lambda: store.healthy, "the next one is used")
                await until(lambda: len(load.denied) == len(NAMES), "all are used up")

            assert store.errors["noreplicas"] > 0
            assert max(load.admitted.values()) <= LIMIT

    with start_group(tmp_path, "sentinel") as group:
        run(story(group))


RESERVED = """
    domain: shop
    settle: done
    descriptors:
      - key: id
        rate_limit: {unit: year, requests_per_unit: 1000, reserve: {id: id, hold: 1m, estimate: 100}}
    """


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_what_is_settled_while_the_primary_is_missed_is_charged_once_on_the_next_one(tmp_path: Path, kind: str) -> None:
    """A reservation that the next primary lacks is not charged there, and its settle is charged in full."""

    async def story(group: Group) -> None:
        async with opened(group.url, REDIS_TYPE=kind, CACHE_KEY_PREFIX="{all}") as store:
            limiter = Limiter(store)
            limiter.book = book(RESERVED)
            kept = store._pending.kept
            for name in ("settled", "away", "unsettled"):
                assert await answered(limiter, name, None)
            await answered(limiter, "settled", 1, settles=True)
            await until(lambda: have_the_same(group.primary, group.replicas), "the replicas have all")
            group.cut()
            assert await answered(limiter, "lacked", None) == (True, 699)
            group.primary.kill()
            await until(lambda: not store.healthy, "the primary is missed")
            for name, cost in (("away", 30), ("lacked", 400)):
                assert await answered(limiter, name, cost, settles=True) is None
            assert len(kept) == 2
            with group.alert():
                await until(lambda: kept.sent_again == 2, "they were sent again")

            assert await answered(limiter, "look", 0) == (True, 469)  # 1, 30, 400, and 100 that nobody settled
            assert await answered(limiter, "away", 30, settles=True) == (True, 469)

    with start_group(tmp_path, kind) as group:
        run(story(group))
