"""One connection of a client, as a state machine: bytes in, events and bytes out; no I/O, no clock. Hot path.

Laws: whatever bytes come, and however they are cut, they are calls, or refusals of single streams, or one error that
ends the connection, with the code that RFC 9113 names; the numbers in parentheses are its sections. A call is given
out once, and answered once. A client has at most so many calls as we announced, counting those that it reset and that
nobody has answered yet: resetting is no way to ask for more (CVE-2023-44487, and CVE-2025-8671, where we reset).

A question that comes whole, in a block that was seen before, makes no object but its event; its stream is None until it
is answered. What comes in pieces has a Stream.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from ratelimit_service.errors import RpcError, WireError
from ratelimit_service.transports.http2 import frames, questions
from ratelimit_service.transports.http2.calls import Calls
from ratelimit_service.transports.http2.events import Event, Kind
from ratelimit_service.transports.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW,
    HEADERS,
    LARGEST,
    MOST_WINDOW,
    PREFACE,
    Code,
    unpack_head,
    unpack_question,
)
from ratelimit_service.transports.http2.headers import HeaderReader
from ratelimit_service.transports.http2.limits import (
    FRAMES_PER_QUESTION,
    MOST_DECODED,
    MOST_IDLE_FRAMES,
    RECEIVE_WINDOW,
    Limits,
)
from ratelimit_service.transports.http2.peer import FAREWELL, Peer

_CALL: Final = Kind.CALL
_HTTP1: Final = b"This port speaks gRPC over HTTP/2.\n"
_HTTP1_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
    % (len(_HTTP1), _HTTP1)
)
_REQUEST_LINE: Final = re.compile(rb"[A-Z]+ \S+ HTTP/1\.\d\r?")
_LONGEST_LINE: Final = 8192
_ALIVE: Final = b"alive ? "


class Connection:
    """A connection that a client opened; `wake` is called when there is something to take that nobody waits for."""

    def __init__(
        self,
        methods: Mapping[str, bool],
        limits: Limits,
        wake: Callable[[], None],
        denial: RpcError | None = None,
        refusal: str = "",
    ) -> None:
        self.calls = Calls(limits, wake)
        self.closed = False
        self.error: tuple[Code, str] | None = None
        """Why we closed it, if the client is to blame."""
        self.begun = False
        """The client has said that it speaks HTTP/2."""
        self._limits = limits
        self.peer = Peer(self.calls, HeaderReader(methods, limits.max_header_list_size, denial), limits)
        self._refusal = refusal
        self._buffer = b""
        announced = {
            frames.HEADER_TABLE_SIZE: 0,
            frames.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
            frames.MAX_HEADER_LIST_SIZE: limits.max_header_list_size,
        }
        self._out = self.calls.flow.out
        # They leave when the client has said that it speaks HTTP/2: 3.4.
        self._out += (frames.settings(announced), frames.window_update(0, RECEIVE_WINDOW - FIRST_WINDOW))

    def receive(self, data: bytes) -> list[Event]:
        """What these bytes, after those before, make happen. To be called again with none while there is `more`."""
        if self.closed:
            return []
        buffer = self._buffer + data if self._buffer else data
        self.peer.decoded = 0
        try:
            for stream in tuple(self.calls.ready.values()):
                questions.read(self.calls, stream)
            self._buffer = buffer[self._parse(buffer) :]
        except WireError as error:
            self.close(Code(error.code), error.message)
        events = self.calls.events
        if events:
            self.calls.events = []
            self.peer.budget = min(MOST_IDLE_FRAMES, self.peer.budget + FRAMES_PER_QUESTION * len(events))
        return events

    @property
    def more(self) -> bool:
        """It stopped to let others have their turn."""
        return not self.closed and bool(self.calls.ready or self.peer.decoded >= MOST_DECODED)

    @property
    def unfinished(self) -> bool:
        """The client began a header block or a frame, and owes the rest."""
        return bool(self._buffer) or self.peer.block is not None or not self.peer.settled

    def take(self) -> bytes:
        """What is to be written now."""
        if self.calls.unread and not self.closed:
            self.close(Code.ENHANCE_YOUR_CALM, "too many answers are unread")
        self.calls.expected = False
        if not self.begun and not self.closed:
            return b""
        out = b"".join(self._out)
        self._out.clear()
        return out

    def refill(self, count: int) -> None:
        """Time has passed: as many frames that ask for nothing may come again."""
        self.peer.budget = min(MOST_IDLE_FRAMES, self.peer.budget + count)

    def congest(self, congested: bool) -> None:
        """Whether the socket takes no more for now."""
        self.calls.flow.congested = congested
        if not congested:
            self.calls.pump_all()

    def ping(self) -> None:
        """Ask whether the client is there: 6.7."""
        self._out.append(frames.frame(frames.PING, 0, 0, _ALIVE))
        self.calls.touch()

    def drain(self) -> None:
        """Say that new calls should go elsewhere; those on their way are taken until the client has heard it: 6.8."""
        if self.begun and not self.closed:
            self._out.append(frames.goaway(MOST_WINDOW, Code.NO_ERROR, "draining"))
            self._out.append(frames.frame(frames.PING, 0, 0, FAREWELL))
            self.calls.touch()

    def leave(self) -> None:
        """Take no new calls from now on; the client learns which was the last."""
        if not self.closed:
            self.peer.leave()

    @property
    def left(self) -> bool:
        """It takes no new calls, and has answered all."""
        return self.peer.most_stream != MOST_WINDOW and not self.calls.streams

    def close(self, code: Code, reason: str) -> None:
        """End it: the client is told why, and nothing that comes counts any more."""
        if self.closed:
            return
        if code is not Code.NO_ERROR:
            self.error = code, reason
        if self.begun or self.error:
            self._out.append(frames.goaway(self.peer.last, code, reason))
        self.lose()
        self.calls.touch()

    def lose(self) -> None:
        """The client is gone, or nobody for us any more."""
        self.closed = True
        self._buffer = b""
        self.peer.block = None
        for number in tuple(self.calls.streams):
            self.calls.leave(number)

    def _parse(self, buffer: bytes) -> int:
        """How far the buffer was read."""
        at = 0 if self.begun else self._greet(buffer)
        if not self.begun:
            return 0
        end_of_buffer = len(buffer)
        calls, peer = self.calls, self.peer
        plain, events, largest = peer.headers.plain, calls.events, self._limits.max_message_size
        streams, abandoned, most = calls.streams, calls.abandoned, self._limits.max_concurrent_streams
        while end_of_buffer - at >= 9:
            # All of a client's state that the common case needs, in locals: until another frame comes.
            last, most_stream, room, whole = peer.last, peer.most_stream, peer.room, peer.block is None
            places = most - len(streams) - len(abandoned)
            while end_of_buffer - at >= 23:
                # The common case: a question that is whole in this read, in a block that was seen before. It takes
                # 0.9 µs, frame by frame 4.
                high, low, kind, flags, number = unpack_head(buffer, at)
                end = at + 9 + (high << 8 | low)
                if (
                    kind != HEADERS
                    or flags != END_HEADERS
                    or end_of_buffer - end < 14
                    or (head := plain.get(buffer[at + 9 : end])) is None
                    or not last < number <= most_stream
                    or not number & 1
                    or not whole
                    or places <= 0
                ):
                    break
                high, low, kind, flags, same, compressed, size = unpack_question(buffer, end)
                length = high << 8 | low
                after = end + 9 + length
                if (
                    same != number
                    or kind != DATA
                    or flags != END_STREAM
                    or compressed
                    or not size + 5 == length <= LARGEST
                    or after > end_of_buffer
                    or size > largest
                    or length > room
                ):
                    break
                last = number
                room -= length
                places -= 1
                streams[number] = None
                events.append((_CALL, number, head, buffer[end + 14 : after]))
                at = after
                if room <= RECEIVE_WINDOW // 2:
                    peer.room = room
                    peer.make_room()
                    room = peer.room
            peer.last, peer.room = last, room
            if end_of_buffer - at < 9:
                break
            high, low, kind, flags, number = unpack_head(buffer, at)
            length = high << 8 | low
            if length > LARGEST:
                raise WireError(Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes, the most is {LARGEST} (4.2)")
            end = at + 9 + length
            if end > end_of_buffer:
                break
            peer.take(kind, flags, number & MOST_WINDOW, buffer[at + 9 : end])
            at = end
            if peer.decoded >= MOST_DECODED:
                break
        return at

    def _greet(self, buffer: bytes) -> int:
        """3.4: the client begins with these bytes. HTTP/1 begins with capitals too, and hears that it is wrong here."""
        if buffer.startswith(PREFACE):
            if self._refusal:
                raise WireError(Code.PROTOCOL_ERROR, self._refusal)
            self.begun = True
            return len(PREFACE)
        if not PREFACE.startswith(buffer):
            if buffer.startswith(b"\x16\x03"):  # the head of a TLS record
                raise WireError(Code.PROTOCOL_ERROR, "the client speaks TLS, and this port does not")
            line, newline, _ = buffer.partition(b"\n")
            if buffer[:1].isupper() and not newline and len(buffer) < _LONGEST_LINE:
                return 0  # it may become a line of HTTP/1
            if not _REQUEST_LINE.fullmatch(line):
                raise WireError(Code.PROTOCOL_ERROR, "the client does not begin as HTTP/2 does (3.4)")
            self._out[:] = [_HTTP1_ANSWER]
            self.error = Code.HTTP_1_1_REQUIRED, "the client speaks HTTP/1"
            self.lose()
        return 0
