"""Starting what is to be tested, and calling it with grpc's own client."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest

from ratelimit_service.api.method import Method, StreamMethod
from ratelimit_service.system.address import Address, Tcp
from ratelimit_service.transports.grpcio import GrpcioTransport
from ratelimit_service.transports.http2 import Http2Transport
from ratelimit_service.transports.options import GrpcOptions
from ratelimit_service.transports.transport import Transport
from tests.transports.certificates import Issued
from tests.transports.methods import WAIT_SECONDS

OpenTransport = Callable[[GrpcOptions], Transport]

TRANSPORTS = [pytest.param(GrpcioTransport, id="grpcio"), pytest.param(Http2Transport, id="http2")]

LOCALHOST = Tcp("127.0.0.1", 0)


@asynccontextmanager
async def serving(
    open_transport: OpenTransport,
    methods: Sequence[Method] = (),
    streams: Sequence[StreamMethod] = (),
    *,
    address: Address = LOCALHOST,
    options: GrpcOptions | None = None,
) -> AsyncIterator[tuple[Transport, Address]]:
    """The transport and where it listens; stopped in the end."""
    transport = open_transport(options or GrpcOptions())
    (listening,) = await transport.start(methods, streams, [address])
    try:
        yield transport, listening
    finally:
        await transport.stop(0)


def connect(address: Address, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """A connection of its own: grpc's channels share one otherwise."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    if credentials is None:
        return grpc.aio.insecure_channel(str(address), options)
    return grpc.aio.secure_channel(
        str(address), credentials, [*options, ("grpc.ssl_target_name_override", "localhost")]
    )


def trusting(ca: Issued, own: Issued | None = None) -> grpc.ChannelCredentials:
    """What a client needs to know, and to show."""
    if own is None:
        return grpc.ssl_channel_credentials(ca.cert.read_bytes())
    return grpc.ssl_channel_credentials(ca.cert.read_bytes(), own.key.read_bytes(), own.cert.read_bytes())


async def ask(channel: grpc.aio.Channel, method: Method | str, body: bytes, seconds: float = WAIT_SECONDS) -> bytes:
    """One call, from bytes to bytes."""
    path = method if isinstance(method, str) else method.path
    answer: bytes = await channel.unary_unary(path, None, None)(body, timeout=seconds)
    return answer


async def failure(channel: grpc.aio.Channel, method: Method | str, body: bytes) -> tuple[grpc.StatusCode, str | None]:
    """The status of a call that must fail."""
    try:
        await ask(channel, method, body)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details()
    raise AssertionError(f"{method} did not fail")


def talk(channel: grpc.aio.Channel, method: StreamMethod, seconds: float = WAIT_SECONDS) -> Any:
    """A streaming call; Any, for grpc-stubs leaves half of it out."""
    opens: Any = channel.stream_stream(method.path, None, None)
    return opens(timeout=seconds)


async def deaf(address: Address) -> None:
    """Returns when nobody listens there any more.

    A connection that grpcio accepts in the very moment it begins to stop may stay open and unanswered (one of a hundred
    with 1.85.1), so calls that a stopping server is to refuse are made after this.
    """
    async with asyncio.timeout(WAIT_SECONDS):
        with suppress(ConnectionRefusedError, FileNotFoundError):
            while True:
                with suppress(ConnectionResetError, BrokenPipeError):
                    if isinstance(address, Tcp):
                        _, writer = await asyncio.open_connection(address.host, address.port)
                    else:
                        _, writer = await asyncio.open_unix_connection(address.path)
                    writer.close()
                    await writer.wait_closed()
