"""Reads the rules files, watches them for changes, and swaps the book; on error the old book stays.

The files are read whole once a second and compared by content, so every kind of change is noticed: written in place,
renamed into place, added, removed, or a ConfigMap whose symlink is swapped. Change notification (inotify) would miss
some of these, and save nothing that can be measured. Data files may be large: those that the last load asked for are
polled with the rules, and read again when their `stat` has changed.

A load is all or nothing. It runs in a thread; the loop only publishes the finished book. A read of the files that
hangs, as on a network file system whose server is gone, counts as a failed load, and delays neither start nor stop.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from ratelimit_service.errors import Problem, RulesError, StartError
from ratelimit_service.rules.book import RuleBook, free_books
from ratelimit_service.rules.checks.lint import lint
from ratelimit_service.rules.checks.regions import without_effect
from ratelimit_service.rules.data_files import ReadData
from ratelimit_service.rules.files.data_reads import DataRead, DataReads, reread
from ratelimit_service.rules.rule import plural
from ratelimit_service.rules.syntax.document import MAX_BYTES, Source
from ratelimit_service.system.background import DaemonExecutor
from ratelimit_service.system.clock import Clock, system_clock
from ratelimit_service.system.disk import read_file
from ratelimit_service.telemetry.logs import about

log = logging.getLogger(__name__)

Parse = Callable[[Sequence[Source], RuleBook | None, ReadData], RuleBook]
"""Makes a book of the files, the book before, and a reader of data files."""


class FoundFiles(NamedTuple):
    """What a read found: the rules files, and the data files that the last load asked for."""

    sources: list[Source]
    data: Mapping[str, DataRead]


ReadResult = FoundFiles | tuple[Problem, ...]
"""The files, or why the rules files cannot be read."""

READ_TIMEOUT_SECONDS: Final = 10.0
"""Timeout of a read. A folder of rules takes milliseconds; on a network file system, perhaps a second."""

_UNCHANGED_SECONDS = 0.1
"""A changed file is read again after this time, and loaded only if it did not change in between: a file that is not yet
complete can be valid YAML with some of the rules."""
_MAX_READS = 20

_MAX_LOGGED = 20
"""Problems of one load in the log; the page has all."""

_COMMON_FOLDER: Final = "config"
"""A common name of the rules' folder, also in this repository; for a hint."""


