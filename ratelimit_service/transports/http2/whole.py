"""Questions and answers that are whole: how all frames of one are unpacked, or packed, at once. Hot path."""

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Any, Final

from ratelimit_service.transports.http2.frames import END_HEADERS, END_STREAM, HEADERS
from ratelimit_service.transports.http2.responses import OK, RESPONSE

MOST_AT_ONCE: Final = 1024
"""Bytes of an answer that is packed together with its headers; almost all are shorter than 100."""

RESPONSE_HEAD: Final = len(RESPONSE).to_bytes(3, "big") + bytes((HEADERS, END_HEADERS))
OK_HEAD: Final = len(OK).to_bytes(3, "big") + bytes((HEADERS, END_HEADERS | END_STREAM))


QUESTION_BYTES: Final = 9 + 9 + 5
"""Two heads of frames, and that of the message."""


@lru_cache(256)
def question_in(length: int) -> tuple[Callable[[bytes, int], tuple[Any, ...]], bytes]:
    """How a question is unpacked whose headers are a block of this length, and the five bytes that it begins with.

    After those come the stream's number and the block; then DATA, its length and kind as one number, its flags and
    stream; then the head of the message: whether it is compressed, and its length. Frame by frame it takes twice as
    long.
    """
    return Struct(f">5sL{length}sLBLBL").unpack_from, length.to_bytes(3, "big") + bytes((HEADERS, END_HEADERS))


@lru_cache(2 * MOST_AT_ONCE)
def answer_of(size: int) -> tuple[Callable[..., bytes], bytes, bytes]:
    """How three frames with an answer of this size are packed: 0.24 µs, and 0.4 joined from pieces.

    RESPONSE_HEAD, the stream, what is before its second mention, the stream, what is before the answer, the answer,
    OK_HEAD, the stream, OK.
    """
    return (
        Struct(f">5sL{len(RESPONSE) + 5}sL5s{size}s5sL{len(OK)}s").pack,
        RESPONSE + (size + 5).to_bytes(3, "big") + b"\0\0",
        b"\0" + size.to_bytes(4, "big"),
    )
