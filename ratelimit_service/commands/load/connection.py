"""One connection of a load: calls as frames of HTTP/2, and their responses.

It writes and reads only what calls of a unary gRPC method need, in a tenth of the time of a library.
"""

import asyncio
from collections import deque
from struct import Struct
from time import perf_counter_ns
from typing import Final, Protocol, cast

import hpack

from ratelimit_service.api.ratelimit import ShouldRateLimit

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
ACK, END_STREAM, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 32

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_WINDOW: Final = 1 << 30
_OUR_SETTINGS: Final = b"".join(
    identifier.to_bytes(2, "big") + value.to_bytes(4, "big")
    for identifier, value in (
        (1, 0),  # HEADER_TABLE_SIZE: equal headers are equal bytes
        (2, 0),  # ENABLE_PUSH
        (4, _WINDOW),  # INITIAL_WINDOW_SIZE
    )
)
_MAX_CONCURRENT_STREAMS = 3

_MAX_NUMBER: Final = 2**31 - 1
"""The last number of a stream; after it a client needs a new connection."""

_frame_head: Final = Struct(">HBBBL").unpack_from
"""Unpacks the head of a frame: its size, as high and low part; type, flags, stream."""


class Calls(Protocol):
    """The calls of all connections."""

    def next(self) -> bytes | None:
        """The message of one more call, with gRPC's prefix; None if there are to be no more."""

    def answered(self, nanoseconds: int, status: str, message: bytes) -> None:
        """A call is over; `message` has gRPC's prefix, and is empty if there was none."""

    def failed(self, reason: str, calls: int = 1) -> None:
        """Calls are over without a response."""


