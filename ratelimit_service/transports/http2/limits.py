"""What one client may make us do and keep; each limit names the attack that it ends.

They are judged per connection, so that no client has to pay for another.
"""

from dataclasses import dataclass
from typing import Final

MOST_CONTINUATIONS: Final = 8
"""CONTINUATION flood (CVE-2024-27316): frames without end that must all be kept. A list of headers that we take fits
into two; nghttp2 has the same number."""

MOST_IDLE_FRAMES: Final = 4_000
"""Floods of PING, SETTINGS, PRIORITY, RST_STREAM, WINDOW_UPDATE, empty and unknown frames (CVE-2019-9511 to 9518,
CVE-2023-44487): each costs us something and asks for nothing. A frame of that kind takes one from this budget; every
question gives some back, and so does time. A client that resets each call and pings for each stays within it."""

FRAMES_PER_QUESTION: Final = 8
"""What a question gives back: an honest client's resets, pings and window updates are fewer."""

FRAMES_PER_SECOND: Final = 1_000
"""What time gives back."""

MOST_DECODED: Final = 64
"""Header blocks that are decoded before other connections have their turn: a read of 256 KiB may hold ten thousand new
ones, 30 µs each."""

MOST_RESET: Final = 1_000
"""Streams that we reset and whose last frames may still come: 5.1 has us ignore those. It is a bound on memory: of a
stream that is older and forgotten, they are answered with another reset."""

MOST_MESSAGES: Final = 16
"""Messages of one stream that are read before other work has its turn, and before its unread answers are looked at: in
the window of a stream there is room for ten thousand questions that are answered with more bytes than they have."""

RECEIVE_WINDOW: Final = 1024 * 1024
"""Bytes of messages that may be on their way to us on one connection; what has come makes room at once, because unread
questions are bounded by the memory of a connection and not by this."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator may choose; see GrpcOptions."""

    max_message_size: int = 4 * 1024 * 1024
    max_concurrent_streams: int = 1_000
    max_header_list_size: int = 16 * 1024
    max_connection_memory: int = 16 * 1024 * 1024
