"""Requests that limits with `queue` may delay: charged like others, and answered when their last turn has come.

| state   | is                            | its caller goes away                                                     |
| ------- | ----------------------------- | ------------------------------------------------------------------------ |
| asked   | the store decides its hits    | as for every request; answered when the store has decided, if it has to  |
| waiting | allowed, and not answered yet | over at once; those behind it have its turns                             |
| over    | answered                      | nothing                                                                  |

Every hit of it that may refuse it is in one bundle, so that a refused request takes no turn. Where a bundle is on
several servers, a turn that was taken nevertheless is offered to those that wait behind.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from ratelimit_service.errors import RpcError, StoreError
from ratelimit_service.limiter.plan import Plan
from ratelimit_service.limiter.turns import MARGIN, Turn, TurnQueues
from ratelimit_service.limiter.verdict import LateVerdict, OnVerdict, Verdict, by_descriptor
from ratelimit_service.model import Cancel, Decision, Queued
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.store import Store
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.tally import Tally

log = logging.getLogger(__name__)

_MAX_RULES: Final = 10_000

_PRECISION: Final = 6
"""Binary digits of a caller's wait that count; the rest is rounded off. Each other wait makes a rule of its own."""

_MAX_FULL: Final = 10_000
"""Full queues that are remembered; 8 MB, if all names are as long as they can be."""

_REMEMBERED: Final = SECOND
"""Microseconds. Rules may be changed meanwhile, counters be reset, and turns be given back elsewhere."""


class FullQueue(NamedTuple):
    """The times when a queue has a place again, and when it is empty if no other hit comes, by the steady clock."""

    place: int
    empty: int
    until: int
    """When it is forgotten."""


class QueuedRequests:
    """Decides the plans of requests that may wait."""

    def __init__(
        self,
        store: Store,
        turns: TurnQueues,
        store_waits: Latency,
        judge: Callable[[Plan, StoreError | None], Verdict | RpcError],
        *,
        shadow_mode: bool,
    ) -> None:
        self.store = store
        self.turns = turns
        self.store_waits = store_waits
        self.judge = judge
        self.shadow_mode = shadow_mode
        """Refuses nothing, so it delays nothing either."""
        self._in_less_time: dict[tuple[Rule, int], Rule] = {}
        self._full: dict[str, FullQueue] = {}
        """Queues that refused a request for which no other limit counts."""

    def decide(self, plan: Plan, on_verdict: OnVerdict, timeout: int | None, caller: bytes) -> Cancel | None:
        """As Limiter.decide_later."""
        request = _LateRequest(self, plan, on_verdict, caller)
        return request.start(timeout)

    def give_less_time(self, hit: Hit, wait: int) -> None:
        """Let the hit wait for no longer than that."""
        wait -= wait % (1 << max(0, wait.bit_length() - _PRECISION))
        found = self._in_less_time.get((hit.rule, wait))
        if found is None:
            if len(self._in_less_time) >= _MAX_RULES:
                self._in_less_time.clear()
            found = replace(hit.rule, limit=hit.limit.kind.with_wait(hit.limit, wait))
            self._in_less_time[hit.rule, wait] = found
        hit.rule, hit.limit = found, found.limit or hit.limit

    def remember(self, hit: Hit, asked: int) -> None:
        """Remember that the queue is full, of which the store was asked at that moment."""
        decision, kind = hit.decision, hit.limit.kind
        if decision.allowed or decision.retry_after <= 0 or hit.by_policy is not None:
            return
        if len(self._full) >= _MAX_FULL:
            self._full.clear()
        # For callers with all the time; the others are refused for as much longer.
        place = asked + decision.retry_after - kind.max_delay + kind.max_wait
        self._full[hit.key] = FullQueue(place, asked + decision.reset_after, min(place, asked + _REMEMBERED))

    def refuses(self, hit: Hit, now: int) -> bool:
        """Whether the queue is known to be full for this hit; then it is decided."""
        full = self._full.get(hit.key)
        if full is None or hit.cost <= 0:
            return False
        if full.until <= now:
            del self._full[hit.key]
            return False
        wait = full.place - now + hit.limit.kind.max_delay - hit.limit.kind.max_wait
        hit.decision = Decision(False, 0, hit.cost, full.empty - now, wait)
        hit.tally.over_limit_with_local_cache += hit.cost
        return True

    def give_back(self, unused: Sequence[Turn]) -> None:
        """Give turns back to the store, each unless a later one was given meanwhile."""
        for turn in unused:
            hit = turn.hit
            back = Hit(hit.rule, hit.key, -hit.cost, tally=Tally(), quota=False)
            back.limit = hit.limit.kind.with_turn(hit.limit, turn.end)
            self.store.hit([back], partial(self._on_given_back, turn, back))

    def _on_given_back(self, turn: Turn, back: Hit, error: StoreError | None) -> None:
        self._full.pop(turn.hit.key, None)
        # Without an answer of the store it is not known who has it.
        if error is None and back.by_policy is None and not back.decision.allowed:
            self.turns.restore(turn)