class Watcher:
    """Keeps the book up to date with the files at `path`, and calls `publish` with each new book.

    Once a book is loaded, there is always one.
    """

    def __init__(
        self,
        path: Path,
        parse: Parse,
        publish: Callable[[RuleBook], None],
        *,
        poll_seconds: float = 1.0,
        read_timeout_seconds: float = READ_TIMEOUT_SECONDS,
        clock: Clock = system_clock,
    ) -> None:
        self.path = path
        self.book: RuleBook | None = None
        self.sources: Sequence[Source] = ()
        """The files of the book."""
        self.problems: tuple[Problem, ...] = ()
        """Why the current files could not be loaded; empty while the book is up to date."""
        self.successes = 0
        self.failures = 0
        self.last_success: int | None = None
        self.last_failure: int | None = None
        self.failing_since: int | None = None
        """The time of the first failure since the last success."""
        self._parse = parse
        self._publish = publish
        self._poll_seconds = poll_seconds
        self._read_timeout_seconds = read_timeout_seconds
        self._clock = clock
        self._seen: ReadResult | None = None
        self._data: Mapping[str, DataRead] = {}
        """The data files that the last load asked for, as they were read last."""
        self._now_reading = str(path)
        self._reload_requested = asyncio.Event()
        self._disk = DaemonExecutor()
        self._reading: asyncio.Future[ReadResult] | None = None
        """The read in progress, also one that has timed out."""

    async def load(self, *, required: bool = False) -> None:
        """Load the files. With `required`, raises StartError if the path does not exist."""
        await self._load(await self._read(required=required))

    async def run(self) -> None:
        """Poll the files until cancelled."""
        try:
            await self._run()
        finally:
            if self._reading is not None:
                self._reading.cancel()  # its thread may outlive the loop

    async def _run(self) -> None:
        while True:
            requested = True
            try:
                await asyncio.wait_for(self._reload_requested.wait(), self._poll_seconds)
            except TimeoutError:
                requested = False
            self._reload_requested.clear()
            if self._reading is not None and not self._reading.done() and not requested:
                continue
            try:
                found = await self._read()
                if requested:
                    await self._load(found)
                elif found is not None and found != self._seen:
                    await self._load(await self._wait_until_unchanged(found))
            except Exception:
                log.exception("reading the rules failed; the next attempt is in %g s", self._poll_seconds)

    def reload(self) -> None:
        """Make `run` load the files now, changed or not. A read that hangs is abandoned for a new one."""
        self._reload_requested.set()

    async def _read(self, *, required: bool = False) -> ReadResult | None:
        """Read the files; None if that takes too long."""
        if self._reading is not None and not self._reading.done():
            self._disk = DaemonExecutor()  # the path may lead to another file system now
        read = self._reading = asyncio.get_running_loop().run_in_executor(self._disk, self._read_files, required)
        await asyncio.wait([read], timeout=self._read_timeout_seconds)
        if read.done():
            self._reading = None
            found = read.result()
            if isinstance(found, FoundFiles):
                self._data = found.data
            return found
        self._seen = None  # the next successful read is loaded, so that log and gauge show the recovery
        seconds = self._read_timeout_seconds
        problem = f"cannot be read: its file system has not answered for {seconds:g} s; SIGHUP tries again at once"
        self._reject((Problem(self._now_reading, 0, 0, problem),))
        return None

    def _read_files(self, required: bool) -> ReadResult:
        """Read the files; in a thread."""
        self._now_reading = str(self.path)
        if required:
            ensure_exists(self.path)
        try:
            sources = read_sources(self.path)
        except RulesError as error:
            return error.problems
        data = {}
        for path, before in self._data.items():
            self._now_reading = path
            data[path] = reread(path, before)
        return FoundFiles(sources, data)

    async def _wait_until_unchanged(self, found: ReadResult) -> ReadResult | None:
        for _ in range(_MAX_READS):
            await asyncio.sleep(_UNCHANGED_SECONDS)
            again = await self._read()
            if again is None or again == found:
                return again
            found = again
        return found

    async def _load(self, found: ReadResult | None) -> None:
        if found is None:
            return
        self._seen = found
        if not isinstance(found, FoundFiles):
            self._reject(found)
            return
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._disk)
        data = DataReads(found.data, self._read_timeout_seconds)
        try:
            book = await in_thread(self._parse, found.sources, self.book, data.read)
        except RulesError as error:
            self._reject(error.problems)
        else:
            old = [] if self.book is None else [self.book]
            self._accept(book, found.sources, len(await in_thread(lint, book)))
            await in_thread(free_books, old)
        finally:
            self._data = data.asked
            self._seen = FoundFiles(found.sources, data.asked)

    def _accept(self, book: RuleBook, sources: Sequence[Source], warnings: int) -> None:
        self.book = book
        self.sources = sources
        self.problems = ()
        self.failing_since = None
        self.successes += 1
        self.last_success = self._clock()
        self._publish(book)
        log.info(
            "rules loaded from %s: %s in %s, %s%s%s",
            self.path,
            plural(len(book.rules), "rule"),
            plural(len(book.domains), "domain"),
            plural(len(sources), "file"),
            f", {plural(len(book.data), 'data file')}" if book.data else "",
            f", {plural(warnings, 'warning')}: see `ratelimit check`" if warnings else "",
            extra=about(
                "rules_loaded",
                path=str(self.path),
                rules=len(book.rules),
                domains=len(book.domains),
                files=len(sources),
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
        fields = about("rules_refused", path=str(self.path), problems=lines)
        log.error("rules not loaded, %s:\n  %s", kept, "\n  ".join(lines), extra=fields)


def read_sources(path: Path) -> list[Source]:
    """Every `*.yaml` and `*.yml` file below a folder, sorted by path; or the one file that `path` is.

    Files and folders whose names begin with a dot are ignored: Kubernetes has each ConfigMap twice, once below
    `..data`. Raises RulesError if there is no such file, and with everything that cannot be read, also folders that
    have such a name.
    """
    problems: list[Problem] = []
    sources: list[Source] = []
    files = _rules_files(path, problems) if path.is_dir() else [path]
    if not files and not problems:
        problems.append(Problem(str(path), 0, 0, "has no *.yaml or *.yml file"))
    for file in files:
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


def ensure_exists(path: Path) -> None:
    """Raise a StartError if the path of the rules does not exist."""
    if not path.exists():
        hint = f", such as --rules {_COMMON_FOLDER}" if Path(_COMMON_FOLDER).is_dir() else ""
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
        if real in walked:  # a symlink to a folder above it
            folders.clear()
            continue
        walked.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        # A folder with such a name is an error: Docker creates one if the file of a bind mount is missing.
        found += [Path(root, name) for name in files + folders if _is_rules_file(name)]
        folders[:] = [name for name in folders if not _is_rules_file(name)]
    return sorted(found)


def _is_rules_file(name: str) -> bool:
    return not name.startswith(".") and name.endswith((".yaml", ".yml"))


def _unreadable(path: Path, error: OSError) -> Problem:
    return Problem(str(path), 0, 0, f"cannot be read: {(error.strerror or str(error)).lower()}")
