"""Accepts connections, as long as there is a worker for them; the others wait in the kernel."""

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import Final

from ratelimit_service.server.workers.sharing import Sharing
from ratelimit_service.system.listen import Opened, remove_socket

log = logging.getLogger(__name__)

_AT_ONCE: Final = 100
"""Connections accepted before other work has its turn."""

_PAUSE_SECONDS: Final = 1.0
"""As asyncio has it: when files have run out, accepting at once would fail again."""


class Acceptor:
    """Hands all connections on."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self._opened: Sequence[Opened] = ()
        self._paused = False
        """It would accept, if there were room."""
        self._resuming: asyncio.TimerHandle | None = None
        sharing.wake = self._resume

    def listen(self, opened: Sequence[Opened]) -> None:
        """These are its sockets from now on; whoever comes waits."""
        self._opened = opened
        for listening in self._sockets():
            listening.setblocking(False)

    def close(self) -> None:
        """Accept nothing more; what waits in the kernel is reset."""
        self._pause()
        if self._resuming is not None:
            self._resuming.cancel()
        for listening in self._sockets():
            listening.close()
        for address, _ in self._opened:
            remove_socket(address)
        self._opened = ()

    def _sockets(self) -> list[socket.socket]:
        return [listening for _, sockets in self._opened for listening in sockets]

    def accept(self) -> None:
        """Hand on whoever comes, or came."""
        self._paused = False
        loop = asyncio.get_running_loop()
        for listening in self._sockets():
            loop.add_reader(listening, self._accept, listening)

    def _pause(self) -> None:
        self._paused = True
        loop = asyncio.get_running_loop()
        for listening in self._sockets():
            loop.remove_reader(listening)

    def _resume(self) -> None:
        if self._paused and self._resuming is None and self._sharing.has_room:
            self.accept()

    def _resume_late(self) -> None:
        self._resuming = None
        self._resume()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            if not self._sharing.has_room:
                self._pause()
                return
            try:
                connection, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of files, or of memory
                log.warning("connections cannot be accepted for a moment: %s", error.strerror)
                self._pause()
                self._resuming = asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._resume_late)
                return
            self._sharing.hand(connection)
