"""Reads the rules files, watches them for changes, and swaps the book; on error the old book stays.

The files are read whole once a second and compared by content, so every kind of change is noticed: written in place,
renamed into place, added, removed, or a ConfigMap whose symlink is swapped. Change notification (inotify) would miss
some of these, and save nothing that can be measured.

A load is all or nothing. It runs in a thread; the loop only publishes the finished book. A read of the files that
hangs, as on a network file system whose server is gone, counts as a failed load, and delays neither start nor stop.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ratelimit_service.errors import Problem, RulesError, StartError
from ratelimit_service.rules.book import RuleBook, free_books
from ratelimit_service.rules.document import MAX_BYTES, Source
from ratelimit_service.rules.lint import lint
from ratelimit_service.rules.rule import plural
from ratelimit_service.system.background import DaemonExecutor
from ratelimit_service.system.clock import Clock, system_clock
from ratelimit_service.system.disk import read_file

_USUAL: Final = "config"
"""Where rules are in many a repository, this one among them."""


def read_sources(path: Path) -> list[Source]:
    """Every `*.yaml` and `*.yml` file below a folder, in the order of their paths, or the one file that `path` is.

    Names that begin with a dot are passed over, of files and of folders: Kubernetes keeps each ConfigMap twice, once
    below `..data`. Raises RulesError with all that cannot be read, and with all of these names that are no files.
    """
    problems: list[Problem] = []
    sources: list[Source] = []
    for file in _rules_files(path, problems) if path.is_dir() else [path]:
        try:
            text = read_file(file, MAX_BYTES + 1)
        except OSError as error:
            problems.append(_unreadable(file, error))
        else:
            if len(text) > MAX_BYTES:
                problems.append(Problem(str(file), 0, 0, f"is larger than {MAX_BYTES >> 20} MiB; split it"))
            sources.append(Source(str(file), text))
    if problems:
        raise RulesError(problems)
    return sources


def ensure_there(path: Path) -> None:
    """StartError when there is nothing at the path that the operator named, or did not name."""
    if not path.exists():
        hint = f", such as --rules {_USUAL}" if Path(_USUAL).is_dir() else ""
        raise StartError(
            f"there are no rules: {path} does not exist; say where they are with --rules or RULES_PATH{hint}"
        )


def _rules_files(folder: Path, problems: list[Problem]) -> list[Path]:
    found: list[Path] = []
    walked: set[str] = set()
    for root, folders, files in os.walk(
        folder,
        onerror=lambda error: problems.append(_unreadable(Path(error.filename), error)),
        followlinks=True,
    ):
        real = os.path.realpath(root)
        if real in walked:  # a symlink that leads back to a folder above it
            folders.clear()
            continue
        walked.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        # A folder with such a name is refused as what it is: Docker makes one where a file to mount is missing.
        found += [Path(root, name) for name in files + folders if _is_rules_file(name)]
        folders[:] = [name for name in folders if not _is_rules_file(name)]
    return sorted(found)


def _is_rules_file(name: str) -> bool:
    return not name.startswith(".") and name.endswith((".yaml", ".yml"))


def _unreadable(path: Path, error: OSError) -> Problem:
    return Problem(str(path), 0, 0, f"cannot be read: {(error.strerror or str(error)).lower()}")


log = logging.getLogger(__name__)

Parse = Callable[[Sequence[Source], RuleBook | None], RuleBook]
Looked = list[Source] | tuple[Problem, ...]
"""What a look found: the files, or why they cannot be read."""

PATIENCE_SECONDS: Final = 10.0
"""How long a look may take. A folder of rules takes milliseconds; on a network file system, perhaps a second."""

_SETTLE_SECONDS = 0.1
"""A changed file is read again after so long, and loaded only if it has not changed meanwhile: half a file can be good
YAML with half the rules."""
_MAX_READS = 20

_MAX_LOGGED = 20
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
        for _ in range(_MAX_READS):
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
                self._accept(book, looked, len(await in_thread(lint, book)))
                await in_thread(free_books, old)

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
            plural(len(book.rules), "rule"),
            plural(len(book.domains), "domain"),
            plural(len(sources), "file"),
            f", {plural(warnings, 'warning')}: see `ratelimit check`" if warnings else "",
        )

    def _refuse(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        self.failures += 1
        self.last_failure = self._clock()
        if self.failing_since is None:
            self.failing_since = self.last_failure
        lines = [str(problem) for problem in problems[:_MAX_LOGGED]]
        if len(problems) > _MAX_LOGGED:
            lines.append(f"and {len(problems) - _MAX_LOGGED} more")
        kept = "the old rules stay" if self.book is not None else "there are none yet, calls are refused"
        log.error("rules not loaded, %s:\n  %s", kept, "\n  ".join(lines))


def _look(path: Path, required: bool) -> Looked:
    if required:
        ensure_there(path)
    try:
        return read_sources(path)
    except RulesError as error:
        return error.problems
