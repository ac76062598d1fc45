"""The source of rules that are files: polls them for changes.

The files are read whole once a second and compared by content, so every kind of change is noticed: written in place,
renamed into place, added, removed, or a ConfigMap whose symlink is swapped. Change notification (inotify) would miss
some of these, and save nothing that can be measured. Data files may be large: those that the last load asked for are
polled with the rules, and read again when their `stat` has changed.

A file that is renamed into place is whole, and so is a folder to which a link is turned. What is written in place is
taken when it has not changed for a while: half of it may be valid too.

A read of the files that hangs, as on a network file system whose server is gone, counts as a failed load, and delays
neither start nor stop.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from ratelimit_service.errors import Problem, RulesError, StartError
from ratelimit_service.rules.sources.data_reads import DataRead, DataReads, Inode, reread
from ratelimit_service.rules.sources.source import Documents, Given
from ratelimit_service.rules.sources.yaml_text import MAX_BYTES, YamlText
from ratelimit_service.settings.fields import SourceKind
from ratelimit_service.system.background import DaemonExecutor
from ratelimit_service.system.disk import read_file


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """The result of a read: the rules files, and the data files that the last load asked for."""

    documents: Sequence[YamlText]
    data: Mapping[str, DataRead]
    inodes: Mapping[str, Inode] = field(default_factory=dict, compare=False)
    """Those of the rules files, by path."""


ReadResult = FoundFiles | tuple[Problem, ...]
"""The files, or why the rules files cannot be read."""

READ_TIMEOUT_SECONDS: Final = 10.0
"""Timeout of a read. A folder of rules takes milliseconds; on a network file system, perhaps a second."""

_UNCHANGED_SECONDS: Final = 0.1
"""All files are read again this long after a change, and loaded only if none changed in between."""
_QUIET_SECONDS: Final = 2.0
"""Seconds for which a data file that was written in place must not have changed, or a poll if that is longer: any part
of it is a valid list. Programs write what they copy in pieces, with pauses when they wait for the network."""
_CUT: Final = 3
"""So many times as long for a file whose last line has no end: most likely it goes on."""
_CHANGING_SECONDS: Final = 60.0
"""Files that have changed again and again for so long are a failed load, so that log and gauge show it."""

_COMMON_FOLDER: Final = "config"
"""A common name of the rules' folder, also in this repository; for a hint."""


