"""No request keeps Redis from others: a heavy one is sent bit by bit, with others' hits between."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest
import uvloop

from ratelimit_service.errors import TooHeavyError
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.script import cut
from tests.redis import Redis
from tests.stores.redis_groups import Nodes, start_cluster
from tests.stores.redis_stores import charge, hit_of, opened, rule

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with start_cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


def many(count: int, key: str = "heavy", together: int = 0) -> list[Hit]:
    return [hit_of(rule(), f"{key}{number}", together=together) for number in range(count)]


async def in_turn(*requests: Coroutine[Any, Any, Any]) -> list[int]:
    """The order in which requests that come at one moment are answered."""
    tasks = [asyncio.create_task(request) for request in requests]
    answered: list[int] = []
    for index, task in enumerate(tasks):
        task.add_done_callback(lambda _, index=index: answered.append(index))  # type: ignore[misc]  # mypy: default of a lambda
    for answer in await asyncio.gather(*tasks):
        assert answer.allowed
    return answered


def test_what_comes_after_a_heavy_request_is_answered_before_it(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            heavy = charge(store, *many(4000))
            small = [charge(store, hit_of(rule(), f"small{number}")) for number in range(50)]

            assert await in_turn(heavy, *small) == [*range(1, 51), 0]

    run(story())


def test_on_a_cluster_too(nodes: Nodes) -> None:
    async def story() -> None:
        async with opened(nodes.url, REDIS_TYPE="cluster") as store:
            heavy = charge(store, *many(3000))
            small = [charge(store, hit_of(rule(), f"small{number}")) for number in range(50)]

            assert (await in_turn(heavy, *small))[-1] == 0

    run(story())


def test_no_step_of_redis_has_more_than_seven_hundred_hits(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            before = redis.script_calls()
            await asyncio.gather(*(charge(store, *many(1400, f"step{number}-")) for number in range(5)))

            assert redis.script_calls() - before >= 7000 / 700

    run(story())


def test_a_heavy_request_is_decided_in_its_order(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            limited = rule(300)
            answer = await charge(store, *(hit_of(limited, "ordered") for _ in range(900)))

            assert [hit.decision.allowed for hit in answer.hits] == [True] * 300 + [False] * 600

    run(story())


def test_a_bundle_is_never_cut_and_too_heavy_a_one_is_refused_with_the_bound(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            before = redis.script_calls()
            most = await charge(store, *many(500, "most", together=1))
            more = await charge(store, *many(501, "more", together=1))

            assert most.allowed
            assert isinstance(more.error, TooHeavyError)
            assert str(more.error) == "501 limits cannot be charged together, the maximum is 500"
            assert redis.script_calls() - before == 1
            assert store.errors == {}

    run(story())


@pytest.mark.parametrize(
    ("hits", "sizes"),
    [
        (many(256), [256]),
        (many(600), [256, 256, 88]),
        ([*many(200), *many(100, together=1), *many(257, together=2), *many(3, together=3)], [200, 100, 257, 3]),
        ([*many(10), *many(10, together=1)], [20]),
    ],
)
def test_requests_are_cut_between_bundles(hits: Sequence[Hit], sizes: list[int]) -> None:
    pieces = list(cut(hits))

    assert [len(piece) for piece in pieces] == sizes
    assert [hit for piece in pieces for hit in piece] == list(hits)
