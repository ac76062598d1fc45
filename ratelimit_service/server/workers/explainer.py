"""Explanations by a service of several workers: one of them explains, and all say what they hold of the counters."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from ratelimit_service.server.admin.answers import TaskMethod, replied
from ratelimit_service.server.admin.explain_api import (
    HOLDERS,
    RESERVATIONS,
    explaining,
    explanation_text,
    show_holders,
    show_reservations,
)
from ratelimit_service.server.workers.dispatch import Dispatcher
from ratelimit_service.server.workers.report import MergedCounts
from ratelimit_service.server.workers.slot import WorkerSlot

_HELD_SECONDS: Final = 0.5
"""Seconds that the workers have to say what they hold, as for their reports."""


def workers_explainer(slots: Sequence[WorkerSlot], dispatcher: Dispatcher, sums: MergedCounts) -> TaskMethod:
    """The method that explains a RateLimitRequest, as JSON."""
    return explaining(partial(_explain, slots, dispatcher, sums))


async def _explain(slots: Sequence[WorkerSlot], dispatcher: Dispatcher, sums: MergedCounts, body: bytes) -> bytes:
    explained = await replied(lambda reply: dispatcher.call(body, reply, "explain"))
    # Most rules lease or reserve nothing. Of those that do, a text is read and made in a thread: it may have 100 kB.
    if not any(f'"{name}"'.encode() in explained for name in (HOLDERS, RESERVATIONS)):
        return explained
    found = await asyncio.to_thread(json.loads, explained)
    rules = [rule for one in found["descriptors"] for rule in one["rules"]]
    for described in rules:
        rule = sums.rule_at(described[RESERVATIONS]["rule"]) if RESERVATIONS in described else None
        if rule is not None:
            show_reservations(described, rule)
    await _show_holders(slots, [rule for rule in rules if HOLDERS in rule.get("state", ())])
    return await asyncio.to_thread(explanation_text, found)


async def _show_holders(slots: Sequence[WorkerSlot], rules: Sequence[dict[str, Any]]) -> None:
    if not rules:
        return
    body = json.dumps([rule["counter"] for rule in rules]).encode()
    slots = [slot for slot in slots if slot.ready]
    answers = [replied(partial(slot.call, body, what="held", timeout=None)) for slot in slots]
    await asyncio.wait(answers, timeout=_HELD_SECONDS)
    held = [_numbers(answer, len(rules)) for answer in answers]
    for rule, units in zip(rules, zip(*held, strict=True), strict=True):
        show_holders(rule["state"], [(slot.number, slot.pid, each) for slot, each in zip(slots, units, strict=True)])


def _numbers(answer: asyncio.Future[bytes], count: int) -> list[int | None]:
    """The numbers that a worker has answered; None for each if it did not, or was ended."""
    if not answer.done():
        answer.cancel()
    if answer.cancelled() or answer.exception() is not None:
        return [None] * count
    return list(json.loads(answer.result()))
