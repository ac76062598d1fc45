"""HTTP/1.1 connections: aiohttp parses what they send, a few bytes at a time, in iterations of the event loop.

aiohttp parses, and answers, as much as has arrived: a read of 256 KB takes it tens of milliseconds, and uvloop hands
over 32 reads in one iteration of it. gRPC calls must not wait for that. So an `HttpConnection` stands between the
socket and aiohttp: it passes on one small read in an iteration, and reads no more before. aiohttp sees an ordinary
transport.

A connection is in one of three states::

    state       `_aiohttp`  `_lingering`   what it means
    DETECTING   None        False          it is not yet clear which protocol the client speaks
    OPEN        set         False          HTTP/1.1; aiohttp reads and answers
    LINGERING   any         True           the last response is written; the client has a moment to read it

and what each event does, where `-` is nothing::

    event                            DETECTING                   OPEN                       LINGERING
    bytes arrive                     they wait for a slot        they wait for a slot       dropped; abort after 1 MiB
    their slot: HTTP/2 or TLS        400 and LINGERING           -                          -
    their slot: HTTP/1.1             OPEN, aiohttp parses them   aiohttp parses them        dropped
    their slot: a part of either     kept for the next slot      -                          -
    aiohttp's parser raises          -                           400 and LINGERING          -
    aiohttp closes its transport     -                           LINGERING                  -
    75 s without a request           abort                       aiohttp closes it          -
    the response is sent, 1 s later  -                           -                          abort
    not sent after 30 s              -                           -                          abort
    it is evicted                    abort                       abort                      abort

If it closed at once, bytes that the client still sends would make the kernel reset the connection, and the client might
not read the last response.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawRequestMessage
from yarl import URL

from ratelimit_service.rules.address import by_prefix
from ratelimit_service.system.address import Address, Tcp
from ratelimit_service.telemetry.logs import ThrottledLog
from ratelimit_service.telemetry.metric import Metric, counter, gauge

READ_BYTES: Final = 2048
"""Parsed in one iteration of the loop. The worst bytes, chunks of one byte, take aiohttp 0.3 µs a byte: 0.6 ms."""

KEEPALIVE_SECONDS: Final = 75
"""Seconds for the next request on a connection, or the whole header of the first; nginx's default."""
NEW_SECONDS: Final = 0.05
"""Seconds for the first bytes of a connection to be read."""
LINGER_SECONDS: Final = 1.0
"""Seconds for a client to read the last response and close."""
UNREAD_SECONDS: Final = 30.0
"""Seconds for the socket to accept the last response."""
MAX_DROPPED_BYTES: Final = 1024 * 1024
"""After the last response. They cost 2 µs a read."""

_network: Final = by_prefix(32, 64)
"""The addresses of an IPv6 network of 64 bits are one."""

