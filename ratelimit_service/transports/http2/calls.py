"""The calls of one connection: which there are, what they were asked, and how their answers leave. Hot path.

A stream that is over while its method is at work is `abandoned`, and leaves its place only when the method answers; but
for one whose method can be told to leave off.
"""

from collections.abc import Callable
from typing import Final

from ratelimit_service.errors import RpcError, Status
from ratelimit_service.model import Cancel
from ratelimit_service.transports.http2 import frames
from ratelimit_service.transports.http2.counts import Counts
from ratelimit_service.transports.http2.events import Event, Kind
from ratelimit_service.transports.http2.flow import Outflow, Stream
from ratelimit_service.transports.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    OK_TRAILERS,
    RESPONSE_HEAD,
    RESPONSE_HEADERS,
    SMALL_RESPONSE,
    TRAILERS_HEAD,
    Code,
    frame,
    http_headers,
    response_packer,
    rst_stream,
    trailers,
)
from ratelimit_service.transports.http2.headers import Head
from ratelimit_service.transports.http2.limits import MOST_RESET, Bound, Limits
from ratelimit_service.transports.transport import (
    EXPIRED,
    MOST_UNREAD_BYTES,
    PAUSE_BYTES,
    UNFINISHED,
    UNREAD,
    too_large,
)

_WHOLE: Final = Head("", plain=True)
_EXPLANATION: Final = b"This port speaks gRPC: POST, with content-type application/grpc.\n"


