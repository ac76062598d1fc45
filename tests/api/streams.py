"""The transport's side of a streaming call, for tests that need no wire."""

from ratelimit_service.errors import RpcError


class Sent:
    """Keeps what the method sends, and how it ends the call."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.finished = False
        self.error: RpcError | None = None

    def send(self, message: bytes) -> None:
        """Keep it."""
        if not self.finished:
            self.messages.append(message)

    def finish(self, error: RpcError | None = None) -> None:
        """Keep it."""
        if not self.finished:
            self.finished, self.error = True, error