class LoadConnection(asyncio.Protocol):
    """Makes at most `max_in_flight` calls at a time; each is due at a moment, from which its latency counts.

    In a closed loop a call is due when the one before it is answered, otherwise when `call_at` says so.
    """

    def __init__(self, calls: Calls, max_in_flight: int, headers: bytes, *, closed_loop: bool) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.open = False
        """It takes new calls."""
        self.due: deque[int] = deque()
        """The moments of calls that wait until there is room for them."""
        self._calls = calls
        self._max_in_flight = max_in_flight
        self._closed_loop = closed_loop
        self._headers = headers
        self._decoder = hpack.Decoder()
        self._statuses: dict[bytes, str] = {}
        """The gRPC status in a block of headers that was decoded before."""
        self._block = b""
        """The begin of a block that CONTINUATION frames go on with."""
        self._block_ends_stream = False
        self._in_flight: dict[int, int] = {}
        """When each call was due, by its stream."""
        self._messages: dict[int, bytes] = {}
        self._number = 1
        self._send_window = 65_535
        self._unacknowledged = 0
        self._rest = b""
        self._last = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say how much may be sent to us at once, and begin."""
        self._transport = cast("asyncio.Transport", transport)
        more = (_WINDOW - 65_535).to_bytes(4, "big")
        self._transport.write(PREFACE + frame(SETTINGS, 0, 0, _OUR_SETTINGS) + frame(WINDOW_UPDATE, 0, 0, more))
        self.open = True
        if self._closed_loop:
            self.due.extend([perf_counter_ns()] * self._max_in_flight)
        self._begin()

    def call_at(self, moment: int) -> None:
        """A call is due since this moment, in nanoseconds of the performance counter."""
        self.due.append(moment)
        self._begin()

    def finish(self) -> None:
        """Begin no more calls than those that are due, and close when the last one is answered."""
        self._last = True
        if self._closed_loop:
            self.due.clear()
        self._begin()

    def abort(self) -> None:
        """Close at once; the calls in flight have failed."""
        if self._in_flight:
            self._calls.failed("no answer until the end", len(self._in_flight))
            self._in_flight.clear()
        self._transport.abort()

    def _begin(self) -> None:
        """Make the calls that are due, as far as there is room."""
        out = []
        due, in_flight = self.due, self._in_flight
        while due and self.open and len(in_flight) < self._max_in_flight and self._send_window > 0:
            message = self._calls.next()
            if message is None:
                due.clear()
                self._last = True
                break
            number = self._number
            in_flight[number] = due.popleft()
            self._number = number + 2
            self._send_window -= len(message)
            stream = number.to_bytes(4, "big")
            out.append(
                b"\1\4%b%b%b\0\1%b%b" % (stream, self._headers, len(message).to_bytes(3, "big"), stream, message)
            )
            if number + 2 > _MAX_NUMBER:
                self.open = False
        if out:
            size = len(self._headers).to_bytes(3, "big")
            self._transport.write(size + size.join(out))
        if not in_flight and (self._last or not self.open) and not (self.open and due):
            self._transport.close()

    def data_received(self, received: bytes) -> None:
        """Read the frames of the server."""
        data, at = self._rest + received, 0
        length, statuses = len(data), self._statuses
        while length - at >= 9:
            high, low, kind, flags, number = _frame_head(data, at)
            end = at + 9 + (high << 8 | low)
            if end > length:
                break
            payload = data[at + 9 : end]
            at = end
            # Almost all are whole blocks of headers that were seen before.
            status = statuses.get(payload) if kind == HEADERS and not flags & (PADDED | PRIORITY) else None
            if status is None or not flags & END_HEADERS:
                self._read(kind, flags, number, payload)
            elif flags & END_STREAM:
                self._end(number, status)
        self._rest = data[at:]
        if self._unacknowledged > _WINDOW // 2:
            self._transport.write(frame(WINDOW_UPDATE, 0, 0, self._unacknowledged.to_bytes(4, "big")))
            self._unacknowledged = 0
        self._begin()

    def _read(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == DATA:
            self._unacknowledged += len(payload)  # padding counts (RFC 9113, 6.9.1)
        if kind in (DATA, HEADERS) and flags & PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        if kind == DATA:
            self._messages[number] = self._messages.get(number, b"") + payload
            if flags & END_STREAM:
                self._end(number, "no status")
        elif kind in (HEADERS, CONTINUATION):
            self._read_headers(kind, flags, number, payload)
        elif kind == RESET:
            self._end(number, f"reset with code {int.from_bytes(payload, 'big')}")
        elif kind == SETTINGS and not flags & ACK:
            self._read_settings(payload)
        elif kind == PING and not flags & ACK:
            self._transport.write(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            self._read_goaway(int.from_bytes(payload[:4], "big"))
        elif kind == WINDOW_UPDATE and not number:
            self._send_window += int.from_bytes(payload, "big")

    def _read_headers(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """A block of headers, or a piece of one; it is the head of the response, or its trailers."""
        if kind == HEADERS:
            self._block = payload[5:] if flags & PRIORITY else payload
            self._block_ends_stream = bool(flags & END_STREAM)
        else:
            self._block += payload
        if flags & END_HEADERS:
            status = self._status(self._block)
            if self._block_ends_stream:
                self._end(number, status)

    def _read_goaway(self, last: int) -> None:
        """Begin no more calls; those above the last stream that the server will process have failed."""
        self.open = False
        for number in [number for number in self._in_flight if number > last]:
            del self._in_flight[number]
            self._calls.failed("refused by GOAWAY")

    def _read_settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            identifier, value = (
                int.from_bytes(payload[at : at + 2], "big"),
                int.from_bytes(payload[at + 2 : at + 6], "big"),
            )
            if identifier == _MAX_CONCURRENT_STREAMS:
                self._max_in_flight = min(self._max_in_flight, value)
        self._transport.write(frame(SETTINGS, ACK, 0))

    def _status(self, block: bytes) -> str:
        """The gRPC status in a block of headers; each block is decoded once."""
        status = self._statuses.get(block)
        if status is None:
            decoded = dict(self._decoder.decode(block, raw=True))
            status = self._statuses[block] = decoded.get(b"grpc-status", b"no status").decode()
        return status

    def _end(self, number: int, status: str) -> None:
        due = self._in_flight.pop(number, None)
        if due is None:
            return
        now = perf_counter_ns()
        self._calls.answered(now - due, status, self._messages.pop(number, b""))
        if self._closed_loop and not self._last:
            self.due.append(now)

    def connection_lost(self, error: Exception | None) -> None:
        """The calls in flight have failed."""
        self.open = False
        if self._in_flight:
            self._calls.failed(f"connection lost: {error or 'closed by the server'}", len(self._in_flight))
            self._in_flight.clear()
        self.closed.set_result(None)


def call_headers(authority: str, scheme: str, timeout: int | None) -> bytes:
    """The block of headers of every call. `timeout` is the deadline that it has, in microseconds.

    The server's table is not used: a block can be read by itself, and is the same for each call.
    """
    pairs = [
        (":method", "POST"),
        (":scheme", scheme),
        (":path", ShouldRateLimit.path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "ratelimit-load"),
    ]
    if timeout is not None:
        pairs.append(("grpc-timeout", f"{timeout}u" if timeout < 10**8 else f"{timeout // 1000}m"))
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    return bytes(encoder.encode([hpack.NeverIndexedHeaderTuple(*pair) for pair in pairs]))


def frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + number.to_bytes(4, "big") + payload
