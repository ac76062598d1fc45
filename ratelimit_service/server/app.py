"""The composition root: builds the parts, joins them, and takes them down again.

`App.start` and `App.stop` read as the list of what happens, in order. With several workers there is an engine in each,
and the rest is in their parent: see `workers`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from ratelimit_service.errors import StartError
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.watch import Watcher
from ratelimit_service.server.admin.server import Addresses, AdminServer
from ratelimit_service.server.engine import Engine, parse_rules
from ratelimit_service.server.state import ServiceState
from ratelimit_service.settings import Settings
from ratelimit_service.system.address import Address, Tcp, Unix
from ratelimit_service.system.clock import SECOND
from ratelimit_service.system.listen import remove_socket

log = logging.getLogger(__name__)


class App:
    """The whole service in one process."""

    def __init__(self, settings: Settings) -> None:
        self.addresses: Sequence[Address] = ()
        """Where gRPC listens."""
        self.http = Addresses((), (), ())
        """Where HTTP listens."""
        self._settings = settings
        self._engine = Engine(settings)
        self._watcher = watch_rules(settings, self._engine.publish)
        self._admin = AdminServer(
            ServiceState(
                self._engine.limiter,
                self._engine.method,
                self._watcher,
                self._engine.health,
                self._engine.metrics,
            ),
            settings,
            method=self._engine.method,
            explainer=self._engine.explainer,
        )
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the rules, listen, and keep house. StartError when something it needs is not there."""
        await load_rules(self._watcher, self._settings)
        self.addresses = await self._engine.start(grpc_addresses(self._settings))
        try:
            self.http = await self._admin.start(self.addresses)
        except StartError:
            await self._engine.transport.stop(0)
            raise
        self._watching = asyncio.create_task(self._watcher.run())

    async def stop(self) -> None:
        """Say that calls should go elsewhere, give callers time to hear it, finish what is in flight, and close."""
        self._engine.health.drain()
        log_draining(self._settings)
        await asyncio.sleep(self._settings.drain_seconds)
        await self._engine.stop()
        self.addresses = ()
        await self._admin.stop()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._engine.close()
        log.info("stopped")

    def reload(self) -> None:
        """Load the rules soon, changed or not."""
        self._watcher.reload()

    def abandon(self) -> None:
        """Remove the files of unix sockets: the process is about to end without a stop."""
        for address in self.addresses:
            remove_socket(address)


def watch_rules(settings: Settings, publish: Callable[[RuleBook], None]) -> Watcher:
    """What keeps a book true to the files that the settings name."""
    poll_seconds = settings.rules_poll_interval / SECOND
    return Watcher(settings.rules_path, partial(parse_rules, settings), publish, poll_seconds=poll_seconds)


async def load_rules(watcher: Watcher, settings: Settings) -> None:
    """Load them for the first time. StartError when there are none, unless they may come later."""
    await watcher.load(required=not settings.force_start_without_initial_config)


def grpc_addresses(settings: Settings) -> list[Address]:
    """Where gRPC is to listen."""
    if settings.grpc_uds:
        return [Unix(settings.grpc_uds)]
    return [Tcp(host, settings.grpc_port) for host in settings.grpc_host]


def log_draining(settings: Settings) -> None:
    """One line: it begins to stop."""
    log.info("draining: health says NOT_SERVING for %g s, then calls in flight finish", settings.drain_seconds)
