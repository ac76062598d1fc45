"""A full screen of text on a terminal, redrawn in place, and the keys that are pressed meanwhile."""

import os
import select
import signal
import sys
import termios
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Final, Self

from ratelimit_service.commands.terminal import shown

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""The other screen, no cursor, and no line that goes on in the next one."""
_LEAVE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_MAX_KEYS: Final = 64


class Screen:
    """The terminal while it is a screen; leaving it as a context manager restores what was there before."""

    def __init__(self) -> None:
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._saved: list[Any] = termios.tcgetattr(sys.stdin)
        self._handlers = {number: signal.getsignal(number) for number in (signal.SIGWINCH, signal.SIGTERM)}
        self._wakeup_fd = -1

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, at least 1 each."""
        found = os.get_terminal_size(sys.stdout.fileno())
        return max(1, found.columns), max(1, found.lines)

    def draw(self, lines: Sequence[str]) -> None:
        """Replace what is shown. Each line overwrites the old one, so that nothing flickers."""
        text = "\n".join(f"{shown(line)}{_REST_OF_LINE}" for line in lines)
        sys.stdout.write(f"{_HOME}{text}{_REST_OF_SCREEN}")
        sys.stdout.flush()

    def wake(self) -> None:
        """End `wait`, from any thread."""
        with suppress(BlockingIOError):  # it has been woken often enough
            os.write(self._wake, b"\0")

    def wait(self) -> str:
        """The keys that were pressed; empty when `wake` was called or the size has changed. `q` if the input ended."""
        ready, _, _ = select.select([sys.stdin, self._woken], [], [])
        if self._woken in ready:
            os.read(self._woken, 1 << 16)
        if sys.stdin in ready:
            return os.read(sys.stdin.fileno(), _MAX_KEYS).decode(errors="replace") or "q"
        return ""

    def __enter__(self) -> Self:
        attributes = termios.tcgetattr(sys.stdin)
        # Ctrl-C becomes a key, and Ctrl-Z does not leave the screen as it is.
        attributes[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, attributes)
        self._wakeup_fd = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGWINCH, _note)
        signal.signal(signal.SIGTERM, _end)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        signal.set_wakeup_fd(self._wakeup_fd)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._saved)


def _note(_number: int, _frame: FrameType | None) -> None:
    """The signal has written to the wakeup descriptor; that is all."""


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
