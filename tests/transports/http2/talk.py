"""A connection without sockets: what a client sends is bytes of the test's own, what it gets is told as h2 reads it."""

import math
import time
from collections.abc import Iterable, Mapping

from ratelimit_service.errors import RpcError
from ratelimit_service.system.clock import Tick
from ratelimit_service.transports.http2.connection import Connection
from ratelimit_service.transports.http2.counts import Counts
from ratelimit_service.transports.http2.frames import Code
from ratelimit_service.transports.http2.stream import EventKind
from ratelimit_service.transports.options import GrpcOptions

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes.fromhex("000000 04 00 00000000")
ACK = bytes.fromhex("000000 04 01 00000000")
HELLO = PREFACE + SETTINGS + ACK

UNARY, STREAM = "/t/U", "/t/S"
METHODS: Mapping[str, bool] = {UNARY: False, STREAM: True}


def literal(name: bytes, value: bytes) -> bytes:
    """A header that no table remembers; both are shorter than 127 bytes."""
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


def block(path: str = UNARY, *more: tuple[bytes, bytes]) -> bytes:
    """The headers of a call; the header table of the client has no entries from then on."""
    fields = [(b"content-type", b"application/grpc"), (b"te", b"trailers"), *more]
    return b"\x20\x83\x86\x01\x01x" + literal(b":path", path.encode()) + b"".join(literal(*field) for field in fields)


def frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    """A frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + number.to_bytes(4, "big") + payload


def headers(number: int, payload: bytes | None = None, *, end: bool = False) -> bytes:
    """A HEADERS frame that is a whole block."""
    return frame(1, 5 if end else 4, number, block() if payload is None else payload)


def data(number: int, payload: bytes, *, end: bool = True) -> bytes:
    """A DATA frame."""
    return frame(0, int(end), number, payload)


def message(body: bytes) -> bytes:
    """With its prefix."""
    return b"\0" + len(body).to_bytes(4, "big") + body


def question(number: int, body: bytes = b"?") -> bytes:
    """A whole unary call."""
    return headers(number) + data(number, message(body))


def window(number: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame."""
    return frame(8, 0, number, increment.to_bytes(4, "big"))


def settings(*pairs: tuple[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(4, 0, 0, b"".join(name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in pairs))


Heard = tuple[str, int, bytes]


class Talk:
    """One connection; `out` is all that it wrote."""

    def __init__(
        self,
        *first: bytes,
        options: GrpcOptions | None = None,
        answer: bool = False,
        denial: RpcError | None = None,
        tick: Tick = time.monotonic_ns,
        stops: bool = False,
    ) -> None:
        self.wakes = 0
        self.answer = answer
        self._over = 0 if stops else math.inf
        """With `stops` a step is over after each frame, as when a frame took all of its time."""
        self.out = b""
        self.heard: list[Heard] = []
        self.counts = Counts()
        self.connection = Connection(METHODS, options or GrpcOptions(), self._wake, self.counts, tick)
        self.connection.handshake_done(denial, "")
        self.say(*first)

    def _wake(self) -> None:
        self.wakes += 1

    def say(self, *pieces: bytes) -> list[Heard]:
        """What these bytes make happen; with `answer`, each question comes back."""
        heard: list[Heard] = []
        calls = self.connection.streams
        for piece in pieces:
            rest = piece
            while True:
                calls.flush_scheduled = True
                for kind, number, head, body in self.connection.receive(rest, self._over):
                    heard.append((kind.name, number, body or head.path.encode()))
                    if self.answer and kind is EventKind.CALL:
                        calls.reply(number, body)
                    if self.answer and kind is EventKind.MESSAGE:
                        calls.send(number, body)
                    if self.answer and kind is EventKind.HALF_CLOSE:
                        calls.finish(number)
                heard += [(kind.name, number, body) for kind, number, _, body in calls.events]
                calls.events.clear()
                self.out += self.connection.take_output()
                if not self.connection.more:
                    break
                rest = b""
        self.heard += heard
        return heard

    def take(self) -> bytes:
        """What it wrote since it was asked last."""
        self.out += self.connection.take_output()
        while self.connection.streams.output_full:
            self.connection.streams.resume_output()
            self.out += self.connection.take_output()
        out, self.out = self.out, b""
        return out

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """That, as kind, flags, stream and payload."""
        return list(parse(self.take()))

    @property
    def error(self) -> Code | None:
        """Why it was closed, if the client is to blame."""
        return self.connection.error[0] if self.connection.error else None


def parse(out: bytes) -> Iterable[tuple[int, int, int, bytes]]:
    """Bytes as frames; all of them must be whole."""
    while out:
        size = int.from_bytes(out[:3], "big")
        assert len(out) >= 9 + size
        yield out[3], out[4], int.from_bytes(out[5:9], "big"), out[9 : 9 + size]
        out = out[9 + size :]
