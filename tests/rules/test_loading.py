"""What is loaded from any source: whole sets of documents, of which the last good one stays."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from ratelimit_service.errors import Problem, RulesError
from ratelimit_service.rules.loading import Loading
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.sources.source import Documents, Given
from ratelimit_service.settings.fields import SourceKind
from tests.rules.test_nodes import JsonRules, limit
from tests.stores.redis_stores import until


class Api:
    """A source whose documents are JSON, and are put into it."""

    noun = "document"
    connection = None

    def __init__(self, name: str = "the API", kind: SourceKind = SourceKind.API) -> None:
        self.name, self.kind = name, kind
        self.queue: asyncio.Queue[Given | Exception] = asyncio.Queue()
        self.refreshed = self.closed = False
        self.outcomes: list[tuple[str, list[str]]] = []

    async def read(self, *, required: bool = False) -> Given:
        return await self.changed()

    async def changed(self) -> Given:
        given = await self.queue.get()
        if isinstance(given, Exception):
            raise given
        return given

    def loaded(self, version: str, problems: tuple[Problem, ...]) -> None:
        self.outcomes.append((version, [str(each) for each in problems]))

    def refresh(self) -> None:
        self.refreshed = True

    def close(self) -> None:
        self.closed = True

    def put(self, version: str, unit: str, *more: str) -> None:
        """Have documents of this version, each with a limit per unit."""
        self.put_domains(version, **dict(zip(("shop", "mail"), (unit, *more), strict=False)))

    def put_domains(self, version: str, **units: str) -> None:
        """Have a document for each of these domains, with a limit per unit."""
        documents = []
        for domain, unit in units.items():
            body = {"domain": domain, "descriptors": [{"key": "user", "rate_limit": limit(5, unit)}]}
            name = domain if self.name == "the API" else f"{self.name}/{domain}"
            documents.append(JsonRules(name, json.dumps(body).encode(), self.kind))
        self.queue.put_nowait(Documents(documents, version))


def play(story: Callable[[Api, Loading], Awaitable[None]]) -> Api:
    """Load what the API has from the start, then follow it while the story happens."""

    async def run() -> Api:
        api = Api()
        loading = Loading([api], parse, lambda _: None)
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
        assert loading.feeds[0].version == "v1"
        api.put("v2", "hour", "day")
        await until(lambda: loading.feeds[0].version == "v2", "it is loaded")
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
        assert (loading.book, loading.feeds[0].version, loading.failures) == (book, "v1", 2)
        api.put("v3", "hour")
        await until(lambda: loading.successes == 2, "it is loaded")
        assert (loading.problems, loading.failing_since, loading.feeds[0].version) == ((), None, "v3")

    play(story)


def test_an_error_that_a_source_should_not_have_is_logged_and_the_rules_stay(caplog: pytest.LogCaptureFixture) -> None:
    async def story(api: Api, loading: Loading) -> None:
        api.queue.put_nowait(ValueError("a bug"))
        await until(lambda: bool(caplog.messages), "it is logged")
        assert (loading.feeds[0].version, loading.problems) == ("v1", ())

    assert play(story).closed
    assert caplog.messages == ["reading the rules failed; the next attempt is in 1 s"]


def play_two(story: Callable[[Api, Api, Loading], Awaitable[None]], *precedence: SourceKind) -> None:
    """Load what two sources have, the files with domain `shop` and the plane with `mail`, and follow them."""

    async def run() -> None:
        files, plane = Api("rules", SourceKind.FILES), Api("the plane", SourceKind.XDS)
        loading = Loading([files, plane], partial(parse, precedence=precedence), lambda _: None)
        files.put_domains("f1", shop="day")
        plane.put_domains("p1", mail="day")
        await loading.load()
        following = asyncio.create_task(loading.run())
        await story(files, plane, loading)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    asyncio.run(run())


def sources_of(loading: Loading) -> dict[str, str]:
    """The source of each domain in force."""
    assert loading.book is not None
    return {name: str(domain.source) for name, domain in sorted(loading.book.domains.items())}


def versions(loading: Loading) -> list[str]:
    """The versions in force, by source."""
    return [feed.version for feed in loading.feeds]


def test_the_book_has_the_documents_of_all_sources_and_each_keeps_its_version() -> None:
    async def story(files: Api, plane: Api, loading: Loading) -> None:
        assert sources_of(loading) == {"mail": "xds", "shop": "files"}
        plane.put_domains("p2", mail="hour", blog="hour")
        await until(lambda: versions(loading) == ["f1", "p2"], "the newer ones are loaded")
        assert sources_of(loading) == {"blog": "xds", "mail": "xds", "shop": "files"}
        plane.put_domains("p3")
        await until(lambda: versions(loading) == ["f1", "p3"], "an empty set is loaded too")
        assert sources_of(loading) == {"shop": "files"}
        assert (files.outcomes, plane.outcomes) == ([("f1", [])], [("p1", []), ("p2", []), ("p3", [])])

    play_two(story)


def test_what_is_wrong_in_one_source_holds_up_no_other() -> None:
    async def story(files: Api, plane: Api, loading: Loading) -> None:
        files.put_domains("f2", shop="fortnight")
        await until(lambda: loading.failures == 1, "it is refused")
        plane.put_domains("p2", mail="hour")
        await until(lambda: versions(loading) == ["f1", "p2"], "the other source's rules are in force")
        assert [len(feed.problems) for feed in loading.feeds] == [1, 0]
        assert (loading.failures, loading.failing_since is None) == (1, False)
        files.put_domains("f3", shop="hour")
        await until(lambda: versions(loading) == ["f3", "p2"], "all are in force")
        assert (loading.problems, loading.failing_since) == ((), None)

    play_two(story)


def test_a_domain_that_two_sources_have_is_an_error_that_names_both_until_one_gives_it_up() -> None:
    async def story(files: Api, plane: Api, loading: Loading) -> None:
        plane.put_domains("p2", mail="hour", shop="hour")
        await until(lambda: loading.failures == 1, "it is refused")
        place, way = "rules/shop/domain", "RULES_PRECEDENCE says which source comes first"
        told = f'the plane/shop/domain: domain "shop" is already in {place}; {way}'
        assert [str(each) for each in loading.problems] == [told]
        assert plane.outcomes[-1] == ("p2", [told])
        files.put_domains("f2", blog="day")
        await until(lambda: versions(loading) == ["f2", "p2"], "what was refused is in force")
        assert sources_of(loading) == {"blog": "files", "mail": "xds", "shop": "xds"}
        assert (loading.problems, plane.outcomes[-1]) == ((), ("p2", []))

    play_two(story)


@pytest.mark.parametrize(
    ("precedence", "source"), [((SourceKind.XDS,), "xds"), ((SourceKind.FILES, SourceKind.XDS), "files")]
)
def test_the_first_source_of_the_precedence_gives_a_domain_that_both_have(
    precedence: tuple[SourceKind, ...], source: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def story(_: Api, plane: Api, loading: Loading) -> None:
        plane.put_domains("p2", mail="hour", shop="hour")
        await until(lambda: versions(loading) == ["f1", "p2"], "it is loaded")
        assert sources_of(loading) == {"mail": "xds", "shop": source}

    play_two(story, *precedence)
    passed_over, taken = ("rules", "the plane") if source == "xds" else ("the plane", "rules")
    assert f'{passed_over}/shop/domain: domain "shop" comes from {taken}/shop/domain' in caplog.messages


def test_at_the_start_a_source_that_cannot_be_read_is_missing_and_wrong_rules_are_waited_for() -> None:
    async def run() -> None:
        files, plane = Api("rules", SourceKind.FILES), Api("the plane", SourceKind.XDS)
        loading = Loading([files, plane], parse, lambda _: None)
        files.put_domains("f1", shop="fortnight")
        plane.put_domains("p1", mail="day")
        await loading.load()
        assert (loading.book, [len(feed.problems) for feed in loading.feeds]) == (None, [1, 0])

        loading = Loading([files, plane], parse, lambda _: None)
        files.put_domains("f1", shop="day")
        plane.queue.put_nowait((Problem("the plane", 0, 0, "does not answer"),))
        await loading.load()
        assert sources_of(loading) == {"shop": "files"}
        assert [str(each) for each in loading.problems] == ["the plane: does not answer"]

    asyncio.run(run())


def test_only_rules_files_may_name_data_files() -> None:
    named = {"domain": "shop", "lookup": [{"key": "user", "from": "/etc/passwd", "as": "plan"}]}
    with pytest.raises(RulesError) as raised:
        parse([JsonRules("shop", json.dumps(named).encode())])
    message = "from: only rules files can name data files; write the values here"
    assert message in [each.message for each in raised.value.problems]
