"""The endpoints of the HTTP ports: those for clients, for the operator and for Prometheus."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from aiohttp import web

from ratelimit_service.errors import RpcError
from ratelimit_service.server.admin.access import client_of
from ratelimit_service.server.admin.bans_api import banning, unbanning
from ratelimit_service.server.admin.changes_api import changes, lists_bans
from ratelimit_service.server.admin.connection import LoopSlots
from ratelimit_service.server.admin.envoyproxy_pages import rules_text, stats_text
from ratelimit_service.server.admin.json_api import (
    HEADERS,
    BytesMethod,
    JsonApi,
    explained_response,
    http_response,
    refusal,
    refusal_for,
)
from ratelimit_service.server.admin.openmetrics import Send, by_accept
from ratelimit_service.server.admin.page_files import PATH, PageFiles
from ratelimit_service.server.admin.resets import resetting
from ratelimit_service.server.admin.shared_response import Begin, SharedResponse
from ratelimit_service.server.admin.status import Listening, StatusPage
from ratelimit_service.server.admin.what_if import WhatIf
from ratelimit_service.server.events import EventLog
from ratelimit_service.server.history import History
from ratelimit_service.server.metrics import Metrics
from ratelimit_service.server.refusals import LastRefusals
from ratelimit_service.server.state import ServiceState
from ratelimit_service.server.top_descriptors import TopDescriptors, of_rule
from ratelimit_service.settings import Settings
from ratelimit_service.settings.shown import shown_settings
from ratelimit_service.telemetry.logs import about
from ratelimit_service.telemetry.metric import CONTENT_TYPE, OPENMETRICS_END, OPENMETRICS_TYPE, Metric

log = logging.getLogger(__name__)

TEXT: Final = HEADERS | {"Content-Type": "text/plain; charset=utf-8"}
_METRICS: Final = HEADERS | {"Content-Type": CONTENT_TYPE, "Vary": "Accept"}
_OPENMETRICS: Final = _METRICS | {"Content-Type": OPENMETRICS_TYPE}
_JSON: Final = HEADERS | {"Content-Type": "application/json"}

_ALL_METRICS: Final = "all metrics, for Prometheus"


class Endpoint(NamedTuple):
    """A verb at a path, and what it does."""

    verb: str
    path: str
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]]
    help: str


class Methods(NamedTuple):
    """The methods that answer from the limiter and its store, here or in a worker, beside ShouldRateLimit."""

    explainer: BytesMethod
    bans: BytesMethod
    resets: BytesMethod


class Endpoints:
    """The endpoints of a service. Pages only read its state; `/json` calls its method, others its `methods`.

    `http_metrics` are those of the ports themselves.
    """

    def __init__(
        self,
        state: ServiceState,
        settings: Settings,
        methods: Methods,
        events: EventLog,
        *,
        slots: LoopSlots,
        http_metrics: Callable[[], Sequence[Metric]],
    ) -> None:
        self._state = state
        self._events = events
        shown = [setting._asdict() for setting in shown_settings(settings)]
        self._shown_settings = json.dumps({"settings": shown}) + "\n"
        self._metrics = Metrics(state, http=http_metrics, extra_labels=settings.extra_tags)
        self._history = History(state)
        self._hot = TopDescriptors(state)
        self._refusals = LastRefusals(state)
        self._what_if = WhatIf(state, self._hot)
        self._status = StatusPage(state, self._history, self._hot, events)
        # JSON objects of the largest request: itself, its descriptors, each perhaps with two more objects, and entries.
        objects = 1 + 3 * settings.request_max_descriptors + settings.request_max_entries
        json_api = partial(JsonApi, max_bytes=settings.http_max_body_size, max_objects=objects)
        self._json = json_api(state.method, http_response)
        self._explain = json_api(methods.explainer, explained_response)
        self._methods = methods
        self._page = PageFiles()
        self._slots = slots
        self._expose: Send = self._shared(_METRICS, self._metrics_text)
        if settings.tracing_enabled:  # for its exemplars alone, which the text format has not
            self._expose = by_accept(
                self._expose, self._shared(_OPENMETRICS, partial(self._metrics_text, openmetrics=True))
            )

    def show_listening(self, listening: Sequence[Listening]) -> None:
        """Show on the page where the service listens."""
        self._status.listening = listening

    async def look(self) -> None:
        """Add what was counted since the last look to what the pages show of the past. Called every LOOK_SECONDS."""
        self._history.look()
        self._hot.look()
        self._refusals.look()
        await self._history.look_at_rules()

    def for_clients(self) -> Sequence[Endpoint]:
        """The endpoints of the HTTP port."""
        return [
            Endpoint("POST", "/json", self._json.handle, "a RateLimitRequest as JSON: 200 allowed, 429 over limit"),
            Endpoint("GET", "/healthcheck", self._healthcheck, "200 if the health check says SERVING, else 500"),
            Endpoint("GET", "/livez", _live, "200 while the process answers, also without rules and in a drain"),
            Endpoint("GET", "/metrics", self._expose, _ALL_METRICS),
        ]

    def for_prometheus(self, path: str) -> Sequence[Endpoint]:
        """The metrics, at a path of the operator's choice."""
        return [Endpoint("GET", path, self._expose, _ALL_METRICS)]

    def for_operator(self) -> Sequence[Endpoint]:
        """The endpoints of the debug port."""
        status, bans, resets = self._status, self._methods.bans, self._methods.resets
        rules = self._text(TEXT, self._rules, counts=False)
        stats = self._text(TEXT, lambda: stats_text(self._state))
        described = self._text(_JSON, status.rules, counts=False)
        past = self._text(_JSON, self._events.text, counts=False)
        refusals = self._text(_JSON, self._refusals.text)
        return [
            Endpoint("GET", "/", self._page.page, "the page: what is wrong, the rules and their counts"),
            Endpoint("GET", PATH, self._page.file, "what the page loads"),
            Endpoint("GET", "/metrics", self._expose, _ALL_METRICS),
            Endpoint("GET", "/rlconfig", rules, "the rules in force, a line each"),
            Endpoint("GET", "/stats", stats, "the counters of envoyproxy/ratelimit, under its statsd names"),
            Endpoint("GET", "/status", self._text(_JSON, status.text), "what the page shows, as JSON"),
            Endpoint("GET", "/status/now", self._text(_JSON, status.now), "the same, of the rules only their counts"),
            Endpoint(
                "GET", "/status/recent", self._text(_JSON, status.recent), "the same, of rules that counted lately"
            ),
            Endpoint("GET", "/status/rules", described, "the rules, without their counts"),
            Endpoint("GET", "/status/settings", self._show_settings, "the settings in force, without secrets"),
            Endpoint("GET", "/status/past", past, "reloads, outages, bans, acts and dead workers, the newest first"),
            Endpoint("GET", "/status/history", self._show_history, "the last sixty minutes of ?domain=D[&rule=PATH]"),
            Endpoint("GET", "/status/hot", self._show_hot, "the hottest descriptors, or those of ?domain=D&rule=PATH"),
            Endpoint("GET", "/status/refusals", refusals, "some of the last refused requests, each with why"),
            Endpoint(
                "GET",
                "/status/what-if",
                self._show_what_if,
                "what another limit would have refused: ?domain=D&rule=PATH&requests=N",
            ),
            Endpoint("POST", "/explain", self._explain.handle, "which rules a RateLimitRequest matches, and why"),
            Endpoint("GET", "/bans", lists_bans(bans, self._shared), "the bans in force"),
            Endpoint("POST", "/bans", changes(bans, banning), "make a ban"),
            Endpoint("DELETE", "/bans", changes(bans, unbanning), "lift a ban"),
            Endpoint("POST", "/counters/reset", changes(resets, resetting), "reset the counters of a descriptor"),
            Endpoint("POST", "/reload", self._reload, "load the rules now, changed or not, as SIGHUP does"),
        ]

    def _shared(self, headers: Mapping[str, str], begin: Begin) -> Send:
        return SharedResponse(headers, begin, self._slots).send

    def _text(self, headers: Mapping[str, str], text: Callable[[], Iterable[str]], *, counts: bool = True) -> Send:
        """Responds with a text; of several workers, if it has counts, with what they have counted until now."""

        async def begin() -> Iterable[str]:
            if counts:
                await self._refresh()
            return text()

        return self._shared(headers, begin)

    async def _healthcheck(self, _: web.Request) -> web.StreamResponse:
        if self._state.health.serving:
            return web.Response(text="OK", headers=TEXT)
        return web.Response(status=500, headers=TEXT)

    async def _reload(self, request: web.Request) -> web.StreamResponse:
        who = client_of(request)
        fields = about("reload_asked", who=who)
        log.info("reloading rules (POST /reload from %s)", who, extra=fields)
        self._state.loading.reload()
        return web.Response(status=202, text="the rules are being loaded; /status shows the result\n", headers=TEXT)

    async def _metrics_text(self, *, openmetrics: bool = False) -> Iterable[str]:
        await self._refresh()
        process = await asyncio.to_thread(self._metrics.process, openmetrics=openmetrics)
        end = OPENMETRICS_END if openmetrics else ""
        return chain(self._metrics.exposition(openmetrics=openmetrics), [process, end])

    async def _refresh(self) -> None:
        if self._state.workers is not None:
            await self._state.workers.refresh()

    def _rules(self) -> Iterable[str]:
        book = self._state.counted.book
        return rules_text(() if book is None else book.rules)

    async def _show_settings(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text=self._shown_settings, headers=_JSON)

    async def _show_hot(self, request: web.Request) -> web.StreamResponse:
        domain, rule = request.query.get("domain"), request.query.get("rule")
        if (domain is None) is not (rule is None):
            return refusal(400, "name a rule: /status/hot?domain=D&rule=PATH, or /status/hot for all")
        found = self._hot.as_json() if domain is None or rule is None else self._hot.as_json(of_rule(domain, rule))
        return web.Response(text=json.dumps(found) + "\n", headers=_JSON)

    async def _show_what_if(self, request: web.Request) -> web.StreamResponse:
        domain, rule = request.query.get("domain"), request.query.get("rule")
        if domain is None or rule is None:
            return refusal(400, "name a rule: /status/what-if?domain=D&rule=PATH&requests=NUMBER")
        try:
            found = await self._what_if.answer(domain, rule, request.query.get("requests"))
        except RpcError as error:
            return refusal_for(error)
        return web.Response(text=json.dumps(found) + "\n", headers=_JSON)

    async def _show_history(self, request: web.Request) -> web.StreamResponse:
        domain = request.query.get("domain")
        if domain is None:
            return refusal(400, "name a domain or a rule: /status/history?domain=D, or ?domain=D&rule=PATH")
        try:
            text = await self._status.history_of(domain, request.query.get("rule"))
        except RpcError as error:
            return refusal_for(error)
        return web.Response(text=text, headers=_JSON)


async def _live(_: web.Request) -> web.StreamResponse:
    return web.Response(text="OK", headers=TEXT)
