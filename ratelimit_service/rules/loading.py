"""Keeps the book up to date with a source of rules, and swaps it; on error the old book stays.

A load is all or nothing. It runs in a thread; the loop only publishes the finished book.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ratelimit_service.errors import Problem, RulesError
from ratelimit_service.rules.book import RuleBook, free_books
from ratelimit_service.rules.checks.lint import lint
from ratelimit_service.rules.checks.region_notes import without_effect
from ratelimit_service.rules.rule import plural
from ratelimit_service.rules.sources.source import Documents, Given, RuleSource
from ratelimit_service.rules.syntax.document import Document
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


class Loading:
    """Loads what `source` gives, and calls `publish` with each new book. Once a book is loaded, there is always one."""

    def __init__(
        self,
        source: RuleSource,
        parse: Parse,
        publish: Callable[[RuleBook], None],
        *,
        clock: Clock = system_clock,
    ) -> None:
        self.source = source
        self.book: RuleBook | None = None
        self.documents: Sequence[Document] = ()
        """Those of the book."""
        self.version = ""
        """Theirs, as the source says it."""
        self.problems: tuple[Problem, ...] = ()
        """Why the current documents could not be loaded; empty while the book is up to date."""
        self.successes = 0
        self.failures = 0
        self.last_success: int | None = None
        self.last_failure: int | None = None
        self.failing_since: int | None = None
        """The time of the first failure since the last success."""
        self._parse = parse
        self._publish = publish
        self._clock = clock
        self._thread = DaemonExecutor()

    async def load(self, *, required: bool = False) -> None:
        """Load what the source has. With `required`, raises StartError if the source does not exist."""
        await self._load(await self.source.read(required=required))

    async def run(self) -> None:
        """Load each change until cancelled."""
        try:
            while True:
                try:
                    await self._load(await self.source.changed())
                except Exception:
                    log.exception("reading the rules failed; the next attempt is in %g s", _PAUSE_SECONDS)
                    await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            self.source.close()

    def reload(self) -> None:
        """Make `run` load what the source has now, changed or not."""
        self.source.refresh()

    async def _load(self, given: Given) -> None:
        if not isinstance(given, Documents):
            self._reject(given)
            return
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._thread)
        try:
            book = await in_thread(partial(self._parse, given.documents, previous=self.book, read_data=given.read_data))
        except RulesError as error:
            self._reject(error.problems)
        else:
            old = [] if self.book is None else [self.book]
            self._accept(book, given, len(await in_thread(lint, book)))
            await in_thread(free_books, old)

    def _accept(self, book: RuleBook, given: Documents, warnings: int) -> None:
        self.book = book
        self.documents, self.version, _ = given
        self.problems = ()
        self.failing_since = None
        self.successes += 1
        self.last_success = self._clock()
        self._publish(book)
        log.info(
            "rules loaded from %s: %s in %s, %s%s%s",
            self.source.name,
            plural(len(book.rules), "rule"),
            plural(len(book.domains), "domain"),
            plural(len(self.documents), self.source.noun),
            f", {plural(len(book.data), 'data file')}" if book.data else "",
            f", {plural(warnings, 'warning')}: see `ratelimit check`" if warnings else "",
            extra=about(
                "rules_loaded",
                path=self.source.name,
                rules=len(book.rules),
                domains=len(book.domains),
                files=len(self.documents),
                data_files=len(book.data),
                warnings=warnings,
            ),
        )
        if (idle := without_effect(book)) is not None:
            log.warning("%s", idle.note)

    def _reject(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        self.failures += 1
        self.last_failure = self._clock()
        if self.failing_since is None:
            self.failing_since = self.last_failure
        lines = [str(problem) for problem in problems[:_MAX_LOGGED]]
        if len(problems) > _MAX_LOGGED:
            lines.append(f"and {len(problems) - _MAX_LOGGED} more")
        kept = "the old rules stay" if self.book is not None else "there are none yet, calls are refused"
        fields = about("rules_refused", path=self.source.name, problems=lines)
        log.error("rules not loaded, %s:\n  %s", kept, "\n  ".join(lines), extra=fields)
