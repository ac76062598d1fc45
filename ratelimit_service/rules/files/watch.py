"""Reads the rules files, watches them for changes, and swaps the book; on error the old book stays.

The files are read whole once a second and compared by content, so every kind of change is noticed: written in place,
renamed into place, added, removed, or a ConfigMap whose symlink is swapped. Change notification (inotify) would miss
some of these, and save nothing that can be measured. Data files may be large: those that the last load asked for are
polled with the rules, and read again when their `stat` has changed.

A file that is renamed into place is whole, and so is a folder to which a link is turned. What is written in place is
taken when it has not changed for a while: half of it may be valid too.

A load is all or nothing. It runs in a thread; the loop only publishes the finished book. A read of the files that
hangs, as on a network file system whose server is gone, counts as a failed load, and delays neither start nor stop.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from ratelimit_service.errors import Problem, RulesError, StartError
from ratelimit_service.rules.book import RuleBook, free_books
from ratelimit_service.rules.checks.lint import lint
from ratelimit_service.rules.checks.regions import without_effect
from ratelimit_service.rules.data_files import ReadData
from ratelimit_service.rules.files.data_reads import DataRead, DataReads, Inode, reread
from ratelimit_service.rules.rule import plural
from ratelimit_service.rules.sources.yaml_text import MAX_BYTES, YamlText
from ratelimit_service.system.background import DaemonExecutor
from ratelimit_service.system.clock import Clock, system_clock
from ratelimit_service.system.disk import read_file
from ratelimit_service.telemetry.logs import about

log = logging.getLogger(__name__)

Parse = Callable[[Sequence[YamlText], RuleBook | None, ReadData], RuleBook]
"""Makes a book of the files, the book before, and a reader of data files."""


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """What a read found: the rules files, and the data files that the last load asked for."""

    sources: Sequence[YamlText]
    data: Mapping[str, DataRead]
    inodes: Mapping[str, Inode] = field(default_factory=dict, compare=False)
    """Those of the rules files, by path."""


ReadResult = FoundFiles | tuple[Problem, ...]
"""The files, or why the rules files cannot be read."""

READ_TIMEOUT_SECONDS: Final = 10.0
"""Timeout of a read. A folder of rules takes milliseconds; on a network file system, perhaps a second."""

_UNCHANGED_SECONDS: Final = 0.1
"""All files are read again this long after a change, and loaded only if none changed in between."""
_SETTLED_SECONDS: Final = 2.0
"""How long a data file that was written in place must not have changed, or a poll if that is longer: any part of it is
a valid list. Programs write what they copy in pieces, with pauses when they wait for the network."""
_CUT: Final = 3
"""Times as long for one whose last line has no end: most likely it goes on."""
_CHANGING_SECONDS: Final = 60.0
"""Files that have changed again and again for so long are a failed load, so that log and gauge show it."""

_MAX_LOGGED = 20
"""Problems of one load in the log; the page has all."""

_COMMON_FOLDER: Final = "config"
"""A common name of the rules' folder, also in this repository; for a hint."""


class Watcher:
    """Keeps the book up to date with the files at `path`, and calls `publish` with each new book.

    Once a book is loaded, there is always one.
    """

    def __init__(  # noqa: PLR0913 - what it calls, and four times
        self,
        path: Path,
        parse: Parse,
        publish: Callable[[RuleBook], None],
        *,
        poll_seconds: float = 1.0,
        settled_seconds: float = _SETTLED_SECONDS,
        read_timeout_seconds: float = READ_TIMEOUT_SECONDS,
        clock: Clock = system_clock,
    ) -> None:
        self.path = path
        self.book: RuleBook | None = None
        self.sources: Sequence[YamlText] = ()
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
        self._settled_seconds = max(poll_seconds, settled_seconds)
        self._read_timeout_seconds = read_timeout_seconds
        self._clock = clock
        self._seen: ReadResult | None = None
        self._changing: _Changing | None = None
        """What differs from what was seen, and is not taken yet."""
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
            left = self._poll_seconds if self._changing is None else self._changing.unchanged_for
            try:
                await asyncio.wait_for(self._reload_requested.wait(), min(self._poll_seconds, left))
            except TimeoutError:
                requested = False
            self._reload_requested.clear()
            if self._reading is not None and not self._reading.done() and not requested:
                continue
            try:
                found = await self._read()
                if requested or (found is not None and self._is_whole(found)):
                    self._changing = None
                    await self._load(found)
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
        inodes = {source.name: _inode_of(source.name) for source in sources}
        data = {}
        for path, before in self._data.items():
            self._now_reading = path
            data[path] = reread(path, before)
        return FoundFiles(sources, data, {path: inode for path, inode in inodes.items() if inode is not None})

    def _is_whole(self, found: ReadResult) -> bool:
        """Whether what was found is another than what was seen, and has not changed for long enough to be taken."""
        now, changing = monotonic(), self._changing
        if found == self._seen:
            self._changing = None
            return False
        if changing is not None and found == changing.found:
            return now - changing.since >= changing.unchanged_for
        began = now if changing is None else changing.began
        if now - began > _CHANGING_SECONDS:
            began = now
            problem = f"has files that change again and again for {_CHANGING_SECONDS:g} s: write them aside, and rename"
            self._reject((Problem(str(self.path), 0, 0, problem),))
        self._changing = _Changing(found, now, began, self._unchanged_for(found))
        return False

    def _unchanged_for(self, found: ReadResult) -> float:
        """The seconds for which these files must not have changed."""
        if not isinstance(found, FoundFiles):
            return _UNCHANGED_SECONDS
        seen = self._seen if isinstance(self._seen, FoundFiles) else FoundFiles((), {})
        known = {source.name: source.text for source in seen.sources}
        seconds = _UNCHANGED_SECONDS
        for path, text in found.sources:
            if known.get(path) != text and found.inodes.get(path) == seen.inodes.get(path, found.inodes.get(path)):
                seconds = max(seconds, self._poll_seconds)
        for path, data in found.data.items():
            before = seen.data.get(path)
            if data != before and (before is None or before.inode in (None, data.inode)):
                seconds = max(seconds, self._settled_seconds * (_CUT if data.is_cut else 1))
        return seconds

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
            self._seen = FoundFiles(found.sources, data.asked, found.inodes)

    def _accept(self, book: RuleBook, sources: Sequence[YamlText], warnings: int) -> None:
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


class _Changing(NamedTuple):
    """Files that differ from what was seen."""

    found: ReadResult
    since: float
    """When they were found so."""
    began: float
    """When something was found to differ first."""
    unchanged_for: float
    """The seconds for which they must not change."""


def _inode_of(path: str) -> Inode | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def read_sources(path: Path) -> list[YamlText]:
    """Every `*.yaml` and `*.yml` file below a folder, sorted by path; or the one file that `path` is.

    Files and folders whose names begin with a dot are ignored: Kubernetes has each ConfigMap twice, once below
    `..data`. Raises RulesError if there is no such file, and with everything that cannot be read, also folders that
    have such a name.
    """
    problems: list[Problem] = []
    sources: list[YamlText] = []
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
            sources.append(YamlText(str(file), text))
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
