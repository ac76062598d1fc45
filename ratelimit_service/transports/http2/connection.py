"""One connection of a client, as a state machine: bytes in, events and bytes out. No I/O. Hot path.

Laws: whatever bytes come, and however they are split, they are calls, or refusals of single streams, or one error that
ends the connection with the code that RFC 9113 names. A call is an event once, and is answered once or cancelled. A
client has at most as many calls as we announced, those included that were reset while their method is at work.

Section numbers are those of RFC 9113.

States:

| state    | what the client may do               | event: state that follows                            |
| -------- | ------------------------------------ | ---------------------------------------------------- |
| PREFACE  | send the first bytes of HTTP/2 (3.4) | the preface: SETTINGS. A line of HTTP/1: 400, CLOSED |
| SETTINGS | send SETTINGS, which must be first   | SETTINGS: OPEN                                       |
| OPEN     | all                                  | `leave`, or the ACK of the PING of `retire`: LEAVING |
| LEAVING  | use its streams; it may open no more | `drained`: its owner calls `close`                   |
| CLOSED   | nothing; what comes is dropped       |                                                      |

Everything else that comes in PREFACE or SETTINGS, every WireError, `close` and `abort` lead to CLOSED; so does `leave`
in PREFACE and SETTINGS. While a header block is not complete, only its CONTINUATION may come (4.3).

Frames, by the `_RULES` at the end of the class: on which stream each may come, how long it must be, and which of them
take from the budget of frames that ask for nothing (`limits.MAX_IDLE_FRAMES`):

| frame         | stream       | bytes     | budget                      | an error in it ends                  |
| ------------- | ------------ | --------- | --------------------------- | ------------------------------------ |
| DATA          | opened       |           | when it is empty            | the stream                           |
| HEADERS       | any but 0    |           | when the stream is refused  | the connection: both share the table |
| PRIORITY      | any but 0    | 5         | 1                           | the stream                           |
| RST_STREAM    | opened       | 4         | 1                           | the connection                       |
| SETTINGS      | 0            | 6 each    | 1, and 1 for every 8 values | the connection                       |
| PUSH_PROMISE  |              |           |                             | the connection: only servers push    |
| PING          | 0            | 8         | 1                           | the connection                       |
| GOAWAY        | 0            | 8 or more | 1                           | the connection                       |
| WINDOW_UPDATE | 0, or opened | 4         | 1                           | the stream, or the connection        |
| CONTINUATION  | any but 0    |           |                             | the connection                       |
| others        | any          |           | 1                           |                                      |

A call that comes whole in one read, with a header block that came before, is unpacked at once and makes no object but
its event (`_unpack_calls`).
"""

import math
import re
import time
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple

from ratelimit_service.errors import RpcError, WireError
from ratelimit_service.system.clock import Tick
from ratelimit_service.transports.http2 import frames
from ratelimit_service.transports.http2.counts import Counts
from ratelimit_service.transports.http2.frames import (
    ACK,
    DEFAULT_FRAME_SIZE,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW,
    MAX_WINDOW_SIZE,
    PREFACE,
    PREFIX_BYTES,
    Code,
    unpack_head,
)
from ratelimit_service.transports.http2.headers import HeaderBlock, HeaderReader
from ratelimit_service.transports.http2.limits import (
    FRAMES_PER_RECORD,
    FRAMES_PER_REQUEST,
    MAX_IDLE_FRAMES,
    MAX_REQUEST_BYTES,
    RECEIVE_WINDOW,
    STREAMS_PER_IDLE_FRAME,
    Bound,
)
from ratelimit_service.transports.http2.stream import Event, EventKind
from ratelimit_service.transports.http2.streams import Streams
from ratelimit_service.transports.options import GrpcOptions

_CALL: Final = EventKind.CALL
_HTTP1: Final = b"This port speaks gRPC over HTTP/2.\n"
_HTTP1_RESPONSE: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
    % (len(_HTTP1), _HTTP1)
)
_REQUEST_LINE: Final = re.compile(rb"[A-Z]+ \S+ HTTP/1\.\d\r?")
_MAX_LINE_LENGTH: Final = 8192
_KEEPALIVE: Final = b"alive ? "
_FAREWELL: Final = b"farewell"
"""The payload of the PING after our first GOAWAY: when it comes back, the client has read that GOAWAY."""


