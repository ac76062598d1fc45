"""Envoy's rate limit quota service (RLQS): Envoys decide by themselves, with the units that they are assigned.

A stream carries the reports of one Envoy and what it is assigned. Envoy 1.40 takes less than the API allows: a life is
in whole seconds and must be set; the interval of a bucket must be a second or more; a bucket that replaces another one
starts with as large a share of its tokens as that had left, unless a denial stands before it in the same message.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError

from ratelimit_service.api.generated.envoy.service.rate_limit_quota.v3.rlqs_pb2 import (
    BucketId,
    RateLimitQuotaResponse,
    RateLimitQuotaUsageReports,
)
from ratelimit_service.api.generated.envoy.type.v3.ratelimit_strategy_pb2 import RateLimitStrategy
from ratelimit_service.api.method import Receiver, Sender, StreamFunction, StreamMethod
from ratelimit_service.api.wire import field
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.limiter.quotas import Action, Quotas, Usage, Verb
from ratelimit_service.system.clock import SECOND

PATH: Final = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas"

_REFILL: Final = 3600
"""Seconds; no token is added then, but Envoy divides by them."""

_STOPPING: Final = RpcError(Status.UNAVAILABLE, "the service is stopping")

_BLANKETS: Final = {Verb.ALLOW: RateLimitStrategy.ALLOW_ALL, Verb.DENY: RateLimitStrategy.DENY_ALL}

_BUCKET_ACTION: Final = 0x0A
_BUCKET_ID: Final = 0x0A
"""The tags of RateLimitQuotaResponse.bucket_action, and of its bucket_id."""


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
        self.stream.send(b"".join([_encode(*action) for action in actions]))


def read_id(bucket_id: bytes) -> Mapping[str, str]:
    """The entries of a bucket's id."""
    return dict(BucketId.FromString(bucket_id).bucket)


def _encode(bucket_id: bytes, verb: Verb, ttl: int, units: int) -> bytes:
    """Actions on a bucket. By hand, but for what is equal in many: a third of the time."""
    bucket = field(_BUCKET_ID, bucket_id)
    encoded = field(_BUCKET_ACTION, bucket + _choice(verb, ttl, units))
    if verb is Verb.LEASE:
        return field(_BUCKET_ACTION, bucket + _choice(Verb.DENY, ttl, 0)) + encoded
    return encoded


@lru_cache(10_000)
def _choice(verb: Verb, ttl: int, units: int) -> bytes:
    """An action without its bucket."""
    action = RateLimitQuotaResponse.BucketAction()
    if verb is Verb.ABANDON:
        action.abandon_action.SetInParent()
        return action.SerializeToString()
    assigned = action.quota_assignment_action
    assigned.assignment_time_to_live.seconds = ttl
    strategy = assigned.rate_limit_strategy
    if verb in _BLANKETS:
        strategy.blanket_rule = _BLANKETS[verb]
    else:
        bucket = strategy.token_bucket
        bucket.max_tokens = units
        bucket.tokens_per_fill.SetInParent()  # 0
        bucket.fill_interval.seconds = _REFILL
    return action.SerializeToString()
