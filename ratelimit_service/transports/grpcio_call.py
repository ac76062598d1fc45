"""One call on grpc.aio: the callbacks of a method on one side, the coroutine that grpc awaits on the other."""

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import Any, TypeAlias

import grpc

from ratelimit_service.api.method import Receiver
from ratelimit_service.errors import RpcError
from ratelimit_service.model import Cancel
from ratelimit_service.transports.refusals import (
    INTERNAL,
    MESSAGE_BYTES,
    MOST_UNREAD_BYTES,
    PAUSE_BYTES,
    UNREAD,
    too_large,
)

log = logging.getLogger(__name__)

# grpc-stubs leaves the request and response of a handler's context open: they are bytes here.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_EOF = grpc.aio.EOF  # type: ignore[attr-defined] # grpc-stubs forgot it


def is_trouble(record: logging.LogRecord) -> bool:
    """Whether grpc's line tells of more than a client that left in the moment its answer was sent.

    Of that grpc makes an error with a traceback, and clients may leave at any moment: each deadline can be one.
    """
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, grpc.aio.InternalError):
        return True
    log.debug("an answer found no client: %s", record.getMessage())
    return False


class UnaryCall:
    """The answer of one call; only a call whose answer comes later makes a future."""

    __slots__ = ("_waiting", "answer")

    def __init__(self) -> None:
        self.answer: bytes | RpcError | None = None
        self._waiting: asyncio.Future[bytes | RpcError] | None = None

    def reply(self, answer: bytes | RpcError) -> None:
        """The first answer counts; one for a call that was cancelled is dropped."""
        if self._waiting is None:
            if self.answer is None:
                self.answer = answer
        elif not self._waiting.done():
            self._waiting.set_result(answer)

    async def wait(self, cancel: Cancel | None) -> bytes | RpcError:
        """The answer that is still to come; a call that is cancelled meanwhile, as by its deadline, is taken back."""
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            return await self._waiting
        except asyncio.CancelledError:
            if cancel is not None:
                cancel()
            raise


class StreamCall:
    """One streaming call: what the method sends waits here for the client to read it."""

    receiver: Receiver

    def __init__(self, path: str, max_answer_size: int) -> None:
        self.error: RpcError | None = None
        self._path = path
        self._max_answer_size = max_answer_size
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._finished = False
        self._closed = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    def send(self, message: bytes) -> None:
        """As Sender says; a client that leaves too much unread loses the call."""
        if self._finished:
            return
        size = len(message) + MESSAGE_BYTES
        if len(message) > self._max_answer_size:
            self.finish(too_large(len(message), self._max_answer_size))
        elif self._unread and self._unread_bytes + size > MOST_UNREAD_BYTES:
            self._unread.clear()
            self.finish(UNREAD)
        else:
            self._unread.append(message)
            self._unread_bytes += size
            self._news.set()

    def finish(self, error: RpcError | None = None) -> None:
        """As Sender says; what was sent before goes out first."""
        if not self._finished:
            self._finished = True
            self.error = error
            self._news.set()
            self._room.set()

    def close(self) -> None:
        """The call has ended, in whatever way: tell the method, once."""
        self._finished = True
        if self._closed:
            return
        self._closed = True
        try:
            self.receiver.closed()
        except Exception:
            log.exception("%s failed", self._path)

    async def read_from(self, context: Context) -> None:
        """Hand the client's messages to the method, as long as it reads its answers."""
        try:
            # BaseError: the call ended while its next message was awaited.
            with suppress(grpc.aio.BaseError):
                while (message := await context.read()) is not _EOF:
                    if self._finished:
                        return
                    self.receiver.receive(message)
                    while self._unread_bytes > PAUSE_BYTES and not self._finished:
                        self._room.clear()
                        await self._room.wait()
                if not self._finished:
                    self.receiver.half_close()
        except Exception:
            log.exception("%s failed", self._path)
            self.finish(INTERNAL)

    async def write_to(self, context: Context) -> None:
        """Send the client what the method sends, until it finishes."""
        while True:
            while self._unread:
                message = self._unread.popleft()
                await context.write(message)
                self._unread_bytes -= len(message) + MESSAGE_BYTES
                self._room.set()
            if self._finished:
                return
            self._news.clear()
            await self._news.wait()
