"""Messages of gRPC in the bytes of a stream: five bytes before each say whether it is compressed, and its length."""

import zlib
from typing import Final

from ratelimit_service.errors import RpcError, Status

PREFIX_BYTES: Final = 5
_GZIP: Final = zlib.MAX_WBITS | 16

NO_QUESTION: Final = RpcError(Status.UNIMPLEMENTED, "the method takes one message, there was none")
MORE_QUESTIONS: Final = RpcError(Status.UNIMPLEMENTED, "the method takes one message, there were more")
TRUNCATED: Final = RpcError(Status.INTERNAL, "the last message ends before its length")
NOT_COMPRESSED: Final = RpcError(Status.INTERNAL, "a message is marked as compressed, and grpc-encoding names no way")
BAD_FLAG: Final = RpcError(Status.INTERNAL, "the first byte of a message is not 0 or 1")
BAD_GZIP: Final = RpcError(Status.INTERNAL, "a message is not what gzip makes")


def prefixed(message: bytes) -> bytes:
    """As it is sent, uncompressed."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def size_of(body: bytearray) -> int:
    """Bytes of the first message, which may not all be there."""
    return int.from_bytes(body[1:PREFIX_BYTES], "big")


def too_long(size: int, most: int) -> RpcError:
    """The error of a question that is not read."""
    return RpcError(Status.RESOURCE_EXHAUSTED, f"the message has {size} bytes, the most is {most}")


def take_message(body: bytearray, most: int, *, gzip: bool) -> bytes | RpcError | None:
    """The first message, cut off the body; None when it is not all there."""
    if len(body) < PREFIX_BYTES:
        return None
    size = size_of(body)
    if size > most:
        return too_long(size, most)
    if body[0] > 1:
        return BAD_FLAG
    if body[0] and not gzip:
        return NOT_COMPRESSED
    end = PREFIX_BYTES + size
    if len(body) < end:
        return None
    compressed, message = body[0], bytes(body[PREFIX_BYTES:end])
    del body[:end]
    return _gunzip(message, most) if compressed else message


def _gunzip(packed: bytes, most: int) -> bytes | RpcError:
    """It is unpacked no further than the most there may be: a kilobyte can stand for a megabyte."""
    unpacking = zlib.decompressobj(_GZIP)
    try:
        message = unpacking.decompress(packed, most + 1)
    except zlib.error:
        return BAD_GZIP
    if len(message) > most:
        return RpcError(Status.RESOURCE_EXHAUSTED, f"the unpacked message has more than {most} bytes")
    return message if unpacking.eof and not unpacking.unused_data else BAD_GZIP
