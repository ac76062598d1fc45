"""Places in Redis, whatever kind of it: all instances share them; what one gives back another takes at once."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from redis import Redis as Client

from ratelimit_service.errors import RpcError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Descriptor, Request
from ratelimit_service.rules.rule import Entries
from ratelimit_service.stores.descriptor import limiting_rules, looks
from ratelimit_service.stores.redis.store import RedisStore
from ratelimit_service.stores.redis.target import is_per_second
from tests.books import book
from tests.loops import run
from tests.ports import free_port
from tests.redis import Redis, start_redis
from tests.stores.redis_groups import start_cluster
from tests.stores.redis_stores import PATIENT, opened

RULES = """
    domain: shop
    descriptors:
      - key: request_id
        rate_limit: {concurrency: 2, hold: 1 hour, place: request_id}
      - key: path
        descriptors:
          - key: request_id
            rate_limits:
              - {concurrency: 2, hold: 1s, place: request_id}
              - {unit: year, requests_per_unit: 100}
      - key: quick
        rate_limit: {concurrency: 2, hold: 1s, place: quick}
      - key: local
        rate_limit: {concurrency: 4, hold: 1 hour, place: local, on_store_failure: local}
      - key: open
        rate_limit: {concurrency: 4, hold: 1 hour, place: open, on_store_failure: open}
      - key: closed
        rate_limit: {concurrency: 4, hold: 1 hour, place: closed, on_store_failure: closed}
    """


class Instance:
    """One of several services with the same Redis."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self.limiter = Limiter(store)
        self.limiter.book = book(RULES)

    async def ask(self, cost: int = 1, **entries: str) -> tuple[bool, int]:
        """Is it allowed, and what remains."""
        answer: asyncio.Future[Verdict | RpcError] = asyncio.get_running_loop().create_future()
        descriptor = Descriptor(tuple(entries.items()), cost)
        self.limiter.decide_later(self.limiter.plan(Request("shop", [descriptor])), answer.set_result, PATIENT)
        verdict = await answer
        assert isinstance(verdict, Verdict), verdict
        (hit,) = verdict.hits
        assert hit is not None
        return verdict.allowed, hit.remaining

    async def reset(self, entries: Entries) -> int:
        """How many counters of a descriptor there were."""
        rules = self.limiter.book
        assert rules is not None
        return await self.store.reset(list(looks(rules, "shop", entries, limiting_rules(rules, "shop", entries))))


@pytest.fixture(scope="module", params=["single", "cluster", "two servers"])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder: Path = tmp_path_factory.mktemp("redis")
    if request.param == "cluster":
        with start_cluster(folder) as nodes:
            yield {"url": nodes.url, "REDIS_TYPE": "cluster"}
    else:
        with start_redis(folder / "main") as main, start_redis(folder / "second") as second:
            more = {"REDIS_PERSECOND": "true", "REDIS_PERSECOND_URL": str(second.socket)}
            yield {"url": str(main.socket), **(more if request.param == "two servers" else {})}


def test_a_place_that_one_instance_gives_back_another_takes_at_once(kind: dict[str, str]) -> None:
    """Also with a cache of refusals: a refused one is not remembered as a window would be."""

    async def story() -> None:
        settings = {**kind, "LOCAL_CACHE_SIZE_IN_BYTES": "100000"}
        async with AsyncExitStack() as stack:
            one, two = [Instance(await stack.enter_async_context(opened(**settings))) for _ in range(2)]  # type: ignore[arg-type]  # settings are text
            assert await one.ask(request_id="a") == (True, 1)
            assert await two.ask(request_id="b") == (True, 0)
            assert await two.ask(request_id="c") == (False, 0)
            assert await two.ask(request_id="c") == (False, 0)
            assert await two.ask(request_id="a") == (True, 0)  # a retry through another instance
            assert await one.ask(-1, request_id="a") == (True, 1)
            assert await two.ask(request_id="c") == (True, 0)
            assert await one.reset((("request_id", "any"),)) == 1
            assert await two.ask(request_id="d") == (True, 1)
            # In a list, charged together; and held for as long as rules of another Redis count.
            assert await one.ask(path="/", request_id="a") == (True, 1)
            assert (await two.ask(-1, path="/", request_id="a"))[0]
            assert await one.ask(quick="a") == (True, 1)

    run(story())


def test_places_held_for_a_second_are_not_in_the_redis_of_windows_of_a_second() -> None:
    found = {".".join(rule.path): is_per_second(rule) for rule in book(RULES).rules}

    assert found["shop.quick"] is False


def test_while_redis_is_away_places_are_taken_as_the_policy_says() -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{free_port()}", wait=False, INSTANCES="2") as store:
            instance = Instance(store)
            assert [await instance.ask(local=each) for each in ("a", "b", "c", "a")] == [
                (True, 1),
                (True, 0),
                (False, 0),
                (True, 0),
            ]
            assert await instance.ask(-1, local="a") == (True, 1)
            assert await instance.ask(local="c") == (True, 0)
            assert [(await instance.ask(open=each))[0] for each in "abcde"] == [True] * 5
            assert (await instance.ask(closed="a"))[0] is False
            assert (await instance.ask(-1, closed="a"))[0] is True

    run(story())


def test_places_that_ended_are_counted_by_their_rule(redis: Redis) -> None:
    """The time of Redis cannot be turned, so the place is made to have ended."""

    async def story() -> None:
        async with opened(redis.socket) as store:
            instance = Instance(store)
            await instance.ask(2, request_id="a")
            with Client(unix_socket_path=str(redis.socket)) as client:
                key = "rl2|shop|request_id~request_id|places"
                [*_, (member, score)] = client.zrange(key, 0, -1, withscores=True)
                assert score % 2**14 == 2
                client.zadd(key, {member: 2**14 + 2})

            assert await instance.ask(request_id="b") == (True, 1)
            rules = instance.limiter.book
            assert rules is not None
            assert [rule.tally.places_expired for rule in rules.rules if rule.path[1:] == ("request_id",)] == [2]

    run(story())
