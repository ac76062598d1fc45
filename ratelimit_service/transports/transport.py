"""The contract of a transport: it carries methods over connections, and knows nothing about rate limits.

And what all transports share: the errors that they answer with, how much may wait unread, and the metrics of calls.
"""

from collections.abc import Sequence
from typing import Final, Protocol
from urllib.parse import quote

from ratelimit_service.api.method import Method, StreamMethod
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.system.address import Address
from ratelimit_service.telemetry.metric import Metric, counter, gauge


class Transport(Protocol):
    """A transport carries methods."""

    async def start(
        self, methods: Sequence[Method], streams: Sequence[StreamMethod], addresses: Sequence[Address]
    ) -> Sequence[Address]:
        """Listen on all addresses and serve; returns where it listens, with the ports it got.

        Raises StartError with one line that says which address cannot be had, and why; then it listens on none.
        """

    def metrics(self) -> Sequence[Metric]:
        """The metrics of its connections and calls; none while it does not listen."""

    async def stop(self, grace_seconds: float) -> None:
        """Accept no new calls, let those in flight finish for so long, then cut them off."""


def of_calls(streams: int, taken: int) -> Sequence[Metric]:
    """The metrics of calls: how many are open, and how many were taken since the start."""
    name = "ratelimit_grpc_streams"
    return (
        gauge(name, "Open gRPC calls.", streams),
        counter(f"{name}_opened_total", "gRPC calls received.", taken),
    )


PAUSE_BYTES: Final = 64 * 1024
"""Unread responses of one stream at which its client's messages are no longer read: it must read first."""

MAX_UNREAD_BYTES: Final = 4 * 1024 * 1024
"""Unread responses of one stream at which the call is ended: a client that never reads must not fill the memory."""

MESSAGE_BYTES: Final = 100
"""Bytes that an unread response costs besides its bytes, so that empty ones are bounded too."""

MAX_TEXT: Final = 4096
"""Bytes of an error's text, percent-encoded: clients refuse trailers of more than 8 KiB, and with them the status."""

_AS_IT_IS: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")

INTERNAL: Final = RpcError(Status.INTERNAL, "internal error; the log of the service says more")
UNREAD: Final = RpcError(Status.RESOURCE_EXHAUSTED, "the client leaves too many answers unread")
UNFINISHED: Final = RpcError(Status.DEADLINE_EXCEEDED, "the client takes too long to finish its message")
STOPPING: Final = RpcError(Status.UNAVAILABLE, "the service is stopping")
EXPIRED: Final = RpcError(Status.DEADLINE_EXCEEDED, "the deadline has passed")


def too_large(size: int, most: int) -> RpcError:
    """The error of a call whose response is larger than a transport may send."""
    return RpcError(Status.RESOURCE_EXHAUSTED, f"the answer has {size} bytes, the maximum is {most}")


def not_admitted(wanted: str) -> RpcError:
    """The error of every call of a client whose certificate does not bear the required name."""
    return RpcError(Status.UNAUTHENTICATED, f"the certificate of the client does not have the name {wanted}")


def percent_encoded(text: str) -> str:
    """The text as `grpc-message` carries it; a character may become twelve bytes."""
    return quote(text, _AS_IT_IS, errors="replace")


def clipped(text: str) -> str:
    """The beginning of an error's text: as much as fits into MAX_TEXT once it is percent-encoded."""
    text = text[:MAX_TEXT]
    while (size := len(percent_encoded(text))) > MAX_TEXT:
        text = text[: len(text) * MAX_TEXT // size]
    return text