class ConnectionState(Enum):
    """The states of the table."""

    PREFACE = auto()
    SETTINGS = auto()
    OPEN = auto()
    LEAVING = auto()
    CLOSED = auto()


_PREFACE: Final = ConnectionState.PREFACE
_SETTINGS: Final = ConnectionState.SETTINGS
OPEN: Final = ConnectionState.OPEN
LEAVING: Final = ConnectionState.LEAVING
CLOSED: Final = ConnectionState.CLOSED


class _Rule(NamedTuple):
    """A row of the table of frames."""

    bound: Bound | None
    """Which limit it may run into, as it takes one from the budget."""
    on_connection: bool
    """It may be on stream 0."""
    on_stream: bool
    """It may be on other streams."""
    opened: bool
    """A stream must have been opened before."""
    size: int | None
    act: Callable[[Any, int, int, bytes], None]


def _rule(
    where: str,
    act: Callable[[Any, int, int, bytes], None],
    *,
    size: int | None = None,
    bound: Bound | None = None,
) -> _Rule:
    """`where`: "connection", "stream" or "opened stream"; or two of them."""
    return _Rule(bound, "connection" in where, "stream" in where, "opened" in where, size, act)


class Connection:
    """A connection that a client opened; `wake` is called when there is output or an event that comes from no read."""

    __slots__ = (
        *("_acknowledged", "_at", "_budget", "_buffer", "_counts", "_max_request", "_options"),
        *("_max_stream", "_out", "_receive_window", "_refusal", "_table_announced", "_tick", "block"),
        *("error", "frames_finished", "headers", "last_stream", "state", "stopped", "streams"),
    )

    def __init__(
        self,
        methods: Mapping[str, bool],
        options: GrpcOptions,
        wake: Callable[[], object],
        counts: Counts | None = None,
        tick: Tick = time.monotonic_ns,
        now: int = 0,
    ) -> None:
        self._tick = tick
        self._counts = counts or Counts()
        self._options = options
        self._max_request = min(options.max_message_size, DEFAULT_FRAME_SIZE - PREFIX_BYTES)
        self.streams = Streams(options, wake, self._counts, now)
        self.headers = HeaderReader(methods, options.max_header_list_size, options.traced_path)
        self.state = _PREFACE
        self.error: tuple[Code, str] | None = None
        """Why it was closed, if the client is to blame."""
        self.last_stream = 0
        """The highest number of a stream that the client opened."""
        self._max_stream = MAX_WINDOW_SIZE
        """The highest number that it may open."""
        self.block: HeaderBlock | None = None
        """The header block that is not complete."""
        self.frames_finished = 0
        """Reads in which the client finished a frame, or a header block, that it had begun."""
        self.stopped = False
        """`receive` ended before all that came was read: by the clock, or after MAX_REQUEST_BYTES of requests."""
        self._receive_window = RECEIVE_WINDOW
        """Bytes of DATA that the client may send."""
        self._budget = MAX_IDLE_FRAMES
        self._acknowledged = 0
        """How many of our SETTINGS the client acknowledged."""
        self._table_announced = False
        """We announced that our header table has size 0, after the first call."""
        self._refusal = ""
        """Why a client that completed its TLS handshake may not go on."""
        self._buffer = b""
        """What came and is not read, from `_at` on."""
        self._at = 0
        self._out = self.streams.out
        # 3.4: it is sent once the client has sent its own, so that HTTP/1 clients can read our response.
        self._out.append(_our_preface(options))

    @property
    def closed(self) -> bool:
        """CLOSED."""
        return self.state is CLOSED

    @property
    def begun(self) -> bool:
        """The client has sent the preface of HTTP/2, and the connection is not closed."""
        return self.state is not _PREFACE and self.state is not CLOSED

    @property
    def drained(self) -> bool:
        """The client may open no streams, and those that it had are closed."""
        return self.state is LEAVING and not (self.streams.active or self.streams.readable)

    @property
    def more(self) -> bool:
        """`receive` stopped before all was read. False once it is CLOSED."""
        return self.stopped or bool(self.streams.readable)

    @property
    def unfinished(self) -> bool:
        """The client began the preface, a frame or a header block, and must send the rest."""
        if len(self._buffer) > self._at or self.block is not None:
            return True
        return self.state is _PREFACE or self.state is _SETTINGS

    @property
    def weight(self) -> int:
        """Bytes of memory that it holds for the client, about."""
        block = len(self.block.bytes) if self.block else 0
        return len(self._buffer) + block + self.headers.cached_bytes + self.streams.weight

    def handshake_done(self, denial: RpcError | None, refusal: str) -> None:
        """TLS is established: `denial` is the error of every call, `refusal` why the connection must end."""
        self.headers.deny(denial)
        self._refusal = refusal

    def receive(self, data: bytes, over: float = math.inf) -> list[Event]:
        """The events of these bytes, which follow those before; called again without bytes while there is `more`.

        It stops when the clock, read after each frame, has reached `over`; and after MAX_REQUEST_BYTES of requests, so
        that they are answered before the clock is read again.
        """
        if self.state is CLOSED:
            return []
        buffer, at = self._buffer, self._at
        if not buffer:
            buffer = data
        elif data:
            buffer, at = buffer[at:] + data, 0
        streams = self.streams
        streams.request_bytes, self.stopped = 0, False
        try:
            if streams.output_full and not streams.written_bytes:
                streams.resume_output()
            if streams.readable:
                self._read_on(over)
            block, read = self.block, at
            if self.headers.fast is not None and block is None:
                read = self._unpack_calls(buffer, at)
            if read < len(buffer) and not self.stopped:
                read = self._parse(buffer, read, over)
            # While it stops, what is left of a long read is not copied each time.
            self._buffer, self._at = (buffer, read) if self.stopped else (buffer[read:], 0)
            if read > at and self.state is not _SETTINGS and (block is None or self.block is not block):
                self.frames_finished += 1
        except WireError as error:
            self.close(Code(error.code), error.message, error.bound)
        events = streams.events
        if events:
            streams.events = []
            if self._budget < MAX_IDLE_FRAMES:
                self.refill(FRAMES_PER_REQUEST * len(events))
        return events

    def take_output(self) -> bytes:
        """The bytes to write now."""
        streams, pieces = self.streams, self._out
        if streams.queued_bytes > self._options.max_connection_memory and self.state is not CLOSED:
            # The client never reads, or has closed its windows.
            self.close(Code.ENHANCE_YOUR_CALM, "too many answers are unread", Bound.UNREAD_ANSWERS)
        streams.flush_scheduled = False
        if not pieces or self.state is _PREFACE:
            return b""
        out = b"".join(pieces)
        pieces.clear()
        streams.written_bytes = 0
        if streams.output_full:
            streams.schedule_flush()
        return out

    def ping(self) -> None:
        """Send a keepalive PING: 6.7."""
        self._out.append(frames.frame(frames.PING, 0, 0, _KEEPALIVE))
        self.streams.schedule_flush()

    def retire(self) -> None:
        """Send the first GOAWAY: the client should open no more streams, but those on their way are served.

        6.8: "A server that is attempting to gracefully shut down a connection SHOULD send an initial GOAWAY frame with
        the last stream identifier set to 2^31-1 and a NO_ERROR code." The second is `leave`.
        """
        if self.begun:
            self._out.append(frames.goaway(MAX_WINDOW_SIZE, Code.NO_ERROR, "draining"))
            self._out.append(frames.frame(frames.PING, 0, 0, _FAREWELL))
            self.streams.reset_lingering()
            self.streams.reset_lingering()
            self.streams.schedule_flush()

    def leave(self) -> None:
        """Send the second GOAWAY, which names the last stream that is served; later ones are ignored."""
        if self.state is OPEN:
            self.state = LEAVING
            self._max_stream = self.last_stream
            self._out.append(frames.goaway(self.last_stream, Code.NO_ERROR, "draining"))
            self.streams.schedule_flush()
        elif self.state is not LEAVING:
            self.close(Code.NO_ERROR, "drained")  # it has no stream yet

    def close(self, code: Code, reason: str, bound: str = "") -> None:
        """Send GOAWAY and end the connection; `bound` is the limit that the client ran into."""
        if self.state is CLOSED:
            return
        if bound:
            self._counts.refused[Bound(bound)] += 1
        if code is not Code.NO_ERROR:
            self.error = code, reason
        if self.begun or self.error:
            self._out.append(frames.goaway(self.last_stream, code, reason))
        self.abort()
        self.streams.schedule_flush()

    def abort(self) -> None:
        """End the connection and all streams without sending anything, as when the client is gone."""
        self.state = CLOSED
        self._buffer, self._at, self.stopped = b"", 0, False
        self.block = None
        for number in tuple(self.streams.active):
            self.streams.drop(number)

    def clear_caches(self) -> None:
        """Free memory that no call needs."""
        self.headers.clear_cache()

    # The budget of frames that ask for nothing.

    def refill(self, count: int) -> None:
        """Give back `count` frames, for requests or because time has passed."""
        self._budget = min(MAX_IDLE_FRAMES, self._budget + count)

    def spend_records(self, records: int) -> None:
        """Records of TLS without data came: each costs us something and asks for nothing."""
        if self.state is not CLOSED:
            self._budget -= records * FRAMES_PER_RECORD
            if self._budget < 0:
                reason = "too many records of TLS that carry nothing"
                self.close(Code.ENHANCE_YOUR_CALM, reason, Bound.EMPTY_RECORDS)

    def _spend(self, bound: Bound, count: int = 1) -> None:
        self._budget -= count
        if self._budget < 0:
            raise WireError(Code.ENHANCE_YOUR_CALM, f"too many frames that ask for nothing: {bound}", bound)

    # From bytes to frames.

    def _read_on(self, over: float) -> None:
        """Read the streams whose messages were not all read."""
        streams = self.streams
        for stream in tuple(streams.readable.values()):
            streams.read(stream)
            if streams.request_bytes >= MAX_REQUEST_BYTES or self._tick() >= over:
                break

    def _parse(self, buffer: bytes, at: int, over: float) -> int:
        """Parse frames; returns how far the buffer was read."""
        if self.state is _PREFACE:
            at = self._read_preface(buffer)
            if not at:
                return 0
        end_of_buffer, headers, streams, tick = len(buffer), self.headers, self.streams, self._tick
        while end_of_buffer - at >= 9 and not self.stopped:
            high, low, kind, flags, number = unpack_head(buffer, at)
            length = high << 8 | low
            end = at + 9 + length
            if not (
                kind == HEADERS
                and flags == END_HEADERS
                and headers.plain
                and headers.use_for_fast_path(buffer[at + 9 : end])
            ):
                if length > DEFAULT_FRAME_SIZE:
                    problem = f"a frame of {length} bytes, the maximum is {DEFAULT_FRAME_SIZE} (4.2)"
                    raise WireError(Code.FRAME_SIZE_ERROR, problem)
                if end > end_of_buffer:
                    break
                self._receive_frame(kind, flags, number & MAX_WINDOW_SIZE, buffer[at + 9 : end])
                at = end
                self.stopped = streams.request_bytes >= MAX_REQUEST_BYTES or tick() >= over
            if headers.fast is not None and self.block is None and not self.stopped:
                at = self._unpack_calls(buffer, at)
        return at

    def _unpack_calls(self, buffer: bytes, at: int) -> int:
        """Read calls that are whole in this buffer and begin with the fast block; how far the buffer was read.

        The common case. All state of the client that it needs is in locals; a call takes 0.6 µs, frame by frame 4.
        """
        streams, end_of_buffer = self.streams, len(buffer)
        assert self.headers.fast is not None
        block, head, first, unpack, overhead = self.headers.fast
        start, last_start = at, min(end_of_buffer - overhead, at + MAX_REQUEST_BYTES - streams.request_bytes - 1)
        events, active = streams.events, streams.active
        last, max_stream, window = self.last_stream, self._max_stream, self._receive_window
        places = free = self._options.max_concurrent_streams - len(active) - len(streams.abandoned)
        largest = self._max_request
        while at <= last_start:
            began, number, same_block, data, flags, same_number, compressed, size = unpack(buffer, at)
            after = at + overhead + size
            if (
                began != first
                or same_block != block
                or not last < number <= max_stream
                or not number & 1
                or places <= 0
                or same_number != number
                or data != size + 5 << 8  # the length of the frame, and its type: DATA is 0
                or flags != END_STREAM
                or compressed
                or size > largest
                or after > end_of_buffer
            ):
                break
            last = number
            window -= size + 5
            places -= 1
            active[number] = None
            events.append((_CALL, number, head, buffer[at + overhead : after]))
            at = after
            if window <= RECEIVE_WINDOW // 2:
                self._receive_window = window
                self._open_receive_window()
                window = self._receive_window
        self.last_stream, self._receive_window = last, window
        self._counts.streams += free - places
        streams.request_bytes += at - start
        self.stopped = streams.request_bytes >= MAX_REQUEST_BYTES
        return at

    def _read_preface(self, buffer: bytes) -> int:
        """Read the first bytes, of HTTP/2 or of another protocol; how far the buffer was read."""
        if buffer.startswith(PREFACE):
            if self._refusal:
                raise WireError(Code.PROTOCOL_ERROR, self._refusal)
            self.state = _SETTINGS
            return len(PREFACE)
        if not PREFACE.startswith(buffer):
            if buffer.startswith(b"\x16\x03"):  # the head of a TLS record
                raise WireError(Code.PROTOCOL_ERROR, "the client speaks TLS, and this port does not")
            line, newline, _ = buffer.partition(b"\n")
            if buffer[:1].isupper() and not newline and len(buffer) < _MAX_LINE_LENGTH:
                return 0  # it may become a line of HTTP/1
            if not _REQUEST_LINE.fullmatch(line):
                raise WireError(Code.PROTOCOL_ERROR, "the client does not begin with the preface of HTTP/2 (3.4)")
            self._out[:] = [_HTTP1_RESPONSE.removesuffix(_HTTP1) if line.startswith(b"HEAD ") else _HTTP1_RESPONSE]
            self.error = Code.HTTP_1_1_REQUIRED, "the client speaks HTTP/1"
            self.abort()
            return len(buffer)
        return 0

    # Frames.

    def _receive_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """One frame, by the table; WireError when it ends the connection."""
        if self.state is _SETTINGS:
            if kind != frames.SETTINGS or flags & ACK:
                raise WireError(Code.PROTOCOL_ERROR, "the first frame is not SETTINGS (3.4)")
            self.state = OPEN
        if self.block is not None and (kind != frames.CONTINUATION or number != self.block.number):
            raise WireError(Code.PROTOCOL_ERROR, "a header block is interrupted (4.3)")
        rule = self._RULES.get(kind, self._UNKNOWN)
        if rule.bound is not None:
            self._spend(rule.bound)
        if number:
            if not rule.on_stream:
                raise WireError(Code.PROTOCOL_ERROR, "a frame of the connection is on a stream (6)")
            # A stream after the last one of our second GOAWAY may be open for the client, and is ignored: 6.8.
            if rule.opened and self.last_stream < number <= self._max_stream:
                raise WireError(Code.PROTOCOL_ERROR, "a frame is on a stream that was never opened (5.1)")
        elif not rule.on_connection:
            raise WireError(Code.PROTOCOL_ERROR, "a frame of a stream is on stream 0 (6)")
        if rule.size is not None and len(payload) != rule.size:
            problem = f"a frame of {len(payload)} bytes, it must have {rule.size} (6)"
            raise WireError(Code.FRAME_SIZE_ERROR, problem)
        rule.act(self, flags, number, payload)

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        length = len(payload)
        # There always is room on the connection: half of its window is more than any frame. 6.9: padding counts, and
        # so does the DATA of streams that are closed.
        self._receive_window -= length
        if self._receive_window <= RECEIVE_WINDOW // 2:
            self._open_receive_window()
        body = frames.unpadded(payload) if flags & frames.PADDED else payload
        if not body:
            self._spend(Bound.EMPTY_DATA)
        streams = self.streams
        stream = streams.active.get(number)
        if stream is None or stream.ended:
            if number not in streams.reset_by_us and number <= self.last_stream:
                self._spend(Bound.FAILED_STREAMS)
                streams.reset(number, Code.STREAM_CLOSED)  # 5.1, half-closed (remote), and closed
            return
        stream.receive_window -= length
        if stream.receive_window < 0:
            self._counts.refused[Bound.RECEIVE_WINDOW] += 1
            streams.reset(number, Code.FLOW_CONTROL_ERROR)
            return
        streams.receive(stream, body, ended=bool(flags & END_STREAM))

    def _open_receive_window(self) -> None:
        """Let the client send more: 6.9. Messages that are not read are bounded by memory, not by this window."""
        self._out.append(frames.window_update(0, RECEIVE_WINDOW - self._receive_window))
        self._receive_window = RECEIVE_WINDOW

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        depends_on_itself = False
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
        if flags & frames.PRIORITIZED:
            if len(payload) < 5:
                raise WireError(Code.FRAME_SIZE_ERROR, "HEADERS is too short for its priority (6.2)")
            depends_on_itself = frames.number(payload[:4]) == number
            payload = payload[5:]
        if len(payload) > 2 * self._options.max_header_list_size:
            raise _block_too_large()
        ended = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._read_block(number, payload, ended=ended, depends_on_itself=depends_on_itself)
        else:
            self.block = HeaderBlock(number, payload, ended=ended, depends_on_itself=depends_on_itself)

    def _continuation(self, flags: int, _number: int, payload: bytes) -> None:
        block = self.block
        if block is None:
            raise WireError(Code.PROTOCOL_ERROR, "CONTINUATION continues nothing (6.10)")
        block.extend(payload)
        if len(block.bytes) > 2 * self._options.max_header_list_size:
            raise _block_too_large()
        if flags & END_HEADERS:
            self.block = None
            data = bytes(block.bytes)
            self._read_block(block.number, data, ended=block.ended, depends_on_itself=block.depends_on_itself)

    def _read_block(self, number: int, data: bytes, *, ended: bool, depends_on_itself: bool) -> None:
        """A header block is complete: a new stream, or trailers. It is always decoded: it may change the table."""
        streams = self.streams
        if number in streams.active:
            self._trailers(number, data, ended=ended)
            return
        if number <= self.last_stream:
            if number not in streams.reset_by_us:
                # 5.1.1 for a number that is smaller than another; 5.1 for one that was used.
                code = Code.STREAM_CLOSED if number == self.last_stream else Code.PROTOCOL_ERROR
                raise WireError(code, "HEADERS is on a stream that is closed (5.1)", Bound.STREAM_NUMBERS)
            self.headers.read_trailers(data)
            return
        if not number & 1:
            raise WireError(Code.PROTOCOL_ERROR, "the client opens a stream with an even number (5.1.1)")
        head = self.headers.cache.get(data)
        if head is None:
            head = self.headers.read(data)
            if not (self._table_announced or head.http):
                self._table_announced = True
                self._out.append(frames.NO_HEADER_TABLE)
        if number > self._max_stream:
            return  # 6.8: it came after our second GOAWAY
        self.last_stream = number
        if head.malformed or depends_on_itself:
            self._spend(Bound.FAILED_STREAMS)
            streams.reset(number, Code.PROTOCOL_ERROR)  # 8.1.1; RFC 7540, 5.3.1
        elif len(streams.active) + len(streams.abandoned) >= self._options.max_concurrent_streams:
            self._counts.refused[Bound.STREAMS] += 1
            self._spend(Bound.STREAMS)
            streams.reset(number, Code.REFUSED_STREAM)  # 5.1.2
        else:
            streams.begin(number, head, ended=ended)

    def _trailers(self, number: int, data: bytes, *, ended: bool) -> None:
        """A second header block must end the stream: 8.1."""
        streams, stream = self.streams, self.streams.active[number]
        problem = self.headers.read_trailers(data)
        if stream is None or stream.ended:
            streams.reset(number, Code.STREAM_CLOSED)
        elif problem or not ended:
            streams.reset(number, Code.PROTOCOL_ERROR)
        else:
            streams.receive(stream, b"", ended=True)

    def _priority(self, _flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 5:
            code = Code.FRAME_SIZE_ERROR  # 6.3: a stream error
        elif frames.number(payload[:4]) == number:
            code = Code.PROTOCOL_ERROR  # RFC 7540, 5.3.1
        else:
            return
        if number > self.last_stream:
            raise WireError(code, "PRIORITY is wrong, on a stream that is idle and cannot be reset (6.4)")
        self.streams.reset(number, code)

    def _rst_stream(self, _flags: int, number: int, _payload: bytes) -> None:
        self._counts.resets_received += 1
        self.streams.drop(number)

    def _settings(self, flags: int, _number: int, payload: bytes) -> None:
        self._spend(Bound.SETTINGS, 1 + len(payload) // 48)
        if flags & ACK:
            if payload:
                problem = f"a frame of {len(payload)} bytes, it must have 0 (6)"
                raise WireError(Code.FRAME_SIZE_ERROR, problem)
            self._acknowledged += 1
            if self._acknowledged == 2:
                self.headers.table_acknowledged()
            return
        settings, streams = frames.read_settings(payload), self.streams
        self._out.append(frames.SETTINGS_ACK)
        if settings.get(frames.INITIAL_WINDOW_SIZE, streams.initial_window) != streams.initial_window:
            self._spend(Bound.SETTINGS, len(streams.active) // STREAMS_PER_IDLE_FRAME)
        streams.apply_settings(settings)

    def _push_promise(self, _flags: int, _number: int, _payload: bytes) -> None:
        raise WireError(Code.PROTOCOL_ERROR, "a client must not send PUSH_PROMISE (8.4)")

    def _ping(self, flags: int, _number: int, payload: bytes) -> None:
        if not flags & ACK:
            self._out.append(frames.frame(frames.PING, ACK, 0, payload))
        elif payload == _FAREWELL:
            self.leave()

    def _goaway(self, _flags: int, _number: int, payload: bytes) -> None:
        if len(payload) < 8:
            raise WireError(Code.FRAME_SIZE_ERROR, f"GOAWAY has {len(payload)} bytes (6.8)")

    def _window_update(self, _flags: int, number: int, payload: bytes) -> None:
        increment, streams = frames.number(payload), self.streams
        if number:
            streams.grow_stream_window(number, increment)
            return
        if not increment:
            raise WireError(Code.PROTOCOL_ERROR, "WINDOW_UPDATE of 0 (6.9)")
        closed = streams.send_window <= 0
        streams.grow_window(increment)
        if closed:  # otherwise no stream waits for it
            self._spend(Bound.WINDOW_UPDATES, len(streams.blocked) // STREAMS_PER_IDLE_FRAME)
            streams.pump_blocked()

    def _ignore(self, _flags: int, _number: int, _payload: bytes) -> None:
        """4.1: "Implementations MUST ignore and discard frames of unknown types"."""

    _RULES: ClassVar[dict[int, _Rule]] = {
        frames.DATA: _rule("opened stream", _data),
        frames.HEADERS: _rule("stream", _headers),
        frames.PRIORITY: _rule("stream", _priority, bound=Bound.PRIORITIES),
        frames.RST_STREAM: _rule("opened stream", _rst_stream, size=4, bound=Bound.RESETS),
        frames.SETTINGS: _rule("connection", _settings),
        frames.PUSH_PROMISE: _rule("connection, stream", _push_promise),
        frames.PING: _rule("connection", _ping, size=8, bound=Bound.PINGS),
        frames.GOAWAY: _rule("connection", _goaway, bound=Bound.UNKNOWN_FRAMES),
        frames.WINDOW_UPDATE: _rule("connection, opened stream", _window_update, size=4, bound=Bound.WINDOW_UPDATES),
        frames.CONTINUATION: _rule("stream", _continuation),
    }
    _UNKNOWN: ClassVar[_Rule] = _rule("connection, stream", _ignore, bound=Bound.UNKNOWN_FRAMES)


@lru_cache(8)  # all connections of a transport send the same
def _our_preface(options: GrpcOptions) -> bytes:
    """The first frames that we send: 3.4."""
    announced = {
        frames.MAX_CONCURRENT_STREAMS: options.max_concurrent_streams,
        frames.MAX_HEADER_LIST_SIZE: options.max_header_list_size,
    }
    return frames.settings(announced) + frames.window_update(0, RECEIVE_WINDOW - INITIAL_WINDOW)


def _block_too_large() -> WireError:
    return WireError(Code.ENHANCE_YOUR_CALM, "the header block is far too large", Bound.HEADER_BLOCK)