class _LateRequest:
    """One of them, from its charge to its answer."""

    __slots__ = (
        *("_all", "_cancel_hits", "_decided", "_decides_later", "_gone"),
        *("_joined", "_on_verdict", "_over", "_plan", "_waiting"),
    )

    def __init__(self, all_requests: QueuedRequests, plan: Plan, on_verdict: OnVerdict, caller: bytes) -> None:
        self._all = all_requests
        self._plan = plan.again()
        self._on_verdict = on_verdict
        self._waiting = all_requests.turns.begin(self._answer, plan.queued_bytes, caller)
        self._cancel_hits: Cancel | None = None
        self._decided = 0
        self._joined = self._gone = self._over = self._decides_later = False

    def start(self, timeout: int | None) -> Cancel | None:
        """Have the store charge its hits."""
        turns = self._all.turns
        longest = None if timeout is None else turns.longest_wait(timeout)
        if self._waiting is None:
            longest = 0
        if longest is not None:
            for hit in self._plan.charged:
                if hit.limit.kind.max_delay > longest:
                    self._all.give_less_time(hit, longest)
        began = turns.clock()
        charged = self._plan.charged
        if len(charged) == 1 and self._all.refuses(charged[0], began):
            self._end()
            return None
        deadline = None if timeout is None else began + timeout - MARGIN

        def decided(error: StoreError | None) -> None:
            try:
                self._on_decided(error, began, deadline)
            except Exception:
                log.exception("a request could not wait for its turn")
                if not self._over:
                    self._end()

        self._cancel_hits = self._all.store.hit(charged, decided, timeout)
        self._decides_later = not self._over
        return None if self._over else self._cancel

    def _on_decided(self, error: StoreError | None, began: int, deadline: int | None) -> None:
        all_requests, turns, plan = self._all, self._all.turns, self._plan
        self._decided = now = turns.decided(began)
        all_requests.store_waits.observe((now - began) * 1000)
        if error is not None:
            self._end(error)
            return
        queued = [hit for hit in plan.charged if isinstance(hit.decision, Queued) and not hit.rule.shadow]
        if not _passes(plan):
            if self._decides_later and len(plan.charged) == 1:
                all_requests.remember(plan.charged[0], began)
            turns.offer(queued, now)
            turns.expired += self._waiting is not None and any(map(_has_expired, plan.charged))
            self._end()
        elif not queued or all_requests.shadow_mode or self._waiting is None:
            turns.catch_up(now)
            self._end()
        elif self._gone or (deadline is not None and now + _longest_wait(queued) > deadline):
            turns.offer(queued, now)
            turns.expired += not self._gone
            _refuse(queued)
            self._end()
        else:
            self._joined = True
            turns.join(self._waiting, queued, now)

    def _answer(self, in_turn: bool) -> None:
        self._over = True
        waited = self._all.turns.clock() - self._decided
        if not in_turn:
            _refuse([hit for hit in self._plan.charged if isinstance(hit.decision, Queued)])
        verdict = self._all.judge(self._plan, None)
        if in_turn and isinstance(verdict, LateVerdict):
            self._all.turns.waited.observe(waited * 1000)
            verdict.delay = waited
        self._on_verdict(verdict)

    def _end(self, error: StoreError | None = None) -> None:
        self._over = True
        if self._waiting is not None:
            self._all.turns.end(self._waiting)
        self._on_verdict(self._all.judge(self._plan, error))

    def _cancel(self) -> bool:
        if self._over:
            return False
        if not self._joined and (self._cancel_hits is None or not self._cancel_hits()):
            self._gone = True
            return False
        self._over = True
        if self._waiting is not None and self._joined:
            self._all.give_back(self._all.turns.abandon(self._waiting))
        elif self._waiting is not None:
            self._all.turns.end(self._waiting)
        return True


def _passes(plan: Plan) -> bool:
    """Whether the decisions allow the request; nothing is counted."""
    verdict = plan.verdict
    verdict.hits = by_descriptor(plan.hits)
    return verdict.passes()


def _has_expired(hit: Hit) -> bool:
    """It was denied because of its caller's deadline alone."""
    kind, decision = hit.limit.kind, hit.decision
    return not decision.allowed and kind.max_wait < decision.reset_after <= kind.max_delay


def _longest_wait(queued: list[Hit]) -> int:
    return max(hit.decision.wait for hit in queued if isinstance(hit.decision, Queued))


def _refuse(queued: list[Hit]) -> None:
    """Deny hits that are not going to have their turn."""
    for hit in queued:
        decision = hit.decision
        wait = decision.wait if isinstance(decision, Queued) else 0
        hit.decision = Decision(False, decision.remaining, hit.cost, decision.reset_after, wait)
