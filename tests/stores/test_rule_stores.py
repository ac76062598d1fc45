"""The rules of the API as they are kept, in Redis and in a folder: one contract, and what each does besides."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import pytest
import uvloop

from ratelimit_service.errors import RuleConflictError, StartError, StoreError
from ratelimit_service.rules.sources.rules_folder import RulesFolder
from ratelimit_service.rules.sources.source import Documents
from ratelimit_service.rules.sources.stored import StoredRules
from ratelimit_service.rules.versions import (
    MAX_PAST_BYTES,
    MAX_VERSIONS,
    RuleStore,
    RuleVersion,
    read_version,
)
from ratelimit_service.settings import load_settings
from ratelimit_service.stores import open_rule_store
from ratelimit_service.stores.redis.keys import rules_keys, rules_past_key
from ratelimit_service.system.clock import system_clock
from tests.redis import Redis, start_redis
from tests.stores.redis_groups import start_cluster, start_sentinels
from tests.stores.redis_stores import until

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run

Open = Callable[[], RuleStore]

NOW: Final = system_clock()


def redis_store(url: object, prefix: str = "", **settings: str) -> RuleStore:
    """The rules in that Redis."""
    named = {"REDIS_URL": str(url), "RULES_STORE": "redis", "CACHE_KEY_PREFIX": prefix}
    store = open_rule_store(load_settings(named | settings)[0])
    assert store is not None
    return store


@pytest.fixture(params=["redis", "folder"])
def opener(request: pytest.FixtureRequest, redis: Redis, tmp_path: Path) -> Open:
    """Opens a store: each time another one of the same rules, as each instance has one."""
    if request.param == "redis":
        return lambda: redis_store(redis.socket, tmp_path.name)
    return lambda: RulesFolder(tmp_path / "rules")


def files_in(folder: Path) -> list[Path]:
    """The files of a folder of rules."""
    return list(folder.glob("*.versions"))


def made(before: RuleVersion | None, text: str = "domain: shop\n", **fields: Any) -> RuleVersion:
    """A version of the domain `shop`, or of `domain`, that replaces the one before."""
    number, replaces = (1, "") if before is None else (before.number + 1, before.version)
    known: dict[str, Any] = {"domain": "shop", "kind": "yaml", "at": NOW, "who": "ada", "address": "::1", "why": "é\n"}
    return RuleVersion(number=number, text=text, replaces=replaces, **(known | fields))


def test_what_is_put_is_present_and_the_past_has_what_was(opener: Open) -> None:
    async def story() -> None:
        store, other = opener(), opener()
        assert await store.present("shop") is None
        await store.put(first := made(None, "# of the shop\r\ndomain: shop\n"))
        await other.put(second := made(first))
        await store.put(deletion := made(second, "", kind=""))
        await other.put(third := made(deletion, restores=first.version))
        await other.put(elsewhere := made(None, domain="a/b é"))
        assert await store.present("shop") == third
        assert await store.past("shop") == [third, deletion, second, first]
        assert [each.version for each in await other.past("shop")][3] == first.version
        assert await store.present("a/b é") == elsewhere
        assert await store.past("unknown") in ([], ())
        await store.close()
        await other.close()

    run(story())


def test_only_the_present_version_is_replaced(opener: Open) -> None:
    async def story() -> None:
        store = opener()
        first = made(None)
        for wrong in (made(first), made(made(first))):
            with pytest.raises(RuleConflictError):
                await store.put(wrong)
        await store.put(first)
        with pytest.raises(RuleConflictError):
            await store.put(made(None, "another"))
        await store.put(second := made(first))
        with pytest.raises(RuleConflictError):
            await store.put(made(first, "another"))
        assert await store.past("shop") == [second, first]
        await store.close()

    run(story())


def test_others_follow_what_is_put_and_deleted_within_a_second_or_so(opener: Open) -> None:
    async def story() -> None:
        writer, reader = opener(), StoredRules(follower := opener())
        given = await reader.read()
        assert isinstance(given, Documents)
        assert (list(given.documents), follower.known) == ([], {})
        await writer.put(first := made(None))
        given = await asyncio.wait_for(reader.changed(), 60)
        assert isinstance(given, Documents)
        assert [(each.name, each.text, each.kind) for each in given.documents] == [
            ("api:shop", b"domain: shop\n", "yaml")
        ]
        await writer.put(made(first, "", kind=""))
        gone = await asyncio.wait_for(reader.changed(), 60)
        assert isinstance(gone, Documents)
        assert (list(gone.documents), gone.version != given.version) == ([], True)
        await writer.close()
        await follower.close()

    run(story())


def test_the_past_is_bounded_in_versions_and_in_bytes(opener: Open) -> None:
    async def story() -> None:
        store = opener()
        before: RuleVersion | None = None
        for _ in range(MAX_VERSIONS + 3):
            await store.put(before := made(before))
        past = await store.past("shop")
        assert [past[0].number, past[-1].number, len(past)] == [MAX_VERSIONS + 3, 4, MAX_VERSIONS]
        for _ in range(3):
            await store.put(before := made(before, "x" * (MAX_PAST_BYTES // 2 - 1000)))
        assert [len(each.text) > 1000 for each in await store.past("shop")] == [True, True]
        await store.close()

    run(story())


PUTS: Final = 50
"""Of each instance."""


async def write(store: RuleStore, name: str) -> None:
    """Put until so many puts were accepted, each in place of what is present then."""
    accepted = 0
    while accepted < PUTS:
        before = await store.present("shop")
        try:
            await store.put(made(before, f"{'' if before is None else before.text}{name}{accepted} ", who=name))
        except RuleConflictError:
            continue
        accepted += 1


def test_two_instances_that_put_at_once_lose_nothing(opener: Open) -> None:
    async def story() -> None:
        stores = [opener(), opener()]
        await asyncio.gather(write(stores[0], "a"), write(stores[1], "b"))
        present = await stores[0].present("shop")
        assert present is not None
        assert present.number == 2 * PUTS
        words = present.text.split()
        for name in "ab":
            assert [word for word in words if word[0] == name] == [f"{name}{n}" for n in range(PUTS)]
        for store in stores:
            await store.close()

    run(story())


def test_a_version_reads_as_it_was_written_and_one_that_was_changed_does_not() -> None:
    version = made(None, "domain: shop\n\n# é")
    written = version.written().encode()

    assert read_version(written) == version
    assert version.version.startswith("1-")
    for wrong in (written[:-1], written.replace(b"ada", b"bob"), b"", b"{}\n", b"[" * 100_000, b"\xff", b'"x"\n'):
        with pytest.raises(ValueError, match=r".*"):
            read_version(wrong)


def test_while_redis_is_away_puts_fail_what_is_known_stays_and_it_is_read_again(tmp_path: Path) -> None:
    async def story() -> None:
        with start_redis(tmp_path / "one") as redis:
            store = redis_store(f"127.0.0.1:{redis.port}")
            rules = StoredRules(store)
            await store.put(first := made(None))
            await rules.read()
            port = redis.port
        with pytest.raises(StoreError):
            await store.put(made(first))
        with pytest.raises(StoreError):
            await store.present("shop")
        await until(lambda: bool(store.trouble), "the follower notices")
        assert isinstance(await rules.read(), Documents)
        assert store.known == {"shop": first}
        with start_redis(tmp_path / "two", port=port):
            await until(lambda: store.known == {}, "it is read again")
            await store.put(first)
            await until(lambda: store.known == {"shop": first}, "so is what is put")
        await store.close()

    run(story())


def test_before_redis_was_reached_there_are_no_rules_but_a_problem() -> None:
    async def story() -> None:
        store = redis_store("127.0.0.1:1")
        store.start(lambda: None)
        await until(lambda: bool(store.trouble), "it is tried")
        rules = StoredRules(store)
        rules.refresh()
        given = await rules.changed()
        assert not isinstance(given, Documents)
        assert str(given[0]) == "the rules API (Redis): cannot be read: connection refused"
        await store.close()

    run(story())


@pytest.mark.extended
def test_they_are_kept_in_a_cluster_and_behind_sentinels(tmp_path: Path) -> None:
    async def story() -> None:
        with start_cluster(tmp_path / "cluster") as nodes:
            await put_and_read(nodes.url, REDIS_TYPE="cluster")
        with start_sentinels(tmp_path / "sentinels") as watched:
            await put_and_read(watched.url, REDIS_TYPE="sentinel")

    async def put_and_read(url: str, **settings: str) -> None:
        store = redis_store(url, **settings)
        await store.put(first := made(None))
        await store.put(second := made(first))
        assert await store.past("shop") == [second, first]
        await store.close()

    run(story())


def test_what_is_not_ours_in_redis_is_passed_over(redis: Redis, tmp_path: Path) -> None:
    async def story() -> None:
        store = redis_store(redis.socket, tmp_path.name)
        await store.put(first := made(None))
        redis.cli("HSET", rules_keys(tmp_path.name)[0], "blog", "x", "", "17")
        redis.cli("HSET", rules_past_key(tmp_path.name, "blog"), "1", "x")
        store.start(lambda: None)
        await until(lambda: store.known == {"shop": first}, "the other one is read")
        for asked in (store.present, store.past):
            with pytest.raises(StoreError, match="the document in Redis cannot be read"):
                await asked("blog")
        await store.close()

    run(story())


def test_a_deletion_and_what_was_before_it_end_after_thirty_days(redis: Redis, tmp_path: Path) -> None:
    async def story() -> None:
        store = redis_store(redis.socket, tmp_path.name)
        names = (*rules_keys(tmp_path.name), rules_past_key(tmp_path.name, "shop"))
        await store.put(first := made(None))
        assert [redis.cli("PTTL", name) for name in names] == ["-1"] * 3
        await store.put(deletion := made(first, "", kind=""))
        days = [int(redis.cli("PTTL", name)) / 86_400_000 for name in names]
        assert all(29.9 < each < 30.1 for each in days)
        await store.put(made(deletion))
        assert [redis.cli("PTTL", name) for name in names] == ["-1"] * 3
        await store.close()

    run(story())


def test_in_a_folder_a_deletion_ends_too(tmp_path: Path) -> None:
    async def story() -> None:
        now = NOW
        store = RulesFolder(tmp_path, lambda: now)
        await store.put(first := made(None))
        await store.put(deletion := made(first, "", kind=""))
        assert await store.present("shop") == deletion
        now += 30 * 86_400 * 1_000_000
        assert (await store.present("shop"), await store.past("shop")) == (None, ())
        await store.put(made(None, domain="blog"))
        assert [path.name.partition("-")[0] for path in files_in(tmp_path)] == ["blog"]

    run(story())


def test_a_folder_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StartError, match=r"RULES_STORE: .*file cannot be written"):
        RulesFolder(tmp_path / "file")


def test_half_a_file_is_an_error_and_the_others_stay_known(tmp_path: Path) -> None:
    async def story() -> None:
        store = RulesFolder(tmp_path)
        await store.put(first := made(None))
        store.start(lambda: None)
        await until(lambda: store.known == {"shop": first}, "it is read")
        [path] = files_in(tmp_path)
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(StoreError, match="cannot be read"):
            await store.present("shop")
        store._written.set()
        await until(lambda: "cannot be read" in store.trouble, "the follower notices")
        assert store.known == {"shop": first}
        await store.close()

    run(story())
