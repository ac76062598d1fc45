"""`POST /explain`, for `ratelimit explain --at`: which rules a request matches, why, and the state of its counters.

Nothing is charged and nothing is counted: the store is asked with hits of cost 0 that are in no rule's tally. A book
may have a million descriptors, so the match is explained in a thread, one request at a time.
"""

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from ratelimit_service.api.request import decode
from ratelimit_service.errors import RpcError, Status, StoreError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.model import PLAIN, Blocked, Request
from ratelimit_service.rules.address import from_operator
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.pattern_work import PatternBounds
from ratelimit_service.rules.reasons import (
    MatchedRule,
    RequestExplanation,
    add_bans,
    charged_rules,
    common_rule,
    counter_state,
    explain,
    explanation_as_json,
)
from ratelimit_service.rules.rule import Rule
from ratelimit_service.server.admin.answers import TaskMethod
from ratelimit_service.stores.hit import Hit, common_look
from ratelimit_service.stores.store import Store
from ratelimit_service.stores.used import endless, used_of
from ratelimit_service.system.clock import system_clock
from ratelimit_service.telemetry.tally import Tally

_MAX_DESCRIPTORS: Final = 20
_MAX_ENTRIES: Final = 200
"""The most entries in one request; Envoy sends a few. Each entry is compared with all wildcards of its level."""
_MAX_WAITING: Final = 8
"""Requests in the queue of the thread."""

HOLDERS: Final = "holders"
"""The field, in the `state` of a rule that leases, with the processes that hold units of its counter."""


RESERVATIONS: Final = "reservations"
"""The field of a rule that reserves, with the path of the rule and the numbers of Reservations."""


def explainer(limiter: Limiter) -> TaskMethod:
    """The method that explains a RateLimitRequest, as JSON, with the rules and the counters of a limiter."""
    return explaining(partial(_explain, limiter, ThreadPoolExecutor(1, "explain")))


async def _explain(limiter: Limiter, thread: ThreadPoolExecutor, body: bytes) -> bytes:
    book = limiter.book
    if book is None:
        raise RpcError(Status.UNAVAILABLE, "no rate limit configuration loaded")
    request = decode(body)
    entries = sum(len(descriptor.entries) for descriptor in request.descriptors)
    if len(request.descriptors) > _MAX_DESCRIPTORS or entries > _MAX_ENTRIES:
        most = f"{_MAX_DESCRIPTORS} descriptors and {_MAX_ENTRIES} entries"
        raise RpcError(Status.INVALID_ARGUMENT, f"at most {most} are explained at once")
    for descriptor in request.descriptors:
        descriptor.entries = from_operator(descriptor.entries)
    loop = asyncio.get_running_loop()
    bounds = limiter.pattern_bounds
    explained, found = await loop.run_in_executor(thread, _explained, book, request, bounds)
    add_bans(found, limiter.bans, book, request, bounds)
    found["store"] = await _look(limiter.store, explained, found)
    for index, number, matched in charged_rules(explained):
        show_reservations(found["descriptors"][index]["rules"][number], matched.rule)
    return await loop.run_in_executor(thread, explanation_text, found)


async def _look(store: Store, explained: RequestExplanation, found: dict[str, Any]) -> dict[str, str]:
    """Add to each rule the state of its counter; returns which store that is, and why it could not decide."""
    matched_rules = list(charged_rules(explained))
    problem = ""
    if matched_rules:
        hits = [_look_of(matched) for _, _, matched in matched_rules]
        pools = [None if (pool := common_rule(hit.rule)) is None else common_look(pool) for hit in hits]
        whole = [_endless_look(hit) for hit in hits]
        problem = await _asked(store, [*hits, *(look for look in (*pools, *whole) if look is not None)])
        if not problem:
            for (index, number, _), hit, look, used in zip(matched_rules, hits, pools, whole, strict=True):
                state = _state(hit, store.held(hit.key), look, _used(used))
                found["descriptors"][index]["rules"][number]["state"] = state
    return {"name": store.name, "problem": problem}


def _explained(book: RuleBook, request: Request, bounds: PatternBounds) -> tuple[RequestExplanation, dict[str, Any]]:
    explained = explain(book, request, bounds)
    return explained, explanation_as_json(explained, system_clock())


def explaining(answer: Callable[[bytes], Coroutine[Any, Any, bytes]]) -> TaskMethod:
    """The method that answers with explanations."""
    return TaskMethod(
        answer,
        _MAX_WAITING,
        busy="too many explanations are asked for at once",
        failed="the request could not be explained",
    )


def explanation_text(found: dict[str, Any]) -> bytes:
    """An explanation as JSON."""
    return json.dumps(found, ensure_ascii=False).encode()


def _look_of(matched: MatchedRule) -> Hit:
    return Hit(matched.rule, matched.counter, 0, tally=Tally(), quota=False)


def _endless_look(hit: Hit) -> Hit | None:
    """A look that tells what is used, also above the limit; None where others hold or lend a part of it."""
    rule, kind = hit.rule, hit.limit.kind
    if rule.lease or hit.limit.regions is not None or not (kind is PLAIN or kind.reserves):
        return None
    look = Hit(rule, hit.key, 0, tally=Tally(), quota=False)
    look.limit = endless(hit.limit, rule.algorithm.name)
    return look


def _used(look: Hit | None) -> int | None:
    return None if look is None else used_of(look.limit, look.rule.algorithm.name, look.decision)


async def _asked(store: Store, hits: Sequence[Hit]) -> str:
    """Let the store decide the hits; returns why it did not, or nothing."""
    decided: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()

    def done(error: StoreError | None) -> None:
        if not decided.done():
            decided.set_result(error)

    store.hit(hits, done)
    error = await decided
    if error is not None:
        return str(error)
    reasons = (hit.by_policy.reason for hit in hits if hit.by_policy is not None)
    reason = next(reasons, "")
    return reason and f"{store.name} could not decide ({reason}); on_store_failure answers instead"


def _state(hit: Hit, held: int, pool: Hit | None, used: int | None) -> dict[str, Any]:
    decision = hit.decision
    blocked_for = decision.blocked_for if isinstance(decision, Blocked) else 0
    state = counter_state(hit.rule, hit.remaining, decision.reset_after, used=used, blocked_for=blocked_for)
    state["held"] = held
    if pool is not None:
        state |= hit.limit.kind.look(hit.limit, decision.remaining, pool.decision.remaining)
    if hit.rule.lease:
        show_holders(state, [(None, os.getpid(), held)])
    return state


def show_reservations(described: dict[str, Any], rule: Rule) -> None:
    """Write into the description of a rule what became of its reservations, if it reserves."""
    if rule.limit is not None and rule.limit.kind.reserves:
        described[RESERVATIONS] = {"rule": rule.path, **rule.reservations._asdict()}


def show_holders(state: dict[str, Any], holders: Iterable[tuple[int | None, int, int | None]]) -> None:
    """Write into the state of a rule what processes hold of its counter, in all, and those that hold some.

    A holder is the number of the worker, if it is one, the id of its process, and units; None if they are not known.
    """
    shown = [{"worker": worker, "pid": pid, "units": units} for worker, pid, units in holders if units != 0]
    state["held"] = sum(holder["units"] or 0 for holder in shown)
    state[HOLDERS] = shown
