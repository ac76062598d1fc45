"""Requests of the command line as messages of Envoy's protocol."""

from collections.abc import Sequence

from ratelimit_service.api.generated.envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from ratelimit_service.model import Descriptor, Limit


def as_message(domain: str, descriptors: Sequence[Descriptor]) -> RateLimitRequest:
    """The request; a descriptor's `hits_addend` is sent where it has one, and a cost below 0 gives back."""
    message = RateLimitRequest(domain=domain)
    for descriptor in descriptors:
        sent = message.descriptors.add(is_negative_hits=descriptor.cost < 0)
        for key, value in descriptor.entries:
            sent.entries.add(key=key, value=value)
        if descriptor.hits_addend is not None:
            sent.hits_addend.value = descriptor.hits_addend
        if descriptor.override is not None:
            sent.limit.CopyFrom(_override(descriptor.override))
    return message


def _override(limit: Limit) -> RateLimitDescriptor.RateLimitOverride:
    sent = RateLimitDescriptor.RateLimitOverride(
        requests_per_unit=limit.requests,
        unit=limit.unit.value,  # type: ignore[arg-type]  # WEEK has no name in that enum
    )
    if limit.window != limit.unit.window:
        sent.unit_multiplier.value = limit.window // limit.unit.window
    return sent
