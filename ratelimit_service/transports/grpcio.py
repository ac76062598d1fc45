"""The reference transport: methods on a grpc.aio server, which brings the wire, TLS, keepalive and deadlines.

What is ours: a call's callbacks as a coroutine, the order of stopping, and errors that an operator can read.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import quote

import grpc

from ratelimit_service.api.method import Method, StreamMethod
from ratelimit_service.errors import RpcError, StartError
from ratelimit_service.system.address import Address, Tcp
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.metric import Metric
from ratelimit_service.transports.figures import of_calls, of_lag
from ratelimit_service.transports.grpcio_call import Context, StreamCall, UnaryCall, is_trouble
from ratelimit_service.transports.lag import watch_lag
from ratelimit_service.transports.listen import ensure_free
from ratelimit_service.transports.options import GrpcOptions
from ratelimit_service.transports.refusals import INTERNAL, STOPPING, clipped, not_admitted, too_large
from ratelimit_service.transports.tls import Certificates, Pems, bears

log = logging.getLogger(__name__)

_PING_MILLISECONDS = 500
"""Clients may ping twice a second: grpc's own clients do so every ten seconds at most, Envoys as they are told. Three
pings that come faster end the connection: a flood of them (CVE-2019-9512) keeps a server busy answering."""

_FOR_EVER = 2**31 - 1

_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

if TYPE_CHECKING:  # these are generic in the stubs only
    Handler = grpc.RpcMethodHandler[Any, Any]
    Handlers = grpc.GenericRpcHandler[Any, Any]
else:
    Handler = grpc.RpcMethodHandler
    Handlers = grpc.GenericRpcHandler


class GrpcioTransport:
    """Carries methods on grpc.aio.

    A wildcard address, 0.0.0.0 or ::, listens on IPv4 and IPv6: grpc's core knows no other.
    """

    def __init__(self, options: GrpcOptions) -> None:
        self._options = options
        self._server: grpc.aio.Server | None = None
        self._certificates: Certificates | None = None
        self._unary_calls = 0
        self._streams: set[StreamCall] = set()
        self._taken = 0
        self._lag = Latency()
        self._lagging: asyncio.Task[NoReturn] | None = None
        self._stopping = False
        self._quiet = asyncio.Event()

    async def start(
        self, methods: Sequence[Method], streams: Sequence[StreamMethod], addresses: Sequence[Address]
    ) -> Sequence[Address]:
        """As Transport says; also StartError when a certificate cannot be used."""
        self._certificates = certificates = Certificates(self._options.tls) if self._options.tls else None
        addresses = _without_second_wildcards(addresses)
        for address in addresses:
            ensure_free(address)
        logging.getLogger("grpc._cython.cygrpc").addFilter(is_trouble)
        server = grpc.aio.server(options=_channel_options(self._options))
        try:
            got = [_listen(server, address, certificates) for address in addresses]
        except StartError:
            # A server that never ran keeps its sockets: only stopping frees them.
            await server.start()
            await server.stop(None)
            raise
        handlers = {method.path: self._unary(method) for method in methods}
        handlers.update({method.path: self._stream(method) for method in streams})
        server.add_generic_rpc_handlers((_Handlers(handlers),))
        await server.start()
        self._server = server
        self._lagging = asyncio.create_task(watch_lag(self._lag))
        return got

    @property
    def connections(self) -> "GrpcioTransport | None":
        """As Transport says."""
        return self if self._lagging else None

    def metrics(self) -> Sequence[Metric]:
        """As Connections says; of the connections themselves grpc tells nothing."""
        of_tls = self._certificates.metrics() if self._certificates else ()
        return (*of_calls(self._unary_calls + len(self._streams), self._taken), of_lag(self._lag), *of_tls)

    async def stop(self, grace_seconds: float) -> None:
        """GOAWAY, then wait for the unary calls, then end what streams there are; cut all when the grace is over."""
        if self._server is None or self._lagging is None:
            return
        self._lagging.cancel()
        self._lagging = None
        self._stopping = True
        # The core removes the files of unix sockets by itself, as soon as it listens no more.
        async with asyncio.TaskGroup() as tasks:
            stopped = tasks.create_task(self._server.stop(grace_seconds))
            cutting = tasks.create_task(self._cut_streams())
            await stopped
            cutting.cancel()
        for stream in tuple(self._streams):
            stream.close()

    async def _cut_streams(self) -> None:
        while self._unary_calls:
            self._quiet.clear()
            await self._quiet.wait()
        for stream in self._streams:
            stream.finish(STOPPING)

    def _unary(self, method: Method) -> Handler:
        most = self._options.max_answer_size

        async def handle(body: bytes, context: Context) -> bytes:
            await self._admit(context)
            call = UnaryCall()
            self._taken += 1
            self._unary_calls += 1
            try:
                remaining = cast("float | None", context.time_remaining())  # as grpc documents it
                timeout = None if remaining is None else max(0, int(remaining * SECOND))
                cancel = method.call(body, call.reply, timeout)
                answer = call.answer
                if answer is None:
                    answer = await call.wait(cancel)
            except Exception:
                log.exception("%s failed", method.path)
                answer = INTERNAL
            finally:
                self._unary_calls -= 1
                if self._stopping and not self._unary_calls:
                    self._quiet.set()
            if isinstance(answer, RpcError):
                await _abort(context, answer)
            if len(answer) > most:
                await _abort(context, too_large(len(answer), most))
            return answer

        return grpc.unary_unary_rpc_method_handler(handle)

    def _stream(self, method: StreamMethod) -> Handler:
        async def handle(_requests: object, context: Context) -> None:
            await self._admit(context)
            call = StreamCall(method.path, self._options.max_answer_size)
            try:
                call.receiver = method.open(call)
            except Exception:
                log.exception("%s failed", method.path)
                await _abort(context, INTERNAL)
            self._taken += 1
            self._streams.add(call)
            if self._stopping and not self._unary_calls:
                call.finish(STOPPING)
            reading = asyncio.create_task(call.read_from(context))
            try:
                await call.write_to(context)
            finally:
                reading.cancel()
                self._streams.discard(call)
                call.close()
            if call.error is not None:
                await _abort(context, call.error)

        return grpc.stream_stream_rpc_method_handler(handle)

    async def _admit(self, context: Context) -> None:
        """UNAUTHENTICATED for a client whose certificate bears another name than the one it must."""
        wanted = self._options.tls.client_san if self._options.tls else ""
        if not wanted:
            return
        names = context.auth_context().get("x509_subject_alternative_name", ())
        if not bears((name.decode("utf-8", "replace") for name in names), wanted):
            await _abort(context, not_admitted(wanted))


class _Handlers(Handlers):
    """Methods by path; grpc answers UNIMPLEMENTED for what is not there."""

    def __init__(self, handlers: dict[str, Handler]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        return self._handlers.get(handler_call_details.method)


async def _abort(context: Context, error: RpcError) -> NoReturn:
    await context.abort(_CODES[error.status], clipped(error.message))


def _without_second_wildcards(addresses: Sequence[Address]) -> Sequence[Address]:
    """0.0.0.0 and :: are one to grpc, which listens on both for either."""
    seen: set[int] = set()
    kept: list[Address] = []
    for address in addresses:
        if isinstance(address, Tcp) and address.host in {"0.0.0.0", "::"} and address.port:  # noqa: S104 - compared only
            if address.port in seen:
                continue
            seen.add(address.port)
        kept.append(address)
    return kept


def _listen(server: grpc.aio.Server, address: Address, certificates: Certificates | None) -> Address:
    """The address, with the port it got."""
    target = quote(str(address), safe="/:[]")
    try:
        if certificates is None:
            port = server.add_insecure_port(target)
        else:
            port = server.add_secure_port(target, _credentials(certificates))
    except RuntimeError as error:
        ensure_free(address)
        trouble = "cannot bind it" if certificates is None else "cannot bind it, or does not take the certificate"
        raise StartError(f"cannot listen on {address}: grpc {trouble}") from error
    return Tcp(address.host, port) if isinstance(address, Tcp) else address


def _credentials(certificates: Certificates) -> grpc.ServerCredentials:
    pems = certificates.current()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal pems
        before, pems = pems, certificates.current()
        return None if pems is before else _configuration(pems)

    initial = _configuration(pems)
    return grpc.dynamic_ssl_server_credentials(initial, fetch, pems.client_ca is not None)  # type: ignore[arg-type] # None is documented


def _configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], pems.client_ca)


def _channel_options(options: GrpcOptions) -> list[tuple[str, int]]:
    # What is not here: grpc.server.max_pending_requests, 1,000 calls that nobody has begun, and beyond that some are
    # cancelled at random. With a million, a flood of them left 1 GB in half a minute, and others waited all that time.
    return [
        # Without this a second service on the same port would start, and get half of the connections.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", options.max_message_size),
        ("grpc.max_send_message_length", options.max_answer_size),
        ("grpc.keepalive_time_ms", _milliseconds(options.keepalive_time)),
        ("grpc.keepalive_timeout_ms", _milliseconds(options.keepalive_timeout)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_MILLISECONDS),
        ("grpc.max_concurrent_streams", options.max_concurrent_streams),
        ("grpc.absolute_max_metadata_size", options.max_header_list_size),
        ("grpc.max_metadata_size", options.max_header_list_size),
        ("grpc.server_handshake_timeout_ms", _milliseconds(options.preface_timeout)),
        ("grpc.max_connection_idle_ms", _milliseconds(options.max_connection_idle)),
        ("grpc.max_connection_age_ms", _milliseconds(options.max_connection_age)),
        ("grpc.max_connection_age_grace_ms", _milliseconds(options.max_connection_age_grace)),
    ]


def _milliseconds(microseconds: int) -> int:
    """At least 1; 0 is for ever, as is what grpc's 32 bits cannot hold (24 days)."""
    return min(-(-microseconds // 1000), _FOR_EVER) if microseconds else _FOR_EVER