SERVER_NAME: Final = "ratelimit"
"""The `Server` header; aiohttp's own names its version and Python's."""

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""RFC 9113, 3.4: a client of HTTP/2 begins with these bytes."""

HANDSHAKE: Final = b"\x16\x03"
"""RFC 8446, 5.1: a client of TLS begins with a record of this type and major version."""

# Clients of HTTP/2 and TLS recognize an HTTP/1.1 port by this. A GOAWAY would tell a client of HTTP/2 more, but
# SETTINGS must come before it, and then gRPC's C core takes the connection for established: it reconnects without a
# backoff.
_BAD_REQUEST: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
)


class LoopSlots:
    """The queue of work for HTTP: one piece in each iteration of the event loop, whatever the number of connections.

    A piece parses one read, begins one response, or sends one slice of a long one.
    """

    def __init__(self) -> None:
        self._pieces: deque[Callable[[], object]] = deque()
        self._scheduled = False

    def add(self, piece: Callable[[], object]) -> None:
        """Call the piece in an iteration of its own."""
        self._pieces.append(piece)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    async def wait(self) -> None:
        """Wait for a slot for the caller."""
        granted = asyncio.get_running_loop().create_future()
        self.add(partial(_grant, granted))
        await granted

    def _run(self) -> None:
        piece = self._pieces.popleft()
        # The next slot is scheduled before the piece is called: the piece may raise.
        self._scheduled = bool(self._pieces)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._run)
        piece()


def _grant(granted: asyncio.Future[None]) -> None:
    if not granted.done():  # else the waiting task was cancelled
        granted.set_result(None)


class Evictable(Protocol):
    """A connection that may be evicted."""

    @property
    def source(self) -> str:
        """The port that it came to, and the address that it came from."""

    @property
    def busy(self) -> bool:
        """A request of it is being answered, and does not wait for the client."""

    @property
    def new(self) -> bool:
        """Its first bytes may have come, and not be read."""

    def close(self) -> None:
        """Close it as soon as everything written is sent."""

    def abort(self) -> None:
        """Close it at once."""


class HttpConnections:
    """The open connections of all HTTP ports, at most `most`; a new one above that evicts another.

    The limit is separate from gRPC's, so that HTTP clients cannot take the files of gRPC's connections. The address
    with the most connections to a port loses one, so that probes and the operator come in whatever others hold. Of its
    connections the one whose last request is longest ago is evicted. Bytes that never become a request do not count,
    and a busy connection is evicted only if all are, but for new ones.
    """

    def __init__(self, most: int, warnings: ThrottledLog) -> None:
        self._most = most
        self._warnings = warnings
        self._evicted = 0
        self._open: dict[Evictable, str] = {}
        """With their source, in the order in which they were made, or their last request began or ended."""
        self._by_source = Counter[str]()

    def add(self, connection: Evictable) -> None:
        """Count a new connection, and evict another if they are too many."""
        if len(self._open) >= self._most:
            most = max(self._by_source.values())
            crowd = [each for each, source in self._open.items() if self._by_source[source] == most]
            oldest = next((each for each in crowd if not each.busy), crowd[0])
            if oldest.new:  # all others are at work, for longer
                oldest = crowd[0]
            self.remove(oldest)
            self._evicted += 1
            oldest.abort()
            self._warnings.warn(
                f"{self._most} HTTP connections are open, the maximum (HTTP_MAX_CONNECTIONS):"
                " for each new one one is closed, the least recently used of the address with the most"
            )
        self._open[connection] = connection.source
        self._by_source[connection.source] += 1

    def touch(self, connection: Evictable) -> None:
        """Note that a request of the connection began or ended."""
        if connection in self._open:
            self._open[connection] = self._open.pop(connection)

    def remove(self, connection: Evictable) -> None:
        """Forget a connection that is closed."""
        source = self._open.pop(connection, None)
        if source is not None:
            self._by_source[source] -= 1
            if not self._by_source[source]:
                del self._by_source[source]

    def close(self) -> None:
        """Close all connections."""
        for connection in tuple(self._open):
            connection.close()

    def metrics(self) -> Sequence[Metric]:
        """Metrics of connections that are open, and that were evicted."""
        name = "ratelimit_http_connections"
        return (
            gauge(name, "Open HTTP connections.", len(self._open)),
            counter(
                f"{name}_evicted_total",
                "HTTP connections closed for newer ones, because HTTP_MAX_CONNECTIONS were open.",
                self._evicted,
            ),
        )


class WrongProtocol:
    """Responses and log lines for clients that send something other than HTTP/1.1 to a port.

    An Envoy whose cluster has the wrong port reconnects again and again for as long as it runs, so these warnings are
    throttled.
    """

    def __init__(self, what: str, address: Address, grpc: Sequence[Address], warnings: ThrottledLog) -> None:
        self.port = f"the {what} port {address.port}" if isinstance(address, Tcp) else f"the {what} socket"
        places = dict.fromkeys(str(each.port) if isinstance(each, Tcp) else str(each) for each in grpc)
        self._grpc = f"; gRPC is on {', '.join(places)}" if places else ""
        self._warnings = warnings

    def refuse_http2(self, client: str) -> bytes:
        """The response to a client of HTTP/2."""
        self._warnings.warn(f"a client speaks HTTP/2 to {self.port}{self._grpc}", client)
        return _bad_request(f"This is {self.port}, which speaks HTTP/1.1 only{self._grpc}.\n")

    def refuse_tls(self, client: str) -> bytes:
        """The response to a client of TLS."""
        self._warnings.warn(f"a client speaks TLS to {self.port}, which is plain HTTP", client)
        return _bad_request(f"This is {self.port}, which speaks HTTP without TLS.\n")

    def refuse_plain(self, client: str) -> bytes:
        """The response to a client without TLS, on a port that has it."""
        self._warnings.warn(f"a client speaks HTTP without TLS to {self.port}, which has TLS", client)
        return _bad_request(f"This is {self.port}, which speaks HTTPS: write https:// before its address.\n")

    def log_tls(self, reason: str, client: str) -> None:
        """Log why TLS with a client failed."""
        self._warnings.warn(f"TLS fails on {self.port}: {reason}", client)

    def refuse_bytes(self, error: Exception, client: str) -> bytes:
        """The response to bytes at which aiohttp's parser raised this error."""
        # Bytes cause a ValueError, but perhaps not another error. Its text may quote them, so it is not logged.
        kind = "" if isinstance(error, ValueError) else f" ({type(error).__name__})"
        self._warnings.warn(f"a client sends bytes that are not HTTP/1.1 to {self.port}{kind}", client)
        return _bad_request("These bytes are not HTTP/1.1.\n")

    def log_if_by_client(self, error: object, client: str) -> bool:
        """Log an error that the client's bytes caused; False if they did not, and the client has not closed either."""
        # The error's text is not logged: it quotes the client's bytes, which may be a header with a secret. aiohttp's
        # responses quote them too, and raise UnicodeEncodeError at those that are not UTF-8.
        if isinstance(error, HttpProcessingError | web.RequestPayloadError | UnicodeEncodeError):
            self._warnings.warn(f"a client sends bytes that are not HTTP/1.1 to {self.port}", client)
            return True
        return isinstance(error, ConnectionError)


