"""Bytes that attackers send: frames of HTTP/2, header blocks that no table remembers, messages of protobuf."""

import gzip
from collections.abc import Iterable

from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.commands.load.connection import DATA, HEADERS, PREFACE, RESET, SETTINGS, WINDOW_UPDATE, frame

GOAWAY = 7
END_STREAM, ACK, END_HEADERS = 1, 1, 4

CODES = (
    *("NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED"),
    *("FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM"),
    *("INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"),
)
STATUSES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)
"""Names by number: of HTTP/2 (RFC 9113, 7) and of gRPC."""

SHOULD_RATE_LIMIT = ShouldRateLimit.path
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
WATCH = "/grpc.health.v1.Health/Watch"
CHECK = "/grpc.health.v1.Health/Check"

CANCEL = (8).to_bytes(4, "big")


def settings(*pairs: tuple[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in pairs))


def window(number: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, number, increment.to_bytes(4, "big"))


def reset(number: int) -> bytes:
    """RST_STREAM: the call is cancelled."""
    return frame(RESET, 0, number, CANCEL)


def headers(number: int, block: bytes, *, end: bool = False) -> bytes:
    """A HEADERS frame that is a whole block."""
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), number, block)


def data(number: int, payload: bytes, *, end: bool = True) -> bytes:
    """A DATA frame."""
    return frame(DATA, END_STREAM if end else 0, number, payload)


def message(body: bytes, *, compressed: bool = False) -> bytes:
    """A message with gRPC's prefix."""
    return bytes((compressed,)) + len(body).to_bytes(4, "big") + body


def packed(body: bytes) -> bytes:
    """A message that is compressed as far as gzip can."""
    return message(gzip.compress(body, 9), compressed=True)


WIDE = 1 << 30
"""A window that no answer fills."""
HELLO = PREFACE + settings((1, 0), (4, WIDE)) + window(0, WIDE - 65_535)
"""Answers need no table and no window: what is sent back can be counted cheaply."""
NARROW = PREFACE + settings((1, 0), (4, 0))
"""Answers have no window at all."""


def number_of(value: int, prefix: int, first: int = 0) -> bytes:
    """An integer of HPACK (RFC 7541, 5.1)."""
    most = (1 << prefix) - 1
    if value < most:
        return bytes((first | value,))
    out, value = [first | most], value - most
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def text(value: bytes) -> bytes:
    """A string of HPACK, without Huffman's code."""
    return number_of(len(value), 7) + value


def literal(name: bytes, value: bytes) -> bytes:
    """A header that no table remembers."""
    return b"\0" + text(name) + text(value)


def block(path: str, *more: tuple[bytes, bytes], scheme: bytes = b"\x86") -> bytes:
    """The headers of a call."""
    fields = [(b"content-type", b"application/grpc"), (b"te", b"trailers"), *more]
    known = b"\x83" + scheme + b"\x01" + text(b"localhost") + b"\x04" + text(path.encode())
    return known + b"".join(literal(*field) for field in fields)


def varint(value: int) -> bytes:
    """A number of protobuf."""
    out = []
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def field(number: int, value: bytes | int) -> bytes:
    """A field of protobuf."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def descriptor(*entries: tuple[bytes, bytes], limit: bytes = b"") -> bytes:
    """One descriptor of a RateLimitRequest, with a limit of its own where that is given."""
    own = b"".join(field(1, field(1, key) + field(2, value)) for key, value in entries)
    return field(2, own + (field(2, limit) if limit else b""))


def request(*descriptors: bytes, domain: bytes = b"shop", cost: int = 0) -> bytes:
    """A RateLimitRequest of descriptors as `descriptor` writes them."""
    return field(1, domain) + b"".join(descriptors) + (field(3, cost) if cost else b"")


def user(value: bytes) -> bytes:
    """A descriptor that the rules of `attack.servers` limit, each value by itself."""
    return descriptor((b"user", value))


def calls(numbers: Iterable[int], head: bytes, body: bytes) -> bytes:
    """The same call on each of these streams."""
    return b"".join(headers(number, head) + data(number, body) for number in numbers)
