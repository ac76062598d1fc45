"""The composition root: builds the parts, joins them, and takes them down again.

`App.start` and `App.stop` read as the list of what happens, in order.
"""

import asyncio
import gc
import logging
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from ratelimit_service.address import Address, Tcp, Unix
from ratelimit_service.admin.server import AdminServer
from ratelimit_service.api.answer import Answer, HeaderNames
from ratelimit_service.api.health import Health
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.api.reflection import reflection
from ratelimit_service.clock import SECOND
from ratelimit_service.errors import StartError
from ratelimit_service.limiter import Limiter
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.parse import parse
from ratelimit_service.rules.source import Source
from ratelimit_service.rules.watch import Watcher
from ratelimit_service.settings import Settings
from ratelimit_service.stores import open_store
from ratelimit_service.transports import open_transport

log = logging.getLogger(__name__)

SWEEP_SECONDS = 0.1


class App:
    """The whole service in one process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.addresses: Sequence[Address] = ()
        """Where gRPC listens."""
        self.health = Health(needs_store=settings.redis_health_check_active_connection)
        self.store = open_store(settings)
        self.limiter = Limiter(
            self.store,
            shadow_mode=settings.shadow_mode,
            quota_mode=settings.quota_mode,
            near_ratio=settings.near_limit_ratio,
            most_values=settings.metrics_max_values,
        )
        self.watcher = Watcher(
            settings.rules_path,
            partial(_parse, settings),
            self._publish,
            poll_seconds=settings.rules_poll_interval / SECOND,
        )
        self.method = ShouldRateLimit(self.limiter, _answer(settings))
        self.transport = open_transport(settings)
        self.admin = AdminServer(
            self.limiter,
            self.method,
            self.watcher,
            self.health,
            settings,
            connections=lambda: self.transport.connections,
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Load the rules, listen, and keep house. StartError when something it needs is not there."""
        path = self.settings.rules_path
        if not path.exists() and not self.settings.force_start_without_initial_config:
            raise StartError(f"there are no rules: {path} does not exist (RULES_PATH, --rules)")
        await self.watcher.load()
        self.store.sweep()  # a store begins to look for its servers, so that the first call finds it connected
        methods, streams = self.health.methods(), [*self.health.streams(), *reflection()]
        self.addresses = await self.transport.start([self.method, *methods], streams, _grpc_addresses(self.settings))
        try:
            await self.admin.start(self.addresses)
        except StartError:
            await self.transport.stop(0)
            raise
        self._keep(self.watcher.run())
        self._keep(self._sweep())

    async def stop(self) -> None:
        """Say that calls should go elsewhere, give callers time to hear it, finish what is in flight, and close."""
        self.health.drain()
        log.info("draining: health says NOT_SERVING for %g s, then calls in flight finish", self.settings.drain_seconds)
        await asyncio.sleep(self.settings.drain_seconds)
        self.health.finish()
        await self.transport.stop(self.settings.drain_timeout / SECOND)
        await self.admin.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store.close()
        log.info("stopped")

    def _publish(self, book: RuleBook) -> None:
        self.limiter.book = book
        # A book stays: the collector need not walk it again and again, 75 ms for ten thousand rules.
        gc.freeze()
        # Nor all counters, which make no cycles, 165 ms for a million: it looks at young objects as often as ever, and
        # at old ones after 70 million new ones.
        gc.set_threshold(700, 10, 10_000)
        self.health.rules_loaded(bool(book.domains))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.store.sweep()
            self.health.store_is(self.store.healthy)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))


def _parse(settings: Settings, sources: Sequence[Source], previous: RuleBook | None) -> RuleBook:
    return parse(
        sources,
        merge_domains=settings.merge_domain_config,
        near_ratio=settings.near_limit_ratio,
        most_values=settings.metrics_max_values,
        previous=previous,
    )


def _answer(settings: Settings) -> Answer:
    names = HeaderNames(settings.limit_limit_header, settings.limit_remaining_header, settings.limit_reset_header)
    return Answer(
        headers=names if settings.limit_response_headers_enabled else None,
        dynamic_metadata=settings.response_dynamic_metadata,
    )


def _grpc_addresses(settings: Settings) -> list[Address]:
    if settings.grpc_uds:
        return [Unix(settings.grpc_uds)]
    return [Tcp(host, settings.grpc_port) for host in settings.grpc_host]