class Calls:
    """The calls of one connection; `wake` is called when there is something to take that nobody waits for."""

    def __init__(self, limits: Limits, wake: Callable[[], None], counts: Counts) -> None:
        self.streams: dict[int, Stream | None] = {}
        """Those that are open; None when the question came whole and there is nothing to know but that it waits."""
        self.abandoned: set[int] = set()
        self.cancels: dict[int, Cancel] = {}
        """Of calls whose methods are at work, and would leave off."""
        self.events: list[Event] = []
        self.flow = Outflow(min(limits.max_answer_size, SMALL_RESPONSE))
        self.ready: dict[int, Stream] = {}
        """Streams whose messages are not all read, although they may be."""
        self.owing: dict[int, int] = {}
        """Streams whose client began a message and owes the rest; when a part came last, the oldest first."""
        self.reset_by_us: dict[int, None] = {}
        self.expected = False
        """What is written now is taken soon: nobody has to be woken."""
        self.lingering: dict[int, bool] = {}
        """Streams that are answered, and whose clients do not speak gRPC and may go on; whether for long."""
        self.timed: dict[int, int] = {}
        """When calls are over that have a deadline and are not answered."""
        self.wake = wake
        self.limits = limits
        self.counts = counts
        self.asked = 0
        """Bytes of the questions in `events`, with their frames."""
        self.held = 0
        """Bytes of messages that are not read yet."""

    @property
    def room(self) -> bool:
        """There may be one more."""
        return len(self.streams) + len(self.abandoned) < self.limits.max_concurrent_streams

    def reply(self, number: int, answer: bytes | RpcError) -> None:
        """The answer of a method that answers once; the first counts."""
        if self.cancels:
            self.cancels.pop(number, None)
        flow = self.flow
        if answer.__class__ is bytes and self.streams.get(number, flow) is None:
            size = len(answer)
            # Into one frame, on a stream that has sent nothing yet.
            if size <= flow.at_once and size + 5 <= flow.window:
                del self.streams[number]
                if self.timed:
                    self.timed.pop(number, None)
                flow.window -= size + 5
                pack, before, after = response_packer(size)
                flow.out.append(
                    pack(RESPONSE_HEAD, number, before, number, after, answer, TRAILERS_HEAD, number, OK_TRAILERS)
                )
                if not self.expected:
                    self.touch()
                return
        self._reply_later(number, answer)

    def _reply_later(self, number: int, answer: bytes | RpcError) -> None:
        stream = self._waiting(number)
        if stream is None:
            return
        stream.waiting = False
        most = self.limits.max_answer_size
        if not isinstance(answer, RpcError) and len(answer) > most:
            answer = too_large(len(answer), most)
        if isinstance(answer, RpcError):
            self.finish(number, answer)
        else:
            self._put(stream, answer)
            self.finish(number)

    def _waiting(self, number: int) -> Stream | None:
        """The stream whose method has not answered yet."""
        if number not in self.streams:
            self.abandoned.discard(number)
            return None
        stream = self.streams[number]
        if stream is None:
            return self.unfold(number)
        return stream if stream.waiting else None

    def unfold(self, number: int) -> Stream:
        """A Stream for a question that came whole."""
        self.streams[number] = stream = Stream(number, _WHOLE, self.flow.initial)
        stream.ended = stream.waiting = True
        return stream

    def send(self, number: int, message: bytes) -> None:
        """One more answer on a streaming call; without effect once it is over."""
        stream = self.streams.get(number)
        if stream is None or stream.tail is not None:
            return
        most = self.limits.max_answer_size
        if len(message) > most:
            self.finish(number, too_large(len(message), most))
        elif stream.queue and stream.queued + len(message) > MOST_UNREAD_BYTES:
            self.flow.drop(stream)
            self.counts.refused[Bound.UNREAD_ANSWERS] += 1
            self.finish(number, UNREAD)
        else:
            self._put(stream, message)
            self.flow.pump(stream)
            self.touch()

    def _put(self, stream: Stream, message: bytes) -> None:
        self._start(stream)
        self.flow.put(stream, frames.prefixed(message))

    def _start(self, stream: Stream) -> None:
        if not stream.started:
            stream.started = True
            self.flow.write(frame(HEADERS, END_HEADERS, stream.id, RESPONSE_HEADERS))

    def finish(self, number: int, error: RpcError | None = None) -> None:
        """The end of a call: what was sent before goes out first."""
        stream = self.streams.get(number)
        if stream is None or stream.tail is not None:
            return
        if error is None:
            self._start(stream)
            block = OK_TRAILERS
        else:
            block = trailers(error) if stream.started else RESPONSE_HEADERS + trailers(error)
        stream.tail = frame(HEADERS, END_HEADERS | END_STREAM, number, block)
        self._release(stream)
        self.pump(stream)
        self.touch()

    def fail(self, number: int, error: RpcError) -> None:
        """The end of a call, whatever it had to say; its method may go on."""
        if number not in self.streams:
            return
        stream = self.streams[number] or self.unfold(number)
        if stream.sent or stream.tail is not None:
            self.reset(number, Code.CANCEL)  # half a message can only be cut
            return
        self.flow.drop(stream)
        self.finish(number, error)

    def expire(self, number: int) -> None:
        """Its deadline is over."""
        self.fail(number, EXPIRED)

    def begin(self, stream: Stream) -> None:
        """A stream was opened: refuse it at once, or say so where somebody wants to know."""
        head = stream.head
        if head.http:
            self._refuse_http(stream)
        elif head.refusal is not None:
            if head.refusal.status is Status.RESOURCE_EXHAUSTED:
                self.counts.refused[Bound.HEADER_LIST] += 1
            self.finish(stream.id, head.refusal)
        elif head.streaming:
            self.events.append((Kind.OPEN, stream.id, head, b""))
        elif head.timeout is not None and not stream.ended:
            self.events.append((Kind.BEGIN, stream.id, head, b""))

    def _refuse_http(self, stream: Stream) -> None:
        """A client that does not speak gRPC gets its status, and a line to read."""
        stream.started = True
        block, number = http_headers(stream.head.http), stream.id
        if stream.head.bodiless:
            stream.tail = frame(HEADERS, END_HEADERS | END_STREAM, number, block)
        else:
            self.flow.write(frame(HEADERS, END_HEADERS, number, block))
            self.flow.put(stream, _EXPLANATION)
            stream.tail = frame(DATA, END_STREAM, number)
        self.pump(stream)

    def pump(self, stream: Stream) -> None:
        """Let its answers out, as far as there is room."""
        if not self.flow.pump(stream):
            if stream.paused and stream.queued <= PAUSE_BYTES:
                self.ready[stream.id] = stream
                self.touch()
            return
        if stream.ended:
            self.remove(stream)
        elif stream.head.http:
            self.lingering[stream.id] = False  # a client that does not speak gRPC may take it ill to be cut short
        else:
            # 8.1: the response is complete, and the client need not go on.
            self.reset(stream.id, Code.NO_ERROR)

    def dismiss(self) -> None:
        """End what was answered before this was called last, to clients that do not speak gRPC and go on sending.

        They had time to end it themselves. Now it would only hold a place, and up a connection that is to close.
        """
        for number, late in tuple(self.lingering.items()):
            if late:
                self.reset(number, Code.NO_ERROR)
            else:
                self.lingering[number] = True

    def cut_unfinished(self, now: int, timeout: int) -> None:
        """Refuse the calls whose messages do not go on."""
        for number, since in tuple(self.owing.items()):
            if now - since <= timeout:
                break
            self.counts.refused[Bound.UNFINISHED] += 1
            self.fail(number, UNFINISHED)

    def cut_stalled(self, now: int) -> None:
        """Give up the answers that nobody reads."""
        for stream in self.flow.stalled(now):
            self.counts.refused[Bound.STALLED] += 1
            self.reset(stream.id, Code.CANCEL)

    def resize(self, initial: int) -> None:
        """The client changes the window of all streams: 6.9.2."""
        self.flow.resize(initial, [stream for stream in self.streams.values() if stream])
        self.pump_all()

    def pump_all(self) -> None:
        """The connection has room again."""
        flow = self.flow
        for stream in tuple(flow.blocked.values()):
            if flow.window <= 0 or flow.congested or flow.held_back:
                break
            self.pump(stream)

    def reset(self, number: int, code: Code) -> None:
        """End a stream at once: 5.4.2."""
        self.counts.resets_sent += 1
        self.flow.out.append(rst_stream(number, code))
        if len(self.reset_by_us) >= MOST_RESET:
            del self.reset_by_us[next(iter(self.reset_by_us))]
        self.reset_by_us[number] = None
        self.leave(number)
        self.touch()

    def leave(self, number: int) -> None:
        """A stream is no more, whoever reset it."""
        if number in self.streams:
            stream = self.streams[number]
            if stream is None:
                del self.streams[number]
                self.timed.pop(number, None)
                self._abandon(number)
            else:
                self.remove(stream)

    def remove(self, stream: Stream) -> None:
        """Its place is free."""
        del self.streams[stream.id]
        self.timed.pop(stream.id, None)
        if stream.waiting:
            self._abandon(stream.id)
        self.flow.forget(stream)
        self.lingering.pop(stream.id, None)
        self.ready.pop(stream.id, None)
        self._release(stream)
        if stream.head.streaming:
            self.events.append((Kind.CLOSE, stream.id, stream.head, b""))

    def _abandon(self, number: int) -> None:
        """Nobody waits for the answer of its method."""
        cancel = self.cancels.pop(number, None)
        if cancel is None or not cancel():
            self.abandoned.add(number)

    def touch(self) -> None:
        """There is something to take."""
        if not self.expected:
            self.expected = True
            self.wake()

    def _release(self, stream: Stream) -> None:
        self.held -= len(stream.body)
        stream.body.clear()
        self.owing.pop(stream.id, None)
