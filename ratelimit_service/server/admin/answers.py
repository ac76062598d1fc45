"""Answers that take a while, such as those of `/bans` and `/explain`: a task for each, and a bound on them."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ratelimit_service.api.method import Reply
from ratelimit_service.errors import RpcError, Status

log = logging.getLogger(__name__)


class TaskMethod:
    """A method whose answers take a while; at most `most` requests wait for theirs.

    `answer` returns the response to a request, or raises RpcError. One request more is refused with the text `busy`;
    `failed` says what could not be done, in the log and in the reply.
    """

    def __init__(
        self, answer: Callable[[bytes], Coroutine[Any, Any, bytes]], most: int, *, busy: str, failed: str
    ) -> None:
        self._answer = answer
        self._most = most
        self._busy = busy
        self._failed = failed
        self._waiting: set[asyncio.Task[None]] = set()

    def call(self, body: bytes, reply: Reply) -> None:
        """Reply to the request in `body`."""
        if len(self._waiting) >= self._most:
            reply(RpcError(Status.UNAVAILABLE, self._busy))
            return
        task = asyncio.get_running_loop().create_task(self._reply(body, reply))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    def close(self) -> None:
        """Cancel what waits."""
        for task in self._waiting:
            task.cancel()

    async def _reply(self, body: bytes, reply: Reply) -> None:
        response: bytes | RpcError
        try:
            response = await self._answer(body)
        except RpcError as error:
            response = error
        except Exception:
            log.exception(self._failed)
            response = RpcError(Status.INTERNAL, f"{self._failed}; the log says why")
        reply(response)


def replied(call: Callable[[Reply], object]) -> asyncio.Future[bytes]:
    """What is replied to a call; awaited, it raises the RpcError that was replied."""
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def reply(response: bytes | RpcError) -> None:
        if answer.done():  # it was cancelled
            return
        if isinstance(response, RpcError):
            answer.set_exception(response)
        else:
            answer.set_result(response)

    call(reply)
    return answer
