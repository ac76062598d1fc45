"""The methods that a transport carries, from bytes to bytes. They know protobuf, and nothing about sockets.

A method ends a call by the callback `reply`, at once or later: a callback costs a tenth of a coroutine. A streaming
method sends any number of messages.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from ratelimit_service.errors import RpcError
from ratelimit_service.model import Cancel

Reply = Callable[[bytes | RpcError], None]

NOT_TOLD_APART: Final = b""
"""The address of callers of whom the transport knows none."""


class Method(Protocol):
    """One request, one response."""

    @property
    def path(self) -> str:
        """As in the `:path` header: `/package.Service/Method`."""

    def call(
        self, body: bytes, reply: Reply, timeout: int | None = None, caller: bytes = NOT_TOLD_APART
    ) -> Cancel | None:
        """Process the message in `body`: `reply` is called once, with the bytes of the response or with an error.

        `timeout` is how many microseconds the client waits; None if it does not say. `caller` is its address, for what
        callers share fairly. Returns None when `reply` has been called already, or when the call cannot be cancelled.
        """


class Sender(Protocol):
    """The transport's side of one streaming call."""

    def send(self, message: bytes) -> None:
        """Queue a message for the client; without effect once the call has ended."""

    def finish(self, error: RpcError | None = None) -> None:
        """End the call with status OK or with the error's."""


class Receiver(Protocol):
    """The method's side of one streaming call. Its functions do not raise."""

    def receive(self, message: bytes) -> None:
        """Process a message from the client."""

    def half_close(self) -> None:
        """The client sends no more: it has half-closed the call, or has gone and `closed` follows."""

    def closed(self) -> None:
        """The call has ended, on either side: release its resources. Called once."""


class StreamMethod(Protocol):
    """A method whose calls may carry several messages in each direction."""

    @property
    def path(self) -> str:
        """As in the `:path` header."""

    def open(self, stream: Sender) -> Receiver:
        """Begin a call."""


class UnaryFunction(NamedTuple):
    """A Method made of a function that replies at once."""

    path: str
    respond: Callable[[bytes], bytes]
    """The response to a request; raises RpcError."""

    def call(self, body: bytes, reply: Reply, timeout: int | None = None, caller: bytes = NOT_TOLD_APART) -> None:
        """Reply with the function's result."""
        try:
            response: bytes | RpcError = self.respond(body)
        except RpcError as error:
            response = error
        reply(response)


class StreamFunction(NamedTuple):
    """A StreamMethod made of a function."""

    path: str
    open: Callable[[Sender], Receiver]
