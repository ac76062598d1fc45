"""TLS of the operator's port: a layer between the socket and an `HttpConnection`, which sees an ordinary transport.

No event loop's own TLS is used: it accepts without a bound connections that never finish their handshake, hands over
bytes without regard to slots, and uvloop's `start_tls` loses a ClientHello that arrives before it is called.

Each read is decrypted in a slot of its own, as HttpConnection parses in one: a handshake takes a millisecond, and gRPC
calls go on in between. A connection counts as one of the HTTP connections from the moment it is accepted, and is
evicted as any other. Of each there are at most a record and a read that are not decrypted, and what they decrypt to.
"""

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from ratelimit_service.server.admin.connection import PREFACE, READ_BYTES, HttpConnection, LoopSlots, WrongProtocol
from ratelimit_service.telemetry.metric import Metric, counter
from ratelimit_service.transports.options import Tls
from ratelimit_service.transports.tls_session import TlsServer, tls_failure

HANDSHAKE_SECONDS: Final = 10.0
"""Seconds for the whole handshake, as for that of gRPC."""

_RECORD: Final = b"\x16"
"""The type of the record that a client of TLS begins with (RFC 8446, 5.1); no text of HTTP begins with it."""


class HttpTls:
    """The TLS of a port, by certificate files that are read again when they change. StartError when they are bad."""

    def __init__(self, tls: Tls, slots: LoopSlots) -> None:
        self.server = TlsServer(tls, "http/1.1")
        self.slots = slots
        self.failed = 0
        """Handshakes."""
        self.buffer = bytearray(READ_BYTES)
        """Of all connections: each read is copied from it at once."""

    def metrics(self) -> Sequence[Metric]:
        """Handshakes that failed, whether the certificate on disk is in use, and when it expires."""
        name, text = "ratelimit_http_tls_handshakes_failed_total", "TLS handshakes of the debug port that failed."
        return (counter(name, text, self.failed), *self.server.certificates.metrics("ratelimit_http_tls"))


class TlsConnection(asyncio.BufferedProtocol, asyncio.Transport):
    """The protocol of a socket, and the transport of the HttpConnection above it.

    Nothing is read while a read waits for its slot, while the HttpConnection has paused, or has not yet had all that
    was decrypted.
    """

    def __init__(self, tls: HttpTls, http: HttpConnection, wrong_protocol: WrongProtocol) -> None:
        super().__init__()
        self._tls = tls
        self._http = http
        self._wrong_protocol = wrong_protocol
        self._session = tls.server.begin()
        self._begun = False
        """The client has begun a handshake."""
        self._first = b""
        """Of a client that does not speak TLS: perhaps a part of HTTP/2's preface."""
        self._data = b""
        """Decrypted, and not yet handed to the HttpConnection."""
        self._queued = False
        """A read waits for its slot."""
        self._paused = False
        """The HttpConnection takes no more for now."""
        self._ended = False
        """Nothing more is written or decrypted."""

    # The protocol of the socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the client's handshake."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_SECONDS, self._on_timeout)
        self._http.connection_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the HttpConnection."""
        self._timer.cancel()
        self._ended = True
        self._http.connection_lost(exc)
        # Or the two would keep each other, and OpenSSL's buffers, until the collector looks at old objects.
        del self._http

    def get_buffer(self, sizehint: int) -> bytearray:
        """The buffer for the next read."""
        return self._tls.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Queue the bytes, and read no more before their slot."""
        if self._ended:
            self._http.buffer_updated(nbytes)  # it lingers, and counts what it drops
            return
        self._queued = True
        self._transport.pause_reading()
        raw = bytes(memoryview(self._tls.buffer)[:nbytes])
        self._tls.slots.add(lambda: self._take(raw))

    def eof_received(self) -> None:
        """The transport closes itself."""

    def pause_writing(self) -> None:
        """The client does not read."""
        self._http.pause_writing()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._http.resume_writing()

    # The transport of the HttpConnection.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the socket's transport."""
        return self._transport.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and write."""
        if not self._ended and not self._transport.is_closing():
            self._transport.write(self._session.encrypt(bytes(data)))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Encrypt and write."""
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        """Say that this is all, by TLS and by TCP."""
        self._end()
        self._transport.write_eof()

    def close(self) -> None:
        """Say that this is all, and close as soon as it is sent."""
        self._end()
        self._transport.close()

    def abort(self) -> None:
        """As the socket's transport."""
        self._transport.abort()

    def is_closing(self) -> bool:
        """As the socket's transport."""
        return self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        """As the socket's transport."""
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Hand over no more."""
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Hand over what was decrypted, or read."""
        self._paused = False
        self._go_on()

    # What is between the two.

    def _take(self, raw: bytes) -> None:
        """Decrypt the bytes in their slot, and hand over what is in them."""
        self._queued = False
        if self._ended or self._transport.is_closing():
            return
        session = self._session
        self._begun = self._begun or (not self._first and raw.startswith(_RECORD))
        if not self._begun:
            self._refuse_plain(self._first + raw)
            return
        handshaking = not session.established
        try:
            self._data = session.decrypt(raw)
        except ssl.SSLError as error:
            self._tls.failed += handshaking
            reason = tls_failure(error, "the handshake" if handshaking else "a record of TLS")
            self._wrong_protocol.log_tls(reason, self._http.client)
            self._end_with(session.take_output())  # the alert that tells the client
            return
        if out := session.take_output():
            self._transport.write(out)
        if handshaking and session.established:
            self._timer.cancel()
        self._go_on()

    def _go_on(self) -> None:
        if self._transport.is_closing() or self._queued or self._paused:
            return
        if self._data and not self._ended:
            buffer = self._http.get_buffer(-1)
            piece = self._data[: len(buffer)]
            self._data = self._data[len(piece) :]
            buffer[: len(piece)] = piece
            self._http.buffer_updated(len(piece))  # it pauses, and resumes after its slot
        elif self._session.more and not self._ended:
            self._queued = True
            self._tls.slots.add(lambda: self._take(b""))
        elif self._session.over and not self._ended and not self._http.busy:
            self.close()  # the client waits to hear the end too
        else:
            self._transport.resume_reading()

    def _refuse_plain(self, data: bytes) -> None:
        if PREFACE.startswith(data) and len(data) < len(PREFACE):
            self._first = data
            self._transport.resume_reading()
            return
        refuse = self._wrong_protocol.refuse_http2 if data.startswith(PREFACE) else self._wrong_protocol.refuse_plain
        self._tls.failed += 1
        self._end_with(refuse(self._http.client))

    def _end_with(self, last: bytes) -> None:
        """Send these bytes, and let the client read them."""
        self._timer.cancel()
        self._transport.write(last)
        self._ended = True
        self._http.linger()

    def _on_timeout(self) -> None:
        self._tls.failed += 1
        self._wrong_protocol.log_tls("the client takes too long for its handshake", self._http.client)
        self._transport.abort()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._data = b""
            if self._session.established and not self._transport.is_closing():
                self._transport.write(self._session.close())
