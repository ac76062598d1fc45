"""The engine: store, limiter, methods and transport, put together. Every process that answers calls has one."""

import asyncio
import gc
from collections.abc import Sequence
from functools import partial

from ratelimit_service.api.headers import header_names
from ratelimit_service.api.health import Health
from ratelimit_service.api.kuadrant import kuadrant
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.api.reflection import reflection
from ratelimit_service.api.request import RequestLimits
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.api.rlqs import QuotaService, read_id
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.quotas import Quotas
from ratelimit_service.limiter.turns import TurnQueues
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.leasing import lease_options
from ratelimit_service.rules.loading import Loading, Parse
from ratelimit_service.rules.pattern_work import PatternBounds
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.regions import region_options
from ratelimit_service.rules.response import response_options
from ratelimit_service.rules.secret import hash_value_of
from ratelimit_service.server.admin.bans_api import ban_method
from ratelimit_service.server.admin.explain_api import explainer
from ratelimit_service.server.admin.resets import reset_method
from ratelimit_service.server.admin.rules_trial import TrialOptions
from ratelimit_service.server.state import ServiceState
from ratelimit_service.server.tracing import TracedMethod, Tracing, traced_store
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import KeyFormat
from ratelimit_service.stores import open_store
from ratelimit_service.stores.redis.envoyproxy import counts_as_envoyproxy
from ratelimit_service.system.address import Address
from ratelimit_service.system.clock import SECOND
from ratelimit_service.system.listen import remove_socket
from ratelimit_service.system.timer import open_timer
from ratelimit_service.telemetry.metric import Metric
from ratelimit_service.transports import open_transport

SWITCH_SECONDS = 0.0001
"""Seconds for which a thread that parses rules keeps the interpreter while calls wait: a fiftieth of Python's
default."""

_SWEEP_SECONDS = 0.1

_REFUSE_SECONDS = 0.1
"""Seconds before the end of the grace at which the calls in queues are refused: their callers still get the answer."""


