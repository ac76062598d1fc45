"""One HTTP connection: bytes go to aiohttp a few at a time and in turns; aiohttp's protocol sees an ordinary transport.

| state | what comes | what ends it |
| --- | --- | --- |
| beginning | is kept until it is clear that it is HTTP/1 | bytes of HTTP/2 or TLS, `KEEPALIVE_SECONDS` without any |
| open | goes to aiohttp, one read in a turn, and no more is read before | aiohttp |
| ending | is dropped unparsed, so that a client that still sends reads its answer | the client, or the bounds below |
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawRequestMessage
from yarl import URL

from ratelimit_service.system.address import Address, Tcp
from ratelimit_service.telemetry.logs import ThrottledLog
from ratelimit_service.telemetry.metric import Metric, MetricType


class Turns:
    """Pieces of work, first come first served."""

    def __init__(self) -> None:
        self._pieces: deque[Callable[[], object]] = deque()
        self._scheduled = False

    def add(self, piece: Callable[[], object]) -> None:
        """Call it in a turn of its own."""
        self._pieces.append(piece)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    async def wait(self) -> None:
        """Until it is the caller's turn."""
        granted = asyncio.get_running_loop().create_future()
        self.add(partial(_grant, granted))
        await granted

    def _run(self) -> None:
        piece = self._pieces.popleft()
        # Before the piece is called: it may raise, and the others must not wait for ever.
        self._scheduled = bool(self._pieces)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._run)
        piece()


def _grant(granted: asyncio.Future[None]) -> None:
    if not granted.done():  # it was cancelled
        granted.set_result(None)


_NAME: Final = "ratelimit_http_connections"


class Closable(Protocol):
    """A connection, as far as it is needed here."""

    @property
    def at_work(self) -> bool:
        """It waits for this process, and not for its client."""

    def close(self) -> None:
        """Close it as soon as all that was written is sent."""

    def abort(self) -> None:
        """Close it at once."""


class HttpConnections:
    """At most `most`."""

    def __init__(self, most: int, warnings: ThrottledLog) -> None:
        self._most = most
        self._warnings = warnings
        self._evicted = 0
        self._open: dict[Closable, None] = {}
        """The one whose request began or ended last, or that was made last, comes last."""

    def enter(self, connection: Closable) -> None:
        """Count a new one, and close another if they are too many."""
        if len(self._open) >= self._most:
            oldest = next((each for each in self._open if not each.at_work), next(iter(self._open)))
            self.leave(oldest)
            self._evicted += 1
            oldest.abort()
            self._warnings.warn(
                f"{self._most} HTTP connections are open, the most there may be (HTTP_MAX_CONNECTIONS):"
                " the one that has asked nothing for longest is closed for each new one"
            )
        self._open[connection] = None

    def touch(self, connection: Closable) -> None:
        """A request of it began or ended."""
        if connection in self._open:
            self._open[connection] = self._open.pop(connection)

    def leave(self, connection: Closable) -> None:
        """It is closed."""
        self._open.pop(connection, None)

    def close(self) -> None:
        """Close all."""
        for connection in tuple(self._open):
            connection.close()

    def metrics(self) -> Sequence[Metric]:
        """As metrics."""
        return (
            Metric(_NAME, MetricType.GAUGE, "Open HTTP connections.", [((), len(self._open))]),
            Metric(
                f"{_NAME}_evicted_total",
                MetricType.COUNTER,
                "HTTP connections closed for newer ones, because HTTP_MAX_CONNECTIONS were open.",
                [((), self._evicted)],
            ),
        )


PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""RFC 9113, 3.4: a client of HTTP/2 begins with these bytes."""

HANDSHAKE: Final = b"\x16\x03"
"""RFC 8446, 5.1: a client of TLS begins with a record of this type and major version."""

_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
)
"""What clients of HTTP/2 and of TLS know an HTTP/1.1 port by. A GOAWAY would say more to those of HTTP/2, but it needs
SETTINGS before it, and by these gRPC's C core takes the connection for made: it connects anew without a pause."""


class Misdirected:
    """Such clients of one port: what they are answered, and what the log says of them."""

    def __init__(self, what: str, port: int, grpc: Sequence[Address], warnings: ThrottledLog) -> None:
        self._port = f"the {what} port {port}"
        places = dict.fromkeys(str(each.port) if isinstance(each, Tcp) else str(each) for each in grpc)
        self._elsewhere = f"; gRPC is on {', '.join(places)}" if places else ""
        self._warnings = warnings

    def refuse_http2(self, client: str) -> bytes:
        """The answer to a client that begins as HTTP/2 does."""
        self._warnings.warn(f"a client speaks HTTP/2 to {self._port}{self._elsewhere}", client)
        return _answer(f"This is {self._port}, which speaks HTTP/1.1 only{self._elsewhere}.\n")

    def refuse_tls(self, client: str) -> bytes:
        """The answer to a client that begins as TLS does."""
        self._warnings.warn(f"a client speaks TLS to {self._port}, which is plain HTTP", client)
        return _answer(f"This is {self._port}, which speaks HTTP without TLS.\n")

    def handles(self, error: object, client: str) -> bool:
        """Log the error as such a client's, or drop it when the client has left; False when it is neither."""
        # Not the error's text: it quotes the client's bytes, which may be a header with a secret. UnicodeEncodeError:
        # aiohttp's answers quote them too, and fail at those that are not UTF-8.
        if isinstance(error, HttpProcessingError | web.RequestPayloadError | UnicodeEncodeError):
            self._warnings.warn(f"a client sends bytes that are not HTTP/1.1 to {self._port}", client)
            return True
        return isinstance(error, ConnectionError)

    def cannot_parse(self, error: Exception, client: str) -> bytes:
        """The answer to bytes at which the parser raised."""
        # Of a ValueError the bytes are the cause, of others perhaps not. The text may quote them.
        kind = "" if isinstance(error, ValueError) else f" ({type(error).__name__})"
        self._warnings.warn(f"a client sends bytes that are not HTTP/1.1 to {self._port}{kind}", client)
        return _answer("These bytes are not HTTP/1.1.\n")


def _answer(text: str) -> bytes:
    body = text.encode()
    return _ANSWER % (len(body), body)


def with_target(make: Callable[..., web.BaseRequest]) -> Callable[..., web.BaseRequest]:
    """Makes requests as `make` does, and of a CONNECT without a target one that no endpoint takes.

    Its message has no URL, at which a request fails before any handler has it: the client would wait for an answer,
    and asyncio log a traceback.
    """

    def request(message: RawRequestMessage, *others: Any) -> web.BaseRequest:
        return make(message if message.path else message._replace(path="/", url=URL("/")), *others)

    return request


class ServerLog(logging.LoggerAdapter[logging.Logger]):
    """The log of aiohttp's server: what clients cause is a notice, anything else an error with its traceback."""

    def __init__(self, log: logging.Logger, misdirected: Misdirected) -> None:
        super().__init__(log)
        self._misdirected = misdirected

    def exception(self, msg: object, *args: object, exc_info: Any = True, **keywords: Any) -> None:
        """What aiohttp could not read, and what handlers raised; the first argument is the client's address."""
        if not self._misdirected.handles(exc_info, str(args[0]) if args else ""):
            super().exception(msg, *args, exc_info=exc_info, **keywords)

    def debug(self, msg: object, *args: object, exc_info: Any = None, **_: Any) -> None:
        """What aiohttp takes for usual: the bytes of scanners, and clients that left."""
        self._misdirected.handles(exc_info, str(args[0]) if args else "")


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
