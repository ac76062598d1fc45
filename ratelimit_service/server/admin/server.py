"""The HTTP ports: one for clients, one for the operator, and perhaps one for Prometheus."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from socket import socket
from typing import Any, Final, NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from ratelimit_service.errors import StartError
from ratelimit_service.server.admin.access import Access
from ratelimit_service.server.admin.connection import (
    KEEPALIVE_SECONDS,
    SERVER_NAME,
    AiohttpHandler,
    AiohttpLog,
    AiohttpTransport,
    HttpConnection,
    HttpConnections,
    LoopSlots,
    WrongProtocol,
    with_target,
)
from ratelimit_service.server.admin.cross_site import refuse_cross_site, refuse_foreign_hosts
from ratelimit_service.server.admin.endpoints import TEXT, Endpoint, Endpoints, Methods
from ratelimit_service.server.admin.problem import as_problems
from ratelimit_service.server.admin.rules_api import RulesApi
from ratelimit_service.server.admin.status import Listening
from ratelimit_service.server.admin.tls import HttpTls, TlsConnection
from ratelimit_service.server.events import EventLog
from ratelimit_service.server.history import LOOK_SECONDS
from ratelimit_service.server.state import ServiceState
from ratelimit_service.settings import Settings
from ratelimit_service.system.address import Address, Tcp, Unix
from ratelimit_service.system.clock import SECOND, steady_clock
from ratelimit_service.system.listen import Opened, close_sockets, open_sockets, remove_socket
from ratelimit_service.system.open_files import within_file_limit
from ratelimit_service.system.token_file import TokenFile
from ratelimit_service.telemetry.logs import ThrottledLog
from ratelimit_service.telemetry.metric import Metric
from ratelimit_service.transports.options import Tls

log = logging.getLogger(__name__)

_BACKLOG: Final = 128
"""Clients accepted in one iteration of the loop: connections above the bound that have files until the next."""


_WRITES: Final = "whether this client may make bans, reset counters and reload, and why not"


class Addresses(NamedTuple):
    """The addresses on which the HTTP ports listen."""

    http: Sequence[Tcp]
    debug: Sequence[Tcp]
    """Nowhere if it is a unix socket."""
    prometheus: Sequence[Tcp]


class _Port(NamedTuple):
    what: str
    addresses: Sequence[Address]
    endpoints: Sequence[Endpoint]
    refusals: Sequence[Middleware] = ()
    tls: HttpTls | None = None


class AdminServer:
    """The HTTP server."""

    def __init__(
        self,
        state: ServiceState,
        settings: Settings,
        methods: Methods,
        events: EventLog,
        rules_api: Callable[[Access], RulesApi],
    ) -> None:
        self._settings = settings
        self._warnings = ThrottledLog(log, steady_clock)
        self._slots = LoopSlots()
        self._connections = HttpConnections(within_file_limit(settings.http_max_connections), self._warnings)
        token = settings.admin_token.get_secret_value()
        self._access = Access(
            token,
            read_needs_token=settings.admin_read_needs_token,
            warnings=self._warnings,
            rules_tokens=settings.rules_token_list,
        )
        tls = Tls(settings.admin_tls_cert, settings.admin_tls_key, settings.admin_client_tls_cacert)
        self._tls = HttpTls(tls, self._slots) if tls.cert and not settings.debug_uds else None
        self._endpoints = Endpoints(state, settings, methods, events, slots=self._slots, http_metrics=self._metrics)
        self._rules = rules_api(self._access)
        self._token_file: TokenFile | None = None
        self._looking: asyncio.Task[None] | None = None
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
            close_sockets(chain.from_iterable(opened))
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
        self._endpoints.show_listening(listening)
        if got[1] and not self._access.token:
            self._make_token(got[1][0].port)
        self._looking = asyncio.create_task(self._look())
        return Addresses(got[0], got[1], got[2] if len(got) > 2 else ())

    @property
    def made_token(self) -> str:
        """The token that was made because there was none; empty if there was."""
        return "" if self._token_file is None else self._token_file.token

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

    def abandon(self) -> None:
        """Remove the files of the unix socket and of the token: nothing listens any more."""
        if self._servers and self._settings.debug_uds:
            remove_socket(Unix(self._settings.debug_uds))
        if self._token_file is not None:
            self._token_file.remove()

    def _make_token(self, port: int) -> None:
        found = TokenFile(port)
        try:
            found.write()
        except OSError as error:
            log.warning("nothing can be changed over the debug port: ADMIN_TOKEN is not set, and %s", error)
            return
        self._token_file = found
        self._access.token = found.token.encode()
        log.info("the token for changes over the debug port is in %s; commands of this user find it", found.path)

    def _ports(self) -> list[_Port]:
        settings, endpoints = self._settings, self._endpoints
        debug: Sequence[Address] = [Tcp(host, settings.debug_port) for host in settings.debug_host]
        if settings.debug_uds:
            debug = [Unix(settings.debug_uds)]
        hosts = settings.debug_allowed_hosts
        ports = [
            _Port(
                "HTTP",
                [Tcp(host, settings.port) for host in settings.host],
                endpoints.for_clients(),
                [refuse_cross_site(settings.http_allowed_origins, hosts)],
            ),
            _Port(
                "debug HTTP",
                debug,
                [
                    *endpoints.for_operator(),
                    Endpoint("GET", "/status/access", self._access.show, _WRITES),
                    *(Endpoint(*route) for route in self._rules.routes()),
                ],
                [as_problems, refuse_foreign_hosts(hosts), refuse_cross_site((), hosts), self._access.middleware],
                self._tls,
            ),
        ]
        if settings.use_prometheus:
            address = settings.prometheus_addr
            ports.append(_Port("Prometheus", [address], endpoints.for_prometheus(settings.prometheus_path)))
        return ports

    async def _serve(self, listener: socket, port: _Port, wrong_protocol: WrongProtocol) -> None:
        app = web.Application(
            client_max_size=self._settings.http_max_body_size,
            middlewares=[self._in_slot, *port.refusals, _listing(port.endpoints)],
        )
        app.on_response_prepare.extend([_name_server, _announce_close])
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
            http = HttpConnection(self._connections, self._slots, make, wrong_protocol)
            return http if port.tls is None else TlsConnection(port.tls, http, wrong_protocol)

        self._servers.append(await loop.create_server(connection, sock=listener, backlog=_BACKLOG))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._token_file is not None:
                self._token_file.keep()
            await self._endpoints.look()

    @web.middleware
    async def _in_slot(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not isinstance(request.transport, AiohttpTransport):
            raise ConnectionResetError("the client has closed the connection")
        with request.transport.connection.answering(request):
            await self._slots.wait()
            return await handler(request)

    def _metrics(self) -> Sequence[Metric]:
        of_tls = () if self._tls is None else self._tls.metrics()
        return (*self._connections.metrics(), *self._access.metrics(), *of_tls)


def _bound(listener: socket) -> Address:
    """The address on which a socket listens, with the port it got."""
    name = listener.getsockname()
    return Unix(name) if isinstance(name, str) else Tcp(*name[:2])


async def _name_server(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = SERVER_NAME


async def _announce_close(request: web.Request, response: web.StreamResponse) -> None:
    # aiohttp closes a connection of which it has not read the body: a client that is not told sends its next request
    # there, and has to find out whether that was handled (RFC 9112, 9.6).
    if not request.content.is_eof():
        response.force_close()
        response.headers["Connection"] = "close"


def _listing(endpoints: Sequence[Endpoint]) -> Middleware:
    """Respond to a path or verb that does not exist with those that exist."""
    lines = "".join(f"{endpoint.verb} {endpoint.path}: {endpoint.help}\n" for endpoint in endpoints)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return web.Response(status=404, text=f"there is nothing at this path; there is\n\n{lines}", headers=TEXT)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            headers = TEXT | {"Allow": allowed}
            return web.Response(status=405, text=f"only {allowed}\n", headers=headers)
        except RuntimeError as error:
            if request.transport is None:  # so aiohttp says that the rest of the body will not arrive
                raise ConnectionResetError("the client has closed the connection") from error
            raise

    return middleware
