"""One streaming call: what its method holds, and what holds its method."""

import logging

from ratelimit_service.api.method import Receiver, StreamMethod
from ratelimit_service.errors import RpcError
from ratelimit_service.transports.http2.calls import Calls
from ratelimit_service.transports.http2.events import Kind
from ratelimit_service.transports.transport import INTERNAL

log = logging.getLogger(__name__)


class StreamCall:
    """A call on a stream of a connection; whatever its method raises ends it, and is logged once."""

    __slots__ = ("_calls", "_number", "_path", "_receiver")

    def __init__(self, calls: Calls, number: int, path: str) -> None:
        self._calls = calls
        self._number = number
        self._path = path
        self._receiver: Receiver | None = None

    def send(self, message: bytes) -> None:
        """As Sender says; a client that leaves too much unread loses the call."""
        self._calls.send(self._number, message)

    def finish(self, error: RpcError | None = None) -> None:
        """As Sender says; what was sent before goes out first."""
        self._calls.finish(self._number, error)

    def open(self, method: StreamMethod) -> None:
        """Begin it."""
        try:
            self._receiver = method.open(self)
        except Exception:
            log.exception("%s failed", self._path)
            self.finish(INTERNAL)

    def happen(self, kind: Kind, message: bytes) -> None:
        """Tell the method."""
        receiver = self._receiver
        if receiver is None:
            return
        try:
            match kind:
                case Kind.MESSAGE:
                    receiver.receive(message)
                case Kind.HALF_CLOSE:
                    receiver.half_close()
                case Kind.CLOSE:
                    self._receiver = None
                    receiver.closed()
        except Exception:
            log.exception("%s failed", self._path)
            self.finish(INTERNAL)
