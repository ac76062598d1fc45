"""Envoy's ShouldRateLimit: bytes to a Request, a Verdict to bytes. Hot path."""

from time import perf_counter_ns

from google.protobuf.message import DecodeError

from ratelimit_service.api.answer import Answer
from ratelimit_service.api.generated.envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from ratelimit_service.api.method import Reply
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.latency import Latency
from ratelimit_service.limiter import Limiter
from ratelimit_service.model import LONGEST_WINDOW, MAX_REQUESTS, Descriptor, Limit, Request, Unit
from ratelimit_service.verdict import Verdict

MOST_DESCRIPTORS = 1000
"""In one request. Envoy sends a handful; a message of the largest size could hold a million, and answering it would
keep every other call waiting."""

MOST_ENTRIES = 1000
"""In one descriptor; for the same reason."""


class ShouldRateLimit:
    """May these descriptors be charged?"""

    path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

    def __init__(self, limiter: Limiter, answer: Answer) -> None:
        self.calls = 0
        self.latency = Latency()
        self._limiter = limiter
        self._encode = answer.encode

    def call(self, body: bytes, reply: Reply) -> None:
        """Answer the request in `body`."""
        started = perf_counter_ns()
        self.calls += 1

        def answer(verdict: Verdict | RpcError) -> None:
            reply(verdict if isinstance(verdict, RpcError) else self._encode(verdict))
            self.latency.observe(perf_counter_ns() - started)

        try:
            request = decode(body)
        except RpcError as error:
            self._limiter.totals.service_errors += 1
            answer(error)
        else:
            self._limiter.check(request, answer)


def decode(body: bytes) -> Request:
    """The request in `body`; RpcError says what is wrong with it."""
    try:
        message = RateLimitRequest.FromString(body)
    except DecodeError as error:
        raise _invalid(f"the message is not a RateLimitRequest: {error}") from error
    domain = message.domain
    if not domain:
        raise _invalid("rate limit domain must not be empty")
    found = message.descriptors
    if not found:
        raise _invalid("rate limit descriptor list must not be empty")
    if len(found) > MOST_DESCRIPTORS:
        raise _invalid(f"the request has {len(found)} descriptors, the most is {MOST_DESCRIPTORS}")

    hits_addend = message.hits_addend
    descriptors = []
    for index, descriptor in enumerate(found):
        entries = descriptor.entries
        if len(entries) > MOST_ENTRIES:
            raise _invalid(f"descriptors[{index}] has {len(entries)} entries, the most is {MOST_ENTRIES}")
        cost = own = None
        if descriptor.HasField("hits_addend"):
            cost = own = descriptor.hits_addend.value
            if own > MAX_REQUESTS:
                raise _invalid(f"descriptors[{index}].hits_addend is {own}, the most is {MAX_REQUESTS}")
        if cost is None:
            cost = hits_addend or 1
        if descriptor.is_negative_hits:
            cost = -cost
        descriptors.append(
            Descriptor(
                tuple([(entry.key, entry.value) for entry in entries]),
                cost,
                own,
                _override(descriptor.limit, index) if descriptor.HasField("limit") else None,
            )
        )
    return Request(domain, descriptors, hits_addend)


def _override(sent: RateLimitDescriptor.RateLimitOverride, index: int) -> Limit:
    try:
        unit = Unit(sent.unit)
    except ValueError as error:
        names = ", ".join(f"{unit.name} ({unit.value})" for unit in Unit)
        raise _invalid(f"descriptors[{index}].limit.unit is {sent.unit}, not one of {names}") from error
    multiplier = sent.unit_multiplier.value if sent.HasField("unit_multiplier") else 1
    if not 1 <= multiplier * unit.window <= LONGEST_WINDOW:
        raise _invalid(f"descriptors[{index}].limit.unit_multiplier is {multiplier}, too few or too many")
    return Limit(sent.requests_per_unit, unit, multiplier * unit.window)


def _invalid(message: str) -> RpcError:
    return RpcError(Status.INVALID_ARGUMENT, message)
