"""One stream of a connection, and what can happen to the call on it. Pure.

The table of its states and events is in `streams.py`, which moves it from one to the next.
"""

from collections import deque
from enum import Enum, auto

from ratelimit_service.transports.http2.frames import INITIAL_WINDOW
from ratelimit_service.transports.http2.headers import Head


class EventKind(Enum):
    """The kinds of events of a call."""

    CALL = auto()
    """The request of a unary call is complete; the event has its message."""
    BEGIN = auto()
    """A unary call with a deadline has begun; its request is not complete."""
    OPEN = auto()
    """A streaming call has begun."""
    MESSAGE = auto()
    """The client sent a message on it."""
    HALF_CLOSE = auto()
    """The client sends no more on it."""
    CLOSE = auto()
    """It has ended."""


Event = tuple[EventKind, int, Head, bytes]
"""What happened, the number of the stream, its headers, a message. A plain tuple: a named one takes 0.2 µs."""


class StreamState(Enum):
    """The states of the table that have a Stream."""

    RECEIVING = auto()
    CALLED = auto()
    STREAMING = auto()
    SENDING = auto()
    LINGERING = auto()


RECEIVING, CALLED, STREAMING, SENDING, LINGERING = StreamState


class Stream:
    """A call that did not come in one piece, or whose response does not leave in one."""

    __slots__ = (
        *("body", "ended", "head", "headers_sent", "id", "last_progress", "moved", "paused", "queue", "queued_bytes"),
        *("receive_window", "received_bytes", "send_window", "sent", "state", "tail"),
    )

    def __init__(self, number: int, head: Head, send_window: int) -> None:
        self.id = number
        self.head = head
        self.state = STREAMING if head.streaming else RECEIVING
        # What the client sends:
        self.body = bytearray()
        """Messages that are not read yet."""
        self.received_bytes = 0
        self.receive_window = INITIAL_WINDOW
        """Bytes that the client may send."""
        self.ended = False
        """END_STREAM has come."""
        self.paused = False
        """Its messages are not read until the client reads more of its responses."""
        # What we send:
        self.send_window = send_window
        """Bytes that we may send; below 0 when the client reduced it (6.9.2)."""
        self.queue: deque[bytes] | None = None
        """Messages to send; None when there are none, for an empty deque has 760 bytes."""
        self.queued_bytes = 0
        """Memory of the queue."""
        self.sent = 0
        """Bytes of the first message in the queue that have left."""
        self.last_progress = 0
        """When the stream was blocked, or had sent MIN_PROGRESS bytes since."""
        self.moved = 0
        """Bytes that have left since then."""
        self.headers_sent = False
        self.tail: bytes | None = None
        """The frame that ends our side, from SENDING on."""
