"""Envoy's rate limit quota service (RLQS): Envoys decide by themselves, with the units that they are assigned.

A stream carries the reports of one Envoy and what it is assigned. Envoy 1.40 takes less than the API allows: a life is
in whole seconds and must be set; the interval of a bucket must be a second or more; a bucket that replaces another one
starts with as large a share of its tokens as that had left, unless a denial stands before it in the same message.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from ratelimit_service.api.generated.envoy.service.rate_limit_quota.v3.rlqs_pb2 import (
    BucketId,
    RateLimitQuotaResponse,
    RateLimitQuotaUsageReports,
)
from ratelimit_service.api.generated.envoy.type.v3.ratelimit_strategy_pb2 import RateLimitStrategy
from ratelimit_service.api.method import Receiver, Sender, StreamFunction, StreamMethod
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.limiter.quotas import Action, Quotas, Usage, Verb
from ratelimit_service.system.clock import SECOND

PATH: Final = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas"

_REFILL: Final = 3600
"""Seconds; no token is added then, but Envoy divides by them."""

_STOPPING: Final = RpcError(Status.UNAVAILABLE, "the service is stopping")

_BLANKETS: Final = {
    Verb.ALLOW: RateLimitStrategy(blanket_rule=RateLimitStrategy.ALLOW_ALL),
    Verb.DENY: RateLimitStrategy(blanket_rule=RateLimitStrategy.DENY_ALL),
}


class QuotaService:
    """The streams of Envoys."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._calls: set[_EnvoyCall] = set()
        self._finished = False

    def streams(self) -> Sequence[StreamMethod]:
        """StreamRateLimitQuotas."""
        return (StreamFunction(PATH, self._open),)

    def finish(self) -> None:
        """End all streams, and later ones at once: Envoys keep what they have, and come back elsewhere."""
        self._finished = True
        for call in tuple(self._calls):
            call.stream.finish(_STOPPING)

    def forget(self, call: "_EnvoyCall") -> None:
        """Remove a call that has ended."""
        self._calls.discard(call)

    def _open(self, stream: Sender) -> Receiver:
        call = _EnvoyCall(self, stream)
        if self._finished:
            stream.finish(_STOPPING)
            return call
        try:
            call.begin(self._quotas)
        except RpcError as error:
            stream.finish(error)
        else:
            self._calls.add(call)
        return call


class _EnvoyCall:
    """One stream."""

    def __init__(self, service: QuotaService, stream: Sender) -> None:
        self.stream = stream
        self._service = service
        self._quotas: Quotas | None = None

    def begin(self, quotas: Quotas) -> None:
        """Have quotas from now on."""
        self._of_envoy = quotas.open(self._send)
        self._quotas = quotas

    def receive(self, message: bytes) -> None:
        if self._quotas is None:
            return
        try:
            reports = RateLimitQuotaUsageReports.FromString(message)
            self._of_envoy.report(
                reports.domain,
                [
                    Usage(
                        usage.bucket_id.SerializeToString(deterministic=True),
                        usage.num_requests_allowed,
                        usage.num_requests_denied,
                        usage.time_elapsed.seconds * SECOND if usage.HasField("time_elapsed") else 0,
                    )
                    for usage in reports.bucket_quota_usages
                ],
            )
        except DecodeError as error:
            problem = f"the message is not a RateLimitQuotaUsageReports: {error}"
            self.stream.finish(RpcError(Status.INVALID_ARGUMENT, problem))
        except RpcError as error:
            self.stream.finish(error)

    def half_close(self) -> None:
        self.stream.finish()

    def closed(self) -> None:
        if self._quotas is not None:
            self._of_envoy.close()
            self._service.forget(self)

    def _send(self, actions: Sequence[Action]) -> None:
        response = RateLimitQuotaResponse()
        for action in actions:
            _add(response, action)
        self.stream.send(response.SerializeToString())


def read_id(bucket_id: bytes) -> Mapping[str, str]:
    """The entries of a bucket's id."""
    return dict(BucketId.FromString(bucket_id).bucket)


def _add(response: RateLimitQuotaResponse, action: Action) -> None:
    match action.verb:
        case Verb.ABANDON:
            response.bucket_action.add(bucket_id=BucketId.FromString(action.bucket_id)).abandon_action.SetInParent()
        case Verb.ALLOW | Verb.DENY:
            _assign(response, action, _BLANKETS[action.verb])
        case Verb.LEASE:
            _assign(response, action, _BLANKETS[Verb.DENY])
            _assign(response, action, _bucket(action.units))
        case Verb.RENEW:
            _assign(response, action, _bucket(action.units))


def _assign(response: RateLimitQuotaResponse, action: Action, strategy: RateLimitStrategy) -> None:
    assigned = response.bucket_action.add(bucket_id=BucketId.FromString(action.bucket_id)).quota_assignment_action
    assigned.assignment_time_to_live.seconds = action.ttl
    assigned.rate_limit_strategy.CopyFrom(strategy)


def _bucket(units: int) -> RateLimitStrategy:
    strategy = RateLimitStrategy()
    bucket = strategy.token_bucket
    bucket.max_tokens = units
    bucket.tokens_per_fill.value = 0
    bucket.tokens_per_fill.SetInParent()
    bucket.fill_interval.seconds = _REFILL
    return strategy
