"""The streams of one connection: their states, their messages, and flow control. No I/O. Hot path.

A stream is one call. Its request becomes an event for its method, and the response leaves as the client's windows allow
(RFC 9113, 5.2 and 6.9). Section numbers are those of RFC 9113.

States:

| state     | in RFC 9113, 5.1   | kept in                    | waits for                                           |
| --------- | ------------------ | -------------------------- | --------------------------------------------------- |
| RECEIVING | open               | `active`                   | the rest of the request of a unary call             |
| CALLED    | half-closed remote | `active`, almost always as | the response of the method of a unary call          |
|           |                    | None: see below            |                                                     |
| STREAMING | open, half-closed  | `active`                   | messages of both sides of a streaming call          |
|           | remote             |                            |                                                     |
| SENDING   | as it was          | `active`, `blocked`        | room in the windows; then `tail` ends our side      |
| LINGERING | half-closed local  | `active`, `lingering`      | END_STREAM of a client that does not speak gRPC     |
| abandoned | closed             | `abandoned`, its number    | its method, which cannot be cancelled: until it     |
|           |                    |                            | responds, the stream counts as one of those allowed |
| closed    | closed             | `reset_by_us`, if we did,  | frames that were on their way when we reset it      |
|           |                    | the last MAX_RESET         |                                                     |

Events, and the state that follows; "-" is no effect. `begin` (HEADERS) makes a stream RECEIVING or STREAMING, by its
method, or SENDING if it is refused.

| event                      | RECEIVING | CALLED       | STREAMING         | SENDING     | LINGERING  |
| -------------------------- | --------- | ------------ | ----------------- | ----------- | ---------- |
| `receive`: DATA            | is kept   | abandoned[1] | MESSAGE events[1] | dropped[1]  | dropped    |
| `receive`: END_STREAM      | CALLED    | abandoned[1] | HALF_CLOSE event  | is noted[1] | closed     |
| `receive`: a wrong message | SENDING   |              | SENDING           |             |            |
| `reply` of the method      |           | SENDING      |                   | -           | -          |
| `send` of the method       |           |              | is queued         | -           | -          |
| `finish` of the method     | SENDING   |              | SENDING           | -           | -          |
| `fail`, `expire`           | SENDING   | abandoned[2] | SENDING[3]        | closed[3]   | closed[3]  |
| the `tail` is written      |           |              |                   | closed[4]   |            |
| `reset`, `drop`            | closed    | abandoned[2] | closed            | closed      | closed     |

1. After END_STREAM it is an error of the client: `connection` resets the stream (STREAM_CLOSED).
2. Closed, when the method can be cancelled. `fail` sends its error first.
3. By RST_STREAM, where half a message has left or the response is complete: neither can become an error.
4. LINGERING, when the client does not speak gRPC and has not sent END_STREAM.

A request that came whole in one read, or that left nothing to remember of its stream, makes no object: in `active` its
number stands with None, and a small response is packed and sent at once. All other streams have a Stream.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from ratelimit_service.errors import RpcError, Status, WireError
from ratelimit_service.model import Cancel
from ratelimit_service.transports.http2 import frames
from ratelimit_service.transports.http2.counts import Counts
from ratelimit_service.transports.http2.frames import (
    HEADERS,
    INITIAL_WINDOW,
    MAX_WINDOW_SIZE,
    OK_TRAILERS,
    PREFIX_BYTES,
    RESPONSE_HEAD,
    RESPONSE_HEADERS,
    TRAILERS_HEAD,
    Code,
    pack_head,
    response_packer,
    take_message,
)
from ratelimit_service.transports.http2.headers import Head
from ratelimit_service.transports.http2.limits import (
    MAX_MESSAGES,
    MAX_RESET,
    MAX_WRITTEN,
    MIN_PROGRESS,
    RESET_BYTES,
    STALL,
    STREAM_BYTES,
    Bound,
)
from ratelimit_service.transports.http2.stream import (
    CALLED,
    LINGERING,
    SENDING,
    STREAMING,
    Event,
    EventKind,
    Stream,
)
from ratelimit_service.transports.options import GrpcOptions
from ratelimit_service.transports.transport import (
    EXPIRED,
    MAX_UNREAD_BYTES,
    MESSAGE_BYTES,
    PAUSE_BYTES,
    UNFINISHED,
    UNREAD,
    too_large,
)

_MAX_SENT: Final = 64 * 1024
"""Bytes of the largest frame that we send to a client that accepts larger ones: streams take turns on a connection."""
_WHOLE: Final = Head("", plain=True)
_EXPLANATION: Final = b"This port speaks gRPC: POST, with content-type application/grpc.\n"


class Streams:
    """All streams of one connection.

    `wake` is called when there is output, or an event, that comes from no read: then the owner must flush soon.

    The connection adds calls that come whole to `active` and `events`, and counts `request_bytes`; it resets that and
    `written_bytes`. It and its wire take `events` and `out`. The wire adds to `cancels`, removes from `abandoned`, and
    sets `flush_scheduled` before it works; `Deadlines` changes `timed`. They change no other attribute.
    """

    __slots__ = (
        *("_congested", "_max_small", "_shrinking", "_small_response", "abandoned", "active", "blocked"),
        *("cancels", "counts", "events", "flush_scheduled", "frame_size", "held_bytes", "incomplete"),
        *("initial_window", "options", "lingering", "now", "out", "output_full", "queued_bytes", "readable"),
        *("request_bytes", "reset_by_us", "send_window", "timed", "wake", "written_bytes"),
    )

    def __init__(self, options: GrpcOptions, wake: Callable[[], object], counts: Counts, now: int = 0) -> None:
        self.active: dict[int, Stream | None] = {}
        """By number; None for a CALLED one with nothing to remember."""
        self.abandoned: set[int] = set()
        self.cancels: dict[int, Cancel] = {}
        """Of CALLED streams whose methods can be cancelled."""
        self.timed: dict[int, int] = {}
        """When calls end that have a deadline and are not answered: microseconds of the server's clock."""
        self.reset_by_us: dict[int, None] = {}
        self.lingering: dict[int, bool] = {}
        """LINGERING streams; whether they were so when `reset_lingering` ran last."""
        self.options = options
        self.counts = counts
        self.wake = wake
        self.now = now
        """Microseconds, as of the last `check`."""
        # What the client sends:
        self.events: list[Event] = []
        self.request_bytes = 0
        """Bytes of the requests in `events`, with their frames, since `receive` began."""
        self.held_bytes = 0
        """Bytes of messages that are not read yet, of all streams."""
        self.incomplete: dict[int, int] = {}
        """Streams whose last message is not complete, and when its last part came; the oldest first."""
        self.readable: dict[int, Stream] = {}
        """Streams with messages that may be read, and are not yet."""
        # What we send:
        self.out: list[bytes] = []
        """Frames to write."""
        self.flush_scheduled = False
        """`out` and `events` will be taken soon: `wake` need not be called."""
        self.send_window = INITIAL_WINDOW
        """Bytes of DATA that we may send on the connection."""
        self.initial_window = INITIAL_WINDOW
        """The send window of a new stream."""
        self.frame_size = frames.DEFAULT_FRAME_SIZE
        self.queued_bytes = 0
        """Memory of the queues of all streams."""
        self.blocked: dict[int, Stream] = {}
        """Streams whose queue waits for a window, or for the socket; the one that waits longest first."""
        self.written_bytes = 0
        """Bytes of DATA from queues in `out`."""
        self.output_full = False
        """MAX_WRITTEN was reached; the rest may follow once `out` is written."""
        self._congested = False
        """The socket accepts no more: DATA waits as if the window were closed."""
        self._shrinking = False
        """The client reduced our header table, and the next header block must say so."""
        self._max_small = min(options.max_response_size, frames.SMALL_RESPONSE)
        self._small_response = self._max_small
        """Bytes of a response that may be sent at once on a new stream if the connection has room; -1 for none."""

    # Events of the table, in its order.

    def begin(self, number: int, head: Head, *, ended: bool) -> None:
        """A client opened a stream."""
        self.counts.streams += 1
        self.active[number] = stream = Stream(number, head, self.initial_window)
        stream.ended = ended
        if head.http:
            self._refuse_http(stream)
        elif head.refusal is not None:
            if head.refusal.status is Status.RESOURCE_EXHAUSTED:
                self.counts.refused[Bound.HEADER_LIST] += 1
            self.finish(number, head.refusal)
        elif head.streaming:
            self.events.append((EventKind.OPEN, number, head, b""))
        elif head.timeout is not None and not ended:
            self.events.append((EventKind.BEGIN, number, head, b""))
        if ended and number in self.active:
            self.receive(stream, b"", ended=True)

    def receive(self, stream: Stream, body: bytes, *, ended: bool) -> None:
        """DATA has come, or END_STREAM by itself."""
        announced, most = stream.head.length, self.options.max_connection_memory
        stream.ended = ended
        stream.received_bytes += len(body)
        if announced is not None and (
            stream.received_bytes > announced or (ended and stream.received_bytes != announced)
        ):
            # 8.1.1: malformed, because the value of Content-Length "does not equal the sum of the DATA frame payload
            # lengths that form the content".
            self.reset(stream.id, Code.PROTOCOL_ERROR)
        elif stream.state is SENDING:
            pass
        elif stream.state is LINGERING:
            if ended:
                self._remove(stream)
        else:
            self.held_bytes += len(body)
            stream.body += body
            if self.held_bytes > most:
                self.counts.refused[Bound.UNREAD_QUESTIONS] += 1
                message = f"the connection has more than {most} bytes of unread messages"
                self.fail(stream.id, RpcError(Status.RESOURCE_EXHAUSTED, message))
            else:
                self.read(stream)

    def read(self, stream: Stream) -> None:
        """Make events of the complete messages of a RECEIVING or STREAMING stream."""
        before = len(stream.body)
        error = self._read_messages(stream) if stream.state is STREAMING else self._read_request(stream)
        self.held_bytes += len(stream.body) - before
        self.incomplete.pop(stream.id, None)
        if error is not None:
            if error.status is Status.RESOURCE_EXHAUSTED:
                self.counts.refused[Bound.MESSAGE] += 1
            self.fail(stream.id, error)
        elif not (stream.ended or stream.paused or stream.id in self.readable):
            if stream.body:
                self.incomplete[stream.id] = self.now
            if stream.receive_window <= INITIAL_WINDOW // 2:
                self.out.append(frames.window_update(stream.id, INITIAL_WINDOW - stream.receive_window))
                stream.receive_window = INITIAL_WINDOW

    def _read_request(self, stream: Stream) -> RpcError | None:
        body, most = stream.body, self.options.max_message_size
        if not stream.ended:
            return frames.early_problem(body, most) if len(body) >= PREFIX_BYTES else None
        if not body:
            return frames.NO_REQUEST
        message = take_message(body, most, gzip=stream.head.gzip)
        if not isinstance(message, bytes):
            return message or frames.TRUNCATED
        if body:
            return frames.MORE_REQUESTS
        stream.state = CALLED
        if stream.send_window == self.initial_window:
            self.active[stream.id] = None  # nothing else of it is needed
        self.request_bytes += frames.REQUEST_OVERHEAD + len(message)
        self.events.append((EventKind.CALL, stream.id, stream.head, message))
        return None

    def _read_messages(self, stream: Stream) -> RpcError | None:
        most, number = self.options.max_message_size, stream.id
        self.readable.pop(number, None)
        for _ in range(MAX_MESSAGES):
            stream.paused = stream.queued_bytes > PAUSE_BYTES
            if stream.paused:
                return None
            message = take_message(stream.body, most, gzip=stream.head.gzip)
            if message is None:
                if not stream.ended:
                    return None
                if stream.body:
                    return frames.TRUNCATED
                self.events.append((EventKind.HALF_CLOSE, number, stream.head, b""))
                return None
            if isinstance(message, RpcError):
                return message
            self.request_bytes += frames.REQUEST_OVERHEAD + len(message)
            self.events.append((EventKind.MESSAGE, number, stream.head, message))
        self.readable[number] = stream
        return None

    def reply(self, number: int, response: bytes | RpcError) -> None:
        """The response of a unary call; a second one has no effect."""
        if self.cancels:
            self.cancels.pop(number, None)
        if response.__class__ is bytes and self.active.get(number, self) is None:
            size = len(response)
            if size <= self._small_response and size + 5 <= self.send_window:
                del self.active[number]
                if self.timed:
                    self.timed.pop(number, None)
                self.send_window -= size + 5
                pack, before, after = response_packer(size)
                self.out.append(
                    pack(RESPONSE_HEAD, number, before, number, after, response, TRAILERS_HEAD, number, OK_TRAILERS)
                )
                if not self.flush_scheduled:
                    self.flush_scheduled = True
                    self.wake()
                return
        self._reply_slowly(number, response)

    def _reply_slowly(self, number: int, response: bytes | RpcError) -> None:
        if number not in self.active:
            self.abandoned.discard(number)
            return
        stream = self._unfold(number)
        if stream.state is not CALLED:
            return
        if not isinstance(response, RpcError):
            if len(response) <= self.options.max_response_size:
                self._enqueue(stream, response)
                self._end(stream, None)
                return
            response = too_large(len(response), self.options.max_response_size)
        self._end(stream, response)

    def _unfold(self, number: int) -> Stream:
        """The Stream of an active number, made now if it was CALLED without one."""
        stream = self.active[number]
        if stream is None:
            self.active[number] = stream = Stream(number, _WHOLE, self.initial_window)
            stream.state, stream.ended = CALLED, True
        return stream

    def send(self, number: int, message: bytes) -> None:
        """One more message of a streaming call to its client; no effect once the call is over."""
        stream = self.active.get(number)
        if stream is None or stream.state is not STREAMING:
            return
        most = self.options.max_response_size
        if len(message) > most:
            self._end(stream, too_large(len(message), most))
        elif stream.queue and stream.queued_bytes + len(message) > MAX_UNREAD_BYTES:
            self.counts.refused[Bound.UNREAD_ANSWERS] += 1
            self._clear_queue(stream)
            self._end(stream, UNREAD)
        else:
            self._enqueue(stream, message)
            self._pump(stream)
            self.schedule_flush()

    def finish(self, number: int, error: RpcError | None = None) -> None:
        """End a call; messages that are queued leave first."""
        stream = self.active.get(number)
        if stream is not None and stream.tail is None:
            self._end(stream, error)

    def expire(self, number: int) -> None:
        """The deadline of a call has passed."""
        self.fail(number, EXPIRED)

    def fail(self, number: int, error: RpcError) -> None:
        """End a call with an error in place of the messages that are queued."""
        if number not in self.active:
            return
        stream = self._unfold(number)
        if stream.sent or stream.tail is not None:
            self.reset(number, Code.CANCEL)  # the rest of a message cannot be replaced by an error
            return
        if stream.state is CALLED:
            self._abandon(number)
        self._clear_queue(stream)
        self._end(stream, error)

    def reset(self, number: int, code: Code) -> None:
        """Send RST_STREAM, and close the stream: 5.4.2."""
        self.counts.resets_sent += 1
        self.out.append(frames.rst_stream(number, code))
        if len(self.reset_by_us) >= MAX_RESET:
            del self.reset_by_us[next(iter(self.reset_by_us))]
        self.reset_by_us[number] = None
        self.drop(number)
        self.schedule_flush()

    def drop(self, number: int) -> None:
        """Close a stream without sending anything, as when the client reset it."""
        if number in self.active:
            stream = self.active[number]
            if stream is None:
                del self.active[number]
                self.timed.pop(number, None)
                self._abandon(number)
            else:
                self._remove(stream)

    # Transitions.

    def _refuse_http(self, stream: Stream) -> None:
        """A client that does not speak gRPC gets an HTTP status, and a line to read."""
        stream.state, stream.headers_sent = SENDING, True
        block, number = frames.http_headers(stream.head.http), stream.id
        if stream.head.bodiless:
            stream.tail = frames.headers(number, block, end=True)
        else:
            stream.tail = frames.frame(frames.DATA, frames.END_STREAM, number)
            self._write(frames.headers(number, block))
            self._queue(stream, _EXPLANATION)
        self._pump(stream)

    def _end(self, stream: Stream, error: RpcError | None) -> None:
        """SENDING, from any state before it."""
        if error is None:
            self._send_headers(stream)
            block = OK_TRAILERS
        else:
            block = frames.trailers(error) if stream.headers_sent else RESPONSE_HEADERS + frames.trailers(error)
        stream.state = SENDING
        stream.tail = frames.headers(stream.id, block, end=True)
        self._release_body(stream)
        self._pump(stream)
        self.schedule_flush()

    def _response_complete(self, stream: Stream) -> None:
        """The tail is written: closed, or LINGERING."""
        if stream.ended:
            self._remove(stream)
        elif stream.head.http:
            # A client that does not speak gRPC may take a reset for a failure, and show no response.
            stream.state = LINGERING
            self.lingering[stream.id] = False
        else:
            # 8.1: a server may "request that the client abort transmission of a request without error by sending a
            # RST_STREAM with an error code of NO_ERROR after sending a complete response".
            self.reset(stream.id, Code.NO_ERROR)

    def _remove(self, stream: Stream) -> None:
        """Closed, from any state."""
        number = stream.id
        del self.active[number]
        self.timed.pop(number, None)
        if stream.state is CALLED:
            self._abandon(number)
        stream.sent = 0
        self._clear_queue(stream)
        self._release_body(stream)
        self.lingering.pop(number, None)
        if stream.head.streaming:
            self.events.append((EventKind.CLOSE, number, stream.head, b""))

    def _abandon(self, number: int) -> None:
        """The method of a CALLED stream is cancelled; if it cannot be, the stream still counts until it responds.

        A client that resets calls and opens others gets no more of them at work than it may have open: rapid reset,
        CVE-2023-44487, and CVE-2025-8671, where it has us reset them.
        """
        cancel = self.cancels.pop(number, None)
        if cancel is None or not cancel():
            self.abandoned.add(number)

    def _release_body(self, stream: Stream) -> None:
        """No message of the client is read any more."""
        self.held_bytes -= len(stream.body)
        stream.body.clear()
        stream.paused = False
        self.incomplete.pop(stream.id, None)
        self.readable.pop(stream.id, None)

    # What we send: flow control.

    def _enqueue(self, stream: Stream, message: bytes) -> None:
        self._send_headers(stream)
        self._queue(stream, frames.prefixed(message))

    def _send_headers(self, stream: Stream) -> None:
        if not stream.headers_sent:
            stream.headers_sent = True
            self._write(frames.headers(stream.id, RESPONSE_HEADERS))

    def _write(self, written: bytes) -> None:
        """Send a frame that may be HEADERS."""
        if self._shrinking and written[3] == HEADERS:
            self._shrinking = False
            self._update_small_response()
            written = frames.frame(HEADERS, written[4], frames.number(written[5:9]), frames.TABLE_SIZE_0 + written[9:])
        self.out.append(written)

    def _queue(self, stream: Stream, data: bytes) -> None:
        cost = len(data) + MESSAGE_BYTES
        if stream.queue is None:
            stream.queue = deque()
        stream.queue.append(data)
        stream.queued_bytes += cost
        self.queued_bytes += cost

    def _pump(self, stream: Stream) -> None:
        """Send as much of a stream's queue as may leave now, and its tail once the queue is empty."""
        if not self._empty_queue(stream):
            if stream.id not in self.blocked:
                stream.last_progress, stream.moved = self.now, 0
                self.blocked[stream.id] = stream
        else:
            self.blocked.pop(stream.id, None)
            if stream.tail is not None:
                self._write(stream.tail)
                self._response_complete(stream)
                return
        if stream.paused and stream.queued_bytes <= PAUSE_BYTES:
            self.readable[stream.id] = stream
            self.schedule_flush()

    def _empty_queue(self, stream: Stream) -> bool:
        """Send DATA as the windows allow; False when some is left."""
        queue, out = stream.queue, self.out
        while queue:
            message, start = queue[0], stream.sent
            size = min(len(message) - start, self.send_window, stream.send_window, self.frame_size)
            if self.written_bytes >= MAX_WRITTEN:
                self.output_full = True
                return False
            if size <= 0 or self._congested:
                return False
            out.append(pack_head(size >> 8, size & 0xFF, frames.DATA, 0, stream.id))
            out.append(message[start : start + size])
            self.send_window -= size
            stream.send_window -= size
            stream.moved += size
            self.written_bytes += size
            if start + size < len(message):
                stream.sent = start + size
                continue
            queue.popleft()
            stream.sent = 0
            stream.queued_bytes -= len(message) + MESSAGE_BYTES
            self.queued_bytes -= len(message) + MESSAGE_BYTES
        stream.queue = None
        return True

    def _clear_queue(self, stream: Stream) -> None:
        """Drop what is queued, but for the rest of a message of which a part has left."""
        rest = [stream.queue[0]] if stream.queue and stream.sent else []
        self.queued_bytes -= stream.queued_bytes
        stream.queue = None
        stream.queued_bytes = 0
        self.blocked.pop(stream.id, None)
        for message in rest:
            self._queue(stream, message)

    def pump_blocked(self) -> None:
        """There is room again on the connection: go on with the streams that wait for it."""
        for stream in tuple(self.blocked.values()):
            if self.send_window <= 0 or self._congested or self.output_full:
                break
            self._pump(stream)

    def resume_output(self) -> None:
        """Go on after `out` was written: what MAX_WRITTEN kept back may follow."""
        self.output_full = False
        self.pump_blocked()

    def congest(self, congested: bool) -> None:
        """The socket accepts no more for now, or does again."""
        self._congested = congested
        self._update_small_response()
        if not congested:
            self.pump_blocked()

    def grow_window(self, increment: int) -> None:
        """WINDOW_UPDATE on the connection: 6.9.1."""
        self.send_window += increment
        if self.send_window > MAX_WINDOW_SIZE:
            raise WireError(Code.FLOW_CONTROL_ERROR, "the window of the connection is over 2^31-1 (6.9.1)")

    def grow_stream_window(self, number: int, increment: int) -> None:
        """WINDOW_UPDATE on a stream: 6.9."""
        if number not in self.active:
            return  # 5.1: it may come until the client "receives and processes the frame that closes the stream"
        if not increment:
            self.reset(number, Code.PROTOCOL_ERROR)  # 6.9
            return
        stream = self._unfold(number)
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW_SIZE:
            self.reset(number, Code.FLOW_CONTROL_ERROR)  # 6.9.1
        elif number in self.blocked:
            self._pump(stream)

    def apply_settings(self, settings: Mapping[int, int]) -> None:
        """SETTINGS of the client: 6.5.2."""
        self.frame_size = min(settings.get(frames.MAX_FRAME_SIZE, self.frame_size), _MAX_SENT)
        if settings.get(frames.HEADER_TABLE_SIZE, frames.INITIAL_TABLE) < frames.INITIAL_TABLE:
            # RFC 7541, 4.2: a table size update "MUST occur at the beginning of the first header block following the
            # change", although our blocks use no table.
            self._shrinking = True
        initial = settings.get(frames.INITIAL_WINDOW_SIZE, self.initial_window)
        change, self.initial_window = initial - self.initial_window, initial
        if change or self._shrinking:
            self._update_small_response()
        if change:
            # 6.9.2: "a receiver MUST adjust the size of all stream flow-control windows that it maintains".
            for stream in self.active.values():
                if stream is not None:
                    stream.send_window += change
                    if stream.send_window > MAX_WINDOW_SIZE:
                        raise WireError(Code.FLOW_CONTROL_ERROR, "the window of a stream is over 2^31-1 (6.9.2)")
            self.pump_blocked()

    def _update_small_response(self) -> None:
        small = min(self._max_small, self.initial_window - PREFIX_BYTES)
        self._small_response = -1 if self._congested or self._shrinking else small

    # Time, memory, and the owner.

    def check(self, now: int, timeout: int, *, reading: bool) -> None:
        """End streams that make no progress; called twice a second.

        A message whose next part does not come within `timeout` ends its call. While the socket is not being read
        (`reading` is False) the part may have come, and the timeout starts again.
        """
        self.now = now
        if self.lingering:
            self.reset_lingering()
        if self.blocked:
            self._reset_stalled(now)
        if self.incomplete and not reading:
            self.incomplete = dict.fromkeys(self.incomplete, now)
        for number, since in tuple(self.incomplete.items()):
            if now - since <= timeout:
                break
            self.counts.refused[Bound.UNFINISHED] += 1
            self.fail(number, UNFINISHED)

    def reset_lingering(self) -> None:
        """Reset streams that were LINGERING at the last check too: they would only hold a place."""
        for number, late in tuple(self.lingering.items()):
            if late:
                self.reset(number, Code.NO_ERROR)
            else:
                self.lingering[number] = True

    def _reset_stalled(self, now: int) -> None:
        for stream in tuple(self.blocked.values()):
            if now - stream.last_progress <= STALL:
                break
            if stream.moved < MIN_PROGRESS:
                self.counts.refused[Bound.STALLED] += 1
                self.reset(stream.id, Code.CANCEL)
            else:
                del self.blocked[stream.id]
                stream.last_progress, stream.moved = now, 0
                self.blocked[stream.id] = stream

    @property
    def responding(self) -> bool:
        """A method of a unary call is at work."""
        if self.abandoned:
            return True
        return any(stream is None or stream.state is CALLED for stream in self.active.values())

    @property
    def weight(self) -> int:
        """Bytes of memory, about."""
        size = self.held_bytes + self.queued_bytes + RESET_BYTES * len(self.reset_by_us)
        return size + STREAM_BYTES * (len(self.active) + len(self.abandoned))

    def schedule_flush(self) -> None:
        """Call `wake`, if it was not called since the last flush."""
        if not self.flush_scheduled:
            self.flush_scheduled = True
            self.wake()

    def detach(self) -> None:
        """Call `wake` no more. It holds the owner, which holds this: the collector would find them late."""
        self.wake = _noop


def _noop() -> None:
    pass
