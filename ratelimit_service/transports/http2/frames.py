"""Bytes of HTTP/2 and gRPC: frames, the header blocks that we send, length-prefixed messages. No state.

Section numbers are those of RFC 9113, unless another RFC is named.
"""

import zlib
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import Any, Final

from ratelimit_service.errors import RpcError, Status, WireError
from ratelimit_service.transports.transport import clipped, percent_encoded

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DEFAULT_FRAME_SIZE: Final = 16_384
"""Bytes of payload that each side must accept (4.2). We accept no more: requests are small."""
MAX_WINDOW_SIZE: Final = 2**31 - 1
INITIAL_WINDOW: Final = 65_535
"""Bytes that may be sent before a window is announced: 6.9.2."""
INITIAL_TABLE: Final = 4096
"""Bytes of the header table of each side, before a size is announced: 6.5.2."""

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITIZED: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6


class Code(IntEnum):
    """Error codes of RST_STREAM and GOAWAY: section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


# Frames.

# The length has 24 bits, which no format of struct has: its upper 16, then its lower 8. One unpacking takes 0.11 µs,
# four slices made to integers 0.35.
_HEAD: Final = Struct(">HBBBL")
unpack_head = _HEAD.unpack_from
pack_head = _HEAD.pack

_SETTING: Final = Struct(">HL")
_NUMBER: Final = Struct(">L")
_TWO_NUMBERS: Final = Struct(">LL")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame with its head."""
    length = len(payload)
    return pack_head(length >> 8, length & 0xFF, kind, flags, stream) + payload


def headers(stream: int, block: bytes, *, end: bool = False) -> bytes:
    """A header block in one HEADERS frame; ours are shorter than any client's limit (6.2)."""
    return frame(HEADERS, END_HEADERS | END_STREAM if end else END_HEADERS, stream, block)


def settings(values: dict[int, int]) -> bytes:
    """SETTINGS with these values: 6.5."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(name, value) for name, value in values.items()))


def window_update(stream: int, increment: int) -> bytes:
    """WINDOW_UPDATE: the peer may send `increment` bytes more (6.9)."""
    return frame(WINDOW_UPDATE, 0, stream, _NUMBER.pack(increment))


def rst_stream(stream: int, code: Code) -> bytes:
    """RST_STREAM: the stream ends at once (6.4)."""
    return frame(RST_STREAM, 0, stream, _NUMBER.pack(code))


def goaway(last_stream: int, code: Code, reason: str) -> bytes:
    """GOAWAY: streams after `last_stream` are not processed (6.8)."""
    return frame(GOAWAY, 0, 0, _TWO_NUMBERS.pack(last_stream, code) + reason.encode())


SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0)
NO_HEADER_TABLE: Final = settings({HEADER_TABLE_SIZE: 0})


def number(payload: bytes) -> int:
    """The value of four bytes, such as an error code or an increment, without the reserved bit."""
    value: int = _NUMBER.unpack(payload)[0]
    return value & MAX_WINDOW_SIZE


def read_settings(payload: bytes) -> dict[int, int]:
    """The values of a SETTINGS frame of the client, checked: 6.5.2. Of a repeated one the last counts."""
    if len(payload) % 6:
        raise WireError(Code.FRAME_SIZE_ERROR, f"SETTINGS has {len(payload)} bytes, not a multiple of 6 (6.5)")
    found: dict[int, int] = {}
    for name, value in _SETTING.iter_unpack(payload):
        if name == ENABLE_PUSH and value > 1:
            raise WireError(Code.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is {value}, not 0 or 1 (6.5.2)")
        if name == INITIAL_WINDOW_SIZE and value > MAX_WINDOW_SIZE:
            raise WireError(Code.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE is {value}, over 2^31-1 (6.5.2)")
        if name == MAX_FRAME_SIZE and not DEFAULT_FRAME_SIZE <= value < 2**24:
            raise WireError(Code.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE is {value}, not 2^14 to 2^24-1 (6.5.2)")
        if name == HEADER_TABLE_SIZE:
            # RFC 7541, 4.2: if the size changes several times, the smallest one must be signaled.
            value = min(value, found.get(name, value))  # noqa: PLW2901 - the value that counts
        found[name] = value
    return found


def unpadded(payload: bytes) -> bytes:
    """The payload of a padded DATA or HEADERS frame without its padding: 6.1."""
    if not payload:
        raise WireError(Code.FRAME_SIZE_ERROR, "a padded frame has no Pad Length field (6.1)")
    end = len(payload) - payload[0]
    if end < 1:
        raise WireError(Code.PROTOCOL_ERROR, f"{payload[0]} bytes of padding in a frame of {len(payload)} (6.1)")
    return payload[1:end]


# The header blocks that we send. They use no table but the static one, so that they are the same for every client.


def _string(text: bytes) -> bytes:
    """A string literal without Huffman coding: RFC 7541, 5.2."""
    size = len(text)
    if size < 127:
        return bytes((size,)) + text
    out = bytearray(b"\x7f")
    size -= 127
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out) + text


def _literal(name: bytes, value: bytes) -> bytes:
    """A header field without indexing: RFC 7541, 6.2.2."""
    return b"\0" + _string(name) + _string(value)


TABLE_SIZE_0: Final = b"\x20"
"""Dynamic table size update to 0 (RFC 7541, 6.3): the first bytes of a block."""

RESPONSE_HEADERS: Final = b"\x88\x0f\x10" + _string(b"application/grpc")
"""`:status` 200, and `content-type` by its index in the static table, 31."""

OK_TRAILERS: Final = _literal(b"grpc-status", b"0")


def trailers(error: RpcError) -> bytes:
    """The header block that ends a call with an error."""
    message = percent_encoded(clipped(error.message)).encode()
    block = _literal(b"grpc-status", str(int(error.status)).encode()) + _literal(b"grpc-message", message)
    if error.status is Status.UNIMPLEMENTED:
        block += _literal(b"grpc-accept-encoding", b"identity,gzip")
    return block


def http_headers(status: bytes) -> bytes:
    """The header block of a plain HTTP response, for a client that does not speak gRPC."""
    block = b"\x08" + _string(status) + _literal(b"content-type", b"text/plain")
    return block + _literal(b"allow", b"POST") if status == b"405" else block  # RFC 9110, 15.5.6


# Messages of gRPC: a byte that says whether it is compressed, four bytes of length, then the message.

PREFIX_BYTES: Final = 5
_GZIP: Final = zlib.MAX_WBITS | 16

NO_REQUEST: Final = RpcError(Status.UNIMPLEMENTED, "the method takes one message, there was none")
MORE_REQUESTS: Final = RpcError(Status.UNIMPLEMENTED, "the method takes one message, there were more")
TRUNCATED: Final = RpcError(Status.INTERNAL, "the last message ends before its length")
_NOT_COMPRESSED: Final = RpcError(Status.INTERNAL, "a message is compressed, and grpc-encoding names no compression")
_BAD_FLAG: Final = RpcError(Status.INTERNAL, "the first byte of a message is not 0 or 1")
_BAD_GZIP: Final = RpcError(Status.INTERNAL, "a message is not valid gzip")


def prefixed(message: bytes) -> bytes:
    """An uncompressed message with its prefix."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def early_problem(body: bytearray, most: int) -> RpcError | None:
    """The error of a unary request that need not be complete to be wrong; the body has a prefix."""
    size = int.from_bytes(body[1:PREFIX_BYTES], "big")
    if size > most:
        return _too_long(size, most)
    return MORE_REQUESTS if len(body) > PREFIX_BYTES + size else None


