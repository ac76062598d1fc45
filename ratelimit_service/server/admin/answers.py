"""Answers that take a while, such as those of `/bans` and `/explain`: a task for each, and a bound on them."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ratelimit_service.api.method import Reply
from ratelimit_service.errors import RpcError, Status

log = logging.getLogger(__name__)


class Answers:
    """The requests of one kind that wait for their answers, `most` at most.

    One more is refused with the text `busy`; `failed` says what could not be done, in the log and in the reply.
    """

    def __init__(self, most: int, *, busy: str, failed: str) -> None:
        self._most = most
        self._busy = busy
        self._failed = failed
        self._waiting: set[asyncio.Task[None]] = set()

    def begin(self, answer: Callable[[bytes], Coroutine[Any, Any, bytes]], body: bytes, reply: Reply) -> None:
        """Reply with the answer to the request in `body`, or with the RpcError that it raises."""
        if len(self._waiting) >= self._most:
            reply(RpcError(Status.UNAVAILABLE, self._busy))
            return
        task = asyncio.get_running_loop().create_task(self._answer(answer(body), reply))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    def close(self) -> None:
        """Cancel what waits."""
        for task in self._waiting:
            task.cancel()

    async def _answer(self, answer: Coroutine[Any, Any, bytes], reply: Reply) -> None:
        response: bytes | RpcError
        try:
            response = await answer
        except RpcError as error:
            response = error
        except Exception:
            log.exception(self._failed)
            response = RpcError(Status.INTERNAL, f"{self._failed}; the log says why")
        reply(response)
