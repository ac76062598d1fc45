"""Hits as scripts take them."""

from collections.abc import Sequence

from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.requests import DeadlineQueue, PendingRequest
from ratelimit_service.stores.redis.script import BatchScript, Group, Part

_GROUP = Group(BatchScript())
"""The same for all, as it reads the script's files."""


def parts_of(*requests: Sequence[Hit], names: Sequence[str] | None = None) -> list[Part]:
    """The hits of each request as one part, on counters of these names if they are told."""
    return [
        Part(PendingRequest(hits, lambda _: None, DeadlineQueue(1.0), 1.0), hits, _GROUP, names) for hits in requests
    ]
