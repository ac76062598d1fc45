"""Clients that send an HTTP port something else than HTTP/1.1: they get an answer, and the log one line a minute.

An Envoy whose cluster names the wrong port connects again and again, for as long as it runs.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawRequestMessage
from yarl import URL

from ratelimit_service.system.address import Address, Tcp
from ratelimit_service.telemetry.notices import Notices

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

    def __init__(self, what: str, port: int, grpc: Sequence[Address], notices: Notices) -> None:
        self._port = f"the {what} port {port}"
        places = dict.fromkeys(str(each.port) if isinstance(each, Tcp) else str(each) for each in grpc)
        self._elsewhere = f"; gRPC is on {', '.join(places)}" if places else ""
        self._notices = notices

    def refuse_http2(self, client: str) -> bytes:
        """The answer to a client that begins as HTTP/2 does."""
        self._notices.warn(f"a client speaks HTTP/2 to {self._port}{self._elsewhere}", client)
        return _answer(f"This is {self._port}, which speaks HTTP/1.1 only{self._elsewhere}.\n")

    def refuse_tls(self, client: str) -> bytes:
        """The answer to a client that begins as TLS does."""
        self._notices.warn(f"a client speaks TLS to {self._port}, which is plain HTTP", client)
        return _answer(f"This is {self._port}, which speaks HTTP without TLS.\n")

    def handles(self, error: object, client: str) -> bool:
        """Log the error as such a client's, or drop it when the client has left; False when it is neither."""
        # Not the error's text: it quotes the client's bytes, which may be a header with a secret. UnicodeEncodeError:
        # aiohttp's answers quote them too, and fail at those that are not UTF-8.
        if isinstance(error, HttpProcessingError | web.RequestPayloadError | UnicodeEncodeError):
            self._notices.warn(f"a client sends bytes that are not HTTP/1.1 to {self._port}", client)
            return True
        return isinstance(error, ConnectionError)

    def cannot_parse(self, error: Exception, client: str) -> bytes:
        """The answer to bytes at which the parser raised."""
        # Of a ValueError the bytes are the cause, of others perhaps not. The text may quote them.
        kind = "" if isinstance(error, ValueError) else f" ({type(error).__name__})"
        self._notices.warn(f"a client sends bytes that are not HTTP/1.1 to {self._port}{kind}", client)
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
