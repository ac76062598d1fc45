"""Notices changed rules and swaps the book; on error the old book stays.

The files are read whole once a second and compared by content, so every way of changing them is seen: written in place,
renamed into place, added, removed, or a ConfigMap whose symlink is swapped. Change notification would miss some of
these, and save nothing that can be measured.

A load is all or nothing. It runs in a thread; the loop only publishes the finished book. A look at the files that
hangs, as on a network file system whose server is gone, counts as a failed load, and holds up neither a start nor the
end.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ratelimit_service.errors import Problem, RulesError
from ratelimit_service.rules.advice import advise
from ratelimit_service.rules.book import RuleBook, let_go
from ratelimit_service.rules.files import ensure_there, read_sources
from ratelimit_service.rules.source import Source
from ratelimit_service.rules.words import counted
from ratelimit_service.system.background import DaemonExecutor
from ratelimit_service.system.clock import Clock, system_clock

log = logging.getLogger(__name__)

Parse = Callable[[Sequence[Source], RuleBook | None], RuleBook]
Looked = list[Source] | tuple[Problem, ...]
"""What a look found: the files, or why they cannot be read."""

PATIENCE_SECONDS: Final = 10.0
"""How long a look may take. A folder of rules takes milliseconds; on a network file system, perhaps a second."""

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
        patience_seconds: float = PATIENCE_SECONDS,
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
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._seen: Looked | None = None
        self._asked = asyncio.Event()
        self._disk = DaemonExecutor()
        self._looking: asyncio.Future[Looked] | None = None
        """A look that goes on; between looks, one that took too long."""

    async def load(self, *, required: bool = False) -> None:
        """Load the files as they are. With `required`, StartError when there is nothing at the path."""
        await self._load(await self._look(required=required))

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        try:
            await self._run()
        finally:
            if self._looking is not None:
                self._looking.cancel()  # its thread may go on when there is no loop any more

    async def _run(self) -> None:
        while True:
            asked = True
            try:
                await asyncio.wait_for(self._asked.wait(), self._poll_seconds)
            except TimeoutError:
                asked = False
            self._asked.clear()
            if self._looking is not None and not self._looking.done() and not asked:
                continue
            try:
                looked = await self._look()
                if asked:
                    await self._load(looked)
                elif looked is not None and looked != self._seen:
                    await self._load(await self._settled(looked))
            except Exception:
                log.exception("looking at the rules failed; the next look is in %g s", self._poll_seconds)

    def reload(self) -> None:
        """Have `run` load the files soon, changed or not. A look that hangs is given up for a new one."""
        self._asked.set()

    async def _look(self, *, required: bool = False) -> Looked | None:
        """What is on disk; None when it hangs."""
        if self._looking is not None and not self._looking.done():
            self._disk = DaemonExecutor()  # perhaps the path leads to another file system now
        look = self._looking = asyncio.get_running_loop().run_in_executor(self._disk, _look, self.path, required)
        await asyncio.wait([look], timeout=self._patience_seconds)
        if look.done():
            self._looking = None
            return look.result()
        self._seen = None  # whatever is found when it goes on is loaded, so that the log and the gauge say that it did
        seconds = self._patience_seconds
        problem = f"cannot be read: its file system has not answered for {seconds:g} s; SIGHUP tries again at once"
        self._refuse((Problem(str(self.path), 0, 0, problem),))
        return None

    async def _settled(self, looked: Looked) -> Looked | None:
        for _ in range(_MOST_LOOKS):
            await asyncio.sleep(_SETTLE_SECONDS)
            again = await self._look()
            if again is None or again == looked:
                return again
            looked = again
        return looked

    async def _load(self, looked: Looked | None) -> None:
        if looked is None:
            return
        self._seen = looked
        if isinstance(looked, tuple):
            self._refuse(looked)
        elif not looked:
            self._refuse((Problem(str(self.path), 0, 0, "has no *.yaml or *.yml file"),))
        else:
            in_thread = partial(asyncio.get_running_loop().run_in_executor, self._disk)
            try:
                book = await in_thread(self._parse, looked, self.book)
            except RulesError as error:
                self._refuse(error.problems)
            else:
                old = [] if self.book is None else [self.book]
                self._accept(book, looked, len(await in_thread(advise, book)))
                await in_thread(let_go, old)

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


def _look(path: Path, required: bool) -> Looked:
    if required:
        ensure_there(path)
    try:
        return read_sources(path)
    except RulesError as error:
        return error.problems
