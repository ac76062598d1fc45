"""Envoy's ShouldRateLimit: bytes to a Request, a Verdict to bytes. Hot path."""

import logging
from collections import OrderedDict
from functools import partial
from time import perf_counter_ns

from ratelimit_service.api.answer import Answer
from ratelimit_service.api.decisions import log_failure, with_decisions_logged
from ratelimit_service.api.method import Reply
from ratelimit_service.api.request import DEFAULT, RequestLimits, decode
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.plan import Plan
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Cancel
from ratelimit_service.telemetry.latency import Latency

log = logging.getLogger(__name__)

PLANS_BYTES = 64 * 1024 * 1024
"""Of plans that are remembered by the bytes of their requests: 100,000 with one descriptor, 45,000 with four."""

MOST_SEEN = 65_536
"""Requests that came once, as hashes."""

LONGEST_REMEMBERED = 512
"""Bytes of a request whose plan is remembered. Four descriptors of three entries each have about 300."""

_SWEEP = 500
"""Plans dropped in one sweep: 0.3 ms."""


class ShouldRateLimit:
    """May these descriptors be charged?"""

    path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

    def __init__(
        self, limiter: Limiter, answer: Answer, limits: RequestLimits = DEFAULT, *, plans_bytes: int = PLANS_BYTES
    ) -> None:
        self.calls = 0
        self.latency = Latency()
        self._limiter = limiter
        self._limits = limits
        self._plans_bytes = plans_bytes
        self._encode = with_decisions_logged(answer.encode, limiter)
        self._plans: OrderedDict[bytes, Plan] = OrderedDict()
        """The oldest first."""
        self._bytes = 0
        """What they take, as `_bytes_of` reckons."""
        self._seen: set[int] = set()
        """Hashes of requests that came, lately, at least once."""

    def call(self, body: bytes, reply: Reply, timeout: int | None = None) -> Cancel | None:
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
        answer = limiter.decide_now(plan, self._encode, body)
        if answer is None:
            return limiter.decide_later(plan, partial(self._finish, body, reply, started), timeout)
        reply(answer)
        self.latency.observe(perf_counter_ns() - started)
        return None

    def sweep(self) -> None:
        """Forget some of the plans that were made by rules no longer in force; called several times a second."""
        self._drop_stale(_SWEEP)

    def _plan(self, body: bytes) -> Plan:
        """A new plan, which takes twice as long as all the rest; remembered if the same bytes came before.

        So a flood of requests that are all different leaves nothing behind, and drives nothing out.
        """
        request = decode(body, self._limits)
        plan = self._limiter.plan(request)
        if len(body) > LONGEST_REMEMBERED:
            return plan
        for descriptor in request.descriptors:
            if descriptor.override is not None:
                return plan  # a limit that comes with a request is a rule of its own, and makes its plan too large
        if hash(body) in self._seen:
            self._remember(body, plan)
        else:
            if len(self._seen) >= MOST_SEEN:
                self._seen.clear()
            self._seen.add(hash(body))
        return plan

    def _remember(self, body: bytes, plan: Plan) -> None:
        plans = self._plans
        if body in plans:
            self._bytes -= _bytes_of(body, plans.pop(body))
        self._drop_stale(2)
        plans[body] = plan
        self._bytes += _bytes_of(body, plan)
        while self._bytes > self._plans_bytes:
            self._drop_oldest()  # one that is in use will soon be back

    def _drop_stale(self, most: int) -> None:
        """Plans of rules that are no longer in force: a plan keeps its rules alive. They are the oldest."""
        plans, edition = self._plans, self._limiter.edition
        while most and plans and next(iter(plans.values())).edition is not edition:
            self._drop_oldest()
            most -= 1

    def _drop_oldest(self) -> None:
        self._bytes -= _bytes_of(*self._plans.popitem(last=False))

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


def _bytes_of(body: bytes, plan: Plan) -> int:
    """What remembering the plan takes, within a fifth: its bytes stand in the request and in names of counters."""
    return 350 + 2 * len(body) + 270 * len(plan.charged) + 80 * len(plan.increments)
