"""Where the two transports rightly differ: what is sent, and what becomes of it on each. docs/transports.md says why.

Ours does what RFC 9113 and gRPC's own rules say; grpc's core passes over much of it, leaves calls that cannot be any
without an answer, and knows no padding. What is not here is the same on both.
"""

from typing import Final, NamedTuple

from tests.transports.exchange import Outcome
from tests.transports.http2.talk import block, data, frame, headers, literal, message, settings, window
from tests.transports.methods import Echo, Talk

OK, NOTHING, RESET, ENDED = "0", "no answer", "reset", "connection ended"
NOT_GRPC, UNIMPLEMENTED, INTERNAL = "HTTP error", "12", "13"


class Difference(NamedTuple):
    """One of them."""

    name: str
    sent: bytes
    ours: str
    grpcio: str


def reaction(outcome: Outcome) -> str:
    """What became of the connection, or of its first call: the class, without words."""
    if not outcome.alive:
        return ENDED
    if 1 not in outcome.answers:
        return NOTHING
    http, _, grpc = outcome.answers[1].status.partition(" ")
    return RESET if http == "reset" else grpc if http == "200" else NOT_GRPC


def with_fields(*fields: tuple[bytes, bytes]) -> bytes:
    """The headers of a call and these; then its question."""
    return headers(1, block(Echo.path, *fields)) + _ASKED


def with_only(*fields: tuple[bytes, bytes]) -> bytes:
    """What a request must have by HTTP, and these."""
    first = b"\x20\x83\x86\x01\x01x" + literal(b":path", Echo.path.encode())
    return headers(1, first + b"".join(literal(*field) for field in fields)) + _ASKED


_ASKED: Final = data(1, message(b""))
_OPENED: Final = headers(1, block(Echo.path))
_PART: Final = data(1, message(b"a"), end=False)
_GRPC: Final = (b"content-type", b"application/grpc")
_NOBODY: Final = block(Echo.path).replace(b"\x01\x01x", b"")
_SCHEME: Final = block(Echo.path).replace(b"\x86", literal(b":scheme", b"unix"))
_TEXT: Final = (b"content-type", b"text/plain")
_WEB: Final = (b"content-type", b"application/grpc-web")

DIFFERENCES: Final = [
    # Valid, and answered by ours only.
    Difference("padded DATA (6.1)", _OPENED + frame(0, 9, 1, b"\3" + message(b"") + b"\0\0\0"), OK, RESET),
    Difference("padded HEADERS (6.2)", frame(1, 0xC, 1, b"\3" + block(Echo.path) + b"\0\0\0") + _ASKED, OK, INTERNAL),
    Difference("no te", with_only(_GRPC), OK, RESET),
    Difference("no :authority (8.3.1)", headers(1, _NOBODY) + _ASKED, OK, RESET),
    Difference("a scheme of its own (8.3.1)", headers(1, _SCHEME) + _ASKED, OK, INTERNAL),
    Difference("binary metadata that is not base64", with_fields((b"x-bin", b"!")), OK, INTERNAL),
    # Not gRPC: told so, where grpc's core is silent.
    Difference("GET", headers(1, b"\x20\x82\x84\x86", end=True), NOT_GRPC, RESET),
    Difference("no content-type", with_only((b"te", b"trailers")), NOT_GRPC, OK),
    Difference("content-type of another", with_only((b"te", b"trailers"), _TEXT), NOT_GRPC, OK),
    Difference("content-type of gRPC-Web", with_only((b"te", b"trailers"), _WEB), NOT_GRPC, OK),
    # Questions that are none.
    Difference("no message", _OPENED + data(1, b""), UNIMPLEMENTED, NOTHING),
    Difference("two messages", _OPENED + data(1, message(b"a") * 2), UNIMPLEMENTED, OK),
    Difference("half a message", _OPENED + data(1, message(b"hello")[:-1]), INTERNAL, NOTHING),
    Difference("half a message of a stream", headers(1, block(Talk.path)) + data(1, b"\0"), INTERNAL, OK),
    Difference("a flag that is no flag", _OPENED + data(1, b"\2\0\0\0\0"), INTERNAL, OK),
    Difference("grpc-encoding unknown", with_fields((b"grpc-encoding", b"snappy")), UNIMPLEMENTED, INTERNAL),
    Difference("grpc-encoding deflate", with_fields((b"grpc-encoding", b"deflate")), UNIMPLEMENTED, OK),
    Difference("grpc-timeout of nine digits", with_fields((b"grpc-timeout", b"100000000S")), INTERNAL, OK),
    Difference("upper case (8.2.1)", with_fields((b"Upper", b"x")), RESET, INTERNAL),
    Difference("a line break in a value (8.2.1)", with_fields((b"x", b"a\nb")), RESET, OK),
    Difference("connection (8.2.2)", with_fields((b"connection", b"close")), RESET, OK),
    Difference("te of another kind (8.2.2)", with_fields((b"te", b"gzip")), RESET, INTERNAL),
    Difference("a pseudo header too late (8.3)", with_fields((b":path", b"/late")), RESET, UNIMPLEMENTED),
    Difference("content-length is wrong (8.1.1)", with_fields((b"content-length", b"3")), RESET, OK),
    Difference("trailers that do not end (8.1)", _OPENED + _PART + headers(1, b"\0\1x\1y"), RESET, ENDED),
    Difference("pseudo headers in trailers (8.1)", _OPENED + _PART + headers(1, b"\x83", end=True), RESET, OK),
    # Errors of a stream.
    Difference("DATA after the end (5.1)", _OPENED + _ASKED + data(1, b"more"), RESET, OK),
    Difference("a stream twice (5.1)", _OPENED + _ASKED + _OPENED + _ASKED, RESET, OK),
    Difference("it depends on itself", frame(1, 0x24, 1, b"\0\0\0\1\0" + block(Echo.path)) + _ASKED, RESET, OK),
    Difference("WINDOW_UPDATE of 0 (6.9)", _OPENED + window(1, 0) + _ASKED, RESET, ENDED),
    Difference("its window over 2^31-1 (6.9.1)", _OPENED + window(1, 2**31 - 1) + _ASKED, RESET, OK),
    # Errors of the connection.
    Difference("the window over 2^31-1 (6.9.1)", window(0, 2**31 - 1), ENDED, NOTHING),
    Difference("an even stream (5.1.1)", headers(2, block(Echo.path)) + data(2, message(b"")), ENDED, NOTHING),
    Difference("DATA on an idle stream (5.1)", data(1, b""), ENDED, NOTHING),
    Difference("DATA on stream 0 (6.1)", data(0, b""), ENDED, NOTHING),
    Difference("PRIORITY on stream 0 (6.3)", frame(2, 0, 0, b"\0\0\0\1\0"), ENDED, NOTHING),
    Difference("PRIORITY of another size (6.3)", frame(2, 0, 1, b"\0\0\0\0"), ENDED, NOTHING),
    Difference("RST_STREAM of an idle stream (6.4)", frame(3, 0, 5, b"\0\0\0\x08"), ENDED, NOTHING),
    Difference("PING on a stream (6.7)", frame(6, 0, 1, b"12345678"), ENDED, NOTHING),
    Difference("WINDOW_UPDATE of an idle stream (6.9)", window(5, 1), ENDED, NOTHING),
    Difference("PUSH_PROMISE (8.4)", frame(5, 4, 1, b"\0\0\0\2"), ENDED, NOTHING),
    Difference("too much padding (6.1)", _OPENED + frame(0, 9, 1, b"\5"), ENDED, RESET),
    Difference("a frame too large (4.2)", b"\0\x40\x01\0\0\0\0\0\1" + b"x" * 16_385, ENDED, NOTHING),
]