def take_message(body: bytearray, most: int, *, gzip: bool) -> bytes | RpcError | None:
    """Cut the first message off the body; None when it is not complete."""
    if len(body) < PREFIX_BYTES:
        return None
    size = int.from_bytes(body[1:PREFIX_BYTES], "big")
    if size > most:
        return _too_long(size, most)
    compressed = body[0]
    if compressed > 1:
        return _BAD_FLAG
    if compressed and not gzip:
        return _NOT_COMPRESSED
    end = PREFIX_BYTES + size
    if len(body) < end:
        return None
    message = bytes(body[PREFIX_BYTES:end])
    del body[:end]
    return _gunzip(message, most) if compressed else message


def _too_long(size: int, most: int) -> RpcError:
    return RpcError(Status.RESOURCE_EXHAUSTED, f"the message has {size} bytes, the maximum is {most}")


def _gunzip(packed: bytes, most: int) -> bytes | RpcError:
    # A kilobyte can stand for a megabyte: unpacked no further than one byte over the limit.
    unpacking = zlib.decompressobj(_GZIP)
    try:
        message = unpacking.decompress(packed, most + 1)
    except zlib.error:
        return _BAD_GZIP
    if len(message) > most:
        return RpcError(Status.RESOURCE_EXHAUSTED, f"the unpacked message has more than {most} bytes")
    return message if unpacking.eof and not unpacking.unused_data else _BAD_GZIP


# Whole calls: all frames of a request unpacked at once, all frames of a response packed at once.

SMALL_RESPONSE: Final = 1024
"""Bytes of the largest response that is packed together with its headers; almost all have less than 100."""

REQUEST_OVERHEAD: Final = 9 + 9 + PREFIX_BYTES
"""Two heads of frames, and the prefix of the message."""

RESPONSE_HEAD: Final = len(RESPONSE_HEADERS).to_bytes(3, "big") + bytes((HEADERS, END_HEADERS))
TRAILERS_HEAD: Final = len(OK_TRAILERS).to_bytes(3, "big") + bytes((HEADERS, END_HEADERS | END_STREAM))
"""Length, type and flags; the number of the stream follows."""


@lru_cache(256)
def request_unpacker(length: int) -> tuple[Callable[[bytes, int], tuple[Any, ...]], bytes]:
    """The unpacker of a call whose header block has this length, and the five bytes that it begins with.

    After those come the stream's number and the block; then DATA, its length and type as one number, its flags and
    stream; then the prefix of the message: whether it is compressed, and its length. Frame by frame it takes twice as
    long.
    """
    return Struct(f">5sL{length}sLBLBL").unpack_from, length.to_bytes(3, "big") + bytes((HEADERS, END_HEADERS))


@lru_cache(2 * SMALL_RESPONSE)
def response_packer(size: int) -> tuple[Callable[..., bytes], bytes, bytes]:
    """The packer of the three frames of a response of this size: 0.24 µs, and 0.4 joined from pieces.

    The function takes RESPONSE_HEAD, the stream, the second value, the stream, the third value, the response,
    TRAILERS_HEAD, the stream, OK_TRAILERS.
    """
    return (
        Struct(f">5sL{len(RESPONSE_HEADERS) + 5}sL5s{size}s5sL{len(OK_TRAILERS)}s").pack,
        RESPONSE_HEADERS + (size + PREFIX_BYTES).to_bytes(3, "big") + b"\0\0",
        b"\0" + size.to_bytes(4, "big"),
    )
