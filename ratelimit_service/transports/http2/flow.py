"""Flow control: no byte of DATA is sent that the client has not made room for, and its own are bounded. Hot path.

RFC 9113, 5.2 and 6.9. An answer that finds room on the connection and on its stream is written by the connection at
once; the others wait in their stream, whole messages in a row, and leave in frames as windows open. What waits is
bounded per stream and per connection.
"""

from collections import deque

from ratelimit_service.errors import WireError
from ratelimit_service.transports.http2.frames import (
    DATA,
    HEADERS,
    INITIAL_WINDOW,
    LARGEST_FRAME,
    LARGEST_WINDOW,
    PREFIX_BYTES,
    SMALL_RESPONSE,
    TABLE_SIZE_0,
    Code,
    frame,
    number,
    pack_head,
)
from ratelimit_service.transports.http2.headers import Head
from ratelimit_service.transports.http2.limits import LEAST_PROGRESS, MOST_WRITTEN, STALL
from ratelimit_service.transports.transport import MESSAGE_BYTES


class Stream:
    """A call that did not come in one piece, or whose answer does not leave in one."""

    __slots__ = (
        "body",
        "ended",
        "head",
        "id",
        "length",
        "moved",
        "paused",
        "queue",
        "queued",
        "room",
        "sent",
        "since",
        "started",
        "tail",
        "waiting",
        "window",
    )

    def __init__(self, number: int, head: Head, window: int) -> None:
        self.id = number
        self.head = head
        self.window = window
        """Bytes that we may send; below 0 when the client shrank it (6.9.2)."""
        self.queue: deque[bytes] | None = None
        """Messages that wait; None when there are none, for an empty deque has 760 bytes."""
        self.queued = 0
        """What the queue costs, in bytes."""
        self.sent = 0
        """Bytes of the first message in the queue that have left."""
        self.since = 0
        """When its answers began to wait, or made progress last."""
        self.moved = 0
        """Bytes that have left since then."""
        self.started = False
        """The headers of the response have left."""
        self.tail: bytes | None = None
        """The frame that ends our side; it is there when the call is over for us."""
        self.waiting = False
        """The method was asked, and has not answered."""
        self.body = bytearray()
        """What came of messages that are not read yet."""
        self.paused = False
        """Its messages are not read until more of its answers are."""
        self.length = 0
        """Bytes of the body so far."""
        self.room = INITIAL_WINDOW
        """Bytes that the client may send."""
        self.ended = False
        """The client sends no more."""


class Outflow:
    """What one connection sends."""

    __slots__ = (
        "_most_at_once",
        "at_once",
        "blocked",
        "congested",
        "frame_size",
        "held_back",
        "initial",
        "now",
        "out",
        "queued",
        "shrinking",
        "window",
        "written",
    )

    def __init__(self, most_at_once: int = SMALL_RESPONSE) -> None:
        self._most_at_once = self.at_once = most_at_once
        """Bytes of an answer that may be sent at once on a new stream, if the connection has room for it."""
        self.out: list[bytes] = []
        """What is to be written now."""
        self.window = INITIAL_WINDOW
        """Bytes of DATA that we may send on the connection."""
        self.initial = INITIAL_WINDOW
        """The window of a stream that the client opens."""
        self.frame_size = LARGEST_FRAME
        self.congested = False
        """The socket takes no more for now: DATA waits, as if the window were closed."""
        self.written = 0
        """Bytes of answers that are to be written now, of those that waited."""
        self.held_back = False
        """There were too many; what could not go with them may go next."""
        self.queued = 0
        """What waits in all streams, in bytes."""
        self.blocked: dict[int, Stream] = {}
        """Streams whose answers wait; who waits longest comes first."""
        self.now = 0
        """The time, as somebody told it last."""
        self.shrinking = False
        """The client has no room for our header table, and the next block must say that we shrink it."""

    def congest(self, congested: bool) -> None:
        """Whether the socket takes no more for now."""
        self.congested = congested
        self._reckon()

    def _reckon(self) -> None:
        at_once = min(self._most_at_once, self.initial - PREFIX_BYTES)
        self.at_once = -1 if self.congested or self.shrinking else at_once

    def shrink(self) -> None:
        """The client allows a smaller header table than it did. We use none, but have to say so: RFC 7541, 4.2."""
        self.shrinking = True
        self._reckon()

    def write(self, written: bytes) -> None:
        """A frame that may be HEADERS."""
        if self.shrinking and written[3] == HEADERS:
            self.shrinking = False
            self._reckon()
            written = frame(HEADERS, written[4], number(written[5:9]), TABLE_SIZE_0 + written[9:])
        self.out.append(written)

    def put(self, stream: Stream, message: bytes) -> None:
        """Let a message wait for its turn."""
        cost = len(message) + MESSAGE_BYTES
        if stream.queue is None:
            stream.queue = deque()
        stream.queue.append(message)
        stream.queued += cost
        self.queued += cost

    def pump(self, stream: Stream) -> bool:
        """Send what the windows allow; True when our side of the stream has ended."""
        queue, out = stream.queue, self.out
        while queue:
            message = queue[0]
            start = stream.sent
            size = min(len(message) - start, self.window, stream.window, self.frame_size)
            if self.written >= MOST_WRITTEN:
                self.held_back = True
                size = 0
            if size <= 0 or self.congested:
                if stream.id not in self.blocked:
                    stream.since, stream.moved = self.now, 0
                    self.blocked[stream.id] = stream
                return False
            out.append(pack_head(size >> 8, size & 0xFF, DATA, 0, stream.id))
            out.append(message[start : start + size])
            self.window -= size
            stream.window -= size
            stream.moved += size
            self.written += size
            if start + size < len(message):
                stream.sent = start + size
                continue
            queue.popleft()
            stream.sent = 0
            stream.queued -= len(message) + MESSAGE_BYTES
            self.queued -= len(message) + MESSAGE_BYTES
        stream.queue = None
        self.blocked.pop(stream.id, None)
        if stream.tail is None:
            return False
        self.write(stream.tail)
        return True

    def stalled(self, now: int) -> list[Stream]:
        """Those that have not moved for too long."""
        found: list[Stream] = []
        for stream in tuple(self.blocked.values()):
            if now - stream.since <= STALL:
                break
            if stream.moved < LEAST_PROGRESS:
                found.append(stream)
            else:
                del self.blocked[stream.id]
                stream.since, stream.moved = now, 0
                self.blocked[stream.id] = stream
        return found

    def drop(self, stream: Stream) -> None:
        """Forget what waits, but for the rest of a message whose beginning has left."""
        kept = [stream.queue[0]] if stream.queue and stream.sent else []
        self.queued -= stream.queued
        stream.queue = None
        stream.queued = 0
        self.blocked.pop(stream.id, None)
        for message in kept:
            self.put(stream, message)

    def forget(self, stream: Stream) -> None:
        """Forget all of it."""
        stream.sent = 0
        self.drop(stream)

    def grow(self, increment: int) -> None:
        """The client makes room on the connection: 6.9.1."""
        self.window += increment
        if self.window > LARGEST_WINDOW:
            raise WireError(Code.FLOW_CONTROL_ERROR, "the window of the connection is over 2^31-1 (6.9.1)")

    def resize(self, initial: int, streams: list[Stream]) -> None:
        """The client changes the window of all streams: 6.9.2."""
        change = initial - self.initial
        self.initial = initial
        self._reckon()
        for stream in streams:
            stream.window += change
            if stream.window > LARGEST_WINDOW:
                raise WireError(Code.FLOW_CONTROL_ERROR, "the window of a stream is over 2^31-1 (6.9.2)")
