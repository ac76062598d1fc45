"""Keeps the book up to date with the sources of rules, and swaps it; on error the old book stays.

A load runs in a thread; the loop only publishes the finished book.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from ratelimit_service.errors import Problem, RulesError
from ratelimit_service.rules.book import RuleBook, free_books
from ratelimit_service.rules.checks.lint import lint
from ratelimit_service.rules.checks.region_notes import without_effect
from ratelimit_service.rules.rule import plural
from ratelimit_service.rules.sources.source import Documents, Given, RuleSource
from ratelimit_service.rules.syntax.document import Document
from ratelimit_service.settings.fields import SourceKind
from ratelimit_service.system.background import DaemonExecutor
from ratelimit_service.system.clock import Clock, system_clock
from ratelimit_service.telemetry.logs import about

log = logging.getLogger(__name__)

Parse = Callable[..., RuleBook]
"""`parse`, with the options of the operator's."""

_PAUSE_SECONDS: Final = 1.0
"""After an error that no source should have."""

_MAX_LOGGED: Final = 20
"""Problems of one load in the log; the page has all."""


class Feed:
    """A source, and what became of what it gave."""

    def __init__(self, source: RuleSource) -> None:
        self.source = source
        self.good: Documents | None = None
        """Those of the book."""
        self.waiting: Documents | None = None
        """Newer ones, which are not those of the book: they were refused, or are being loaded."""
        self.problems: tuple[Problem, ...] = ()
        """Why what it has now is not in force; empty while it is."""
        self.last_success: int | None = None

    @property
    def newest(self) -> Documents | None:
        """What it gave last."""
        return self.good if self.waiting is None else self.waiting

    @property
    def version(self) -> str:
        """That of its documents in force; empty while there are none."""
        return "" if self.good is None else self.good.version


Candidate = Mapping[Feed, Documents]
"""The documents of a book, by the source that they are from."""


