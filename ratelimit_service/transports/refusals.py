"""What every transport answers to calls that it cannot carry, and how much of a call may wait unread."""

from typing import Final
from urllib.parse import quote

from ratelimit_service.errors import RpcError, Status

PAUSE_BYTES: Final = 64 * 1024
"""Unread answers of one stream at which its client's messages are no longer read: it must read first."""

MOST_UNREAD_BYTES: Final = 4 * 1024 * 1024
"""Unread answers of one stream at which the call is ended: a client that never reads must not fill the memory."""

MESSAGE_BYTES: Final = 100
"""What an unread answer costs besides its bytes, so that empty ones are bounded too."""

MOST_TEXT: Final = 4096
"""Bytes of an error's text, percent-encoded: clients refuse trailers of more than 8 KiB, and with them the status."""

_AS_IT_IS: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")

INTERNAL: Final = RpcError(Status.INTERNAL, "internal error; the log of the service says more")
UNREAD: Final = RpcError(Status.RESOURCE_EXHAUSTED, "the client leaves too many answers unread")
UNFINISHED: Final = RpcError(Status.DEADLINE_EXCEEDED, "the client takes too long to finish its message")
STOPPING: Final = RpcError(Status.UNAVAILABLE, "the service is stopping")
EXPIRED: Final = RpcError(Status.DEADLINE_EXCEEDED, "the deadline is over")


def too_large(size: int, most: int) -> RpcError:
    """The error of an answer that may not be sent."""
    return RpcError(Status.RESOURCE_EXHAUSTED, f"the answer has {size} bytes, the most is {most}")


def not_admitted(wanted: str) -> RpcError:
    """The error of every call of a client whose certificate bears another name than the one it must."""
    return RpcError(Status.UNAUTHENTICATED, f"the certificate of the client does not bear the name {wanted}")


def percent_encoded(text: str) -> str:
    """As `grpc-message` carries it; a character may become twelve bytes."""
    return quote(text, _AS_IT_IS, errors="replace")


def clipped(text: str) -> str:
    """As much of an error's text as fits into MOST_TEXT."""
    text = text[:MOST_TEXT]
    while (size := len(percent_encoded(text))) > MOST_TEXT:
        text = text[: len(text) * MOST_TEXT // size]
    return text
