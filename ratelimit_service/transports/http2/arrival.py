"""A client that has just connected: it is counted from then on, comes through TLS if there is any, and gets a wire."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ratelimit_service.transports.http2.handshakes import Handshakes, why
from ratelimit_service.transports.http2.limits import Bound
from ratelimit_service.transports.http2.wire import Wire, nothing

if TYPE_CHECKING:
    from ratelimit_service.transports.http2.server import Server

log = logging.getLogger(__name__)


class Arrival(asyncio.Protocol):
    """One connection, until it is the wire's; `gone` is called once, when it is over, now or later.

    Event loops can do TLS before they tell anybody of a connection, but do not tell of those that never come through:
    as many as a client likes, each a file and a TLS session.
    """

    def __init__(self, server: "Server", handshakes: Handshakes | None, gone: Callable[[], None] = nothing) -> None:
        self._server = server
        self._handshakes = handshakes
        self._gone = gone
        self._transport: asyncio.Transport
        self._securing: asyncio.Task[asyncio.Transport] | None = None
        self._before = _Kept()
        """What came before TLS was there to hear it."""
        self._after = _Kept()
        """What came with the last words of the handshake, before anybody knew that it was over."""
        self._end = "drain"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is here."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own are not of asyncio's class
        if not self._server.arrive(self):
            self._transport.abort()
            self._gone()
        elif self._handshakes is None:
            self._enter(self._transport)
        else:
            self._securing = self._server.loop.create_task(self._handshakes.shake(self._transport, self._after))
            self._securing.add_done_callback(self._secured)
            self._server.loop.call_soon(self._pass_on)

    def data_received(self, data: bytes) -> None:
        """TLS is not yet there."""
        self._before.data_received(data)

    def connection_lost(self, _error: Exception | None) -> None:
        """Nor will it be needed."""
        self._end = "client"
        self.cut()

    def cut(self) -> None:
        """End it now."""
        if self._securing is not None:
            self._securing.cancel()

    def _pass_on(self) -> None:
        """Have TLS hear what came before; it has the transport now, and begins in the next turn.

        A loop cannot be kept from reading until then: uvloop begins as soon as `connection_made` is over.
        """
        above = self._transport.get_protocol()
        if above is self:
            return  # it was cut before that
        buffered = cast("asyncio.BufferedProtocol", above)  # uvloop's own is not of asyncio's class
        while data := self._before.data:
            room = memoryview(buffered.get_buffer(len(data)))
            size = min(len(data), len(room))
            room[:size] = data[:size]
            buffered.buffer_updated(size)
            self._before.data = data[size:]

    def _secured(self, securing: asyncio.Task[asyncio.Transport]) -> None:
        if securing.cancelled() or self._server.draining:
            self._leave(self._end)
        elif (error := securing.exception()) is not None:
            self._fail(error)
        elif securing.result().is_closing():
            self._leave("client")
        else:
            self._enter(securing.result())

    def _enter(self, transport: asyncio.Transport) -> None:
        wire = Wire(self._server, self._gone)
        transport.set_protocol(wire)
        wire.connection_made(transport)
        self._server.enter(self, wire)
        if self._after.data:
            wire.data_received(self._after.data)

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, OSError):
            log.error("a handshake failed", exc_info=error)
        if isinstance(error, TimeoutError):
            self._server.counts.refused[Bound.PREFACE] += 1
            reason: str | None = "the client takes too long for its handshake"
        else:
            reason = why(error)
        if reason is None:
            self._leave("client")
        else:
            self._leave("tls_handshake")
            self._server.tell("tls_handshake", reason)

    def _leave(self, name: str) -> None:
        self._transport.abort()
        self._server.turn_away(self, name)
        self._gone()


class _Kept(asyncio.Protocol):
    """Bytes for somebody who comes later, if only in the next turn of the loop."""

    def __init__(self) -> None:
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