class Loading:
    """Loads what the sources give, and calls `publish` with each new book. Once a book is loaded, there is always one.

    Laws:

    1. The book has all documents that a source gave at one time, or none of them.
    2. These are the newest that are good beside those of the other sources. What was refused is tried again whenever
       another source gives something new.
    3. There is no book before all sources that could be read have given good documents.
    """

    def __init__(
        self,
        sources: Sequence[RuleSource],
        parse: Parse,
        publish: Callable[[RuleBook], None],
        *,
        clock: Clock = system_clock,
    ) -> None:
        self.feeds = tuple(Feed(source) for source in sources)
        self.book: RuleBook | None = None
        self.successes = 0
        self.failures = 0
        self.last_success: int | None = None
        self.last_failure: int | None = None
        self.failing_since: int | None = None
        """The time of the first failure since the documents of all sources were good."""
        self._parse = parse
        self._publish = publish
        self._clock = clock
        self._thread = DaemonExecutor()
        self._one_at_a_time = asyncio.Lock()

    @property
    def name(self) -> str:
        """The names of the sources."""
        return " and ".join(feed.source.name for feed in self.feeds)

    @property
    def documents(self) -> Sequence[Document] | None:
        """Those of the book; None while there is none."""
        if self.book is None:
            return None
        return [each for feed in self.feeds if feed.good is not None for each in feed.good.documents]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why what the sources have now is not in force; empty while the book is up to date."""
        return tuple(problem for feed in self.feeds for problem in feed.problems)

    async def load(self, *, required: bool = False) -> None:
        """Load what the sources have. With `required`, raises StartError if one does not exist."""
        given = await asyncio.gather(*(feed.source.read(required=required) for feed in self.feeds))
        await self._load(dict(zip(self.feeds, given, strict=True)))

    async def run(self) -> None:
        """Load each change until cancelled."""
        try:
            async with asyncio.TaskGroup() as following:
                for feed in self.feeds:
                    following.create_task(self._follow(feed))
        finally:
            for feed in self.feeds:
                feed.source.close()

    def reload(self) -> None:
        """Make `run` load what the sources have now, changed or not."""
        for feed in self.feeds:
            feed.source.refresh()

    async def _follow(self, feed: Feed) -> None:
        while True:
            try:
                await self._load({feed: await feed.source.changed()})
            except Exception:
                log.exception("reading the rules failed; the next attempt is in %g s", _PAUSE_SECONDS)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _load(self, given: Mapping[Feed, Given]) -> None:
        async with self._one_at_a_time:
            for feed, each in given.items():
                feed.waiting = each if isinstance(each, Documents) else None
                if not isinstance(each, Documents) and each:
                    self._reject(feed, each)
            changed = [feed for feed, each in given.items() if isinstance(each, Documents)]
            if changed:
                await self._load_newest(changed)

    async def _load_newest(self, changed: Sequence[Feed]) -> None:
        newest = {feed: feed.newest for feed in self.feeds if feed.newest is not None}
        found = await self._parsed(newest)
        waiting = [*changed, *(feed for feed in self.feeds if feed.waiting is not None and feed not in changed)]
        if isinstance(found, RuleBook):
            await self._accept(found, newest)
        elif len(waiting) == 1:
            self._reject(waiting[0], found)
        else:
            await self._load_each(waiting, len(changed))
            if self.book is None and not any(feed.problems for feed in waiting):
                self._reject(waiting[-1], found)

    async def _load_each(self, waiting: Sequence[Feed], changed: int) -> None:
        """Load the newest documents of one source after the other beside the good ones of the others.

        Those of the first `changed` are new; of the others only what was not said before is.
        """
        for number, feed in enumerate(waiting):
            assert feed.waiting is not None
            candidate = {each: each.good for each in self.feeds if each.good is not None} | {feed: feed.waiting}
            found = await self._parsed(candidate)
            if not isinstance(found, RuleBook):
                if number < changed or found != feed.problems:
                    self._reject(feed, found)
            elif self.book is not None:
                await self._accept(found, candidate)

    async def _parsed(self, candidate: Candidate) -> RuleBook | tuple[Problem, ...]:
        documents = [each for given in candidate.values() for each in given.documents]
        # Only files name data files.
        read_data = next((given.read_data for given in candidate.values() if given.read_data is not None), _no_data)
        parse = partial(self._parse, documents, previous=self.book, read_data=read_data)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, parse)
        except RulesError as error:
            return error.problems

    async def _accept(self, book: RuleBook, candidate: Candidate) -> None:
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._thread)
        warnings = len(await in_thread(lint, book))
        old = [] if self.book is None else [self.book]
        self.book, now = book, self._clock()
        new = [feed for feed, given in candidate.items() if feed.waiting is given]
        for feed in new:
            feed.good, feed.waiting, feed.problems, feed.last_success = feed.waiting, None, (), now
        self.successes += 1
        self.last_success = now
        if not self.problems:
            self.failing_since = None
        self._publish(book)
        for feed in new:
            self._log_accepted(feed, book, warnings)
            feed.source.loaded(feed.version, ())
        if (idle := without_effect(book)) is not None:
            log.warning("%s", idle.note)
        for passed_over in book.passed_over:
            log.info("%s", passed_over)
        await in_thread(free_books, old)

    def _log_accepted(self, feed: Feed, book: RuleBook, warnings: int) -> None:
        files = len(feed.good.documents) if feed.good is not None else 0
        check = ": see `ratelimit check`" if feed.source.kind is SourceKind.FILES else ""
        log.info(
            "rules loaded from %s: %s in %s, %s%s%s",
            feed.source.name,
            plural(len(book.rules), "rule"),
            plural(len(book.domains), "domain"),
            plural(files, feed.source.noun),
            f", {plural(len(book.data), 'data file')}" if book.data else "",
            f", {plural(warnings, 'warning')}{check}" if warnings else "",
            extra=about(
                "rules_loaded",
                path=feed.source.name,
                rules=len(book.rules),
                domains=len(book.domains),
                files=files,
                data_files=len(book.data),
                warnings=warnings,
            ),
        )

    def _reject(self, feed: Feed, problems: tuple[Problem, ...]) -> None:
        if feed.waiting is not None:
            feed.source.loaded(feed.waiting.version, problems)
        feed.problems = problems
        self.failures += 1
        self.last_failure = self._clock()
        if self.failing_since is None:
            self.failing_since = self.last_failure
        lines = [str(problem) for problem in problems[:_MAX_LOGGED]]
        if len(problems) > _MAX_LOGGED:
            lines.append(f"and {len(problems) - _MAX_LOGGED} more")
        kept = "the old rules stay" if self.book is not None else "there are none yet, calls are refused"
        fields = about("rules_refused", path=feed.source.name, problems=lines)
        log.error("rules not loaded, %s:\n  %s", kept, "\n  ".join(lines), extra=fields)


def _no_data(path: str) -> bytes:
    raise FileNotFoundError(path)