class RulesFiles:
    """The rules in the files at `path`."""

    kind = SourceKind.FILES
    noun = "file"
    connection = None

    def __init__(
        self,
        path: Path,
        *,
        poll_seconds: float = 1.0,
        quiet_seconds: float = _QUIET_SECONDS,
        read_timeout_seconds: float = READ_TIMEOUT_SECONDS,
    ) -> None:
        self.name = str(path)
        self._path = path
        self._poll_seconds = poll_seconds
        self._quiet_seconds = max(poll_seconds, quiet_seconds)
        self._read_timeout_seconds = read_timeout_seconds
        self._seen: ReadResult | None = None
        self._changing: _Changing | None = None
        """What differs from what was seen, and is not taken yet."""
        self._data: Mapping[str, DataRead] = {}
        """The data files that the last load asked for, as they were read last."""
        self._now_reading = self.name
        self._refresh_requested = asyncio.Event()
        self._disk = DaemonExecutor()
        self._reading: asyncio.Future[ReadResult] | None = None
        """The read in progress, also one that has timed out."""

    async def read(self, *, required: bool = False) -> Given:
        """As RuleSource says."""
        return await self._give(await self._read(required=required))

    async def changed(self) -> Given:
        """As RuleSource says. After `refresh` the files are taken as they are."""
        while True:
            left = self._poll_seconds if self._changing is None else self._changing.unchanged_for
            try:
                await asyncio.wait_for(self._refresh_requested.wait(), min(self._poll_seconds, left))
            except TimeoutError:
                if self._reading is not None and not self._reading.done():
                    continue
            else:
                self._refresh_requested.clear()
                return await self.read()
            found = await self._read()
            if found is None or self._is_whole(found):
                return await self._give(found)
            changing = self._changing
            if changing is not None and changing.since - changing.began > _CHANGING_SECONDS:
                self._changing = changing._replace(began=changing.since)
                often = f"again and again for {_CHANGING_SECONDS:g} s"
                return (Problem(self.name, 0, 0, f"has files that change {often}: write them aside, and rename"),)

    def loaded(self, version: str, problems: tuple[Problem, ...]) -> None:
        """As RuleSource says."""

    def refresh(self) -> None:
        """As RuleSource says. A read that hangs is abandoned for a new one."""
        self._refresh_requested.set()

    def close(self) -> None:
        """As RuleSource says."""
        if self._reading is not None:
            self._reading.cancel()  # its thread may outlive the loop

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
        self._seen = None  # the next successful read is given, so that log and gauge show the recovery
        return None

    def _read_files(self, required: bool) -> ReadResult:
        """Read the files; in a thread."""
        self._now_reading = self.name
        if required:
            ensure_exists(self._path)
        try:
            files = read_files(self._path)
        except RulesError as error:
            return error.problems
        inodes = {file.name: _inode_of(file.name) for file in files}
        data = {}
        for path, before in list(self._data.items()):
            self._now_reading = path
            data[path] = reread(path, before)
        return FoundFiles(files, data, {path: inode for path, inode in inodes.items() if inode is not None})

    async def _give(self, found: ReadResult | None) -> Given:
        """The snapshot to load after this read."""
        if found is None:
            seconds = self._read_timeout_seconds
            problem = f"cannot be read: its file system has not answered for {seconds:g} s; SIGHUP tries again at once"
            return (Problem(self._now_reading, 0, 0, problem),)
        self._seen, self._changing = found, None
        if not isinstance(found, FoundFiles):
            return found
        reads = DataReads(found.data, self._read_timeout_seconds)
        self._data = reads.asked  # which the load fills: these are polled from now on
        self._seen = FoundFiles(found.documents, reads.asked, found.inodes)
        version = await asyncio.get_running_loop().run_in_executor(self._disk, _digest, found.documents)
        return Documents(found.documents, version, reads.read)

    def _is_whole(self, found: ReadResult) -> bool:
        """Whether what was found is another than what was seen, and has not changed for long enough to be taken."""
        now, changing = monotonic(), self._changing
        if found == self._seen:
            self._changing = None
            return False
        if changing is not None and found == changing.found:
            return now - changing.since >= changing.unchanged_for
        began = now if changing is None else changing.began
        self._changing = _Changing(found, now, began, self._unchanged_for(found))
        return False

    def _unchanged_for(self, found: ReadResult) -> float:
        """The seconds for which these files must not have changed."""
        if not isinstance(found, FoundFiles):
            return _UNCHANGED_SECONDS
        seen = self._seen if isinstance(self._seen, FoundFiles) else FoundFiles((), {})
        known = {file.name: file.text for file in seen.documents}
        seconds = _UNCHANGED_SECONDS
        for file in found.documents:
            inode = found.inodes.get(file.name)
            if known.get(file.name) != file.text and inode == seen.inodes.get(file.name, inode):
                seconds = max(seconds, self._poll_seconds)
        for path, data in found.data.items():
            before = seen.data.get(path)
            if data != before and (before is None or before.inode in (None, data.inode)):
                seconds = max(seconds, self._quiet_seconds * (_CUT if data.is_cut else 1))
        return seconds


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


def _digest(files: Sequence[YamlText]) -> str:
    digest = blake2b(digest_size=8)
    for file in files:
        digest.update(f"{file.name}\0{len(file.text)}\0".encode(errors="surrogateescape") + file.text)
    return digest.hexdigest()


def read_files(path: Path) -> list[YamlText]:
    """Every `*.yaml` and `*.yml` file below a folder, sorted by path; or the one file that `path` is.

    Files and folders whose names begin with a dot are ignored: Kubernetes has each ConfigMap twice, once below
    `..data`. Raises RulesError if there is no such file, and with everything that cannot be read, also folders that
    have such a name.
    """
    problems: list[Problem] = []
    found: list[YamlText] = []
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
            found.append(YamlText(str(file), text))
    if problems:
        raise RulesError(problems)
    return found


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
