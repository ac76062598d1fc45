"""A program on a pseudo-terminal, as a person has it: keys go in, and a screen comes out."""

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.processes import START_SECONDS, STOP_SECONDS

_LOOK_SECONDS = 0.1
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[=>]|\r")


class Terminal:
    """The terminal of a program at work, and all that it has written."""

    def __init__(self, popen: "subprocess.Popen[bytes]", fd: int) -> None:
        self._popen = popen
        self._fd = fd
        self.written = ""

    @property
    def text(self) -> str:
        """What was written, without colours and moves of the cursor."""
        return _CONTROL.sub("", self.written)

    def press(self, keys: str) -> None:
        """Type these."""
        os.write(self._fd, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size; the program receives SIGWINCH."""
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait_until(self, true: Callable[[], bool], what: str) -> None:
        """Read until it is true of what was written."""
        deadline = time.monotonic() + START_SECONDS
        while not true():
            assert time.monotonic() < deadline, f"{what}; there is only\n{self.written!r}"
            self._read()

    def wait(self) -> int:
        """The exit code, once the program has ended; all that it wrote is read."""
        deadline = time.monotonic() + STOP_SECONDS
        while self._popen.poll() is None:
            assert time.monotonic() < deadline, f"it does not end; there is only\n{self.written!r}"
            self._read()
        while self._read():
            pass
        return self._popen.returncode

    def echoes(self) -> bool:
        """Whether the terminal shows what is typed, as a shell's does."""
        return bool(termios.tcgetattr(self._fd)[3] & termios.ECHO)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._fd], [], [], _LOOK_SECONDS)
        with contextlib.suppress(OSError):  # Linux's way to say that the program has closed it
            if ready and (found := os.read(self._fd, 1 << 16)):
                self.written += found.decode(errors="replace")
                return True
        return False


@contextmanager
def start_on_terminal(
    command: Sequence[str], folder: Path, environ: Mapping[str, str], *, columns: int = 80, lines: int = 24
) -> Iterator[Terminal]:
    """The program on a terminal of this size, which is its controlling one; it is killed at the end."""
    fd, its = pty.openpty()
    popen = subprocess.Popen(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "TERM": "xterm-256color", **environ},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - Ctrl-C goes to who has the terminal
    )
    try:
        terminal = Terminal(popen, fd)
        terminal.resize(columns, lines)
        yield terminal
    finally:
        popen.kill()
        popen.wait()
        os.close(its)
        os.close(fd)
