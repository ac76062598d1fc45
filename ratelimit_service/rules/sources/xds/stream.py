"""One stream of xDS: responses as they come, and answers when they are due."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

import grpc

from ratelimit_service.rules.sources.xds.dial import STREAM, ControlPlane


class StreamEnded(Exception):  # noqa: N818 - a state
    """The stream has ended, or could not be opened; the message says why."""


class XdsStream:
    """One stream, which is used once."""

    def __init__(self) -> None:
        self.opened = self.received = False
        """Whether it was open, and whether anything came."""
        self.answered: ReceivedResponse | None = None
        """What was answered last on it."""
        self.accepted = ""
        """The version that was accepted last on it."""
        self._answer: tuple[float, bytes] | None = None
        """When it is due, and the request."""
        self._changed = asyncio.Event()
        self._ended = ""

    async def run(
        self,
        plane: ControlPlane,
        credentials: grpc.ChannelCredentials | None,
        first: bytes,
        on_open: Callable[[], None],
        on_response: Callable[["ReceivedResponse"], None],
    ) -> None:
        """Open it, send the first request, and receive until it ends, which raises StreamEnded."""
        async with plane.channel(credentials) as channel:
            call = _open(channel, plane)
            tasks: list[asyncio.Task[None]] = []
            try:
                await _write(call, first)
                self.opened = True
                on_open()
                tasks += [asyncio.create_task(each) for each in (self._receive(call, on_response), self._send(call))]
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            except grpc.aio.AioRpcError as error:
                raise StreamEnded(_words(error.code(), error.details())) from error
            finally:
                call.cancel()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def answer(self, request: bytes, delay: float) -> None:
        """Answer after this time, unless there is another answer by then: that takes its place."""
        self._answer = (monotonic() + delay, request)
        self._changed.set()

    def end(self, why: str) -> None:
        """End the stream."""
        self._ended = why
        self._changed.set()

    async def _receive(self, call: Any, on_response: Callable[["ReceivedResponse"], None]) -> None:
        while isinstance(response := await call.read(), bytes):
            on_response(ReceivedResponse(response, self))
            self.received = True
        raise StreamEnded("it ended the stream")

    async def _send(self, call: Any) -> None:
        """Write the answers when they are due; raises StreamEnded after `end`."""
        while True:
            due = None if self._answer is None else self._answer[0] - monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(due):
                    await self._changed.wait()
            self._changed.clear()
            if self._ended:
                raise StreamEnded(self._ended)
            if self._answer is not None and self._answer[0] <= monotonic():
                _, request = self._answer
                self._answer = None
                await _write(call, request)


class ReceivedResponse(NamedTuple):
    """A response, and where its answer goes."""

    response: bytes
    stream: XdsStream


def _open(channel: Any, plane: ControlPlane) -> Any:
    """The call, whose messages are bytes; grpc-stubs require what the library does not."""
    return channel.stream_stream(STREAM)(metadata=plane.headers)


async def _write(call: Any, request: bytes) -> None:
    try:
        await call.write(request)
    except (asyncio.InvalidStateError, grpc.aio.UsageError):  # it has ended
        raise StreamEnded(_words(await call.code(), await call.details())) from None


def _words(code: grpc.StatusCode, details: str | None) -> str:
    words = f"{code.name}: {' '.join((details or '').split())}"
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        words += "; XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES says how large a snapshot may be"
    return words[:500]
