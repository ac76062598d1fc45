"""Bans in Redis: what is written, how soon other stores know of it, and what is made of an odd content."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from ratelimit_service.errors import BanError
from ratelimit_service.rules.bans import FOR_EVER, Ban, Bans, make_ban
from ratelimit_service.stores.redis.bans import BanFollower
from ratelimit_service.stores.redis.keys import bans_keys
from ratelimit_service.stores.redis.store import RedisStore
from ratelimit_service.system.clock import HOUR, SECOND
from tests.redis import Redis
from tests.stores.redis_stores import opened, until

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run


def followed(store: RedisStore) -> tuple[Bans, BanFollower]:
    """Bans that follow what is in Redis; as in a service, they are made before the first sweep."""
    bans = Bans()
    follower = store.keep_bans(bans)
    follower.start()
    return bans, follower


def ban_of(user: str, length: int = HOUR, now: int = 0, why: str = "spam", domain: str = "shop") -> Ban:
    """A ban of that user."""
    moment = now or 2_000_000_000 * SECOND
    return make_ban(domain, [("user", user)], length=length, why=why, who="ada@host", now=moment)


def test_what_one_store_writes_others_know(redis: Redis, tmp_path: Path) -> None:
    async def story() -> None:
        prefix = f"{tmp_path.name}:"
        async with (
            opened(redis.socket, CACHE_KEY_PREFIX=prefix) as one,
            opened(redis.socket, CACHE_KEY_PREFIX=prefix) as other,
            opened(redis.socket, CACHE_KEY_PREFIX="else:") as stranger,
        ):
            (here, writer), (there, _), (nowhere, _) = followed(one), followed(other), followed(stranger)
            ada, eve = ban_of("ada"), ban_of("eve", FOR_EVER)
            await writer.put(ada)
            await writer.put(eve)
            await until(lambda: len(here) == len(there) == 2, "both know")
            assert set(there.all()) == {ada, eve}

            longer = ban_of("ada", 2 * HOUR, why="again")
            await writer.put(longer)
            await until(lambda: there.get(ada.key) == here.get(ada.key) == longer, "it is replaced")

            assert await writer.lift(eve.key, "mallory@host") == eve
            assert await writer.lift(eve.key, "mallory@host") is None
            await until(lambda: len(there) == 1 == len(here), "one is lifted")
            assert len(nowhere) == 0

    run(story())


def test_a_lifted_ban_is_logged_with_who_lifted_it_and_a_lost_one_too(
    redis: Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    prefix = f"{tmp_path.name}:"

    async def story() -> None:
        async with opened(redis.socket, CACHE_KEY_PREFIX=prefix) as store:
            bans, follower = followed(store)
            await follower.put(ban_of("ada"))
            await follower.put(ban_of("eve"))
            await until(lambda: len(bans) == 2, "they are known")
            await follower.lift(ban_of("ada").key, "mallory@host")
            await until(lambda: len(bans) == 1, "one is lifted")
            redis.cli("DEL", *bans_keys(prefix))
            await until(lambda: len(bans) == 0, "the other one is gone")
            await follower.put(ban_of("eve"))
            await until(lambda: len(bans) == 1, "it is known again")

    run(story())
    ended = [message for message in caplog.messages if message.startswith("no longer")]
    assert ended == [
        "no longer banned: user=ada in domain shop, lifted by mallory@host",
        "no longer banned: user=eve in domain shop, it is no longer in Redis",
    ]


def test_the_keys_live_an_hour_longer_than_the_last_ban_and_for_ever_with_one_that_does(
    redis: Redis, tmp_path: Path
) -> None:
    prefix = f"{tmp_path.name}:"

    async def story() -> None:
        async with opened(redis.socket, CACHE_KEY_PREFIX=prefix) as store:
            _, follower = followed(store)
            now = await follower.now()

            def lives() -> list[int]:
                return [int(redis.cli("PTTL", key)) for key in bans_keys(prefix)]

            await follower.put(ban_of("ada", 2 * HOUR, now))
            await follower.put(ban_of("bob", HOUR, now))
            assert all(2.9 * 3_600_000 < life <= 3 * 3_600_000 + 1000 for life in lives())

            await follower.put(ban_of("eve", FOR_EVER, now))
            assert lives() == [-1, -1]

            await follower.lift(ban_of("eve", FOR_EVER).key, "ada@host")
            assert all(2.9 * 3_600_000 < life <= 3 * 3_600_000 + 1000 for life in lives())

    run(story())


def test_bans_whose_time_is_over_make_room_and_there_are_no_more_than_the_bound(redis: Redis, tmp_path: Path) -> None:
    prefix = f"{tmp_path.name}:"
    bans, ends = bans_keys(prefix)
    fill = "for i = 1, 10000 do redis.call('ZADD', KEYS[2], ARGV[1], i) redis.call('HSET', KEYS[1], i, 'x') end"

    async def story() -> None:
        async with opened(redis.socket, CACHE_KEY_PREFIX=prefix) as store:
            known, follower = followed(store)
            await follower.put(ban_of("ada"))
            redis.cli("EVAL", fill, "2", bans, ends, "inf")
            with pytest.raises(BanError, match="there are 10,000 bans, the maximum"):
                await follower.put(ban_of("eve"))
            await follower.put(ban_of("ada", 2 * HOUR))
            await follower.lift(ban_of("ada").key, "ada@host")

            redis.cli("EVAL", fill, "2", bans, ends, "1")
            await follower.put(ban_of("eve"))
            assert int(redis.cli("ZCARD", ends)) < 10_000
            await until(lambda: known.get(ban_of("eve").key) is not None, "it is known")

    run(story())


def test_a_ban_that_takes_the_place_of_one_of_as_many_as_there_may_be_holds(redis: Redis, tmp_path: Path) -> None:
    prefix = f"{tmp_path.name}:"
    key, _ = bans_keys(prefix)
    fill = "for i = 1, 10000 do redis.call('HSET', KEYS[1], (ARGV[1]:gsub('ada', i)), (ARGV[2]:gsub('ada', i))) end"
    replace = "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], ARGV[1], ARGV[2], '', 'another version')"
    ada, eve = ban_of("ada"), ban_of("eve")

    async def story() -> None:
        async with opened(redis.socket, CACHE_KEY_PREFIX=prefix) as store:
            redis.cli("EVAL", f"{fill} redis.call('HSET', KEYS[1], '', 'a version')", "1", key, ada.key, ada.text)
            bans, _ = followed(store)
            await until(lambda: len(bans) == 10_000, "all are known")
            redis.cli("EVAL", replace, "1", key, eve.key, eve.text)
            await until(lambda: bans.all() == [eve], "the new one alone is known")

    run(story())


def test_what_is_no_ban_in_redis_is_passed_over(redis: Redis, tmp_path: Path) -> None:
    prefix = f"{tmp_path.name}:"

    async def story() -> None:
        async with opened(redis.socket, CACHE_KEY_PREFIX=prefix) as store:
            for key, text in (("a", ""), ("b", "{}"), ("c", "[" * 5000), ("d", '{"domain": 1}'), ("e", "\x01\u00fc")):
                redis.cli("HSET", bans_keys(prefix)[0], key, text)
            bans, follower = followed(store)
            await follower.put(ban_of("ada"))
            await until(lambda: len(bans) == 1, "the ban is known")

    run(story())


def test_a_key_of_another_type_is_logged_and_known_bans_stay(
    redis: Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prefix = f"{tmp_path.name}:"

    async def story() -> None:
        async with opened(redis.socket, CACHE_KEY_PREFIX=prefix) as store:
            bans, follower = followed(store)
            await follower.put(ban_of("ada"))
            await until(lambda: len(bans) == 1, "the ban is known")
            redis.cli("SET", bans_keys(prefix)[0], "x")
            await until(lambda: "bans cannot be read" in caplog.text, "it is logged")
            assert len(bans) == 1
            assert store.healthy
            redis.cli("DEL", bans_keys(prefix)[0])
            await until(lambda: "bans are read again" in caplog.text and len(bans) == 0, "so is the end")

    run(story())


def test_only_what_has_changed_is_read_again(redis: Redis, tmp_path: Path) -> None:
    prefix = f"{tmp_path.name}:"

    async def story() -> None:
        async with opened(redis.socket, CACHE_KEY_PREFIX=prefix) as store:
            bans, follower = followed(store)
            for user in ("ada", "bob", "eve"):
                await follower.put(ban_of(user))
            await until(lambda: len(bans) == 3, "all are known")
            before = {ban.key: ban for ban in bans.all()}
            await follower.put(ban_of("eve", why="again"))
            await until(lambda: bans.get(ban_of("eve").key) == ban_of("eve", why="again"), "the change is known")
            same = [bans.get(ban_of(user).key) is before[ban_of(user).key] for user in ("ada", "bob", "eve")]
            assert same == [True, True, False]

    run(story())


def test_many_bans_are_read_page_by_page(redis: Redis, tmp_path: Path) -> None:
    prefix = f"{tmp_path.name}:"

    async def story() -> None:
        async with opened(redis.socket, CACHE_KEY_PREFIX=prefix) as store:
            bans = Bans()
            follower = store.keep_bans(bans)
            await asyncio.gather(*(follower.put(ban_of(f"user{number}")) for number in range(1000)))
            follower.start()
            await until(lambda: len(bans) == 1000, "all are known")

    run(story())
