"""What a transport carries: methods from bytes to bytes. They know protobuf and nothing about sockets.

A method finishes a call by calling `reply`, at once or later; that costs a tenth of a coroutine for each call. Streams
are for what answers more than once.
"""

from collections.abc import Callable
from typing import Protocol

from ratelimit_service.errors import RpcError
from ratelimit_service.model import Cancel

Reply = Callable[[bytes | RpcError], None]


class Method(Protocol):
    """One question, one answer."""

    @property
    def path(self) -> str:
        """As in the `:path` header: `/package.Service/Method`."""

    def call(self, body: bytes, reply: Reply, timeout: int | None = None) -> Cancel | None:
        """Answer the message in `body`: `reply` is called once, with the answer's bytes or with why there is none.

        `timeout` is how many microseconds the caller waits, if it says so.
        Nothing is returned when it has been called, or cannot be cancelled.
        """


class Sender(Protocol):
    """The transport's side of one streaming call."""

    def send(self, message: bytes) -> None:
        """Queue a message for the client; without effect once the call has ended."""

    def finish(self, error: RpcError | None = None) -> None:
        """End the call with status OK or with the error's."""


class Receiver(Protocol):
    """The method's side of one streaming call. Neither function raises."""

    def receive(self, message: bytes) -> None:
        """The client sent a message."""

    def half_close(self) -> None:
        """The client will send no more: it half-closed the call, or has gone, and `closed` follows."""

    def closed(self) -> None:
        """The call has ended, whoever ended it: give back what it held. Called once."""


class StreamMethod(Protocol):
    """A method whose calls may carry several messages in each direction."""

    @property
    def path(self) -> str:
        """As in the `:path` header."""

    def open(self, stream: Sender) -> Receiver:
        """A client has begun a call."""
