"""Limits on what one client may make us do and keep: each names the attack that it ends, and the label that counts it.

They hold per connection, so that no client pays for another. Those that the operator may change are GrpcOptions.
Section numbers are those of RFC 9113.
"""

from enum import StrEnum
from typing import Final

from ratelimit_service.system.clock import SECOND

MAX_CONTINUATIONS: Final = 8
"""CONTINUATION flood (CVE-2024-27316): frames without end that must all be kept. A header list that we accept fits into
two; nghttp2 has the same number."""

MAX_IDLE_FRAMES: Final = 4_000
"""Floods of PING, SETTINGS, PRIORITY, RST_STREAM, WINDOW_UPDATE, empty and unknown frames (CVE-2019-9511 to 9518,
CVE-2023-44487): each costs us something and asks for nothing. Such a frame takes one from this budget; every request
gives some back, and so does time. A client that resets each call, and pings for each, stays within it."""

FRAMES_PER_REQUEST: Final = 8
"""Frames that a request gives back: an honest client's resets, pings and window updates are fewer."""

FRAMES_PER_RECORD: Final = 16
"""Frames that a TLS record without data counts as: one that changes our keys (TLS 1.3, KeyUpdate) costs 50 µs. 250 may
come in a row, and 62 a second; BoringSSL allows 32 in a row."""

STREAMS_PER_IDLE_FRAME: Final = 128
"""A frame that moves the windows of many streams, or all responses that wait, takes one more for each 128 of them: to
look through a thousand streams takes half a millisecond."""

FRAMES_PER_SECOND: Final = 1_000
"""Frames that a second gives back."""

MAX_RESET: Final = 1_000
"""Streams that we reset and whose last frames may still come: 5.1 says to ignore those. A bound on memory: frames of an
older one are answered with another reset."""

MAX_REQUEST_BYTES: Final = 4 * 1024
"""Bytes of requests that become events before they are answered and the clock is read again: a hundred descriptors with
a limit each have 2 to 4 KiB, and take a millisecond and a half."""

MAX_MESSAGES: Final = 16
"""Messages of one stream that are read before other streams are served, and before its unread responses are
counted: the window of a stream has room for ten thousand messages whose responses are larger than they are."""

MAX_WRITTEN: Final = 256 * 1024
"""Bytes of queued responses that are written before other work is done, and before we know whether the socket
accepts them: a read may hold thousands of requests on streams, 44 bytes each, whose responses have thousands."""

STREAM_BYTES: Final = 600
"""Memory of an open call, without its messages."""

RESET_BYTES: Final = 100
"""Memory of a stream that we reset."""

RECEIVE_WINDOW: Final = 1024 * 1024
"""Bytes of DATA that may be on their way to us on one connection. It is opened again as data comes: messages that are
not read are bounded by the memory of a connection, not by this."""

FIRST_CALL: Final = 60 * SECOND
"""A connection that never had a call is retired after this, sooner than one that had."""

MAX_STREAMING: Final = 100
"""Streaming calls of one connection, such as Watch and reflection: a client needs one of each. They last, so that those
of all connections are bounded too (health.MAX_WATCHERS), and a few clients could have them all."""

LAST_STREAM: Final = 2**31 - 1_000_000
"""Stream numbers are used once (5.1.1): before a client runs out of them its connection is retired."""

STALL: Final = 60 * SECOND
"""The time for which a response, or what is written to the socket, may wait while less than MIN_PROGRESS of it leaves:
zero and tiny windows, and clients that do not read (CVE-2019-9511, 9517), fill the memory of the connection and hold
the places of other calls. nginx's send_timeout is as long."""

MIN_PROGRESS: Final = 1024
"""Bytes in that time. One byte a minute is not reading; a modem is fifty times as fast."""

GOAWAY_NOTICE: Final = SECOND
"""The time that a client may take to answer the PING after the first GOAWAY; then the second is sent all the same."""

LINGER_SECONDS: Final = 1.0
"""Seconds for which we go on reading a connection that we ended: if it was closed at once, a TCP reset could overtake
our last bytes, such as GOAWAY."""


class Bound(StrEnum):
    """The limits that a client may run into: the labels of `ratelimit_grpc_refused_total`."""

    CONNECTIONS = "connections"
    """GRPC_MAX_CONNECTIONS."""
    STREAMS = "concurrent_streams"
    """GRPC_MAX_CONCURRENT_STREAMS, those included that it reset while their method is at work."""
    STREAMING = "streaming_calls"
    """MAX_STREAMING."""
    STREAM_NUMBERS = "stream_numbers"
    """A stream number used again, or out of order: 5.1.1."""
    PREFACE = "preface"
    """GRPC_PREFACE_TIMEOUT, for the first bytes (Slowloris)."""
    UNFINISHED = "unfinished"
    """GRPC_PREFACE_TIMEOUT, for headers, a frame or a message that it began."""
    SILENT = "silent"
    """GRPC_KEEPALIVE_TIMEOUT: the client vanished."""
    STALLED = "stalled"
    """STALL."""
    UNREAD_ANSWERS = "unread_answers"
    """GRPC_MAX_CONNECTION_MEMORY, or MAX_UNREAD_BYTES of one stream, for responses that it does not read."""
    UNREAD_QUESTIONS = "unread_questions"
    """GRPC_MAX_CONNECTION_MEMORY, for requests that it does not finish."""
    MEMORY = "memory"
    """GRPC_MAX_MEMORY: all connections together held too much, and this one most."""
    MESSAGE = "message_size"
    """GRPC_MAX_MESSAGE_SIZE, unpacked too."""
    HEADER_LIST = "header_list_size"
    """GRPC_MAX_HEADER_LIST_SIZE: the call is refused."""
    HEADER_BLOCK = "header_block"
    """Twice that, in the bytes of a block, or unpacked (HPACK bomb, CVE-2016-6581): the connection is ended, because
    the block cannot be decoded and later ones may depend on it."""
    CONTINUATIONS = "continuations"
    """MAX_CONTINUATIONS."""
    RECEIVE_WINDOW = "receive_window"
    """DATA beyond the window: 6.9.1."""
    RESETS = "resets"
    """MAX_IDLE_FRAMES, of which the last was RST_STREAM (rapid reset)."""
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
    """The same, of TLS records without data, such as those that change keys."""
    UNKNOWN_FRAMES = "unknown_frames"
    """The same, of GOAWAY and of frames of unknown types."""
