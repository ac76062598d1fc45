"""Reads data files from the disk: those that are known again only when they have changed, new ones within a time."""

import errno
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final

from ratelimit_service.rules.data_files import read_data_file
from ratelimit_service.system.background import DaemonExecutor

_STABLE_NANOSECONDS: Final = 2 * 10**9
"""A file that was changed this short a time ago may change again without a new time of change: coarse file systems
count in seconds, and Linux in 4 ms. Until then it is compared by its bytes."""

_Signature = tuple[int, int, int, int, int]

Inode = tuple[int, int]
"""Device and number: a file that is renamed into place has others, and one that is written in place has not."""


@dataclass(frozen=True, slots=True)
class DataRead:
    """The result of a read of a data file. Equal to another one with the same contents."""

    contents: bytes | str
    """The bytes, or why they cannot be read."""
    signature: _Signature | None = field(compare=False)
    """Of the file when it was read; None if the next poll must read it again."""
    inode: Inode | None = field(default=None, compare=False)
    """None if it could not be read."""

    @property
    def is_cut(self) -> bool:
        """Whether its last line has no end: perhaps it is still being written."""
        return isinstance(self.contents, bytes) and self.contents[-1:] not in (b"", b"\n")


def reread(path: str, before: DataRead | None = None) -> DataRead:
    """Read a data file, unless it is as it was before. Never raises."""
    try:
        found = Path(path).stat()
        signature = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if before is not None and before.signature == signature:
            return before
        stable = abs(time.time_ns() - found.st_mtime_ns) > _STABLE_NANOSECONDS
        text = read_data_file(path)
    except (OSError, ValueError) as error:  # ValueError: the path has a NUL
        return DataRead((getattr(error, "strerror", "") or str(error)).lower(), None)
    contents = before.contents if before is not None and before.contents == text else text
    return DataRead(contents, signature if stable else None, signature[:2])


class DataReads:
    """The data files that one load asks for: as the poll before it has `found` them, new ones from the disk.

    The load must not hang: a file system that does not answer is an error after `timeout_seconds` in all.
    """

    def __init__(self, found: Mapping[str, DataRead], timeout_seconds: float) -> None:
        self.asked: dict[str, DataRead] = {}
        self._found = found
        self._timeout_seconds = timeout_seconds
        self._deadline = monotonic() + timeout_seconds
        self._disk: DaemonExecutor | None = None

    def read(self, path: str) -> bytes:
        """The bytes of a data file. Raises OSError."""
        found = self._found.get(path) or self.asked.get(path) or self._read_new(path)
        self.asked[path] = found
        if isinstance(found.contents, str):
            raise OSError(errno.EIO, found.contents)
        return found.contents

    def _read_new(self, path: str) -> DataRead:
        if self._disk is None:
            self._disk = DaemonExecutor()
        try:
            return self._disk.submit(reread, path).result(max(0, self._deadline - monotonic()))
        except TimeoutError:
            return DataRead(f"its file system has not answered for {self._timeout_seconds:g} s", None)
