"""The composition root: builds the parts, joins them, and takes them down again.

`App.start` and `App.stop` read as the list of what happens, in order. What answers calls is an `Engine` in this
process, or a `Supervisor` whose workers have one each.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from ratelimit_service.errors import StartError
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.loading import Loading
from ratelimit_service.rules.sources import open_sources
from ratelimit_service.server.admin.endpoints import Methods
from ratelimit_service.server.admin.rules_api import RulesApi
from ratelimit_service.server.admin.server import Addresses, AdminServer
from ratelimit_service.server.engine import Engine, rules_parser, trial_options
from ratelimit_service.server.events import EventLog
from ratelimit_service.server.workers.supervisor import Supervisor
from ratelimit_service.settings import Settings
from ratelimit_service.stores import open_rule_store
from ratelimit_service.system.address import Address, Tcp, Unix
from ratelimit_service.telemetry.logs import about, pass_events

log = logging.getLogger(__name__)


class App:
    """The whole service, in one process, or in a parent and `workers` more."""

    def __init__(self, settings: Settings, workers: int) -> None:
        self.http = Addresses((), (), ())
        """Where HTTP listens."""
        self._settings = settings
        self._events = EventLog()
        self._end_events: Callable[[], None] | None = None
        self._engine: Engine | Supervisor = (
            Engine(settings) if workers == 1 else Supervisor(settings, workers, self._events)
        )
        self._rule_store = open_rule_store(settings)
        sources = open_sources(settings, self._rule_store)
        self._loading = Loading(sources, rules_parser(settings), self._publish)
        self._admin = AdminServer(
            self._engine.state(self._loading),
            settings,
            Methods(self._engine.explainer, self._engine.ban_method, self._engine.reset_method),
            self._events,
            partial(RulesApi, self._loading, self._rule_store, trial_options(settings)),
        )
        self._following: asyncio.Task[None] | None = None

    @property
    def addresses(self) -> Sequence[Address]:
        """The addresses on which gRPC listens."""
        return self._engine.addresses

    async def start(self) -> None:
        """Load the rules, listen, answer, and follow the rules. StartError when something it needs is not there."""
        self._end_events = pass_events(self._events.record)
        await self._loading.load(required=not self._settings.force_start_without_initial_config)
        try:
            await self._engine.listen(grpc_addresses(self._settings))
            self.http = await self._admin.start(self.addresses)
            await self._engine.begin()
        except StartError:
            await self._engine.abort()
            await self._admin.stop()
            raise
        self._following = asyncio.create_task(self._loading.run())

    async def stop(self) -> None:
        """Report NOT_SERVING, give clients time to notice, finish the calls in flight, and close."""
        self._engine.drain()
        log.info(
            "draining: health says NOT_SERVING for %g s, then calls in flight finish",
            self._settings.drain_seconds,
            extra=about("draining"),
        )
        await asyncio.sleep(self._settings.drain_seconds)
        await self._engine.stop()
        await self._admin.stop()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._rule_store is not None:
            await self._rule_store.close()
        await self._engine.close()
        log.info("stopped")
        if self._end_events is not None:
            self._end_events()

    @property
    def made_token(self) -> str:
        """The token of the operator's port that was made at the start; empty if there is another one, or none."""
        return self._admin.made_token

    def reload(self) -> None:
        """Load the rules soon, changed or not: SIGHUP."""
        log.info("reloading rules (SIGHUP)", extra=about("reload_asked", who="SIGHUP"))
        self._loading.reload()

    def abandon(self) -> None:
        """Release what would outlive the process, which is about to end without a stop."""
        self._engine.abandon()
        self._admin.abandon()

    def _publish(self, book: RuleBook) -> None:
        self._engine.publish(book)
        if isinstance(self._engine, Supervisor):
            self._engine.send_rules(self._loading.documents or (), list(book.data.values()))


def grpc_addresses(settings: Settings) -> list[Address]:
    """The addresses on which gRPC is to listen."""
    if settings.grpc_uds:
        return [Unix(settings.grpc_uds)]
    return [Tcp(host, settings.grpc_port) for host in settings.grpc_host]
