"""What a client sends, frame by frame: each kind, what it does, and what it may not; section numbers of RFC 9113."""

from typing import Final

from ratelimit_service.errors import WireError
from ratelimit_service.transports.http2 import frames, questions
from ratelimit_service.transports.http2.calls import Calls
from ratelimit_service.transports.http2.flow import Stream
from ratelimit_service.transports.http2.frames import ACK, END_HEADERS, END_STREAM, INITIAL_TABLE, LARGEST_WINDOW, Code
from ratelimit_service.transports.http2.headers import HeaderBlock, HeaderReader
from ratelimit_service.transports.http2.limits import (
    MOST_IDLE_FRAMES,
    RECEIVE_WINDOW,
    STREAMS_PER_IDLE_FRAME,
    Bound,
    Limits,
)

FAREWELL: Final = b"farewell"
"""In the PING after our first GOAWAY: when it comes back, the client knows."""

_LARGEST_SENT: Final = 64 * 1024
"""Bytes of the frames that we send, where the client takes larger ones: answers take turns on the connection."""


class Peer:
    """What is known of a client by what it sent."""

    def __init__(self, calls: Calls, headers: HeaderReader, limits: Limits) -> None:
        self.calls = calls
        self.headers = headers
        self.last = 0
        """Its last stream."""
        self.most_stream = LARGEST_WINDOW
        """The last one that it may open."""
        self.leaving = False
        """That has been said."""
        self.room = RECEIVE_WINDOW
        """Bytes of DATA that it may send."""
        self.budget = MOST_IDLE_FRAMES
        self._acknowledged = 0
        """How many of our SETTINGS."""
        self._called = False
        """It has made a call, and knows by now that our header table has no entries."""
        self.block: HeaderBlock | None = None
        """The header block that is not complete."""
        self._limits = limits
        self.settled = False
        """It has announced its settings, as it must first."""
        self._out = calls.flow.out

    def take(self, kind: int, flags: int, number: int, payload: bytes) -> None:  # noqa: PLR0912 - a table
        """A frame has come; WireError when it ends the connection."""
        if not self.settled:
            if kind != frames.SETTINGS or flags & ACK:
                raise WireError(Code.PROTOCOL_ERROR, "the first frame is not SETTINGS (3.4)")
            self.settled = True
        if self.block is not None and (kind != frames.CONTINUATION or number != self.block.number):
            raise WireError(Code.PROTOCOL_ERROR, "a header block is interrupted (4.3)")
        match kind:
            case frames.DATA:
                self._data(flags, number, payload)
            case frames.HEADERS:
                self._begin_block(flags, number, payload)
            case frames.PRIORITY:
                self._spend(Bound.PRIORITIES)
                self._on_stream(number)
                if len(payload) != 5:
                    self._refuse_priority(number, Code.FRAME_SIZE_ERROR)  # 6.3
                elif frames.number(payload[:4]) == number:
                    self._refuse_priority(number, Code.PROTOCOL_ERROR)  # RFC 7540, 5.3.1
            case frames.RST_STREAM:
                self._spend(Bound.RESETS)
                self._not_idle(number)
                _sized(payload, 4)
                self.calls.counts.resets_received += 1
                self.calls.leave(number)
            case frames.SETTINGS:
                self._spend(Bound.SETTINGS, 1 + len(payload) // 48)
                self._settings(flags, number, payload)
            case frames.PUSH_PROMISE:
                raise WireError(Code.PROTOCOL_ERROR, "a client promises nothing (8.4)")
            case frames.PING:
                self._spend(Bound.PINGS)
                _on_connection(number)
                _sized(payload, 8)
                if not flags & ACK:
                    self._out.append(frames.frame(frames.PING, ACK, 0, payload))
                elif payload == FAREWELL:
                    self.leave()
            case frames.GOAWAY:
                self._spend(Bound.UNKNOWN_FRAMES)
                _on_connection(number)
                if len(payload) < 8:
                    raise WireError(Code.FRAME_SIZE_ERROR, f"GOAWAY has {len(payload)} bytes (6.8)")
            case frames.WINDOW_UPDATE:
                self._spend(Bound.WINDOW_UPDATES)
                self._window_update(number, payload)
            case frames.CONTINUATION:
                self._continue_block(flags, number, payload)
            case _:
                self._spend(Bound.UNKNOWN_FRAMES)  # 4.1: of unknown kinds nothing is to be made

    def afford(self, count: int) -> bool:
        """Take so many from what may come and ask for nothing; False when there were fewer."""
        self.budget -= count
        return self.budget >= 0

    def _spend(self, bound: Bound, count: int = 1) -> None:
        if not self.afford(count):
            raise WireError(Code.ENHANCE_YOUR_CALM, f"too many frames that ask for nothing: {bound}", bound)

    def _on_stream(self, number: int) -> None:
        if not number:
            raise WireError(Code.PROTOCOL_ERROR, "a frame of a stream is on stream 0 (6)")

    def _not_idle(self, number: int) -> None:
        self._on_stream(number)
        if number > self.last:
            if number <= LARGEST_WINDOW and self.most_stream < number:
                return  # one that came after our GOAWAY, and that we never opened: 6.8
            raise WireError(Code.PROTOCOL_ERROR, "a frame is on a stream that was never opened (5.1)")

    def _refuse_priority(self, number: int, code: Code) -> None:
        if number > self.last:
            raise WireError(code, "PRIORITY is wrong, on a stream that is idle and cannot be reset (6.4)")
        self.calls.reset(number, code)

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        self._not_idle(number)
        length = len(payload)
        # There always is room on the connection: half of its window is more than any frame. Padding, and the data of
        # streams that are gone, count too: 6.9.
        self.room -= length
        if self.room <= RECEIVE_WINDOW // 2:
            self.make_room()
        body = frames.unpadded(flags, payload)
        if not body:
            self._spend(Bound.EMPTY_DATA)
        calls = self.calls
        stream = calls.streams.get(number)
        if stream is None or stream.ended:
            if number not in calls.reset_by_us and number <= self.last:
                self._spend(Bound.FAILED_STREAMS)
                calls.reset(number, Code.STREAM_CLOSED)  # 5.1, half-closed (remote), and closed
            return
        stream.room -= length
        if stream.room < 0:
            calls.counts.refused[Bound.RECEIVE_WINDOW] += 1
            calls.reset(number, Code.FLOW_CONTROL_ERROR)
            return
        stream.length += len(body)
        self._hear(stream, body, ended=bool(flags & END_STREAM))

    def _hear(self, stream: Stream, body: bytes, *, ended: bool) -> None:
        calls, announced = self.calls, stream.head.length
        stream.ended = ended
        if announced is not None and (stream.length > announced or (ended and stream.length != announced)):
            calls.reset(stream.id, Code.PROTOCOL_ERROR)  # 8.1.1
        elif stream.tail is None:
            questions.hear(calls, stream, body)
        elif ended and not stream.queue:
            calls.remove(stream)

    def make_room(self) -> None:
        """What has come makes room for more: 6.9."""
        self._out.append(frames.window_update(0, RECEIVE_WINDOW - self.room))
        self.room = RECEIVE_WINDOW

    def _begin_block(self, flags: int, number: int, payload: bytes) -> None:
        self._on_stream(number)
        part = frames.unpadded(flags, payload)
        itself = False
        if flags & frames.PRIORITIZED:
            if len(part) < 5:
                raise WireError(Code.FRAME_SIZE_ERROR, "HEADERS is too short for its priority (6.2)")
            itself = frames.number(part[:4]) == number
            part = part[5:]
        self._add(HeaderBlock(number, flags, depends_on_itself=itself), flags, part)

    def _continue_block(self, flags: int, number: int, payload: bytes) -> None:
        self._on_stream(number)
        if self.block is None:
            raise WireError(Code.PROTOCOL_ERROR, "CONTINUATION continues nothing (6.10)")
        self.block.count_continuation()
        self._add(self.block, flags, payload)

    def _add(self, block: HeaderBlock, flags: int, payload: bytes) -> None:
        self.block = block
        block.bytes += payload
        if len(block.bytes) > 2 * self._limits.max_header_list_size:
            raise WireError(Code.ENHANCE_YOUR_CALM, "the header block is far too large", Bound.HEADER_BLOCK)
        if flags & END_HEADERS:
            self.block = None
            self._open(block)

    def _open(self, block: HeaderBlock) -> None:
        calls, number, data = self.calls, block.number, bytes(block.bytes)
        if number in calls.streams:
            self._trailers(block, data)
            return
        if number <= self.last:
            if number not in calls.reset_by_us:
                # 5.1.1 for a number that is smaller than another; 5.1 for one that was used.
                code = Code.STREAM_CLOSED if number == self.last else Code.PROTOCOL_ERROR
                raise WireError(code, "HEADERS is on a stream that is closed (5.1)", Bound.STREAM_NUMBERS)
            self.headers.read_trailers(data)
            return
        if not number & 1:
            raise WireError(Code.PROTOCOL_ERROR, "the client opens a stream with an even number (5.1.1)")
        head = self.headers.cache.get(data)
        if head is None:
            head = self.headers.read(data)
            if not (self._called or head.http):
                self._called = True
                self._out.append(frames.settings({frames.HEADER_TABLE_SIZE: 0}))
        if number > self.most_stream:
            return  # 6.8: it came after our GOAWAY
        self.last = number
        if head.malformed or block.depends_on_itself:
            self._spend(Bound.FAILED_STREAMS)
            calls.reset(number, Code.PROTOCOL_ERROR)  # 8.1.1; RFC 7540, 5.3.1
        elif not calls.room:
            calls.counts.refused[Bound.STREAMS] += 1
            self._spend(Bound.STREAMS)
            calls.reset(number, Code.REFUSED_STREAM)  # 5.1.2
        else:
            calls.counts.streams += 1
            calls.streams[number] = stream = Stream(number, head, calls.flow.initial)
            stream.ended = block.ended
            calls.begin(stream)
            if block.ended and number in calls.streams:
                self._hear(stream, b"", ended=True)

    def _trailers(self, block: HeaderBlock, data: bytes) -> None:
        """8.1: a second block ends the stream."""
        calls, stream = self.calls, self.calls.streams[block.number]
        problem = self.headers.read_trailers(data)
        if stream is None or stream.ended:
            calls.reset(block.number, Code.STREAM_CLOSED)
        elif problem or not block.ended:
            calls.reset(block.number, Code.PROTOCOL_ERROR)
        else:
            self._hear(stream, b"", ended=True)

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        _on_connection(number)
        if flags & ACK:
            _sized(payload, 0)
            self._acknowledged += 1
            if self._acknowledged == 2:
                self.headers.table_acknowledged()
            return
        found, flow = frames.read_settings(payload), self.calls.flow
        flow.frame_size = min(found.get(frames.MAX_FRAME_SIZE, flow.frame_size), _LARGEST_SENT)
        self._out.append(frames.frame(frames.SETTINGS, ACK, 0))
        if found.get(frames.HEADER_TABLE_SIZE, INITIAL_TABLE) < INITIAL_TABLE:
            flow.shrink()
        initial, calls = found.get(frames.INITIAL_WINDOW_SIZE, flow.initial), self.calls
        if initial == flow.initial:
            return
        self._spend(Bound.SETTINGS, len(calls.streams) // STREAMS_PER_IDLE_FRAME)
        calls.resize(initial)

    def _window_update(self, number: int, payload: bytes) -> None:
        _sized(payload, 4)
        increment, calls = frames.number(payload), self.calls
        if not number:
            if not increment:
                raise WireError(Code.PROTOCOL_ERROR, "WINDOW_UPDATE of 0 (6.9)")
            flow, closed = calls.flow, calls.flow.window <= 0
            flow.grow(increment)
            if closed:  # otherwise nothing waited for this
                self._spend(Bound.WINDOW_UPDATES, len(flow.blocked) // STREAMS_PER_IDLE_FRAME)
                calls.pump_all()
            return
        self._not_idle(number)
        if number not in calls.streams:
            return  # 5.1: it may come after the end
        if not increment:
            calls.reset(number, Code.PROTOCOL_ERROR)  # 6.9
            return
        stream = calls.streams[number] or calls.unfold(number)
        stream.window += increment
        if stream.window > LARGEST_WINDOW:
            calls.reset(number, Code.FLOW_CONTROL_ERROR)  # 6.9.1
        elif number in calls.flow.blocked:
            calls.pump(stream)

    def leave(self) -> None:
        """Let it open no more streams, and tell it which was the last: 6.8."""
        if not self.leaving:
            self.leaving = True
            self.most_stream = self.last
            self._out.append(frames.goaway(self.last, Code.NO_ERROR, "draining"))
            self.calls.touch()


def _on_connection(number: int) -> None:
    if number:
        raise WireError(Code.PROTOCOL_ERROR, "a frame of the connection is on a stream (6)")


def _sized(payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise WireError(Code.FRAME_SIZE_ERROR, f"a frame of {len(payload)} bytes, it must have {size} (6)")
