"""Explanations by a service of several workers: one of them explains, and all say what they hold of the counters."""

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ratelimit_service.api.method import Reply
from ratelimit_service.errors import RpcError
from ratelimit_service.server.admin.explain_api import HOLDERS, explanation_text, explanations_in_line, show_holders
from ratelimit_service.server.workers.dispatch import Dispatcher
from ratelimit_service.server.workers.slot import WorkerSlot

_HELD_SECONDS: Final = 0.5
"""Seconds that the workers have to say what they hold, as for their reports."""


class WorkersExplainer:
    """Explains requests."""

    def __init__(self, slots: Sequence[WorkerSlot], dispatcher: Dispatcher) -> None:
        self._slots = slots
        self._dispatcher = dispatcher
        self._answers = explanations_in_line()

    def call(self, body: bytes, reply: Reply) -> None:
        """Reply with the explanation of the RateLimitRequest in `body`, as JSON."""
        self._answers.begin(self._explain, body, reply)

    def close(self) -> None:
        """Cancel what waits."""
        self._answers.close()

    async def _explain(self, body: bytes) -> bytes:
        explained = await _answer(lambda reply: self._dispatcher.call(body, reply, "explain"))
        # Most rules lease nothing. Of those that do, a text is read and made in a thread: it may have 100 kB.
        return await self._with_holders(explained) if f'"{HOLDERS}"'.encode() in explained else explained

    async def _with_holders(self, explained: bytes) -> bytes:
        found = await asyncio.to_thread(json.loads, explained)
        rules = [rule for one in found["descriptors"] for rule in one["rules"] if HOLDERS in rule.get("state", ())]
        body = json.dumps([rule["counter"] for rule in rules]).encode()
        slots = [slot for slot in self._slots if slot.ready]
        answers = [_answer(partial(_ask_held, slot, body)) for slot in slots]
        await asyncio.wait(answers, timeout=_HELD_SECONDS)
        held = [_numbers(answer, len(rules)) for answer in answers]
        for rule, units in zip(rules, zip(*held, strict=True), strict=True):
            show_holders(
                rule["state"], [(slot.number, slot.pid, each) for slot, each in zip(slots, units, strict=True)]
            )
        return await asyncio.to_thread(explanation_text, found)


def _ask_held(slot: WorkerSlot, body: bytes, reply: Reply) -> None:
    slot.call(body, reply, "held", None)


def _numbers(answer: asyncio.Future[bytes], count: int) -> list[int | None]:
    """The numbers that a worker has answered; None for each if it did not, or was ended."""
    if not answer.done():
        answer.cancel()
    if answer.cancelled() or answer.exception() is not None:
        return [None] * count
    return list(json.loads(answer.result()))


def _answer(ask: Callable[[Reply], None]) -> asyncio.Future[bytes]:
    """The reply to the question; an RpcError is raised."""
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def reply(response: bytes | RpcError) -> None:
        if answer.done():
            return
        if isinstance(response, RpcError):
            answer.set_exception(response)
        else:
            answer.set_result(response)

    ask(reply)
    return answer
