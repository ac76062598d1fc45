"""The whole service in several processes, as their parent sees it: start, serve, stop."""

import asyncio
import logging
from collections.abc import Sequence

from ratelimit_service.api.method import Reply
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.errors import StartError
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.server.admin.server import Addresses, AdminServer
from ratelimit_service.server.app import grpc_addresses, load_rules, log_draining, watch_rules
from ratelimit_service.server.state import ServiceState
from ratelimit_service.server.workers.crew import Crew
from ratelimit_service.settings import Settings
from ratelimit_service.system.address import Address
from ratelimit_service.system.listen import open_sockets, remove_socket
from ratelimit_service.telemetry.latency import Latency

log = logging.getLogger(__name__)


class Parent:
    """Listens, shows, and watches the rules; `count` workers answer. To its caller it is what an App is."""

    def __init__(self, settings: Settings, count: int) -> None:
        self.addresses: Sequence[Address] = ()
        """Where gRPC listens."""
        self.http = Addresses((), (), ())
        """Where HTTP listens."""
        self._settings = settings
        self._crew = Crew(settings, count)
        self._watcher = watch_rules(settings, self._publish)
        sums, method = self._crew.sums, _Method(self._crew)
        self._admin = AdminServer(
            ServiceState(sums, method, self._watcher, self._crew, sums.metrics, self._crew),
            settings,
            method=method,
            explainer=_Explainer(self._crew),
        )
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the rules, listen, have all workers ready, and accept. StartError when something is not there."""
        await load_rules(self._watcher, self._settings)
        opened = await open_sockets(grpc_addresses(self._settings))
        self._crew.dispatcher.listen(opened)
        self.addresses = [each.address for each in opened]
        try:
            self.http = await self._admin.start(self.addresses)
            await self._crew.start()
        except StartError:
            self._crew.dispatcher.close_listeners()
            await self._admin.stop()
            raise
        self._crew.dispatcher.accept()
        self._watching = asyncio.create_task(self._watcher.run())

    async def stop(self) -> None:
        """Say that calls should go elsewhere, give callers time to hear it, have all workers finish, and close."""
        self._crew.drain()
        log_draining(self._settings)
        await asyncio.sleep(self._settings.drain_seconds)
        self._crew.dispatcher.close_listeners()
        self.addresses = ()
        await self._crew.stop()
        await self._admin.stop()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        log.info("stopped")

    def reload(self) -> None:
        """Load the rules soon, changed or not."""
        self._watcher.reload()

    def abandon(self) -> None:
        """The process is about to end without a stop: so do the workers."""
        self._crew.kill()
        for address in self.addresses:
            remove_socket(address)

    def _publish(self, book: RuleBook) -> None:
        self._crew.sums.publish(book)
        self._crew.load(self._watcher.sources)


class _Method:
    """ShouldRateLimit as the workers answer it."""

    path = ShouldRateLimit.path

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    @property
    def calls(self) -> int:
        """Those of all workers."""
        return self._crew.sums.calls

    @property
    def latency(self) -> Latency:
        """The same."""
        return self._crew.sums.latency

    def call(self, body: bytes, reply: Reply, timeout: int | None = None) -> None:
        """Have a worker answer."""
        self._crew.dispatcher.call(body, reply, timeout=timeout)


class _Explainer:
    """Explanations as the workers give them: they can ask the store, and have the same book."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def call(self, body: bytes, reply: Reply) -> None:
        """Have a worker explain."""
        self._crew.dispatcher.call(body, reply, "explain")
