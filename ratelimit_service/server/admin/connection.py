"""One HTTP connection: bytes go to aiohttp a few at a time and in turns; aiohttp's protocol sees an ordinary transport.

| state | what comes | what ends it |
| --- | --- | --- |
| beginning | is kept until it is clear that it is HTTP/1 | bytes of HTTP/2 or TLS, `KEEPALIVE_SECONDS` without any |
| open | goes to aiohttp, one read in a turn, and no more is read before | aiohttp |
| ending | is dropped unparsed, so that a client that still sends reads its answer | the client, or the bounds below |
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from aiohttp import web

from ratelimit_service.server.admin.connections import HttpConnections
from ratelimit_service.server.admin.turns import Turns
from ratelimit_service.server.admin.wrong_protocol import HANDSHAKE, PREFACE, Misdirected

READ: Final = 2048
"""Bytes parsed in one turn. The worst, chunks of one byte, take aiohttp 0.3 µs a byte: 0.6 ms."""

KEEPALIVE_SECONDS: Final = 75
"""For the next request on a connection, or the whole header of the first; nginx's default."""
LINGER_SECONDS: Final = 1.0
"""For a client to read its last answer and leave: to close while it sends would reset what is under way to it."""
UNREAD_SECONDS: Final = 30.0
"""For the socket to take the last answer."""
MOST_DROPPED: Final = 1024 * 1024
"""Bytes after the last answer. They cost 2 µs a read."""


NAME: Final = "ratelimit"
"""What `Server` says, which aiohttp fills with its version and Python's."""


class Handler(web.RequestHandler):
    """aiohttp's side of a connection."""

    __slots__ = ()

    def handle_error(self, *args: Any, **keywords: Any) -> web.StreamResponse:
        """The answer to what cannot be parsed, and to what fails: the application does not see it."""
        response = super().handle_error(*args, **keywords)
        response.headers["Server"] = NAME
        return response


class HttpConnection(asyncio.BufferedProtocol):
    """Between a socket and aiohttp."""

    def __init__(
        self,
        connections: HttpConnections,
        turns: Turns,
        make: Callable[[], web.RequestHandler],
        misdirected: Misdirected,
    ) -> None:
        self._connections = connections
        self._turns = turns
        self._make = make
        self._misdirected = misdirected
        self._http: web.RequestHandler | None = None
        self._buffer = bytearray(READ)
        self._unparsed = b""
        """Bytes of the beginning that may still become several protocols."""
        self._waiting = False
        """A read waits for its turn."""
        self._held = False
        """aiohttp takes no more for now."""
        self._ending = False
        self._dropped = 0
        self._stuck = False
        """The client does not read."""
        self._request: web.BaseRequest | None = None
        """The one that is being answered."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for bytes; aiohttp's part is made in their turn, for it is most of what a connection costs."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no such base
        self._timer = asyncio.get_running_loop().call_later(KEEPALIVE_SECONDS, self._transport.abort)
        self._connections.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop what waits for its turn."""
        self._timer.cancel()
        self._connections.leave(self)
        if self._http is not None:
            self._http.connection_lost(exc)

    def close(self) -> None:
        """Close it as soon as all that was written is sent."""
        self._transport.close()

    def abort(self) -> None:
        """Close it at once."""
        self._transport.abort()

    @property
    def at_work(self) -> bool:
        """A whole request has come, its answer is not yet written, and the client reads."""
        return self._request is not None and self._request.content.is_eof() and not self._stuck

    @contextmanager
    def answering(self, request: web.BaseRequest) -> Iterator[None]:
        """While it has an answer made for the request."""
        self._request = request
        self._connections.touch(self)
        try:
            yield
        finally:
            self._request = None
            self._connections.touch(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        """For the next read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Read no more until these bytes have had their turn."""
        if self._ending:
            self._dropped += nbytes
            if self._dropped > MOST_DROPPED:
                self._transport.abort()
            return
        self._waiting = True
        self._transport.pause_reading()
        data = bytes(memoryview(self._buffer)[:nbytes])
        self._turns.add(lambda: self._take(data))

    def eof_received(self) -> None:
        """The transport closes itself."""

    def pause_writing(self) -> None:
        """The client does not read."""
        self._stuck = True
        if self._http is not None:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        """It does again."""
        self._stuck = False
        if self._http is not None:
            self._http.resume_writing()

    def hold(self, held: bool) -> None:
        """Read no more, or again, for aiohttp's sake."""
        self._held = held
        self._read_on()

    @property
    def closing(self) -> bool:
        """Nothing can be written any more."""
        return self._ending or self._transport.is_closing()

    def end(self) -> None:
        """Write no more; the client has a moment to read the last answer."""
        if not self.closing:
            self._ending = True
            try:
                self._transport.write_eof()
            except OSError:  # the client has left
                self._transport.abort()
            else:
                self._linger(UNREAD_SECONDS)
                self._read_on()

    def _take(self, data: bytes) -> None:
        self._waiting = False
        if self.closing:
            return
        if self._http is None:
            self._begin(self._unparsed + data)
        else:
            self._parse(self._http, data)
        self._read_on()

    def _begin(self, data: bytes) -> None:
        if data.startswith(PREFACE):
            self._refuse(self._misdirected.refuse_http2)
        elif data.startswith(HANDSHAKE):
            self._refuse(self._misdirected.refuse_tls)
        elif PREFACE.startswith(data) or HANDSHAKE.startswith(data):
            self._unparsed = data
        else:
            self._timer.cancel()  # aiohttp has its own
            self._http = self._make()
            self._http.connection_made(Transport(self, self._transport))
            self._parse(self._http, data)

    def _parse(self, http: web.RequestHandler, data: bytes) -> None:
        try:
            http.data_received(data)
        except Exception as error:  # noqa: BLE001 - aiohttp documents no error that any bytes could raise here
            answer = self._misdirected.cannot_parse(error, self._client)
            if self._request is None:
                self._transport.write(answer)
            self.end()

    def _refuse(self, refuse: Callable[[str], bytes]) -> None:
        self._transport.write(refuse(self._client))
        self.end()

    def _linger(self, seconds: float) -> None:
        """Abort after the time that there is to read an answer that is sent, or to take one that is not."""
        self._timer.cancel()
        if seconds <= 0 or (self._transport.get_write_buffer_size() == 0 and seconds < UNREAD_SECONDS):
            self._transport.abort()
        else:
            self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._linger, seconds - LINGER_SECONDS)

    def _read_on(self) -> None:
        if self._transport.is_closing() or self._waiting:
            return
        if self._held and not self._ending:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    @property
    def _client(self) -> str:
        peer = self._transport.get_extra_info("peername")
        return peer[0] if peer else ""


class Transport(asyncio.Transport):
    """The transport as aiohttp has it."""

    def __init__(self, connection: HttpConnection, transport: asyncio.Transport) -> None:
        super().__init__()
        self.connection = connection
        self._transport = transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the real one."""
        return self._transport.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """As the real one."""
        self._transport.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """As the real one."""
        self._transport.writelines(list_of_data)

    def abort(self) -> None:
        """As the real one."""
        self._transport.abort()

    def pause_reading(self) -> None:
        """Hand on no more."""
        self.connection.hold(True)

    def resume_reading(self) -> None:
        """Hand on again."""
        self.connection.hold(False)

    def is_closing(self) -> bool:
        """Nothing can be written any more."""
        return self.connection.closing

    def close(self) -> None:
        """Write no more."""
        self.connection.end()
