"""The rules of the API in a folder: a file for each domain, with the versions that are kept, the newest first.

Before each stands the number of its bytes on a line: what is in a version is copied, and not parsed.

A file is written aside, synced and renamed, so that a process that is killed leaves the old one or the new one. A lock
on the folder lets several processes write there. Each reads the files again when one has changed.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from time import monotonic, sleep
from typing import Final, ParamSpec, TypeVar
from urllib.parse import quote

from ratelimit_service.errors import RuleConflictError, StartError, StoreError
from ratelimit_service.rules.versions import (
    DELETED_FOR,
    MAX_DOCUMENT_BYTES,
    MAX_DOCUMENTS,
    MAX_PAST_BYTES,
    MAX_VERSIONS,
    RuleVersion,
    read_version,
)
from ratelimit_service.system.background import DaemonExecutor
from ratelimit_service.system.clock import Clock, system_clock
from ratelimit_service.system.disk import read_file

log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.7
"""Seconds between two looks for changes by other processes."""
_LOCK_SECONDS: Final = 2.0
_REPLY_SECONDS: Final = 5.0
_ENDING: Final = ".versions"
_NEW: Final = ".new"
_MAX_FILE: Final = MAX_PAST_BYTES + 2 * MAX_DOCUMENT_BYTES
"""Bytes."""

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Seen = Mapping[str, tuple[int, int, int]]
"""The inode, size and time of each file."""


class RulesFolder:
    """As RuleStore says, in this folder, which is made if it does not exist. StartError if it cannot be."""

    def __init__(self, folder: Path, clock: Clock = system_clock) -> None:
        self.name = f"the rules API ({folder})"
        self.known: Mapping[str, RuleVersion] | None = None
        self.trouble = ""
        self._folder = folder
        self._clock = clock
        self._thread = DaemonExecutor()
        self._written = asyncio.Event()
        self._seen: _Seen | None = None
        self._present: Mapping[str, RuleVersion | None] = {}
        """By the path of the file."""
        self._task: asyncio.Task[None] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with self._lock():
                pass
        except (OSError, StoreError) as error:
            raise StartError(f"RULES_STORE: {folder} cannot be written: {_reason(error)}") from error

    def start(self, on_change: Callable[[], object]) -> None:
        """As RuleStore says."""
        self._task = asyncio.get_running_loop().create_task(self._follow(on_change))

    async def present(self, domain: str) -> RuleVersion | None:
        """As RuleStore says."""
        versions = await self._run(self._read, self._path(domain))
        return versions[0] if versions and not self._is_over(versions[0]) else None

    async def put(self, made: RuleVersion) -> None:
        """As RuleStore says."""
        await self._run(self._put, made)
        self._written.set()

    async def past(self, domain: str) -> Sequence[RuleVersion]:
        """As RuleStore says."""
        versions = await self._run(self._read, self._path(domain))
        return versions if versions and not self._is_over(versions[0]) else ()

    async def close(self) -> None:
        """As RuleStore says."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, work: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
        """Do it in the thread. StoreError when the file system fails, or does not answer."""
        run = partial(work, *args, **options)
        try:
            async with asyncio.timeout(_REPLY_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._thread, run)
        except OSError as error:  # TimeoutError is one
            raise StoreError(f"{self._folder}: {_reason(error)}") from error

    async def _follow(self, on_change: Callable[[], object]) -> None:
        while True:
            try:
                found = await self._run(self._look)
            except StoreError as error:
                if not self.trouble:
                    log.warning("%s cannot be read: %s; those known stay", self.name, error)
                self.trouble = str(error)
            else:
                if self.trouble:
                    log.warning("%s is read again", self.name)
                self.trouble = ""
                if found is not None:
                    self.known = found
                    on_change()
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._written.wait()
            self._written.clear()

    def _look(self) -> Mapping[str, RuleVersion] | None:
        """The present versions by domain; None if no file has changed."""
        seen = {}
        for path in sorted(self._folder.glob(f"*{_ENDING}")):
            found = path.stat()
            seen[str(path)] = (found.st_ino, found.st_size, found.st_mtime_ns)
        if seen == self._seen:
            return None
        before = self._seen or {}
        self._present = {
            name: self._present[name] if before.get(name) == found else self._read_present(Path(name))
            for name, found in seen.items()
        }
        self._seen = seen
        present = [made for made in self._present.values() if made is not None and not self._is_over(made)]
        return {made.domain: made for made in present}

    def _read_present(self, path: Path) -> RuleVersion | None:
        return next(self._versions(path), None)

    def _put(self, made: RuleVersion) -> None:
        path = self._path(made.domain)
        with self._lock():
            versions = self._read(path)
            if versions and self._is_over(versions[0]):
                versions = []
            if (versions[0].version if versions else "") != made.replaces:
                raise RuleConflictError(f"{made.replaces or 'no document'} is not the present version")
            if not versions and self._count() >= MAX_DOCUMENTS:
                raise StoreError(
                    f"there are {MAX_DOCUMENTS:,} documents, those deleted lately included, which is the most"
                )
            written = _kept([each.written().encode() for each in (made, *versions)])
            fresh = path.with_suffix(_NEW)
            with open(fresh, "wb") as opened:  # noqa: PTH123 - to sync it
                opened.writelines(b"%d\n%b\n" % (len(each), each) for each in written)
                opened.flush()
                os.fsync(opened.fileno())
            fresh.rename(path)
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _read(self, path: Path) -> list[RuleVersion]:
        """The versions in a file, the newest first."""
        return list(self._versions(path))

    def _versions(self, path: Path) -> Iterator[RuleVersion]:
        try:
            content, at = read_file(path, _MAX_FILE), 0
            while at < len(content):
                end = content.index(b"\n", at) + 1
                size = int(content[at:end])
                yield read_version(content[end : end + size])
                at = end + size + 1
        except FileNotFoundError:
            return
        except ValueError as error:
            raise StoreError(f"{path} cannot be read: {error}") from error

    def _count(self) -> int:
        """The number of documents; the files of those deleted long ago are removed."""
        kept = 0
        for path in self._folder.glob(f"*{_ENDING}"):
            present = self._read_present(path)
            if present is not None and self._is_over(present):
                path.unlink()
            else:
                kept += 1
        return kept

    def _is_over(self, made: RuleVersion) -> bool:
        return made.deleted and made.at + DELETED_FOR <= self._clock()

    @contextmanager
    def _lock(self) -> Iterator[None]:
        lock, late = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), monotonic()
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if monotonic() - late > _LOCK_SECONDS:
                        raise StoreError(f"another process has locked {self._folder}") from error
                    sleep(0.005)
            yield
        finally:
            os.close(lock)

    def _path(self, domain: str) -> Path:
        digest = blake2b(domain.encode(), digest_size=8).hexdigest()
        return self._folder / f"{quote(domain, safe='')[:100]}-{digest}{_ENDING}"


def _kept(written: Sequence[bytes]) -> Iterator[bytes]:
    """Those of the versions, the newest first, that are kept."""
    left = MAX_PAST_BYTES
    for index, each in enumerate(written[:MAX_VERSIONS]):
        left -= len(each)
        if index and left < 0:
            return
        yield each


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
