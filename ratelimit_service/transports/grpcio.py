"""The reference transport: methods on a grpc.aio server, which does HTTP/2, TLS, keepalive and deadlines.

What is ours: a call's callbacks as a coroutine, the order of stopping, and errors that an operator can read.

A call has the callbacks of a method on one side (`reply`, or a Sender and a Receiver), and the coroutine that grpc
awaits on the other: `_UnaryCall` and `_StreamingCall` connect them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast
from urllib.parse import quote

import grpc

from ratelimit_service.api.method import Method, Receiver, StreamMethod
from ratelimit_service.api.trace_context import TraceContext, read_context
from ratelimit_service.errors import RpcError, StartError
from ratelimit_service.model import Cancel
from ratelimit_service.system.address import Address, Tcp
from ratelimit_service.system.clock import SECOND
from ratelimit_service.system.listen import ensure_free
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.metric import Metric
from ratelimit_service.transports.lag import of_lag, watch_lag
from ratelimit_service.transports.options import GrpcOptions
from ratelimit_service.transports.tls import Certificates, Pems, bears
from ratelimit_service.transports.transport import (
    INTERNAL,
    MAX_UNREAD_BYTES,
    MESSAGE_BYTES,
    PAUSE_BYTES,
    STOPPING,
    UNREAD,
    clipped,
    not_admitted,
    of_calls,
    too_large,
)

log = logging.getLogger(__name__)

_PING_MILLISECONDS = 500
"""Clients may ping twice a second: grpc's own clients do so every ten seconds at most, Envoy as it is configured. Three
pings that come faster end the connection: a flood of them (CVE-2019-9512) keeps a server busy with responses."""

_NEVER = 2**31 - 1

# grpc-stubs leaves the request and response of a handler's context open: they are bytes here.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_EOF = grpc.aio.EOF  # type: ignore[attr-defined] # grpc-stubs forgot it

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
        self._streams: set[_StreamingCall] = set()
        self._taken = 0
        self._lag = Latency()
        self._watching_lag: asyncio.Task[NoReturn] | None = None
        self._stopping = False
        self._no_unary_calls = asyncio.Event()

    async def start(
        self, methods: Sequence[Method], streams: Sequence[StreamMethod], addresses: Sequence[Address]
    ) -> Sequence[Address]:
        """See Transport; StartError also when a certificate cannot be used."""
        self._certificates = certificates = Certificates(self._options.tls) if self._options.tls else None
        addresses = _without_second_wildcards(addresses)
        for address in addresses:
            await ensure_free(address)
        logging.getLogger("grpc._cython.cygrpc").addFilter(_is_failure)
        server = grpc.aio.server(options=_channel_options(self._options))
        try:
            got = [await _listen(server, address, certificates) for address in addresses]
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
        self._watching_lag = asyncio.create_task(watch_lag(self._lag))
        return got

    def metrics(self) -> Sequence[Metric]:
        """The metrics of its calls and the event loop; grpc has none of connections."""
        if self._watching_lag is None:
            return ()
        of_tls = self._certificates.metrics() if self._certificates else ()
        return (*of_calls(self._unary_calls + len(self._streams), self._taken), of_lag(self._lag), *of_tls)

    async def stop(self, grace_seconds: float) -> None:
        """Send GOAWAY, wait for the unary calls, end the streams; when the grace is over, cancel what is left."""
        if self._server is None or self._watching_lag is None:
            return
        self._watching_lag.cancel()
        self._watching_lag = None
        self._stopping = True
        # The core removes the files of unix sockets by itself, as soon as it listens no more.
        async with asyncio.TaskGroup() as tasks:
            stopped = tasks.create_task(self._server.stop(grace_seconds))
            finishing = tasks.create_task(self._finish_streams())
            await stopped
            finishing.cancel()
        for stream in tuple(self._streams):
            stream.close()

    async def _finish_streams(self) -> None:
        while self._unary_calls:
            self._no_unary_calls.clear()
            await self._no_unary_calls.wait()
        for stream in self._streams:
            stream.finish(STOPPING)

    def _unary(self, method: Method) -> Handler:
        most = self._options.max_response_size
        traced = self._options.traced_path == method.path
        with_context: Any = method.call

        async def handle(body: bytes, context: Context) -> bytes:
            await self._admit(context)
            call = _UnaryCall()
            self._taken += 1
            self._unary_calls += 1
            try:
                remaining = cast("float | None", context.time_remaining())  # as grpc documents it
                timeout = None if remaining is None else max(0, int(remaining * SECOND))
                method_call = partial(with_context, context=_trace_of(context)) if traced else method.call
                cancel = method_call(body, call.reply, timeout)
                response = call.response
                if response is None:
                    response = await call.wait(cancel)
            except Exception:
                log.exception("%s failed", method.path)
                response = INTERNAL
            finally:
                self._unary_calls -= 1
                if self._stopping and not self._unary_calls:
                    self._no_unary_calls.set()
            if isinstance(response, RpcError):
                await _abort(context, response)
            if len(response) > most:
                await _abort(context, too_large(len(response), most))
            return response

        return grpc.unary_unary_rpc_method_handler(handle)

    def _stream(self, method: StreamMethod) -> Handler:
        async def handle(_requests: object, context: Context) -> None:
            await self._admit(context)
            call = _StreamingCall(method.path, self._options.max_response_size)
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
        """End the call with UNAUTHENTICATED unless the client's certificate bears the required name."""
        wanted = self._options.tls.client_san if self._options.tls else ""
        if not wanted:
            return
        names = context.auth_context().get("x509_subject_alternative_name", ())
        if not bears((name.decode("utf-8", "replace") for name in names), wanted):
            await _abort(context, not_admitted(wanted))


