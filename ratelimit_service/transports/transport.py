"""The contract of a transport: it carries methods over connections, and knows nothing about rate limits."""

from collections.abc import Sequence
from typing import Protocol

from ratelimit_service.api.method import Method, StreamMethod
from ratelimit_service.system.address import Address
from ratelimit_service.telemetry.metric import Metric


class Connections(Protocol):
    """What a transport tells of its connections."""

    def metrics(self) -> Sequence[Metric]:
        """As metrics."""


class Transport(Protocol):
    """What carries methods."""

    @property
    def connections(self) -> Connections | None:
        """None while it does not listen."""

    async def start(
        self, methods: Sequence[Method], streams: Sequence[StreamMethod], addresses: Sequence[Address]
    ) -> Sequence[Address]:
        """Listen on all addresses and serve; answers where it listens, with the ports it got.

        Raises StartError with one line that says which address cannot be had, and why; then it listens on none.
        """

    async def stop(self, grace_seconds: float) -> None:
        """Accept no new calls, let those in flight finish for so long, then cut them off."""
