"""A control plane for tests: an ADS server that sends what a test says, however wrong, and keeps what it is sent."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc
from google.protobuf import json_format

from ratelimit_service.api.generated.ratelimit.config.ratelimit.v3.rls_conf_pb2 import RateLimitConfig
from ratelimit_service.api.generated.ratelimit.v1.discovery_pb2 import DiscoveryRequest
from ratelimit_service.rules.sources.xds.dial import STREAM
from ratelimit_service.rules.sources.xds.snapshot import TYPE_URL


def field(number: int, value: bytes) -> bytes:
    """A field with a length, as protobuf writes it."""
    length, size = b"", len(value)
    while size >= 0x80:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + value


def config(domain: str, *descriptors: Mapping[str, Any], name: str = "") -> bytes:
    """A RateLimitConfig with these descriptors, in protobuf's JSON."""
    message = {"name": name or domain, "domain": domain, "descriptors": descriptors}
    return json_format.ParseDict(message, RateLimitConfig()).SerializeToString()


def user(requests: int, unit: str = "HOUR", **more: Any) -> dict[str, Any]:
    """A descriptor that limits each user."""
    return {"key": "user", "rate_limit": {"unit": unit, "requests_per_unit": requests}, **more}


def response(version: str, *configs: bytes, nonce: str = "", type_url: str = TYPE_URL) -> bytes:
    """A DiscoveryResponse with these resources."""
    resources = b"".join(field(2, field(1, type_url.encode()) + field(2, each)) for each in configs)
    return (
        field(1, version.encode())
        + resources
        + field(4, TYPE_URL.encode())
        + field(5, (nonce or f"n{version}").encode())
    )


class Stream(NamedTuple):
    """One stream of a client."""

    requests: "asyncio.Queue[DiscoveryRequest]"
    responses: "asyncio.Queue[bytes | None]"
    headers: Mapping[str, str | bytes]

    def send(self, *responses: bytes) -> None:
        """Send these."""
        for each in responses:
            self.responses.put_nowait(each)

    def end(self) -> None:
        """End the stream."""
        self.responses.put_nowait(None)

    async def request(self) -> DiscoveryRequest:
        """The next request of the client."""
        async with asyncio.timeout(60):
            return await self.requests.get()


class Plane:
    """It at work."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.address = f"localhost:{port}"
        self.streams: asyncio.Queue[Stream] = asyncio.Queue()
        self.dialled = 0

    async def stream(self) -> Stream:
        """The next stream that a client opens."""
        async with asyncio.timeout(60):
            return await self.streams.get()

    async def answer(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Serve one stream."""
        self.dialled += 1
        headers = dict(context.invocation_metadata())
        stream = Stream(asyncio.Queue(), asyncio.Queue(), headers)
        self.streams.put_nowait(stream)

        async def receive() -> None:
            async for each in requests:
                stream.requests.put_nowait(DiscoveryRequest.FromString(each))

        receiving = asyncio.create_task(receive())
        try:
            while (found := await stream.responses.get()) is not None:
                yield found
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)


@asynccontextmanager
async def start_plane(
    port: int = 0, credentials: grpc.ServerCredentials | None = None, options: Iterable[tuple[str, int]] = ()
) -> AsyncIterator[Plane]:
    """A control plane, until the end of the block."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), *options])
    address = f"localhost:{port}"
    got = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    plane = Plane(got)
    service, _, method = STREAM.strip("/").rpartition("/")
    handlers = {method: grpc.stream_stream_rpc_method_handler(plane.answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    await server.start()
    try:
        yield plane
    finally:
        await server.stop(0)
