"""The header blocks that we send. They use no table but the static one, so that each is the same for every client."""

from typing import Final

from ratelimit_service.errors import RpcError, Status
from ratelimit_service.transports.transport import clipped, percent_encoded


def _string(text: bytes) -> bytes:
    """A literal string without Huffman's code: RFC 7541, 5.2."""
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
    """A field that no table remembers: RFC 7541, 6.2.2."""
    return b"\0" + _string(name) + _string(value)


NO_TABLE: Final = b"\x20"
"""What a block begins with from which on our table has no entries: RFC 7541, 6.3."""

RESPONSE: Final = b"\x88\x0f\x10" + _string(b"application/grpc")
"""The block before an answer: `:status` 200, and `content-type` by its number in the static table, 31."""

OK: Final = _literal(b"grpc-status", b"0")
"""The block after the answers of a call that went well."""


def trailers(error: RpcError) -> bytes:
    """The block at the end of a call that did not."""
    message = percent_encoded(clipped(error.message)).encode()
    block = _literal(b"grpc-status", str(int(error.status)).encode()) + _literal(b"grpc-message", message)
    if error.status is Status.UNIMPLEMENTED:
        block += _literal(b"grpc-accept-encoding", b"identity,gzip")
    return block


def http_response(status: bytes) -> bytes:
    """The block for a client that does not speak gRPC; a text may follow."""
    block = b"\x08" + _string(status) + _literal(b"content-type", b"text/plain")
    return block + _literal(b"allow", b"POST") if status == b"405" else block  # RFC 9110, 15.5.6
