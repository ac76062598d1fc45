"""The http2 transport: our own HTTP/2, for gRPC and nothing else.

A straight stack, each file on those before it:

- `limits`: what a client may do. `frames`: bytes. `counts`: what is counted.
- `headers`: header blocks. `streams`: calls and flow control. `connection`: one connection. None of these does I/O.
- `timeouts`, `scheduling`: time, fairness and memory. `shared`: what connections share.
- `wire`: one connection on asyncio. `server`: all of them. Here: sockets.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Final

from ratelimit_service.api.method import Method, StreamMethod
from ratelimit_service.system.address import Address
from ratelimit_service.system.clock import Clock, Tick, steady_clock
from ratelimit_service.system.listen import BACKLOG, open_sockets, remove_socket
from ratelimit_service.telemetry.metric import Metric
from ratelimit_service.transports.http2.server import Server
from ratelimit_service.transports.http2.shared import Shared
from ratelimit_service.transports.http2.wire import Wire
from ratelimit_service.transports.options import GrpcOptions
from ratelimit_service.transports.tls_session import TlsServer

ACCEPTS: Final = 16
"""Connections accepted in an iteration of the event loop: uvloop accepts one for each handle that listens, and an
iteration may take milliseconds. With one handle, clients that connected and left kept others in the kernel's queue for
seconds."""


class Http2Transport:
    """Serves methods on HTTP/2 of our own."""

    def __init__(self, options: GrpcOptions, clock: Clock = steady_clock, tick: Tick = perf_counter_ns) -> None:
        self._options = options
        self._clock = clock
        self._tick = tick
        self._server: Server | None = None
        self._listeners: list[asyncio.Server] = []
        self._addresses: Sequence[Address] = ()
        self._tls: TlsServer | None = None
        self._adopting: set[asyncio.Task[None]] = set()

    async def start(
        self, methods: Sequence[Method], streams: Sequence[StreamMethod], addresses: Sequence[Address]
    ) -> Sequence[Address]:
        """As Transport says; also StartError when a certificate cannot be used."""
        self._tls = TlsServer(self._options.tls, "h2") if self._options.tls else None
        opened = await open_sockets(addresses)
        shared: Shared[Wire] = Shared(methods, streams, self._options, self._tls, self._clock, self._tick)
        self._server = Server(shared)
        loop = asyncio.get_running_loop()
        for address in opened:
            for listening in address.sockets:
                for handle in (listening, *(listening.dup() for _ in range(ACCEPTS - 1))):
                    listener = await loop.create_server(partial(Wire, shared), sock=handle, backlog=BACKLOG)
                    self._listeners.append(listener)
        self._addresses = [each.address for each in opened]
        return self._addresses

    def adopt(self, connection: socket.socket, gone: Callable[[], None]) -> None:
        """Serve a connection that another process accepted; `gone` is called once, when it is over."""
        task = asyncio.get_running_loop().create_task(self._adopt(connection, gone))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    def release(self, count: int) -> None:
        """Ask the clients of `count` connections to connect again, without losing a call."""
        if self._server is not None:
            self._server.release(count)

    async def _adopt(self, connection: socket.socket, gone: Callable[[], None]) -> None:
        if self._server is None:
            connection.close()
            gone()
            return
        wire = Wire(self._server.shared, gone)
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: wire, connection)
        except OSError:
            gone()

    def metrics(self) -> Sequence[Metric]:
        """As Transport says."""
        if self._server is None:
            return ()
        of_tls = self._tls.certificates.metrics() if self._tls else ()
        return (*self._server.metrics(), *of_tls)

    async def check(self) -> None:
        """Check the timeouts of each connection, as happens twice a second by itself."""
        if self._server is not None:
            await self._server.check()

    async def stop(self, grace_seconds: float) -> None:
        """Send GOAWAY, wait for unary calls, then end streaming ones; cut all after the grace period."""
        server, self._server = self._server, None
        if server is None:
            return
        for listener in self._listeners:
            listener.close()
        for task in self._adopting:
            task.cancel()
        for address in self._addresses:
            remove_socket(address)  # not later: by the end of the drain the next instance may listen there
        await server.drain(grace_seconds)
