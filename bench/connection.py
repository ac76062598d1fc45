"""One connection of the load: calls as frames of HTTP/2, and what is read of the answers."""

import asyncio
import time
from collections import deque
from struct import Struct
from typing import Protocol, cast

import hpack

from ratelimit_service.api.ratelimit import ShouldRateLimit

DATA, HEADERS, RESET, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END, PADDED, PRIORITY = 1, 8, 32

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_TABLE = (1).to_bytes(2, "big") + (0).to_bytes(4, "big")
"""The other side's header table is empty, so equal headers are equal bytes."""

WINDOW = 1 << 30

_HEAD = Struct(">HBBBL").unpack_from
"""Of a frame: its size, as high and low part; kind, flags, stream."""


class Run(Protocol):
    """What all connections share."""

    @property
    def left(self) -> int:
        """Calls that are still to be made."""

    def next(self) -> bytes:
        """The message of one of them, with gRPC's prefix."""

    def answer(self, seconds: float, status: str, message: bytes) -> None:
        """One call is over."""

    def fail(self, what: str, count: int = 1) -> None:
        """Something that should not be."""


def frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    """A frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + number.to_bytes(4, "big") + payload


class Connection(asyncio.Protocol):
    """One connection: which calls are due on it, which are under way, and what has come of their answers."""

    def __init__(self, run: Run, in_flight: int, authority: str, *, closed_loop: bool) -> None:
        self.over = asyncio.get_running_loop().create_future()
        self._run = run
        self._closed_loop = closed_loop
        self._most = in_flight
        self._due = deque([time.perf_counter()] * in_flight if closed_loop else [])
        self._headers = _headers(authority)
        self._decoder = hpack.Decoder()
        self._statuses: dict[bytes, str] = {}
        self._began: dict[int, float] = {}
        self._messages: dict[int, bytes] = {}
        self._number = 1
        self._room = 65_535
        self._unacknowledged = 0
        self._rest = b""
        self._last = False
        """No more calls become due."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say how much may be sent here at once, and begin."""
        self._transport = cast("asyncio.Transport", transport)
        window = (4).to_bytes(2, "big") + WINDOW.to_bytes(4, "big")
        more = frame(WINDOW_UPDATE, 0, 0, (WINDOW - 65_535).to_bytes(4, "big"))
        self._transport.write(PREFACE + frame(SETTINGS, 0, 0, NO_TABLE + window) + more)
        self._begin()

    def call_at(self, moment: float) -> None:
        """A call is due."""
        if self.over.done():
            self._run.fail("lost: closed before it was due")
            return
        self._due.append(moment)
        self._begin()

    def finish(self) -> None:
        """No more calls become due: close when the last one is answered."""
        self._last = True
        self._begin()

    def _begin(self) -> None:
        if self.over.done():
            return
        out = []
        while self._due and self._run.left and len(self._began) < self._most and self._room > 0:
            message = self._run.next()
            size = len(message).to_bytes(3, "big")
            stream = self._number.to_bytes(4, "big")
            self._began[self._number] = self._due.popleft()
            self._number += 2
            self._room -= len(message)
            out.append(b"\1\4%b%b%b\0\1%b%b" % (stream, self._headers, size, stream, message))
        if out:
            headers_size = len(self._headers).to_bytes(3, "big")
            self._transport.write(headers_size + headers_size.join(out))
        if not self._began and (not self._run.left or (self._last and not self._due)):
            self._transport.close()

    def data_received(self, received: bytes) -> None:
        """Frames, whole and in part."""
        read, at = self._rest + received, 0
        length, known = len(read), self._statuses
        while length - at >= 9:
            high, low, kind, flags, number = _HEAD(read, at)
            end = at + 9 + (high << 8 | low)
            if end > length:
                break
            payload = read[at + 9 : end]
            at = end
            # Almost all are headers seen before.
            status = known.get(payload) if kind == HEADERS and not flags & (PADDED | PRIORITY) else None
            if status is None:
                self._take(kind, flags, number, payload)
            elif flags & END:
                self._end(number, status)
        self._rest = read[at:]
        if self._unacknowledged > WINDOW // 2:
            self._transport.write(frame(WINDOW_UPDATE, 0, 0, self._unacknowledged.to_bytes(4, "big")))
            self._unacknowledged = 0
        self._begin()

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if (kind in (DATA, HEADERS) and flags & (PADDED | PRIORITY)) or kind == CONTINUATION:
            raise NotImplementedError("padding, priorities and CONTINUATION are not read here")
        if kind == DATA:
            self._unacknowledged += len(payload)
            self._messages[number] = self._messages.get(number, b"") + payload
            if flags & END:
                self._end(number, "none")
        elif kind == HEADERS:
            status = self._status(payload)
            if flags & END:
                self._end(number, status)
        elif kind == RESET:
            self._end(number, f"reset {int.from_bytes(payload, 'big')}")
        elif kind in (SETTINGS, PING) and not flags & 1:
            self._transport.write(frame(kind, 1, 0, payload if kind == PING else b""))
        elif kind == WINDOW_UPDATE and not number:
            self._room += int.from_bytes(payload, "big")

    def _status(self, block: bytes) -> str:
        """The gRPC status in these headers; each block is decoded once."""
        status = self._statuses.get(block)
        if status is None:
            decoded = dict(self._decoder.decode(block, raw=True))
            status = self._statuses[block] = decoded.get(b"grpc-status", b"none").decode()
        return status

    def _end(self, number: int, status: str) -> None:
        now = time.perf_counter()
        began = self._began.pop(number, None)
        if began is None:
            return
        self._run.answer(now - began, status, self._messages.pop(number, b""))
        if self._closed_loop:
            self._due.append(now)

    def connection_lost(self, error: Exception | None) -> None:
        """Calls that were not answered have failed, and those that were due here."""
        lost = len(self._began) + (0 if self._closed_loop else len(self._due))
        if lost:
            self._run.fail(f"lost: {error or 'closed'}", lost)
        self.over.set_result(None)


def _headers(authority: str) -> bytes:
    """Their block, for a server whose table is empty: it can be read by itself, and is the same for each call."""
    pairs = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", ShouldRateLimit.path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "ratelimit-bench"),
    ]
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    return bytes(encoder.encode([hpack.NeverIndexedHeaderTuple(*pair) for pair in pairs]))