class Engine:
    """The methods on their transport, the limiter, and the store."""

    def __init__(self, settings: Settings) -> None:
        self.health = Health(
            needs_store=settings.redis_health_check_active_connection, needs_rules=settings.health_needs_rules
        )
        self.tracing = Tracing(settings) if settings.tracing_enabled else None
        store = open_store(settings)
        self.store = store if self.tracing is None else traced_store(store, self.tracing)
        self.limiter = Limiter(
            self.store,
            shadow_mode=settings.shadow_mode,
            quota_mode=settings.quota_mode,
            near_ratio=settings.near_limit_ratio,
            max_values=settings.metrics_max_values,
            max_hits=settings.request_max_hits,
            pattern_bounds=PatternBounds(settings.regex_max_value_length, settings.request_max_pattern_work),
            turns=TurnQueues(open_timer),
        )
        asks = self.limiter, _encoder(settings, self.limiter), _request_limits(settings)
        self.method = ShouldRateLimit(*asks)
        self._kuadrant = kuadrant(*asks)
        self.quotas = Quotas(self.limiter, read_id, policy=settings.on_store_failure, open_timer=open_timer)
        self.quota_service = QuotaService(self.quotas)
        self.explainer = explainer(self.limiter)
        self.ban_method = ban_method(self.limiter)
        self.reset_method = reset_method(self.limiter)
        self.transport = open_transport(settings)
        self.addresses: Sequence[Address] = ()
        """Where it listens, with the ports it got."""
        self._drain_timeout_seconds = settings.drain_timeout / SECOND
        self._sweeping: asyncio.Task[None] | None = None

    def state(self, loading: Loading) -> ServiceState:
        """The service as metrics and pages read it, when this is its only process."""
        return ServiceState(self.limiter, self.method, loading, self.health, self.metrics)

    async def listen(self, addresses: Sequence[Address]) -> None:
        """Listen, and answer calls. StartError when an address cannot be had."""
        self.store.sweep()  # a store begins to look for its servers, so that the first call finds it connected
        methods = [*self._kuadrant, *self.health.methods()]
        streams = [*self.health.streams(), *self.quota_service.streams(), *reflection()]
        method = self.method if self.tracing is None else TracedMethod(self.method, self.tracing)
        self.addresses = await self.transport.start([method, *methods], streams, addresses)

    async def begin(self) -> None:
        """Finish the start after `listen`: begin the housekeeping of store, methods and health."""
        self._sweeping = asyncio.create_task(self._sweep())

    def metrics(self) -> Sequence[Metric]:
        """The metrics of the store, the queues and the transport."""
        of_quotas, of_transport = self.quotas.metrics(), self.transport.metrics()
        return (*self.store.metrics(), *self.limiter.turns.metrics(), *of_quotas, *of_transport)

    def publish(self, book: RuleBook) -> None:
        """Answer by these rules from now on."""
        self.store.use(book.rules)
        self.limiter.book = book
        _freeze_old_objects()
        self.health.set_rules_loaded(bool(book.domains))

    def drain(self) -> None:
        """Report NOT_SERVING from now on: calls should go to other instances."""
        self.health.drain()

    async def stop(self) -> None:
        """Accept no more calls, and finish those in flight; those that still wait in queues at the end are refused."""
        self.health.finish()
        self.quota_service.finish()
        self.addresses = ()  # the transport removes the sockets' files first: the next instance may listen there
        grace = self._drain_timeout_seconds
        waiting = grace - min(_REFUSE_SECONDS, grace / 10)
        refusing = asyncio.get_running_loop().call_later(waiting, self.limiter.turns.refuse_all)
        await self.transport.stop(grace)
        refusing.cancel()

    async def close(self) -> None:
        """Release what store and queues hold, when no more calls come."""
        self.limiter.turns.refuse_all()
        self.limiter.turns.close()
        self.quotas.close()
        self.explainer.close()
        self.ban_method.close()
        self.reset_method.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await self.store.close()
        if self.tracing is not None:
            await self.tracing.close()

    async def abort(self) -> None:
        """Stop at once, after a start that failed."""
        await self.transport.stop(0)
        await self.close()

    def abandon(self) -> None:
        """Remove the files of unix sockets: the process is about to end without a stop."""
        for address in self.addresses:
            remove_socket(address)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.store.sweep()
            self.method.sweep()
            self.quotas.sweep()
            self.limiter.top.fold()
            self.limiter.refusals.fold()
            self.limiter.bans.sweep()
            self.health.set_store_healthy(self.store.healthy)


def _freeze_old_objects() -> None:
    """Tune the garbage collector of this process: a new book and counters are long-lived, and walking them is slow."""
    # The book stays. Frozen, it is not walked by the collector again and again: 75 ms for ten thousand rules.
    gc.freeze()
    # Counters make no cycles, and to walk a million takes 165 ms. So the collector walks young objects as often as
    # by default, and old ones only after 70 million new ones.
    gc.set_threshold(700, 10, 10_000)


def rules_parser(settings: Settings) -> Parse:
    """The function that makes the book of documents; it raises RulesError when they are wrong."""
    return partial(
        parse,
        merge_domains=settings.merge_domain_config,
        precedence=settings.rules_precedence,
        near_ratio=settings.near_limit_ratio,
        max_values=settings.metrics_max_values,
        leases=lease_options(settings),
        regions=region_options(settings),
        hash_value=hash_value_of(settings),
        response=response_options(settings),
    )


def trial_options(settings: Settings) -> TrialOptions:
    """What the rules API needs to load rules, and to check them as `ratelimit check` does."""
    by_envoyproxy = settings.key_format is KeyFormat.ENVOYPROXY
    has_home = settings.home_redis is not None
    by_keys = counts_as_envoyproxy if by_envoyproxy else None
    return TrialOptions(rules_parser(settings), settings.rules_precedence, has_home, by_keys)


def _request_limits(settings: Settings) -> RequestLimits:
    return RequestLimits(
        settings.request_max_descriptors, settings.request_max_entries, settings.request_max_value_length
    )


def _encoder(settings: Settings, limiter: Limiter) -> ResponseEncoder:
    return ResponseEncoder(
        header_names(settings), dynamic_metadata=settings.response_dynamic_metadata, shown=limiter.shown
    )
