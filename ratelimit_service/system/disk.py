"""Reads files that the operator names: regular files only, and no wait that a file system can make endless."""

import errno
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum, auto
from pathlib import Path
from typing import Final, Generic, TypeVar

from ratelimit_service.errors import StartError
from ratelimit_service.system.background import DaemonExecutor

T = TypeVar("T")
Contents = TypeVar("Contents")

PATIENCE_SECONDS: Final = 1.0
"""Seconds that the event loop waits for a read: more than a busy machine takes, and once for a file system that
hangs."""
START_PATIENCE_SECONDS: Final = 10.0
"""Seconds that a start waits: what is on a network file system may come late then."""

_KINDS: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def read_file(path: str | Path, size: int = -1) -> bytes:
    """The bytes of a regular file; with `size`, at most that many, from its beginning.

    OSError when it cannot be read; when it is not a regular file, `strerror` says what it is and what to do.
    """
    _ensure_regular(path, Path(path).stat())  # before it is opened: to open a device may start what it does
    # Without O_NONBLOCK, what became a pipe since then would wait for a writer, for ever if there is none.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as opened:  # noqa: PTH123
        _ensure_regular(path, os.fstat(opened.fileno()))
        return opened.read(size)


def _ensure_regular(path: str | Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
        what = f"it is {kind}, and only regular files are read: put one in its place, or remove it"
        raise OSError(errno.EINVAL, what, str(path))


class BoundedRead(Generic[T]):
    """Reads files in a thread, and stops waiting for it: for callers that a file system that hangs must not stop."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._executor = DaemonExecutor()
        self._reading: Future[T] | None = None

    def now(self, patience_seconds: float = PATIENCE_SECONDS) -> T:
        """Return or raise what `read` does; TimeoutError while it hangs, from the second time on without a wait."""
        if self._reading is None or self._reading.done():
            reading = self._reading = self._executor.submit(self._read)
            try:
                return reading.result(patience_seconds)
            except TimeoutError:
                if reading.done():  # raised by the read itself
                    raise
        raise TimeoutError(errno.ETIMEDOUT, "its file system does not answer")


class Change(Enum):
    """The result of `ReloadedFiles.refresh`, to be logged once."""

    LOADED = auto()
    """The files have changed, and are used."""
    REFUSED = auto()
    """The files have changed and cannot be used; what they held before stays in use. `problem` says why."""
    RESTORED = auto()
    """The files could not be used, and hold again what is in use."""


class ReloadedFiles(Generic[Contents, T]):
    """An object loaded from a few files, and loaded again when they change.

    `read` returns what they hold, and `load` makes of it what is used; `reload` does so for files that have changed,
    and may refuse more. All may raise OSError or StartError, and so does the constructor.
    """

    def __init__(
        self,
        read: Callable[[], Contents],
        load: Callable[[Contents], T],
        reload: Callable[[Contents], T] | None = None,
    ) -> None:
        self.problem: OSError | StartError | None = None
        """Why the files cannot be used as they are now."""
        self._files = BoundedRead(read)
        self._load = reload or load
        self._refused: object = None
        """Contents that cannot be used, or the error of a read: each is logged once."""
        # Transports may ask from several threads at once.
        self._lock = threading.Lock()
        self._contents = self._files.now(START_PATIENCE_SECONDS)
        self.loaded = load(self._contents)

    def refresh(self) -> Change | None:
        """Look at the files, and use them if they have changed and are good; never raises. None when nothing is new."""
        with self._lock:
            try:
                return self._look()
            except (OSError, StartError) as error:
                return self._refuse(str(error), error)

    def _look(self) -> Change | None:
        contents = self._files.now()
        if contents == self._contents:
            return self._restore()
        if contents == self._refused:
            return None
        try:
            loaded = self._load(contents)
        except (OSError, StartError) as error:
            return self._refuse(contents, error) if contents == self._files.now() else None
        if contents != self._files.now():
            return None  # they change this moment: the next call sees what becomes of it
        self.loaded, self._contents = loaded, contents
        self.problem = self._refused = None
        return Change.LOADED

    def _restore(self) -> Change | None:
        if self.problem is None:
            return None
        self.problem = self._refused = None
        return Change.RESTORED

    def _refuse(self, what: object, error: OSError | StartError) -> Change | None:
        self.problem = error
        if what == self._refused:
            return None
        self._refused = what
        return Change.REFUSED
