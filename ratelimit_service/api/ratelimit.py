"""Envoy's ShouldRateLimit: bytes to a Request, a Verdict to bytes. Hot path."""

import logging
from collections import OrderedDict
from functools import partial
from time import perf_counter_ns

from ratelimit_service.api.answer import Answer
from ratelimit_service.api.decisions import log_failure, with_decisions_logged
from ratelimit_service.api.method import Reply, TakeBack
from ratelimit_service.api.request import decode
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.latency import Latency
from ratelimit_service.limiter import Limiter
from ratelimit_service.plan import Plan
from ratelimit_service.verdict import Verdict

log = logging.getLogger(__name__)

MOST_PLANS = 65_536
"""Plans that are remembered by the bytes of their requests: 0.6 kB each with one descriptor, 1.2 with four."""

LONGEST_REMEMBERED = 512
"""Bytes of a request whose plan is remembered. Four descriptors of three entries each have about 300."""


class ShouldRateLimit:
    """May these descriptors be charged?"""

    path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

    def __init__(self, limiter: Limiter, answer: Answer) -> None:
        self.calls = 0
        self.latency = Latency()
        self._limiter = limiter
        self._encode = with_decisions_logged(answer.encode, limiter)
        self._plans: OrderedDict[bytes, Plan] = OrderedDict()
        self._seen: set[int] = set()
        """Hashes of requests that came, lately, at least once."""

    def call(self, body: bytes, reply: Reply) -> TakeBack | None:
        """Answer the request in `body`."""
        started = perf_counter_ns()
        self.calls += 1
        limiter = self._limiter
        plan = self._plans.get(body)
        if plan is None or plan.edition is not limiter.edition:
            try:
                plan = self._plan(body)
            except RpcError as error:
                limiter.totals.service_errors += 1
                limiter.domains.other.failed += 1
                self._finish(body, reply, started, error)
                return None
        verdict = limiter.decide(plan)
        if verdict is None:
            return limiter.ask(plan, partial(self._finish, body, reply, started))
        answer = self._encode(verdict, body)
        # Decisions end with their call. Kept in the plan they would wander through the memory: 15 % of the call.
        for hit in plan.charged:
            del hit.decision
        reply(answer)
        self.latency.observe(perf_counter_ns() - started)
        return None

    def _plan(self, body: bytes) -> Plan:
        """A new plan, which takes twice as long as all the rest; remembered if the same bytes came before.

        So a flood of requests that are all different leaves nothing behind, and drives nothing out.
        """
        plan = self._limiter.plan(decode(body))
        if len(body) <= LONGEST_REMEMBERED:
            seen, plans = self._seen, self._plans
            if hash(body) in seen:
                if len(plans) >= MOST_PLANS and body not in plans:
                    plans.popitem(last=False)  # the oldest: one that is in use will soon be back
                plans[body] = plan
            else:
                if len(seen) >= MOST_PLANS:
                    seen.clear()
                seen.add(hash(body))
        return plan

    def _finish(self, body: bytes, reply: Reply, started: int, verdict: Verdict | RpcError) -> None:
        try:
            if isinstance(verdict, RpcError):
                log_failure(body, verdict)
                answer: bytes | RpcError = verdict
            else:
                answer = self._encode(verdict, body)
        except Exception:
            log.exception("an answer could not be encoded")
            answer = RpcError(Status.INTERNAL, "the answer could not be encoded")
        reply(answer)
        self.latency.observe(perf_counter_ns() - started)
