"""One connection as raw bytes: anything can be sent, and what the server answers is counted."""

import asyncio
import re
import ssl
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from struct import Struct
from typing import cast

import hpack

from attack.frames import ACK, CODES, END_STREAM, GOAWAY, HELLO, STATUSES, data, headers
from ratelimit_service.commands.load.connection import (
    DATA,
    HEADERS,
    PADDED,
    PING,
    RESET,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)

_HEAD = Struct(">HBBBL").unpack_from
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_REMEMBERED = 1000
"""Header blocks of answers, by their bytes."""
_CHUNK = 16_384
"""The largest frame that every server takes (RFC 9113, 4.2)."""


class Ended(Exception):  # noqa: N818 - an event that attacks expect
    """The connection is gone."""


@dataclass
class Counts:
    """What an attacker counts."""

    sent: int = 0
    opened: int = 0
    refused: int = 0
    """Connections that did not come about."""
    ended: Counter[str] = field(default_factory=Counter)
    """Connections that the server ended, by how."""
    answers: Counter[str] = field(default_factory=Counter)
    """Streams and requests that were answered, by gRPC's status, by reset or by HTTP's status."""
    harm: list[str] = field(default_factory=list)
    """What the attack itself found to be wrong."""
    notes: list[str] = field(default_factory=list)


