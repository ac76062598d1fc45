"""Methods of the tests' own, written against the contract: what a transport is to carry."""

import asyncio
from collections.abc import Callable

from ratelimit_service.api.method import Receiver, Reply, Sender
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.model import Cancel

WAIT_SECONDS = 60
"""Until a test gives up waiting for what must come."""


class Echo:
    """Answers at once, with the question."""

    path = "/tests.Methods/Echo"

    def call(self, body: bytes, reply: Reply, timeout: int | None = None, caller: bytes = b"") -> None:
        """Send it back."""
        reply(body)


class Grow:
    """Answers with as many bytes as the question says."""

    path = "/tests.Methods/Grow"

    def call(self, body: bytes, reply: Reply, timeout: int | None = None, caller: bytes = b"") -> None:
        """Send that much."""
        reply(b"x" * int(body))


class Refuse:
    """Answers with an error whose message is not ASCII."""

    path = "/tests.Methods/Refuse"

    def __init__(self, text: str = "größer als 100 %: ✗\n") -> None:
        self._text = text

    def call(self, _body: bytes, reply: Reply, timeout: int | None = None, caller: bytes = b"") -> None:
        """Fail."""
        reply(RpcError(Status.INVALID_ARGUMENT, self._text))


class Break:
    """Raises what nobody expects."""

    path = "/tests.Methods/Break"

    def call(self, _body: bytes, _reply: Reply, timeout: int | None = None, caller: bytes = b"") -> None:
        """Break."""
        raise ZeroDivisionError("a secret of the inside")


class Left:
    """Answers with how many microseconds its caller waits."""

    path = "/tests.Methods/Left"

    def call(self, body: bytes, reply: Reply, timeout: int | None = None, caller: bytes = b"") -> None:
        """Send it back."""
        reply(str(timeout).encode())


class From:
    """Answers with the address of its caller."""

    path = "/tests.Methods/From"

    def call(self, body: bytes, reply: Reply, timeout: int | None = None, caller: bytes = b"") -> None:
        """Send it back."""
        reply(caller)


class Later:
    """Answers when the test says so."""

    path = "/tests.Methods/Later"

    def __init__(self, cancel: Cancel | None = None) -> None:
        self.replies: asyncio.Queue[Reply] = asyncio.Queue()
        self.timeouts: list[int | None] = []
        """What each caller has granted."""
        self._cancel = cancel

    def call(self, _body: bytes, reply: Reply, timeout: int | None = None, caller: bytes = b"") -> Cancel | None:
        """Keep the reply for the test."""
        self.timeouts.append(timeout)
        self.replies.put_nowait(reply)
        return self._cancel

    async def asked(self) -> Reply:
        """The reply of the next call."""
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.replies.get()


class Conversation:
    """One call of `Talk`: what happened to it, in order."""

    def __init__(self, stream: Sender, act: "Act") -> None:
        self.stream = stream
        self.events: list[bytes | str] = []
        self._act = act
        self._closed = asyncio.Event()

    def receive(self, message: bytes) -> None:
        """Note it, and do what the test wants."""
        self.events.append(message)
        self._act(self.stream, message)

    def half_close(self) -> None:
        """Note it, and end the call well."""
        self.events.append("half close")
        self._act(self.stream, None)

    def closed(self) -> None:
        """Note it."""
        self.events.append("closed")
        self._closed.set()

    async def ended(self) -> list[bytes | str]:
        """What happened, once the call is over."""
        async with asyncio.timeout(WAIT_SECONDS):
            await self._closed.wait()
        return self.events


Act = Callable[[Sender, bytes | None], None]
"""What to do with a message, or with the end of them."""


def echo(stream: Sender, message: bytes | None) -> None:
    """Each message back, and finish when there are no more."""
    if message is None:
        stream.finish()
    else:
        stream.send(message)


def nothing(_stream: Sender, _message: bytes | None) -> None:
    """Leave the call open, whatever comes."""


class Talk:
    """A streaming method."""

    path = "/tests.Methods/Talk"

    def __init__(self, act: Act = echo) -> None:
        self._act = act
        self._opened: asyncio.Queue[Conversation] = asyncio.Queue()

    def open(self, stream: Sender) -> Receiver:
        """A new conversation."""
        conversation = Conversation(stream, self._act)
        self._opened.put_nowait(conversation)
        return conversation

    async def opened(self) -> Conversation:
        """The next conversation."""
        async with asyncio.timeout(WAIT_SECONDS):
            return await self._opened.get()
