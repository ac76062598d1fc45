"""From the bytes of a stream to what its method is asked: one message for those that answer once, any for streams."""

from ratelimit_service.errors import RpcError, Status
from ratelimit_service.transports.http2 import frames
from ratelimit_service.transports.http2.calls import Calls
from ratelimit_service.transports.http2.events import Kind
from ratelimit_service.transports.http2.flow import Stream
from ratelimit_service.transports.http2.frames import INITIAL_WINDOW, REQUEST_OVERHEAD, window_update
from ratelimit_service.transports.http2.limits import MOST_MESSAGES, Bound
from ratelimit_service.transports.transport import PAUSE_BYTES


def hear(calls: Calls, stream: Stream, body: bytes) -> None:
    """A part of its messages has come."""
    calls.held += len(body)
    stream.body += body
    if calls.held > calls.limits.max_connection_memory:
        message = f"the connection has more than {calls.limits.max_connection_memory} bytes of unread messages"
        calls.counts.refused[Bound.UNREAD_QUESTIONS] += 1
        calls.fail(stream.id, RpcError(Status.RESOURCE_EXHAUSTED, message))
    else:
        read(calls, stream)


def read(calls: Calls, stream: Stream) -> None:
    """Hand out what is whole of its messages."""
    before = len(stream.body)
    error = _read_stream(calls, stream) if stream.head.streaming else _read_question(calls, stream)
    if stream.tail is not None:  # refused while it was read
        return
    calls.held += len(stream.body) - before
    calls.owing.pop(stream.id, None)
    if stream.body and not (stream.ended or stream.paused or stream.id in calls.ready):
        calls.owing[stream.id] = calls.flow.now
    if error is not None:
        if error.status is Status.RESOURCE_EXHAUSTED:
            calls.counts.refused[Bound.MESSAGE] += 1
        calls.fail(stream.id, error)
    elif stream.room <= INITIAL_WINDOW // 2 and not (stream.ended or stream.paused or stream.id in calls.ready):
        calls.flow.out.append(window_update(stream.id, INITIAL_WINDOW - stream.room))
        stream.room = INITIAL_WINDOW


def _read_question(calls: Calls, stream: Stream) -> RpcError | None:
    body, most = stream.body, calls.limits.max_message_size
    if len(body) >= frames.PREFIX_BYTES:
        size = frames.message_size(body)
        if size > most:
            return frames.too_long(size, most)
        if len(body) > frames.PREFIX_BYTES + size:
            return frames.MORE_REQUESTS
    if not stream.ended:
        return None
    if not body:
        return frames.NO_REQUEST
    message = frames.take_message(body, most, gzip=stream.head.gzip)
    if not isinstance(message, bytes):
        return message or frames.TRUNCATED
    stream.waiting = True
    calls.asked += REQUEST_OVERHEAD + len(message)
    calls.events.append((Kind.CALL, stream.id, stream.head, message))
    return None


def _read_stream(calls: Calls, stream: Stream) -> RpcError | None:
    most, number = calls.limits.max_message_size, stream.id
    calls.ready.pop(number, None)
    for _ in range(MOST_MESSAGES):
        stream.paused = stream.queued > PAUSE_BYTES
        if stream.paused:
            return None
        message = frames.take_message(stream.body, most, gzip=stream.head.gzip)
        if message is None:
            if not stream.ended:
                return None
            if stream.body:
                return frames.TRUNCATED
            calls.events.append((Kind.HALF_CLOSE, number, stream.head, b""))
            return None
        if isinstance(message, RpcError):
            return message
        calls.asked += REQUEST_OVERHEAD + len(message)
        calls.events.append((Kind.MESSAGE, number, stream.head, message))
    calls.ready[number] = stream
    return None
