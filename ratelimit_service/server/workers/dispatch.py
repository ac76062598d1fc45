"""Accepts connections, and hands each to the worker that has the fewest; they wait in the kernel while no worker can.

Calls that the parent received itself, over HTTP, go to a worker by the same rule.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final

from ratelimit_service.api.method import Reply
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.server.workers.slot import WorkerSlot
from ratelimit_service.system.address import Address
from ratelimit_service.system.listen import Opened, close_sockets, open_sockets

log = logging.getLogger(__name__)

_AT_ONCE: Final = 100
"""Connections accepted in one iteration of the event loop."""

_PAUSE_SECONDS: Final = 1.0
"""Seconds for which nothing is accepted after the process ran out of files, as asyncio does: at once it would fail
again."""

_NO_WORKER: Final = RpcError(Status.UNAVAILABLE, "no worker is available")


class Dispatcher:
    """Hands connections and calls to the workers of these slots."""

    def __init__(self, slots: Sequence[WorkerSlot]) -> None:
        self._slots = slots
        self._opened: Sequence[Opened] = ()
        self._waiting: deque[socket.socket] = deque()
        """Connections that were accepted when no worker could have one."""
        self._paused = False
        """Accepting has stopped until a worker can have a connection."""
        self._resuming: asyncio.TimerHandle | None = None

    @property
    def addresses(self) -> Sequence[Address]:
        """The addresses on which it listens."""
        return [opened.address for opened in self._opened]

    @property
    def open(self) -> int:
        """Connections of all workers, and those that wait here."""
        return sum(slot.connections for slot in self._slots) + len(self._waiting)

    async def listen(self, addresses: Sequence[Address]) -> None:
        """Listen; connections wait in the kernel until `accept`. StartError when an address cannot be had."""
        self._opened = await open_sockets(addresses)
        for listening in self._sockets():
            listening.setblocking(False)

    def accept(self) -> None:
        """Accept what waits in the kernel, and what comes."""
        self._paused = False
        loop = asyncio.get_running_loop()
        for listening in self._sockets():
            loop.add_reader(listening, self._accept, listening)

    def close_listeners(self) -> None:
        """Accept nothing more; what waits in the kernel is reset."""
        self._pause()
        if self._resuming is not None:
            self._resuming.cancel()
        close_sockets(self._opened)
        self._opened = ()

    def close(self) -> None:
        """Close the connections that still wait here."""
        while self._waiting:
            self._waiting.popleft().close()

    def hand(self, connection: socket.socket) -> None:
        """Hand the connection to the worker that has the fewest, or to the first that can have it later."""
        while (slot := self._next()) is not None:
            if slot.hand(connection):
                return
        self._waiting.append(connection)

    def redistribute(self, slot: WorkerSlot) -> None:
        """Hand to other workers what this one has not received yet."""
        for connection in slot.take_back():
            self.hand(connection)

    def resume(self) -> None:
        """Hand on the connections that wait, and accept again, if a worker can have them now."""
        while self._waiting and self._next() is not None:
            self.hand(self._waiting.popleft())
        if self._paused and self._resuming is None and self._next() is not None:
            self.accept()

    def rebalance(self, idle: WorkerSlot) -> None:
        """Have others send GOAWAY on connections above an equal share, if this worker has none."""
        share = -(-self.open // len(self._slots))
        if idle.connections == 0:
            for slot in self._slots:
                if slot.connections > share:
                    slot.send("release", slot.connections - share)

    def call(self, body: bytes, reply: Reply, what: str = "call", *, timeout: int | None = None) -> None:
        """Send a call to the worker that has the fewest calls of ours; of several, to the one that spoke last."""
        able = [slot for slot in self._slots if slot.accepting]
        if able:
            min(able, key=lambda slot: (slot.calls, -slot.last_message)).call(body, reply, what, timeout)
        else:
            reply(_NO_WORKER)

    def _next(self) -> WorkerSlot | None:
        """The worker that gets the next connection; None when none can have one."""
        return min((slot for slot in self._slots if slot.accepting), key=lambda slot: slot.rank, default=None)

    def _sockets(self) -> list[socket.socket]:
        return [listening for _, sockets in self._opened for listening in sockets]

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            if self._next() is None:
                self._pause()
                return
            try:
                connection, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of files, or of memory
                log.warning("cannot accept connections for a moment: %s", error.strerror)
                self._pause()
                self._resuming = asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._resume_later)
                return
            self.hand(connection)

    def _pause(self) -> None:
        self._paused = True
        loop = asyncio.get_running_loop()
        for listening in self._sockets():
            loop.remove_reader(listening)

    def _resume_later(self) -> None:
        self._resuming = None
        self.resume()
