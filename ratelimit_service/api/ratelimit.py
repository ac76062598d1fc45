"""Envoy's ShouldRateLimit: decodes a request, lets the limiter decide, encodes the response. Hot path."""

import logging
from collections import OrderedDict
from functools import partial
from time import perf_counter_ns

from ratelimit_service.api.decision_log import log_failure, with_decisions_logged
from ratelimit_service.api.method import NOT_TOLD_APART, Reply
from ratelimit_service.api.request import DEFAULT, RequestLimits, decode
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.api.shapes import Shapes
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.plan import Plan
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Cancel
from ratelimit_service.telemetry.latency import Latency

log = logging.getLogger(__name__)

PLANS_BYTES = 64 * 1024 * 1024
"""Size of the cache of plans, by the bytes of requests: 95,000 plans with one descriptor, 44,000 with four."""

MAX_SEEN = 65_536
"""Hashes of requests that have come once."""

MAX_CACHED_SIZE = 512
"""Bytes of a request whose plan is cached. Four descriptors of three entries each have about 300."""

_SWEEP = 500
"""Plans evicted in one sweep: 0.3 ms."""


class ShouldRateLimit:
    """The method that charges descriptors, with its cache of plans."""

    path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

    def __init__(
        self,
        limiter: Limiter,
        encoder: ResponseEncoder,
        limits: RequestLimits = DEFAULT,
        *,
        plans_bytes: int = PLANS_BYTES,
    ) -> None:
        self.calls = 0
        self.latency = Latency()
        self._limiter = limiter
        self._limits = limits
        self._max_cache_bytes = plans_bytes
        self._encode = with_decisions_logged(encoder.encode, limiter)
        self._plans: OrderedDict[bytes, Plan] = OrderedDict()
        """The cache, least recently added first."""
        self._cache_bytes = 0
        """The size of the cache, as `_bytes_of` estimates it."""
        self._shapes = Shapes()
        self._seen: set[int] = set()
        """Hashes of requests that have come at least once lately."""

    def call(
        self, body: bytes, reply: Reply, timeout: int | None = None, caller: bytes = NOT_TOLD_APART
    ) -> Cancel | None:
        """Respond to the request in `body`."""
        started = perf_counter_ns()
        self.calls += 1
        limiter = self._limiter
        plan = self._plans.get(body)
        if plan is None or plan.edition is not limiter.edition:
            try:
                plan = self._plan(body)
            except RpcError as error:
                limiter.count_unplanned()
                self._finish(body, reply, started, error)
                return None
        response = limiter.decide_now(plan, self._encode, body)
        if response is None:
            return limiter.decide_later(plan, partial(self._finish, body, reply, started), timeout, caller)
        reply(response)
        self.latency.observe(perf_counter_ns() - started)
        return None

    def sweep(self) -> None:
        """Evict some plans of rules that are no longer in force; called several times a second."""
        self._evict_stale(_SWEEP)

    def _plan(self, body: bytes) -> Plan:
        """A new plan, which takes twice as long as all the rest; cached if the same bytes have come before.

        So a flood of requests that are all different adds nothing to the cache, and evicts nothing.
        """
        plan = self._shapes.plan(body, self._limiter.edition)
        if plan is None:
            request = decode(body, self._limits)
            plan = self._limiter.plan(request)
            if len(body) > MAX_CACHED_SIZE:
                return plan
            for descriptor in request.descriptors:
                if descriptor.override is not None:
                    return plan  # a limit sent with a request is a rule of its own, which makes the plan too large
            book = self._limiter.book
            # Longer values of the same bytes may be refused; and a ban asks for values.
            if len(body) <= self._limits.small and book is not None and not self._limiter.bans.by_key:
                self._shapes.learn(body, request, plan, book)
        if hash(body) in self._seen:
            self._cache(body, plan)
        else:
            if len(self._seen) >= MAX_SEEN:
                self._seen.clear()
            self._seen.add(hash(body))
        return plan

    def _cache(self, body: bytes, plan: Plan) -> None:
        plans = self._plans
        if body in plans:
            self._cache_bytes -= _bytes_of(body, plans.pop(body))
        self._evict_stale(2)
        plans[body] = plan
        self._cache_bytes += _bytes_of(body, plan)
        while self._cache_bytes > self._max_cache_bytes:
            self._evict_oldest()  # a plan in use is soon cached again

    def _evict_stale(self, most: int) -> None:
        """Evict up to `most` plans of rules that are no longer in force: a plan keeps its rules in memory."""
        plans, edition = self._plans, self._limiter.edition
        while most and plans and next(iter(plans.values())).edition is not edition:
            self._evict_oldest()
            most -= 1

    def _evict_oldest(self) -> None:
        self._cache_bytes -= _bytes_of(*self._plans.popitem(last=False))

    def _finish(self, body: bytes, reply: Reply, started: int, verdict: Verdict | RpcError) -> None:
        try:
            if isinstance(verdict, RpcError):
                log_failure(body, verdict, self._limiter)
                response: bytes | RpcError = verdict
            else:
                response = self._encode(verdict, body)
                if verdict.delay:
                    started += verdict.delay * 1000  # a queue delays on purpose, and has a histogram of its own
        except Exception:
            log.exception("a response could not be encoded")
            response = RpcError(Status.INTERNAL, "the response could not be encoded")
        reply(response)
        self.latency.observe(perf_counter_ns() - started)


def _bytes_of(body: bytes, plan: Plan) -> int:
    """The size of a cached plan, estimated within 20 %: its request's bytes are also in the keys of its counters."""
    return 390 + 2 * len(body) + 270 * len(plan.charged) + 105 * len(plan.increments)
