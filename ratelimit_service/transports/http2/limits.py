"""What one client may make us do and keep; each limit names the attack that it ends, and the label that counts it.

They are judged per connection, so that no client has to pay for another.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ratelimit_service.system.clock import SECOND

MOST_CONTINUATIONS: Final = 8
"""CONTINUATION flood (CVE-2024-27316): frames without end that must all be kept. A list of headers that we take fits
into two; nghttp2 has the same number."""

MOST_IDLE_FRAMES: Final = 4_000
"""Floods of PING, SETTINGS, PRIORITY, RST_STREAM, WINDOW_UPDATE, empty and unknown frames (CVE-2019-9511 to 9518,
CVE-2023-44487): each costs us something and asks for nothing. A frame of that kind takes one from this budget; every
question gives some back, and so does time. A client that resets each call and pings for each stays within it."""

FRAMES_PER_QUESTION: Final = 8
"""What a question gives back: an honest client's resets, pings and window updates are fewer."""

FRAMES_PER_RECORD: Final = 16
"""A record of TLS without data takes so many: one that has us change our keys (TLS 1.3, KeyUpdate) takes 50 µs. 250 may
come in a row, and 62 a second; BoringSSL allows 32 in a row."""

STREAMS_PER_IDLE_FRAME: Final = 128
"""A frame that moves the windows of many streams, or all answers that wait, takes one more for so many: a thousand
streams take half a millisecond to look through."""

FRAMES_PER_SECOND: Final = 1_000
"""What time gives back."""

MOST_RESET: Final = 1_000
"""Streams that we reset and whose last frames may still come: 5.1 has us ignore those. It is a bound on memory: of a
stream that is older and forgotten, they are answered with another reset."""

MOST_ASKED: Final = 4 * 1024
"""Bytes of questions that are handed out before they are answered and the clock is looked at again: a hundred
descriptors with a limit each have 2 to 4 KiB, and take a millisecond."""

MOST_MESSAGES: Final = 16
"""Messages of one stream that are read before other streams have their turn, and before its unread answers are looked
at: in the window of a stream there is room for ten thousand questions that are answered with more bytes than they
have."""

MOST_WRITTEN: Final = 256 * 1024
"""Bytes of answers that are written before other work has its turn, and before we know whether the socket takes them:
a read may hold thousands of questions on streams, 44 bytes each, whose answers have thousands. What waits counts."""

STREAM_BYTES: Final = 600
"""Of a call that is open, without its messages."""

RESET_BYTES: Final = 100
"""Of a stream that we reset."""

RECEIVE_WINDOW: Final = 1024 * 1024
"""Bytes of messages that may be on their way to us on one connection; what has come makes room at once, because unread
questions are bounded by the memory of a connection and not by this."""

FIRST_CALL: Final = 60 * SECOND
"""A connection that never had a call is asked to close after this, sooner than one that has but is idle."""

MOST_STREAMING: Final = 100
"""Streaming calls of one connection, such as Watch and reflection: a client needs one of each. They stay, so that those
of all connections are bounded too (health.MOST_WATCHERS), and a few clients could have them all."""

LAST_STREAM: Final = 2**31 - 1_000_000
"""Streams are numbered once (5.1.1): before a client runs out of numbers it is asked to connect anew."""

STALL: Final = 60 * SECOND
"""How long an answer, or what is written to the socket, may wait with less than LEAST_PROGRESS of it leaving: zero and
tiny windows, and clients that do not read (CVE-2019-9511, 9517), fill the memory that is theirs and hold the places of
other calls. nginx's send_timeout is as long."""

LEAST_PROGRESS: Final = 1024
"""Bytes in that time. One byte a minute is not reading; a modem is fifty times as fast."""

FAREWELL: Final = SECOND
"""How long a client may take to say that it heard the first GOAWAY; then the second follows all the same."""

LINGER_SECONDS: Final = 1.0
"""A connection that we end is read from for so long: closed at once, the reset could overtake our last words."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator may choose; see GrpcOptions."""

    max_message_size: int = 128 * 1024
    max_answer_size: int = 4 * 1024 * 1024
    max_concurrent_streams: int = 1_000
    max_header_list_size: int = 16 * 1024
    max_connection_memory: int = 4 * 1024 * 1024


class Bound(StrEnum):
    """What a client ran into: the label that counts it."""

    CONNECTIONS = "connections"
    """GRPC_MAX_CONNECTIONS."""
    STREAMS = "concurrent_streams"
    """GRPC_MAX_CONCURRENT_STREAMS, those included that it reset and that are still at work."""
    STREAMING = "streaming_calls"
    """MOST_STREAMING."""
    STREAM_NUMBERS = "stream_numbers"
    """A stream was used again, or out of order: 5.1.1."""
    PREFACE = "preface"
    """GRPC_PREFACE_TIMEOUT, for the first bytes (Slowloris)."""
    UNFINISHED = "unfinished"
    """GRPC_PREFACE_TIMEOUT, for headers, a frame or a message that it began."""
    SILENT = "silent"
    """GRPC_KEEPALIVE_TIMEOUT: it vanished."""
    STALLED = "stalled"
    """STALL."""
    UNREAD_ANSWERS = "unread_answers"
    """GRPC_MAX_CONNECTION_MEMORY, or that of one stream."""
    UNREAD_QUESTIONS = "unread_questions"
    """GRPC_MAX_CONNECTION_MEMORY, for questions that it does not finish."""
    MEMORY = "memory"
    """GRPC_MAX_MEMORY: all connections together held too much, and this one most."""
    MESSAGE = "message_size"
    """GRPC_MAX_MESSAGE_SIZE, unpacked too."""
    HEADER_LIST = "header_list_size"
    """GRPC_MAX_HEADER_LIST_SIZE: the call is refused."""
    HEADER_BLOCK = "header_block"
    """Twice that, in the bytes of a block, or unpacked (HPACK bomb, CVE-2016-6581): nothing can be refused alone."""
    CONTINUATIONS = "continuations"
    """MOST_CONTINUATIONS."""
    RECEIVE_WINDOW = "receive_window"
    """It sends more than there is room for: 6.9.1."""
    RESETS = "resets"
    """MOST_IDLE_FRAMES, of which the last was RST_STREAM (rapid reset)."""
    FAILED_STREAMS = "failed_streams"
    """The same, of streams that we reset (CVE-2025-8671)."""
    PINGS = "pings"
    """The same, of PING."""
    SETTINGS = "settings"
    """The same, of SETTINGS."""
    PRIORITIES = "priorities"
    """The same, of PRIORITY."""
    WINDOW_UPDATES = "window_updates"
    """The same, of WINDOW_UPDATE."""
    EMPTY_DATA = "empty_data"
    """The same, of DATA without a byte."""
    EMPTY_RECORDS = "empty_records"
    """The same, of records of TLS without data, such as those that change keys."""
    UNKNOWN_FRAMES = "unknown_frames"
    """The same, of GOAWAY and of frames that nobody knows."""
