"""The debug log of decisions: one line for each descriptor, with the rule, the decision, and what is left.

Text from clients is shortened and escaped, and digests stand in place of secret values. Headers of calls are not
logged: they do not come here.
"""

import logging
from collections.abc import Callable, Iterator

from ratelimit_service.api.request import decode
from ratelimit_service.errors import RpcError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import NEVER, Blocked, Request
from ratelimit_service.rules.pattern_work import TOO_LONG
from ratelimit_service.rules.problems import quoted
from ratelimit_service.rules.reasons import quoted_entries, why_unlimited
from ratelimit_service.rules.rule import Rule, per_window
from ratelimit_service.stores.hit import NO_LIMIT, Hit
from ratelimit_service.system.clock import SECOND

log = logging.getLogger(__name__)

Encode = Callable[[Verdict, bytes], bytes]
"""Encodes the response, from the verdict and the bytes of the request."""


def with_decisions_logged(encode: Encode, limiter: Limiter) -> Encode:
    """A function that also logs the verdict's decisions; `encode` itself where debug lines are not logged."""
    if not log.isEnabledFor(logging.DEBUG):
        return encode

    def encode_and_log(verdict: Verdict, body: bytes) -> bytes:
        for text in _decisions(verdict, decode(body), limiter):
            log.debug("decision: %s", text)
        return encode(verdict, body)

    return encode_and_log


def log_failure(body: bytes, error: RpcError, limiter: Limiter) -> None:
    """Log a request that ends with an error."""
    if not log.isEnabledFor(logging.DEBUG):
        return
    try:
        request = decode(body)
    except RpcError:
        request_text = f"{len(body)} bytes"
    else:
        shown = [limiter.shown(request.domain, descriptor.entries) for descriptor in request.descriptors]
        descriptors = " + ".join(map(quoted_entries, shown))
        request_text = f"{quoted(request.domain)} {descriptors}"
    log.debug("no decision: %s: %s, %s", request_text, error.status.name, error.message)


def _decisions(verdict: Verdict, request: Request, limiter: Limiter) -> Iterator[str]:
    for descriptor, hit in zip(request.descriptors, verdict.hits, strict=True):
        request_text = f"{quoted(request.domain)} {quoted_entries(limiter.shown(request.domain, descriptor.entries))}"
        if hit is not None:
            yield f"{request_text}: {_decision(hit)}"
        elif limiter.book is not None:
            yield f"{request_text}: OK, no rule: {why_unlimited(limiter.book, request.domain, descriptor.entries)}"


def _decision(hit: Hit) -> str:
    rule, limit = hit.rule, hit.limit
    if limit is NO_LIMIT:
        return f"OK, unlimited, by {_place(rule)}"
    decision = hit.decision
    parts = [
        "OVER_LIMIT" if hit.over else "OK",
        "always denied" if rule.deny else f"{hit.remaining} of {limit.requests} {per_window(limit)} left",
    ]
    if isinstance(decision, Blocked):
        parts.append(f"blocked for {-(-decision.blocked_for // SECOND)} s")
    if not decision.allowed:
        if rule.shadow:
            parts.append("over the limit in shadow mode")
        if decision.retry_after != NEVER:
            parts.append(f"allowed again in {-(-decision.retry_after // SECOND)} s")
    if hit.spared:
        parts.append("not charged, because a limit charged together with it refuses")
    if hit.by_policy is not None:
        parts.append(f"without the store by policy {hit.by_policy.policy} ({hit.by_policy.reason})")
    return f"{', '.join(parts)}, by {_place(rule)}"


def _place(rule: Rule) -> str:
    if rule.override:
        return "the limit sent with the request"
    if rule.place is not None:
        return f"the rule at {rule.place}"
    return "the length of a value" if rule.path[-1] == TOO_LONG else "a ban"
