"""A timer of the event loop that is exact to some ten microseconds, where the system has one: timerfd of Linux.

Timers of event loops are in whole milliseconds. What is let out by them, 500 a second and more, comes in lumps:
bench/RESULTS.md has the numbers.
"""

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from ratelimit_service.system.clock import SECOND, steady_clock


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Time), ("first", _Time))


_MONOTONIC = 1
_ABSOLUTE = 1


class TimerFile:
    """A timerfd, which the event loop reads like a socket; by ctypes, because `os` has it from Python 3.13 on only."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """Calls `wake` each time; OSError or AttributeError where the system has no such timers."""
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._wake = wake
        self._setting = _Setting()
        self._argument = ctypes.byref(self._setting)
        self._file = libc.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._file, self._on_time)

    def set(self, moment: int) -> None:
        """Wake at this moment of the steady clock, and at no moment that was set before."""
        first = self._setting.first
        first.seconds, microseconds = divmod(moment, SECOND)
        first.nanoseconds = microseconds * 1000
        self._settime(self._file, _ABSOLUTE, self._argument, None)

    def close(self) -> None:
        """Wake no more."""
        self._loop.remove_reader(self._file)
        os.close(self._file)

    def _on_time(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:
            return  # it was set again meanwhile
        self._wake()


class LoopTimer:
    """The event loop's own timer, which wakes up to a millisecond late."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._handle: asyncio.TimerHandle | None = None

    def set(self, moment: int) -> None:
        """Wake at this moment of the steady clock, and at no moment that was set before."""
        self.close()
        # Rounded up, since uvloop rounds to the nearest millisecond.
        milliseconds = max(0, -(-(moment - steady_clock()) // 1000))
        self._handle = asyncio.get_running_loop().call_later(milliseconds / 1000, self._wake)

    def close(self) -> None:
        """Wake no more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def open_timer(wake: Callable[[], None]) -> TimerFile | LoopTimer:
    """The best timer that the system has."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            return TimerFile(wake)
    return LoopTimer(wake)
