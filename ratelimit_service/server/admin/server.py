"""The HTTP ports and their endpoints: one port for clients, one for the operator, and perhaps one for Prometheus."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from socket import socket
from typing import Any, Final, NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from ratelimit_service.errors import RpcError, StartError
from ratelimit_service.server.admin.access import Access, client_of
from ratelimit_service.server.admin.bans import banning, unbanning
from ratelimit_service.server.admin.changes_api import changes, lists_bans
from ratelimit_service.server.admin.connection import (
    KEEPALIVE_SECONDS,
    SERVER_NAME,
    AiohttpHandler,
    AiohttpLog,
    AiohttpTransport,
    HttpConnection,
    HttpConnections,
    Turns,
    WrongProtocol,
    with_target,
)
from ratelimit_service.server.admin.cross_site import refuse_cross_site, refuse_foreign_hosts
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
from ratelimit_service.server.admin.shared_response import SharedResponse
from ratelimit_service.server.admin.status import Listening, StatusPage
from ratelimit_service.server.admin.tls import HttpTls, TlsConnection
from ratelimit_service.server.admin.upstream_pages import rules_text, stats_text
from ratelimit_service.server.history import LOOK_SECONDS, History
from ratelimit_service.server.hot import HotDescriptors, of_rule
from ratelimit_service.server.metrics import Metrics
from ratelimit_service.server.past import Past
from ratelimit_service.server.state import ServiceState
from ratelimit_service.settings import Settings
from ratelimit_service.settings.shown import shown_settings
from ratelimit_service.system.address import Address, Tcp, Unix
from ratelimit_service.system.clock import SECOND, steady_clock
from ratelimit_service.system.listen import Opened, open_sockets, remove_socket
from ratelimit_service.system.open_files import within_file_limit
from ratelimit_service.telemetry.logs import ThrottledLog, about
from ratelimit_service.telemetry.metric import CONTENT_TYPE, OPENMETRICS_END, OPENMETRICS_TYPE, Metric
from ratelimit_service.transports.options import Tls

log = logging.getLogger(__name__)

_BACKLOG: Final = 128
"""Clients that are accepted in one turn of the loop: connections above the bound that have files until the next."""

_TEXT: Final = HEADERS | {"Content-Type": "text/plain; charset=utf-8"}
_METRICS: Final = HEADERS | {"Content-Type": CONTENT_TYPE, "Vary": "Accept"}
_OPENMETRICS: Final = _METRICS | {"Content-Type": OPENMETRICS_TYPE}
_JSON: Final = HEADERS | {"Content-Type": "application/json"}


class Addresses(NamedTuple):
    """Where the HTTP ports listen."""

    http: Sequence[Tcp]
    debug: Sequence[Tcp]
    """Nowhere if it is a unix socket."""
    prometheus: Sequence[Tcp]


class _Endpoint(NamedTuple):
    verb: str
    path: str
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]]
    help: str


class _Port(NamedTuple):
    what: str
    addresses: Sequence[Address]
    endpoints: Sequence[_Endpoint]
    refusals: Sequence[Middleware] = ()
    tls: HttpTls | None = None


class AdminServer:
    """The HTTP server. Its pages only read the service's state.

    `/json` calls its method, `/explain` the explainer, `/bans` the method `bans`, and `/counters/reset` `resets`.
    """

    def __init__(
        self,
        state: ServiceState,
        settings: Settings,
        *,
        explainer: BytesMethod,
        bans: BytesMethod,
        resets: BytesMethod,
        past: Past,
    ) -> None:
        self._past = past
        shown = [setting._asdict() for setting in shown_settings(settings)]
        self._shown_settings = json.dumps({"settings": shown}) + "\n"
        self._state = state
        self._settings = settings
        self._warnings = ThrottledLog(log, steady_clock)
        self._turns = Turns()
        self._connections = HttpConnections(within_file_limit(settings.http_max_connections), self._warnings)
        token = settings.admin_token.get_secret_value()
        self._access = Access(token, read_needs_token=settings.admin_read_needs_token, warnings=self._warnings)
        tls = Tls(settings.admin_tls_cert, settings.admin_tls_key)
        self._tls = HttpTls(tls, self._turns) if tls.cert and not settings.debug_uds else None
        self._metrics = Metrics(state, http=self._http_metrics, extra_labels=settings.extra_tags)
        self._history = History(state)
        self._looking: asyncio.Task[None] | None = None
        self._hot = HotDescriptors(state)
        self._status = StatusPage(state, self._history, self._hot)
        # JSON objects of the largest request: itself, its descriptors, each perhaps with two more objects, and entries.
        objects = 1 + 3 * settings.request_max_descriptors + settings.request_max_entries
        json_api = partial(JsonApi, max_bytes=settings.http_max_body_size, max_objects=objects)
        self._json = json_api(state.method, http_response)
        self._explain = json_api(explainer, explained_response)
        self._bans = bans
        self._resets = resets
        self._page = PageFiles()
        self._servers: list[asyncio.Server] = []
        self._runners: list[web.AppRunner] = []

    async def start(self, grpc: Sequence[Address] = ()) -> Addresses:
        """Listen on all ports, or raise StartError and listen on none. The page also shows where gRPC listens."""
        ports = self._ports()
        opened: list[list[Opened]] = []
        try:
            for port in ports:
                opened += [await open_sockets(port.addresses, backlog=_BACKLOG)]
        except StartError:
            for each in chain.from_iterable(opened):
                for listener in each.sockets:
                    listener.close()
                remove_socket(each.address)
            raise
        listening = [Listening("gRPC", str(address)) for address in grpc]
        got: list[list[Tcp]] = []
        for port, addresses in zip(ports, opened, strict=True):
            got.append([])
            for listener in chain.from_iterable(each.sockets for each in addresses):
                address = _bound(listener)
                if isinstance(address, Tcp):
                    got[-1].append(address)
                await self._serve(listener, port, WrongProtocol(port.what, address, grpc, self._warnings))
                listening.append(Listening(port.what, str(address)))
                log.info("listening for %s on %s", port.what, address)
        self._status.listening = listening
        self._looking = asyncio.create_task(self._look())
        return Addresses(got[0], got[1], got[2] if len(got) > 2 else ())

    async def stop(self) -> None:
        """Accept no connections, finish the requests in flight, and close."""
        if self._looking is not None:
            self._looking.cancel()
        for server in self._servers:
            server.close()
        self.abandon()
        await asyncio.gather(*(runner.cleanup() for runner in self._runners))
        self._connections.close()
        self._servers.clear()
        self._runners.clear()
        self._json.close()
        self._explain.close()

    def abandon(self) -> None:
        """Remove the file of the unix socket: nothing listens on it any more."""
        if self._servers and self._settings.debug_uds:
            remove_socket(Unix(self._settings.debug_uds))

    def _ports(self) -> list[_Port]:
        settings = self._settings
        metrics = "all metrics, for Prometheus"
        same_site = refuse_cross_site(settings.http_allowed_origins)
        expose: Send = SharedResponse(_METRICS, self._metrics_text, self._turns).send
        if settings.tracing_enabled:  # for its exemplars alone, which the text format has not
            expose = by_accept(expose, SharedResponse(_OPENMETRICS, self._openmetrics_text, self._turns).send)
        status = SharedResponse(_JSON, self._status_text, self._turns).send
        now = SharedResponse(_JSON, self._now_text, self._turns).send
        recent = SharedResponse(_JSON, self._recent_text, self._turns).send
        described = SharedResponse(_JSON, self._described_text, self._turns).send
        past = SharedResponse(_JSON, self._past_text, self._turns).send
        rules = SharedResponse(_TEXT, self._rules_text, self._turns).send
        stats = SharedResponse(_TEXT, self._stats_text, self._turns).send
        ports = [
            _Port(
                "HTTP",
                [Tcp(host, settings.port) for host in settings.host],
                [
                    _Endpoint(
                        "POST", "/json", self._json.handle, "a RateLimitRequest as JSON: 200 allowed, 429 over limit"
                    ),
                    _Endpoint(
                        "GET", "/healthcheck", self._healthcheck, "200 if the health check says SERVING, else 500"
                    ),
                    _Endpoint(
                        "GET", "/livez", _live, "200 while the process answers, also without rules and in a drain"
                    ),
                    _Endpoint("GET", "/metrics", expose, metrics),
                ],
                [same_site],
            ),
            _Port(
                "debug HTTP",
                [Unix(settings.debug_uds)]
                if settings.debug_uds
                else [Tcp(host, settings.debug_port) for host in settings.debug_host],
                [
                    _Endpoint("GET", "/", self._page.page, "the page: what is wrong, the rules and their counts"),
                    _Endpoint("GET", PATH, self._page.file, "what the page loads"),
                    _Endpoint("GET", "/metrics", expose, metrics),
                    _Endpoint("GET", "/rlconfig", rules, "the rules in force, a line each"),
                    _Endpoint("GET", "/stats", stats, "the counters that upstream has, under its statsd names"),
                    _Endpoint("GET", "/status", status, "what the page shows, as JSON"),
                    _Endpoint("GET", "/status/now", now, "the same, of the rules only their counts"),
                    _Endpoint("GET", "/status/recent", recent, "the same, of rules that counted lately"),
                    _Endpoint("GET", "/status/rules", described, "the rules, without their counts"),
                    _Endpoint("GET", "/status/settings", self._show_settings, "the settings in force, without secrets"),
                    _Endpoint(
                        "GET", "/status/past", past, "reloads, outages, bans, acts and dead workers, the newest first"
                    ),
                    _Endpoint(
                        "GET",
                        "/status/history",
                        self._history_of,
                        "the last sixty minutes of ?domain=D, or of one of its rules, &rule=PATH",
                    ),
                    _Endpoint(
                        "GET", "/status/hot", self._show_hot, "the hottest descriptors, or those of ?domain=D&rule=PATH"
                    ),
                    _Endpoint(
                        "POST",
                        "/explain",
                        self._explain.handle,
                        "which rules a RateLimitRequest matches, and why",
                    ),
                    _Endpoint("GET", "/bans", lists_bans(self._bans), "the bans in force"),
                    _Endpoint("POST", "/bans", changes(self._bans, banning), "make a ban"),
                    _Endpoint("DELETE", "/bans", changes(self._bans, unbanning), "lift a ban"),
                    _Endpoint(
                        "POST",
                        "/counters/reset",
                        changes(self._resets, resetting),
                        "reset the counters of a descriptor",
                    ),
                    _Endpoint("POST", "/reload", self._reload, "load the rules now, changed or not, as SIGHUP does"),
                ],
                [refuse_foreign_hosts(settings.debug_allowed_hosts), refuse_cross_site(()), self._access.middleware],
                self._tls,
            ),
        ]
        if settings.use_prometheus:
            endpoint = _Endpoint("GET", settings.prometheus_path, expose, metrics)
            ports.append(_Port("Prometheus", [settings.prometheus_addr], [endpoint]))
        return ports

    async def _serve(self, listener: socket, port: _Port, wrong_protocol: WrongProtocol) -> None:
        app = web.Application(
            client_max_size=self._settings.http_max_body_size,
            middlewares=[self._in_turn, *port.refusals, _listing(port.endpoints)],
        )
        app.on_response_prepare.append(_name_server)
        for endpoint in port.endpoints:
            app.router.add_route(endpoint.verb, endpoint.path, endpoint.handle)
            if endpoint.verb == "GET":
                app.router.add_route("HEAD", endpoint.path, endpoint.handle)
        runner = web.AppRunner(app, shutdown_timeout=self._settings.drain_timeout / SECOND)
        await runner.setup()
        self._runners.append(runner)
        http, loop = runner.server, asyncio.get_running_loop()
        assert http is not None, "it was set up"
        http.request_factory = with_target(http.request_factory)
        options: Mapping[str, Any] = {
            "logger": AiohttpLog(log, wrong_protocol),
            "access_log": None,
            "keepalive_timeout": KEEPALIVE_SECONDS,
            "lingering_time": 0,  # it would parse the bytes that it drops
            "auto_decompress": False,  # a few bytes can be a gigabyte
        }
        make = partial(AiohttpHandler, http, loop=loop, **options)

        def connection() -> HttpConnection | TlsConnection:
            http = HttpConnection(self._connections, self._turns, make, wrong_protocol)
            return http if port.tls is None else TlsConnection(port.tls, http, wrong_protocol)

        self._servers.append(await loop.create_server(connection, sock=listener, backlog=_BACKLOG))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._history.look()
            self._hot.look()
            await self._history.look_at_rules()

    @web.middleware
    async def _in_turn(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not isinstance(request.transport, AiohttpTransport):
            raise ConnectionResetError("the client has closed the connection")
        with request.transport.connection.answering(request):
            await self._turns.wait()
            return await handler(request)

    def _http_metrics(self) -> Sequence[Metric]:
        of_tls = () if self._tls is None else self._tls.metrics()
        return (*self._connections.metrics(), *self._access.metrics(), *of_tls)

    async def _healthcheck(self, _: web.Request) -> web.StreamResponse:
        if self._state.health.serving:
            return web.Response(text="OK", headers=_TEXT)
        return web.Response(status=500, headers=_TEXT)

    async def _reload(self, request: web.Request) -> web.StreamResponse:
        who = client_of(request)
        fields = about("reload_asked", who=who)
        log.info("rules are loaded again: asked for by POST /reload from %s", who, extra=fields)
        self._state.watcher.reload()
        return web.Response(status=202, text="the rules are loaded now; /status says what came of it\n", headers=_TEXT)

    async def _metrics_text(self) -> Iterable[str]:
        await self._refresh()
        process = await asyncio.to_thread(self._metrics.process)
        return chain(self._metrics.exposition(), [process])

    async def _openmetrics_text(self) -> Iterable[str]:
        await self._refresh()
        process = await asyncio.to_thread(self._metrics.process, openmetrics=True)
        return chain(self._metrics.exposition(openmetrics=True), [process, OPENMETRICS_END])

    async def _refresh(self) -> None:
        if self._state.workers is not None:
            await self._state.workers.refresh()

    async def _status_text(self) -> Iterable[str]:
        await self._refresh()
        return self._status.text()

    async def _now_text(self) -> Iterable[str]:
        await self._refresh()
        return self._status.now()

    async def _recent_text(self) -> Iterable[str]:
        await self._refresh()
        return self._status.recent()

    async def _described_text(self) -> Iterable[str]:
        return self._status.rules()

    async def _show_settings(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text=self._shown_settings, headers=_JSON)

    async def _past_text(self) -> Iterable[str]:
        return self._past.text()

    async def _show_hot(self, request: web.Request) -> web.StreamResponse:
        domain, rule = request.query.get("domain"), request.query.get("rule")
        if (domain is None) is not (rule is None):
            return refusal(400, "say of which rule: /status/hot?domain=D&rule=PATH, or /status/hot for all")
        found = self._hot.as_json() if domain is None or rule is None else self._hot.as_json(of_rule(domain, rule))
        return web.Response(text=json.dumps(found) + "\n", headers=_JSON)

    async def _history_of(self, request: web.Request) -> web.StreamResponse:
        domain = request.query.get("domain")
        if domain is None:
            return refusal(400, "say of what: /status/history?domain=D, or /status/history?domain=D&rule=PATH")
        try:
            text = await self._status.history_of(domain, request.query.get("rule"))
        except RpcError as error:
            return refusal_for(error)
        return web.Response(text=text, headers=_JSON)

    async def _rules_text(self) -> Iterable[str]:
        book = self._state.counted.book
        return rules_text(() if book is None else book.rules)

    async def _stats_text(self) -> Iterable[str]:
        await self._refresh()
        return stats_text(self._state)


async def _live(_: web.Request) -> web.StreamResponse:
    return web.Response(text="OK", headers=_TEXT)


def _bound(listener: socket) -> Address:
    """Where a socket listens, with the port it got."""
    name = listener.getsockname()
    return Unix(name) if isinstance(name, str) else Tcp(*name[:2])


async def _name_server(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = SERVER_NAME


def _listing(endpoints: Sequence[_Endpoint]) -> Middleware:
    """Respond to a path or verb that does not exist with those that exist."""
    lines = "".join(f"{endpoint.verb} {endpoint.path}: {endpoint.help}\n" for endpoint in endpoints)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return web.Response(status=404, text=f"there is nothing at this path; there is\n\n{lines}", headers=_TEXT)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            headers = _TEXT | {"Allow": allowed}
            return web.Response(status=405, text=f"only {allowed}\n", headers=headers)
        except RuntimeError as error:
            if request.transport is None:  # so aiohttp says that the rest of the body will not arrive
                raise ConnectionResetError("the client has closed the connection") from error
            raise

    return middleware
