"""Clients of a whole transport: a healthy one, and those that speak in bytes of the test's own."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import grpc

from ratelimit_service.api.method import Method
from ratelimit_service.system.address import Address, Tcp
from ratelimit_service.system.clock import Clock, steady_clock
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.transports.http2 import Http2Transport
from ratelimit_service.transports.http2.frames import Code
from ratelimit_service.transports.options import GrpcOptions
from tests.transports.methods import WAIT_SECONDS, Echo, Grow, Later, Talk, nothing
from tests.transports.servers import ask, connect, serving


def told(transport: Http2Transport, name: str, label: str = "") -> int:
    """One of the transport's metrics, `ratelimit_grpc_` left out; 0 where there is none."""
    for metric in transport.metrics():
        if metric.name == f"ratelimit_grpc_{name}":
            for labels, value in metric.samples:
                assert not isinstance(labels, str)
                if label in {"", *(text for _, text in labels)}:
                    return value.calls if isinstance(value, Latency) else int(value)
    return 0


class Deaf(Talk):
    """Never answers, and never ends."""

    path = "/tests.Methods/Deaf"

    def __init__(self) -> None:
        super().__init__(nothing)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what must come."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


@asynccontextmanager
async def house(
    options: GrpcOptions | None = None, clock: Clock = steady_clock, later: Later | None = None
) -> AsyncIterator[tuple[Http2Transport, Address]]:
    """A transport with every method."""
    transport = Http2Transport(options or GrpcOptions(), clock)
    methods: list[Method] = [Echo(), Grow(), later or Later()]
    async with serving(lambda _: transport, methods, [Talk(), Deaf()]) as (_, address):
        yield transport, address


@asynccontextmanager
async def healthy(address: Address, credentials: grpc.ChannelCredentials | None = None) -> AsyncIterator[None]:
    """A client that calls before, all the while, and after; it must lose no call."""
    async with connect(address, credentials) as channel:
        assert await ask(channel, Echo(), b"before") == b"before"
        over = False

        async def call() -> int:
            count = 0
            while not over or count < 20:
                assert await ask(channel, Echo(), b"%d" % count) == b"%d" % count
                count += 1
                await asyncio.sleep(0.002)  # the machine has others to serve
            return count

        calling = asyncio.create_task(call())
        try:
            yield
        finally:
            over = True
            assert await calling >= 20
        assert await ask(channel, Echo(), b"after") == b"after"


async def open_socket(
    address: Address, secure: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of the attacker's."""
    assert isinstance(address, Tcp)
    name = "localhost" if secure else None
    return await asyncio.open_connection(address.host, address.port, ssl=secure, server_hostname=name)


async def frames_of(
    reader: asyncio.StreamReader, until: Callable[[int], bool] = lambda _: False
) -> AsyncIterator[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of each frame, to the end of the connection."""
    async with asyncio.timeout(WAIT_SECONDS):
        while frame := await read_frame(reader):
            yield frame
            if until(frame[0]):
                return


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, int, int, bytes] | None:
    """Kind, flags, stream and payload of the next one; None when there is none."""
    head = await reader.read(1)
    if not head:
        return None
    head += await reader.readexactly(8)
    payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
    return head[3], head[4], int.from_bytes(head[5:9], "big"), payload


async def goaway_of(address: Address, attack: bytes, secure: ssl.SSLContext | None = None) -> Code | None:
    """Why the attacker's connection was closed."""
    reader, writer = await open_socket(address, secure)
    writer.write(attack)
    code = None
    with suppress(ConnectionResetError):  # the rest of a flood that nobody reads
        async for kind, _, _, payload in frames_of(reader):
            if kind == 7:
                code = Code(int.from_bytes(payload[4:8], "big"))
    writer.close()
    return code
