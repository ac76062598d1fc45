"""What is loaded from any source: whole sets of documents, of which the last good one stays."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

import pytest

from ratelimit_service.errors import Problem
from ratelimit_service.rules.data_files import read_data_file
from ratelimit_service.rules.loading import Loading
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.sources.source import Documents, Given
from tests.rules.test_nodes import JsonRules, limit
from tests.stores.redis_stores import until


class Api:
    """A source whose documents are JSON, and are put into it."""

    name = "the API"
    noun = "document"

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Given | Exception] = asyncio.Queue()
        self.refreshed = self.closed = False

    async def read(self, *, required: bool = False) -> Given:
        return await self.changed()

    async def changed(self) -> Given:
        given = await self.queue.get()
        if isinstance(given, Exception):
            raise given
        return given

    def refresh(self) -> None:
        self.refreshed = True

    def close(self) -> None:
        self.closed = True

    def put(self, version: str, unit: str, *more: str) -> None:
        """Have documents of this version, each with a limit per unit."""
        rules = {
            name: {"domain": name, "descriptors": [{"key": "user", "rate_limit": limit(5, each)}]}
            for name, each in zip(("shop", "mail"), (unit, *more), strict=False)
        }
        documents = [JsonRules(name, json.dumps(body).encode()) for name, body in rules.items()]
        self.queue.put_nowait(Documents(documents, version, read_data_file))


def play(story: Callable[[Api, Loading], Awaitable[None]]) -> Api:
    """Load what the API has from the start, then follow it while the story happens."""

    async def run() -> Api:
        api = Api()
        loading = Loading(api, parse, lambda _: None)
        api.put("v1", "day")
        await loading.load()
        following = asyncio.create_task(loading.run())
        await story(api, loading)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        return api

    return asyncio.run(run())


def test_a_source_without_files_gives_the_rules_their_version_and_their_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def story(api: Api, loading: Loading) -> None:
        assert loading.version == "v1"
        api.put("v2", "hour", "day")
        await until(lambda: loading.version == "v2", "it is loaded")
        assert loading.book is not None
        assert sorted(loading.book.domains) == ["mail", "shop"]
        loading.reload()
        assert api.refreshed

    assert play(story).closed
    assert caplog.messages == [
        "rules loaded from the API: 1 rule in 1 domain, 1 document",
        "rules loaded from the API: 2 rules in 2 domains, 2 documents",
    ]


def test_all_documents_are_loaded_or_none_and_the_last_good_ones_stay() -> None:
    async def story(api: Api, loading: Loading) -> None:
        book = loading.book
        api.put("v2", "hour", "fortnight")
        await until(lambda: loading.failures == 1, "it is refused")
        (problem,) = loading.problems
        assert str(problem).startswith('mail/descriptors/0/rate_limit/unit: unit "fortnight" is not one of ')
        api.queue.put_nowait((Problem("the API", 0, 0, "does not answer"),))
        await until(lambda: loading.failures == 2, "so is this")
        assert [str(each) for each in loading.problems] == ["the API: does not answer"]
        assert (loading.book, loading.version, loading.failures) == (book, "v1", 2)
        api.put("v3", "hour")
        await until(lambda: loading.successes == 2, "it is loaded")
        assert (loading.problems, loading.failing_since, loading.version) == ((), None, "v3")

    play(story)


def test_an_error_that_a_source_should_not_have_is_logged_and_the_rules_stay(caplog: pytest.LogCaptureFixture) -> None:
    async def story(api: Api, loading: Loading) -> None:
        api.queue.put_nowait(ValueError("a bug"))
        await until(lambda: bool(caplog.messages), "it is logged")
        assert (loading.version, loading.problems) == ("v1", ())

    assert play(story).closed
    assert caplog.messages == ["reading the rules failed; the next attempt is in 1 s"]
