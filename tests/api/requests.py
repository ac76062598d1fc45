"""Requests as bytes, for tests."""

from ratelimit_service.api.generated.envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest


def descriptor(*entries: tuple[str, str]) -> RateLimitDescriptor:
    return RateLimitDescriptor(entries=[RateLimitDescriptor.Entry(key=key, value=value) for key, value in entries])


def encoded(*descriptors: RateLimitDescriptor, domain: str = "shop", hits_addend: int = 0) -> bytes:
    return RateLimitRequest(domain=domain, descriptors=descriptors, hits_addend=hits_addend).SerializeToString()
