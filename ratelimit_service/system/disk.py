"""Reads files that the operator names: regular files only, and no wait that a file system can make endless."""

import errno
import os
import stat
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Final, Generic, TypeVar

from ratelimit_service.system.background import DaemonExecutor

T = TypeVar("T")

PATIENCE_SECONDS: Final = 1.0
"""How long the event loop waits for a read: more than a busy machine takes, and once for a file system that hangs."""
START_PATIENCE_SECONDS: Final = 10.0
"""How long a start waits: what is on a network file system may come late then."""

_KINDS: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def read_file(path: str | Path, most: int = -1) -> bytes:
    """The bytes of a regular file, or the first so many of them.

    OSError when it cannot be read; when it is no regular file, `strerror` says what it is and what to do.
    """
    _ensure_regular(path, Path(path).stat())  # first of all: to open a device may start what it does
    # Without O_NONBLOCK, what became a pipe since then would wait for a writer, for ever if there is none.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as opened:  # noqa: PTH123
        _ensure_regular(path, os.fstat(opened.fileno()))
        return opened.read(most)


def _ensure_regular(path: str | Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
        what = f"it is {kind}, and only regular files are read: put one in its place, or remove it"
        raise OSError(errno.EINVAL, what, str(path))


class BoundedRead(Generic[T]):
    """Reads files in a thread, and gives up waiting for it: for callers that a file system that hangs must not stop."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._executor = DaemonExecutor()
        self._reading: Future[T] | None = None

    def now(self, patience_seconds: float = PATIENCE_SECONDS) -> T:
        """What `read` returns or raises; TimeoutError while it hangs, from the second time on without a wait."""
        if self._reading is None or self._reading.done():
            reading = self._reading = self._executor.submit(self._read)
            try:
                return reading.result(patience_seconds)
            except TimeoutError:
                if reading.done():  # raised by the read itself
                    raise
        raise TimeoutError(errno.ETIMEDOUT, "its file system does not answer")