def _bad_request(text: str) -> bytes:
    body = text.encode()
    return _BAD_REQUEST % (len(body), body)


class HttpConnection(asyncio.BufferedProtocol):
    """One connection, between its socket and aiohttp."""

    def __init__(
        self,
        connections: HttpConnections,
        slots: LoopSlots,
        make: Callable[[], "AiohttpHandler"],
        wrong_protocol: WrongProtocol,
    ) -> None:
        self._connections = connections
        self._slots = slots
        self._make = make
        self._wrong_protocol = wrong_protocol
        self._aiohttp: AiohttpHandler | None = None
        self._buffer = bytearray(READ_BYTES)
        self._first_bytes = b""
        """Of an HTTP/2 preface or a TLS record, perhaps."""
        self._queued = False
        """A read waits for its slot."""
        self._read_paused = False
        """aiohttp takes no more for now."""
        self._ended = False
        """The client sends no more, and waits for answers."""
        self._lingering = False
        self._dropped = 0
        self._write_paused = False
        """The client does not read."""
        self._request: web.BaseRequest | None = None
        """The one that is being answered."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for bytes."""
        # aiohttp's handler is made when bytes have their slot, because it is most of what a connection costs.
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it
        self._made = asyncio.get_running_loop().time()
        self._timer = asyncio.get_running_loop().call_later(KEEPALIVE_SECONDS, self._transport.abort)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer, and tell aiohttp; bytes that wait for their slot are dropped."""
        self._timer.cancel()
        self._connections.remove(self)
        if self._aiohttp is not None:
            self._aiohttp.connection_lost(exc)

    def close(self) -> None:
        """As Evictable says."""
        self._transport.close()

    def abort(self) -> None:
        """As Evictable says."""
        self._transport.abort()

    @property
    def busy(self) -> bool:
        """A whole request has arrived, its response is not yet written, and the client reads."""
        return self._request is not None and self._request.content.is_eof() and not self._write_paused

    @property
    def new(self) -> bool:
        """As Evictable says."""
        return asyncio.get_running_loop().time() - self._made < NEW_SECONDS

    @property
    def source(self) -> str:
        """As Evictable says."""
        return f"{self._wrong_protocol.port} {_network(self.client)}"

    @contextmanager
    def answering(self, request: web.BaseRequest) -> Iterator[None]:
        """The request is being answered while this context is open."""
        self._request = request
        self._connections.touch(self)
        if self._ended:
            self._end()
        try:
            yield
        finally:
            self._request = None
            self._connections.touch(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        """The buffer for the next read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Queue the bytes, and read no more before their slot."""
        if self._lingering:
            self._dropped += nbytes
            if self._dropped > MAX_DROPPED_BYTES:
                self._transport.abort()
            return
        self._queued = True
        self._transport.pause_reading()
        data = bytes(memoryview(self._buffer)[:nbytes])
        self._slots.add(lambda: self._receive(data))

    def eof_received(self) -> bool:
        """Answer what was asked, then close. Returns whether the transport stays open for that."""
        if self._transport.get_extra_info("sslcontext"):  # TLS has no connection that is half closed
            return False
        self._ended = True
        # Later, as aiohttp's task may not have begun. All bytes were parsed: none are read while some wait for a slot.
        asyncio.get_running_loop().call_soon(self._end)
        return True

    def _end(self) -> None:
        half = self._request is not None and not self._request.content.is_eof()
        if self._aiohttp is None or half or not self._aiohttp.is_answering:
            self._transport.close()
        elif not self._aiohttp.has_more:
            self._aiohttp.close()  # after the response

    def pause_writing(self) -> None:
        """The client does not read: aiohttp stops writing."""
        self._write_paused = True
        if self._aiohttp is not None:
            self._aiohttp.pause_writing()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._write_paused = False
        if self._aiohttp is not None:
            self._aiohttp.resume_writing()

    def pause_reading(self, paused: bool) -> None:
        """Stop or resume reading, as aiohttp asks for."""
        self._read_paused = paused
        self._update_reading()

    @property
    def closing(self) -> bool:
        """Nothing can be written any more."""
        return self._lingering or self._transport.is_closing()

    def linger(self) -> None:
        """Write no more, and close when the client has had time to read the last response."""
        if not self.closing:
            self._lingering = True
            try:
                self._transport.write_eof()
            except OSError:  # the client has closed
                self._transport.abort()
            else:
                self._wait_until_sent(UNREAD_SECONDS)
                self._update_reading()

    def _receive(self, data: bytes) -> None:
        self._queued = False
        if self.closing:
            return
        if self._aiohttp is None:
            self._detect(self._first_bytes + data)
        else:
            self._parse(self._aiohttp, data)
        self._update_reading()

    def _detect(self, data: bytes) -> None:
        if data.startswith(PREFACE):
            self._refuse(self._wrong_protocol.refuse_http2)
        elif data.startswith(HANDSHAKE):
            self._refuse(self._wrong_protocol.refuse_tls)
        elif PREFACE.startswith(data) or HANDSHAKE.startswith(data):
            self._first_bytes = data
        else:
            self._timer.cancel()  # aiohttp has its own
            self._aiohttp = self._make()
            self._aiohttp.connection_made(AiohttpTransport(self, self._transport))
            self._parse(self._aiohttp, data)

    def _parse(self, aiohttp: web.RequestHandler, data: bytes) -> None:
        try:
            aiohttp.data_received(data)
        except Exception as error:  # noqa: BLE001 - aiohttp documents no error that any bytes could raise here
            response = self._wrong_protocol.refuse_bytes(error, self.client)
            if self._request is None:
                self._transport.write(response)
            self.linger()

    def _refuse(self, refuse: Callable[[str], bytes]) -> None:
        self._transport.write(refuse(self.client))
        self.linger()

    def _wait_until_sent(self, seconds: float) -> None:
        """Abort a second after the response is sent, or after these seconds."""
        self._timer.cancel()
        if seconds <= 0 or (self._transport.get_write_buffer_size() == 0 and seconds < UNREAD_SECONDS):
            self._transport.abort()
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(LINGER_SECONDS, self._wait_until_sent, seconds - LINGER_SECONDS)

    def _update_reading(self) -> None:
        if self._transport.is_closing() or self._queued or self._ended:
            return
        if self._read_paused and not self._lingering:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    @property
    def client(self) -> str:
        """The address it comes from; empty for a unix socket."""
        peer = self._transport.get_extra_info("peername")
        return peer[0] if peer else ""


class AiohttpTransport(asyncio.Transport):
    """The transport that aiohttp has: reading, and closing, go through the HttpConnection."""

    def __init__(self, connection: HttpConnection, transport: asyncio.Transport) -> None:
        super().__init__()
        self.connection = connection
        self._transport = transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the socket's transport."""
        return self._transport.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """As the socket's transport."""
        self._transport.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """As the socket's transport."""
        self._transport.writelines(list_of_data)

    def abort(self) -> None:
        """As the socket's transport."""
        self._transport.abort()

    def pause_reading(self) -> None:
        """Pass on no more bytes."""
        self.connection.pause_reading(True)

    def resume_reading(self) -> None:
        """Pass on bytes again."""
        self.connection.pause_reading(False)

    def is_closing(self) -> bool:
        """Nothing can be written any more."""
        return self.connection.closing

    def close(self) -> None:
        """Write no more."""
        self.connection.linger()