class _Handlers(Handlers):
    """Methods by path; grpc responds UNIMPLEMENTED for the others."""

    def __init__(self, handlers: dict[str, Handler]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        return self._handlers.get(handler_call_details.method)


def _trace_of(context: Context) -> TraceContext | None:
    fields: Iterable[tuple[str, str | bytes]] = context.invocation_metadata() or ()
    return read_context((key.encode(), value.encode() if isinstance(value, str) else value) for key, value in fields)


async def _abort(context: Context, error: RpcError) -> NoReturn:
    await context.abort(_CODES[error.status], clipped(error.message))


def _without_second_wildcards(addresses: Sequence[Address]) -> Sequence[Address]:
    """The addresses, of which 0.0.0.0 and :: of one port are one: grpc listens on both for either."""
    seen: set[int] = set()
    kept: list[Address] = []
    for address in addresses:
        if isinstance(address, Tcp) and address.host in {"0.0.0.0", "::"} and address.port:  # noqa: S104 - compared only
            if address.port in seen:
                continue
            seen.add(address.port)
        kept.append(address)
    return kept


async def _listen(server: grpc.aio.Server, address: Address, certificates: Certificates | None) -> Address:
    """The address, with the port it got."""
    target = quote(str(address), safe="/:[]")
    try:
        if certificates is None:
            port = server.add_insecure_port(target)
        else:
            port = server.add_secure_port(target, _credentials(certificates))
    except RuntimeError as error:
        await ensure_free(address)
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
    # Left at its default: grpc.server.max_pending_requests, 1,000 calls that have not begun; beyond that, some are
    # cancelled at random. With a million, a flood of them took 1 GB in half a minute, and other calls waited that long.
    return [
        # Without this a second service on the same port would start, and get half of the connections.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", options.max_message_size),
        ("grpc.max_send_message_length", options.max_response_size),
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
    """At least 1. 0 means never, and so does what grpc's 32 bits cannot hold (24 days)."""
    return min(-(-microseconds // 1000), _NEVER) if microseconds else _NEVER


def _is_failure(record: logging.LogRecord) -> bool:
    """Whether grpc logs more than a client that disconnected while its response was sent.

    grpc logs that as an error with a traceback, though clients may disconnect at any moment: at each deadline, for one.
    """
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, grpc.aio.InternalError):
        return True
    log.debug("a client disconnected before its response: %s", record.getMessage())
    return False


class _UnaryCall:
    """One call with one response; it makes a future only when the response comes later."""

    __slots__ = ("_waiting", "response")

    def __init__(self) -> None:
        self.response: bytes | RpcError | None = None
        self._waiting: asyncio.Future[bytes | RpcError] | None = None

    def reply(self, response: bytes | RpcError) -> None:
        """Keep the first response; one for a call that was cancelled is dropped."""
        if self._waiting is None:
            if self.response is None:
                self.response = response
        elif not self._waiting.done():
            self._waiting.set_result(response)

    async def wait(self, cancel: Cancel | None) -> bytes | RpcError:
        """Wait for the response. When grpc cancels the call meanwhile, as at its deadline, `cancel` is called."""
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            return await self._waiting
        except asyncio.CancelledError:
            if cancel is not None:
                cancel()
            raise


class _StreamingCall:
    """One streaming call: what the method sends is queued here until the client reads it."""

    receiver: Receiver

    def __init__(self, path: str, max_response_size: int) -> None:
        self.error: RpcError | None = None
        self._path = path
        self._max_response_size = max_response_size
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._finished = False
        self._closed = False
        self._queued = asyncio.Event()
        self._room = asyncio.Event()

    def send(self, message: bytes) -> None:
        """Queue a message; a client that leaves too much unread loses the call."""
        if self._finished:
            return
        size = len(message) + MESSAGE_BYTES
        if len(message) > self._max_response_size:
            self.finish(too_large(len(message), self._max_response_size))
        elif self._unread and self._unread_bytes + size > MAX_UNREAD_BYTES:
            self._unread.clear()
            self.finish(UNREAD)
        else:
            self._unread.append(message)
            self._unread_bytes += size
            self._queued.set()

    def finish(self, error: RpcError | None = None) -> None:
        """End the call, after what is queued was sent."""
        if not self._finished:
            self._finished = True
            self.error = error
            self._queued.set()
            self._room.set()

    def close(self) -> None:
        """Notify the method, once, that the call has ended."""
        self._finished = True
        if self._closed:
            return
        self._closed = True
        try:
            self.receiver.closed()
        except Exception:
            log.exception("%s failed", self._path)

    async def read_from(self, context: Context) -> None:
        """Pass the client's messages to the method; none while the client leaves too many responses unread."""
        try:
            # BaseError: the call ended while its next message was awaited.
            with suppress(grpc.aio.BaseError):
                while (message := await context.read()) is not _EOF:
                    if self._finished:
                        return
                    self.receiver.receive(message)
                    while self._unread_bytes > PAUSE_BYTES and not self._finished:
                        self._room.clear()
                        await self._room.wait()
                if not self._finished:
                    self.receiver.half_close()
        except Exception:
            log.exception("%s failed", self._path)
            self.finish(INTERNAL)

    async def write_to(self, context: Context) -> None:
        """Send the client what is queued, until the method ends the call."""
        while True:
            while self._unread:
                message = self._unread.popleft()
                await context.write(message)
                self._unread_bytes -= len(message) + MESSAGE_BYTES
                self._room.set()
            if self._finished:
                return
            self._queued.clear()
            await self._queued.wait()