ALIKE: Final = {
    "content-type of gRPC with more": with_only((b"content-type", b"application/grpc+proto"), (b"te", b"trailers")),
    "a deadline that is none": with_fields((b"grpc-timeout", b"soon")),
    "a message too large to come": _OPENED + data(1, b"\0\x7f\0\0\0"),
    "too many headers": with_fields(*((b"x%d" % n, b"v" * 100) for n in range(150))),
    "no path": headers(1, b"\x20\x83\x86") + _ASKED,
    "a deadline that is over": with_fields((b"grpc-timeout", b"0n")),
    "gzip that is none": headers(1, block(Echo.path, (b"grpc-encoding", b"gzip"))) + data(1, b"\1\0\0\0\3abc"),
    "compressed, but not said how": _OPENED + data(1, b"\1\0\0\0\1a"),
    "an unknown frame": frame(77, 255, 3, b"xyz") + _OPENED + _ASKED,
    "an unknown setting": settings((99, 1)) + _OPENED + _ASKED,
    "a header block in pieces": frame(1, 0, 1, block(Echo.path)[:9]) + frame(9, 4, 1, block(Echo.path)[9:]) + _ASKED,
    "a block that is interrupted": frame(1, 0, 1, block(Echo.path)) + _ASKED,
    "CONTINUATION of nothing": frame(9, 4, 1),
    "a block that cannot be decoded": headers(1, b"\xff\xff\xff\xff\xff"),
    "SETTINGS of five bytes": frame(4, 0, 0, b"12345"),
    "SETTINGS on a stream": frame(4, 0, 1),
    "an acknowledgement with bytes": frame(4, 1, 0, b"123456"),
    "a window of 2^31": settings((4, 2**31)),
    "frames of 16383": settings((5, 16_383)),
    "WINDOW_UPDATE of three bytes": frame(8, 0, 0, b"\0\0\1"),
    "PING of seven bytes": frame(6, 0, 0, b"1234567"),
    "GOAWAY of three bytes": frame(7, 0, 0, b"\0\0\1"),
    "RST_STREAM of three bytes": _OPENED + frame(3, 0, 1, b"\0\0\0"),
    "a method that breaks": headers(1, block("/tests.Methods/Break")) + _ASKED,
    "a stream without messages": headers(1, block(Talk.path), end=True),
}
"""Strange or wrong, and the same on both."""