class Wire(asyncio.Protocol):
    """A connection that greets; with `frames` it reads HTTP/2 and answers SETTINGS and PING, otherwise HTTP/1."""

    transport: asyncio.Transport

    def __init__(self, counts: Counts, hello: bytes = HELLO, *, frames: bool = True) -> None:
        self.counts = counts
        self.gone = False
        self.closing = False
        """It was ended from this side: what the server does then is not counted."""
        self.acknowledges = bool(hello)
        """SETTINGS and PING are acknowledged."""
        self.window = 65_535
        """Of the connection, towards the server."""
        self.initial = 65_535
        """Of each new stream."""
        self.streams_ended = 0
        self.max_head = 0
        """Bytes of the longest header block that came."""
        self.goaway = ""
        self.text = b""
        """The first bytes that came, of HTTP/1."""
        self._hello = hello
        self._frames = frames
        self._room = asyncio.Event()
        self._room.set()
        self._came = asyncio.Event()
        self._rest = b""
        self._extra: dict[int, int] = {}
        """What streams may be sent beyond `initial`."""
        self._decoder = hpack.Decoder()
        self._statuses: dict[bytes, str] = {}
        self._numbers = iter(range(1, 2**31, 2))

    # What an attack does.

    async def send(self, what: bytes) -> None:
        """Bytes, once the socket takes them."""
        if self.gone:
            raise Ended
        self.transport.write(what)
        self.counts.sent += len(what)
        await asyncio.sleep(0)
        await self._room.wait()
        if self.gone:
            raise Ended

    async def repeat(self, what: bytes) -> None:
        """The same bytes until the connection ends."""
        while True:
            await self.send(what)

    async def spend(self, what: bytes, cost: int) -> None:
        """Bytes that take so much of the connection's window, once it has room."""
        while self.window < cost:
            await self.wait()
        self.window -= cost
        await self.send(what)

    async def ask(self, block: bytes, body: bytes) -> int:
        """A call, as fast as the server's windows take it; the number of its stream."""
        number = self.number()
        sent = headers(number, block)
        left, at = self.initial, 0
        while at < len(body) or not body:
            left += self._extra.pop(number, 0)
            size = min(len(body) - at, self.window, left, _CHUNK)
            if size <= 0 and body:
                if sent:
                    await self.send(sent)  # in which time room may come
                    sent = b""
                else:
                    await self.wait()
                continue
            sent += data(number, body[at : at + size], end=at + size == len(body))
            at, left, self.window = at + size, left - size, self.window - size
            if not body:
                break
        await self.send(sent)
        return number

    async def call(self, block: bytes, body: bytes) -> None:
        """A call, and its answer."""
        expected = self.streams_ended + 1
        await self.ask(block, body)
        await self.until_ended(expected)

    async def exchange(self, sent: bytes, count: int) -> None:
        """Send bytes that end `count` streams or HTTP/1 requests, and wait for the responses."""
        expected = self.streams_ended + count
        await self.send(sent)
        await self.until_ended(expected)

    async def until_ended(self, count: int) -> None:
        """Wait until `count` streams or HTTP/1 responses have ended."""
        while self.streams_ended < count:
            await self.wait()

    async def wait(self) -> None:
        """Wait until anything has come."""
        if self.gone:
            raise Ended
        self._came.clear()
        await self._came.wait()
        if self.gone:
            raise Ended

    async def until_closed(self) -> None:
        """Wait for the end of the connection."""
        while not self.gone:
            self._came.clear()
            await self._came.wait()

    def number(self) -> int:
        """The number of an unused stream."""
        return next(self._numbers)

    def numbers(self, count: int) -> list[int]:
        """The numbers of `count` unused streams."""
        return [next(self._numbers) for _ in range(count)]

    def stop_reading(self) -> None:
        """Read nothing that the server sends from now on."""
        self.transport.pause_reading()

    def close(self) -> None:
        """End it."""
        self.closing = True
        self.transport.close()

    def abort(self) -> None:
        """End it at once, by a reset of TCP where anything was still to be read or sent."""
        self.closing = True
        self.transport.abort()

    # What the server does.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet at once: what the server says first must not be answered before."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._hello)
        self.counts.opened += 1
        self.counts.sent += len(self._hello)

    def pause_writing(self) -> None:
        """The server does not read for now."""
        self._room.clear()

    def resume_writing(self) -> None:
        """It does again."""
        self._room.set()

    def connection_lost(self, error: Exception | None) -> None:
        """Say how."""
        self.gone = True
        if not self.closing:
            self.counts.ended[self.goaway or ("closed" if error is None else "reset")] += 1
        self._room.set()
        self._came.set()

    def data_received(self, received: bytes) -> None:
        """Count it."""
        if self._frames:
            for kind, flags, number, payload in self._whole(received):
                self._take(kind, flags, number, payload)
        else:
            if len(self.text) < _CHUNK:
                self.text += received
            for status in _STATUS_LINE.findall(self._rest + received):
                self.counts.answers[f"HTTP {status.decode()}"] += 1
                self.streams_ended += 1
            self._rest = b"" if b"HTTP/1" in received[-12:] else received[-12:]
        self._came.set()

    def _whole(self, received: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        read, at = self._rest + received, 0
        while len(read) - at >= 9:
            high, low, kind, flags, number = _HEAD(read, at)
            end = at + 9 + (high << 8 | low)
            if end > len(read):
                break
            yield kind, flags, number, read[at + 9 : end]
            at = end
        self._rest = read[at:]

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == HEADERS:
            self._headers(flags, number, payload)
        elif kind == DATA and flags & END_STREAM:
            self._end(number, "none")
        elif kind == RESET:
            self._end(number, f"RST {_name(CODES, int.from_bytes(payload, 'big'))}")
        elif kind == SETTINGS and not flags & ACK:
            self._settings(payload)
        elif kind == PING and not flags & ACK and self.acknowledges and not self.closing:
            self.transport.write(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            increment = int.from_bytes(payload, "big") & 2**31 - 1
            if number:
                self._extra[number] = self._extra.get(number, 0) + increment
            else:
                self.window += increment
        elif kind == GOAWAY:
            self.goaway = f"GOAWAY {_name(CODES, int.from_bytes(payload[4:8], 'big'))}"

    def _settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            if payload[at : at + 2] == b"\0\4":
                self.initial = int.from_bytes(payload[at + 2 : at + 6], "big")
        if self.acknowledges and not self.closing:
            self.transport.write(frame(SETTINGS, ACK, 0))

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        if flags & PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        if flags & 32:  # a priority
            payload = payload[5:]
        self.max_head = max(self.max_head, len(payload))
        status = self._statuses.get(payload)
        if status is None:
            status = self._status(payload)
            if len(self._statuses) < _REMEMBERED:
                self._statuses[payload] = status
        if flags & END_STREAM:
            self._end(number, status)

    def _status(self, payload: bytes) -> str:
        try:
            decoded = dict(self._decoder.decode(payload, raw=True))
        except hpack.HPACKError:
            return "unreadable headers"
        if b"grpc-status" in decoded:
            return _name(STATUSES, int(decoded[b"grpc-status"]))
        return f"HTTP {decoded.get(b':status', b'?').decode()}"

    def _end(self, number: int, status: str) -> None:
        self.streams_ended += 1
        self._extra.pop(number, None)
        self.stream_ended(number, status)

    def stream_ended(self, number: int, status: str) -> None:
        """Count how."""
        self.counts.answers[status] += 1


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else str(number)


@cache
def any_certificate() -> ssl.SSLContext:
    """TLS with h2, to a server of any certificate: it is this machine's own."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


async def connect(
    wire: Wire, address: tuple[str, int], *, tls: bool, local_addr: tuple[str, int] | None = None
) -> None:
    """Open it. OSError when that cannot be done."""
    loop = asyncio.get_running_loop()
    context = any_certificate() if tls else None
    await loop.create_connection(lambda: wire, *address, ssl=context, local_addr=local_addr)
