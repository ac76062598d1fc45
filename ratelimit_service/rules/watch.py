"""Notices changed rules and swaps the book; on error the old book stays.

The files are read whole once a second and compared by content, so every way of changing them is seen: written in place,
renamed into place, added, removed, or a ConfigMap whose symlink is swapped. Change notification would miss some of
these, and save nothing that can be measured.

A load is all or nothing. It runs in a thread; the loop only publishes the finished book.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from ratelimit_service.clock import Clock, system_clock
from ratelimit_service.errors import Problem, RulesError
from ratelimit_service.rules.advice import advise
from ratelimit_service.rules.book import RuleBook, let_go
from ratelimit_service.rules.files import read_sources
from ratelimit_service.rules.source import Source
from ratelimit_service.rules.words import counted

log = logging.getLogger(__name__)

Parse = Callable[[Sequence[Source], RuleBook | None], RuleBook]

_SETTLE_SECONDS = 0.1
"""A changed file is read again after so long, and loaded only if it has not changed meanwhile: half a file can be good
YAML with half the rules."""
_MOST_LOOKS = 20

_MOST_LOGGED = 20
"""Problems of one load that the log has; the page has them all."""


class Watcher:
    """Keeps a book true to the files at `path`, and calls `publish` with each new one.

    Once a book is loaded, there is always one.
    """

    def __init__(
        self,
        path: Path,
        parse: Parse,
        publish: Callable[[RuleBook], None],
        *,
        poll_seconds: float = 1.0,
        clock: Clock = system_clock,
    ) -> None:
        self.path = path
        self.book: RuleBook | None = None
        self.sources: Sequence[Source] = ()
        """The files that the book was made of."""
        self.problems: tuple[Problem, ...] = ()
        """Why the files as they are now could not be loaded; empty while the book is true to them."""
        self.successes = 0
        self.failures = 0
        self.last_success: int | None = None
        self.last_failure: int | None = None
        self.failing_since: int | None = None
        """When the files were first found wrong since they were last good."""
        self._parse = parse
        self._publish = publish
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._seen: list[Source] | tuple[Problem, ...] | None = None
        self._asked = asyncio.Event()

    async def load(self) -> None:
        """Load the files as they are."""
        await self._load(await self._look())

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            asked = True
            try:
                await asyncio.wait_for(self._asked.wait(), self._poll_seconds)
            except TimeoutError:
                asked = False
            self._asked.clear()
            try:
                looked = await self._look()
                if asked:
                    await self._load(looked)
                elif looked != self._seen:
                    await self._load(await self._settled(looked))
            except Exception:
                log.exception("looking at the rules failed; the next look is in %g s", self._poll_seconds)

    def reload(self) -> None:
        """Have `run` load the files soon, changed or not."""
        self._asked.set()

    async def _look(self) -> list[Source] | tuple[Problem, ...]:
        try:
            return await asyncio.to_thread(read_sources, self.path)
        except RulesError as error:
            return error.problems

    async def _settled(self, looked: list[Source] | tuple[Problem, ...]) -> list[Source] | tuple[Problem, ...]:
        for _ in range(_MOST_LOOKS):
            await asyncio.sleep(_SETTLE_SECONDS)
            again = await self._look()
            if again == looked:
                break
            looked = again
        return looked

    async def _load(self, looked: list[Source] | tuple[Problem, ...]) -> None:
        self._seen = looked
        if isinstance(looked, tuple):
            self._refuse(looked)
        elif not looked:
            self._refuse((Problem(str(self.path), 0, 0, "has no *.yaml or *.yml file"),))
        else:
            try:
                book = await asyncio.to_thread(self._parse, looked, self.book)
            except RulesError as error:
                self._refuse(error.problems)
            else:
                old = [] if self.book is None else [self.book]
                self._accept(book, looked, len(await asyncio.to_thread(advise, book)))
                await asyncio.to_thread(let_go, old)

    def _accept(self, book: RuleBook, sources: Sequence[Source], warnings: int) -> None:
        self.book = book
        self.sources = sources
        self.problems = ()
        self.failing_since = None
        self.successes += 1
        self.last_success = self._clock()
        self._publish(book)
        log.info(
            "rules loaded from %s: %s in %s, %s%s",
            self.path,
            counted(len(book.rules), "rule"),
            counted(len(book.domains), "domain"),
            counted(len(sources), "file"),
            f", {counted(warnings, 'warning')}: see `ratelimit check`" if warnings else "",
        )

    def _refuse(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        self.failures += 1
        self.last_failure = self._clock()
        if self.failing_since is None:
            self.failing_since = self.last_failure
        lines = [str(problem) for problem in problems[:_MOST_LOGGED]]
        if len(problems) > _MOST_LOGGED:
            lines.append(f"and {len(problems) - _MOST_LOGGED} more")
        kept = "the old rules stay" if self.book is not None else "there are none yet, calls are refused"
        log.error("rules not loaded, %s:\n  %s", kept, "\n  ".join(lines))
