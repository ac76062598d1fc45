"""A small table in Redis: what one instance writes others read, within its bounds."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from ratelimit_service.stores.redis.store import RedisStore
from ratelimit_service.stores.redis.table import RedisTable, TableFollower
from ratelimit_service.system.clock import HOUR
from tests.redis import Redis
from tests.stores.redis_stores import opened, until

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run


class Texts:
    """What a follower has read."""

    noun = "texts"

    def __init__(self) -> None:
        self.used: list[bytes] = []
        self.dropped: list[str] = []
        self.read = 0

    def use(self, entry: bytes) -> None:
        self.used.append(entry)

    def drop(self, key: str) -> None:
        self.dropped.append(key)

    def complete(self) -> None:
        self.read += 1


def table(store: RedisStore, name: str, max_entries: int = 3, max_bytes: int = 10) -> RedisTable:
    """The table of this name, in the store's Redis."""
    return RedisTable(store._main.execute, (f"{{{name}}}", f"{{{name}}}ends"), max_entries, max_bytes)


async def texts_of(of: RedisTable) -> dict[bytes, bytes]:
    return {key: entry async for page in of.pages() for key, entry in page}


def test_followers_read_what_is_put_and_that_it_was_deleted(redis: Redis, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(redis.socket) as one, opened(redis.socket) as other:
            writer, texts = table(one, tmp_path.name), Texts()
            follower = TableFollower(table(other, tmp_path.name), texts)
            follower.start()
            assert await writer.put("a", "1")
            assert await writer.put("b", "é")
            await until(lambda: sorted(texts.used) == [b"1", "é".encode()], "both are read")
            assert await writer.put("a", "2", await writer.now() + HOUR)
            await until(lambda: texts.used[2:] == [b"2"], "the one that has changed is read")
            await writer.delete("b")
            await until(lambda: texts.dropped == ["b"], "the other one is dropped")
            assert (await writer.get("a"), await writer.get("b")) == (b"2", None)
            assert await texts_of(writer) == {b"a": b"2"}
            await follower.close()

    run(story())


def test_it_is_bounded_in_entries_and_in_bytes_of_each(redis: Redis, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(redis.socket) as store:
            writer = table(store, tmp_path.name)
            put = [await writer.put(key, "1") for key in "abcd"]
            assert put == [True, True, True, False]
            await writer.delete("d")  # there is none
            assert await writer.put("a", "0123456789")
            assert not await writer.put("a", "012345678é")
            await writer.delete("b")
            assert await writer.put("d", "1")
            assert sorted(await texts_of(writer)) == [b"a", b"c", b"d"]

    run(story())


def test_one_without_entries_lives_for_another_hour_so_that_all_read_that(redis: Redis, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(redis.socket) as store:
            writer = table(store, tmp_path.name)
            await writer.put("a", "1")
            before = await writer.version()
            assert redis.cli("PTTL", f"{{{tmp_path.name}}}") == "-1"
            await writer.delete("a")
            assert await writer.version() != before
            assert 3_500_000 < int(redis.cli("PTTL", f"{{{tmp_path.name}}}")) <= 3_600_000

    run(story())
