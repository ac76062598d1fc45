"""A header block that is put together from HEADERS and CONTINUATION: RFC 9113, 6.2 and 6.10."""

from ratelimit_service.errors import WireError
from ratelimit_service.transports.http2 import frames
from ratelimit_service.transports.http2.frames import END_STREAM, PRIORITIZED, Code
from ratelimit_service.transports.http2.limits import MOST_CONTINUATIONS, Bound


class Block:
    """One that is not complete."""

    __slots__ = ("bytes", "continuations", "ended", "flags", "itself", "number")

    def __init__(self, number: int, flags: int) -> None:
        self.number = number
        self.flags = flags
        self.ended = bool(flags & END_STREAM)
        self.itself = False
        """The stream depends on itself."""
        self.bytes = bytearray()
        self.continuations = 0

    def begin(self, payload: bytes) -> bytes:
        """What of HEADERS is a part of the block."""
        payload = frames.unpadded(self.flags, payload)
        if not self.flags & PRIORITIZED:
            return payload
        if len(payload) < 5:
            raise WireError(Code.FRAME_SIZE_ERROR, "HEADERS is too short for its priority (6.2)")
        self.itself = frames.number(payload[:4]) == self.number
        return payload[5:]

    def go_on(self) -> None:
        """CONTINUATION has come."""
        self.continuations += 1
        if self.continuations > MOST_CONTINUATIONS:
            problem = "a header block has too many CONTINUATION frames"
            raise WireError(Code.ENHANCE_YOUR_CALM, problem, Bound.CONTINUATIONS)

    def add(self, payload: bytes, most: int) -> None:
        """A part of it."""
        self.bytes += payload
        if len(self.bytes) > most:
            raise WireError(Code.ENHANCE_YOUR_CALM, "the header block is far too large", Bound.HEADER_BLOCK)
