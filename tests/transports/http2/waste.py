"""Bytes of clients that ask for much: calls in a row, and calls that are reset."""

from tests.transports.http2.talk import block as block_of
from tests.transports.http2.talk import data, frame, headers, message
from tests.transports.methods import Echo, Grow, Later

ECHO, GROW, LATER = (block_of(method.path) for method in (Echo, Grow, Later))
CANCEL = b"\0\0\0\x08"


def calls(count: int, block: bytes = ECHO, body: bytes = b"", after: bytes = b"") -> bytes:
    """So many whole calls, each followed by something."""
    return b"".join(headers(n, block) + data(n, message(body)) + after for n in range(1, 2 * count, 2))


def reset_after(count: int, block: bytes, *, asked: bool) -> bytes:
    """So many calls that are reset at once."""
    whole = (headers(n, block) + (data(n, message(b"")) if asked else b"") for n in range(1, 2 * count, 2))
    return b"".join(call + frame(3, 0, 2 * index + 1, CANCEL) for index, call in enumerate(whole))