class AiohttpHandler(web.RequestHandler):
    """aiohttp's protocol of a connection, with the `Server` header of ours."""

    __slots__ = ()

    @property
    def is_answering(self) -> bool:
        """It does not wait for a request."""
        return self._waiter is None or self._waiter.done()

    @property
    def has_more(self) -> bool:
        """Requests wait for the one that is being answered."""
        return bool(self._messages)

    def handle_error(self, *args: Any, **keywords: Any) -> web.StreamResponse:
        """The response to bytes that cannot be parsed, or of a handler that failed: the application does not see it."""
        response = super().handle_error(*args, **keywords)
        response.headers["Server"] = SERVER_NAME
        return response


class AiohttpLog(logging.LoggerAdapter[logging.Logger]):
    """The log of aiohttp's server: errors that clients cause are throttled warnings, others have their traceback."""

    def __init__(self, log: logging.Logger, wrong_protocol: WrongProtocol) -> None:
        super().__init__(log)
        self._wrong_protocol = wrong_protocol

    def exception(self, msg: object, *args: object, exc_info: Any = True, **keywords: Any) -> None:
        """Log what aiohttp could not parse, and what handlers raised; the first argument is the client's address."""
        if not self._wrong_protocol.log_if_by_client(exc_info, str(args[0]) if args else ""):
            super().exception(msg, *args, exc_info=exc_info, **keywords)

    def debug(self, msg: object, *args: object, exc_info: Any = None, **_: Any) -> None:
        """Log what aiohttp takes for usual: bytes of port scanners. Drop the rest, such as clients that closed."""
        self._wrong_protocol.log_if_by_client(exc_info, str(args[0]) if args else "")


def with_target(make: Callable[..., web.BaseRequest]) -> Callable[..., web.BaseRequest]:
    """Make requests as `make` does, but give a CONNECT without a target the path `/`, which takes no CONNECT.

    aiohttp's message of it has no URL, at which a request fails before any handler is called: the client would wait for
    a response, and asyncio log a traceback.
    """

    def request(message: RawRequestMessage, *others: Any) -> web.BaseRequest:
        return make(message if message.path else message._replace(path="/", url=URL("/")), *others)

    return request
