"""The same requests to both transports have the same answers."""

import asyncio

import hpack
import pytest

from ratelimit_service.address import Address
from ratelimit_service.api.method import Method
from ratelimit_service.transports.grpcio import GrpcioTransport
from ratelimit_service.transports.http2 import Http2Transport
from ratelimit_service.transports.options import GrpcOptions
from tests.loops import run
from tests.transports.http2.clients import frames_of, open_socket
from tests.transports.http2.talk import HELLO, block, data, headers, message
from tests.transports.methods import Break, Echo, Grow, Refuse, Talk
from tests.transports.servers import OpenTransport, serving

ECHO = Echo.path


@pytest.mark.parametrize(
    ("path", "body", "more"),
    [
        (ECHO, message(b"hello"), ()),
        (ECHO, message(b""), ()),
        (ECHO, message(b"x" * 5000), ()),
        (Refuse.path, message(b""), ()),
        (Grow.path, message(b"5001"), ()),
        (Grow.path, message(b"5000"), ()),
        (ECHO, message(b"x" * 5001), ()),
        ("/nobody/Knows", message(b""), ()),
        (ECHO, message(b"hello"), ((b"grpc-timeout", b"10S"), (b"authorization", b"secret"))),
        (ECHO, message(b"hello"), ((b"grpc-encoding", b"identity"), (b"content-length", b"10"))),
        (Talk.path, message(b"a") + message(b"b"), ()),
        (Talk.path, b"", ()),
    ],
)
def test_the_same_request_has_the_same_answer(path: str, body: bytes, more: tuple[tuple[bytes, bytes], ...]) -> None:
    assert run(answer(Http2Transport, path, body, more)) == run(answer(GrpcioTransport, path, body, more))


async def answer(
    transport: OpenTransport, path: str, body: bytes, more: tuple[tuple[bytes, bytes], ...]
) -> tuple[bytes, str, bool]:
    """Its messages and status, and whether it has a message for people."""
    options = GrpcOptions(max_message_size=5000)
    methods: list[Method] = [Echo(), Refuse(), Grow(), Break()]
    async with serving(transport, methods, [Talk()], options=options) as (_, address):
        return await call(address, path, body, more)


async def call(
    address: Address, path: str, body: bytes, more: tuple[tuple[bytes, bytes], ...]
) -> tuple[bytes, str, bool]:
    """The bytes of one call, sent by hand."""
    reader, writer = await open_socket(address)
    writer.write(HELLO + headers(1, block(path, *more)) + data(1, body))
    decoder, answers, found = hpack.Decoder(), b"", dict[str, str]()
    async for kind, flags, number, payload in frames_of(reader):
        if number != 1:
            continue
        if kind == 0:
            answers += payload
        if kind == 1:
            found.update((str(name), str(value)) for name, value in decoder.decode(payload))
        if kind == 3 or flags & 1:
            break
    writer.close()
    await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])
    return answers, found[":status"] + " " + found["grpc-status"], bool(found.get("grpc-message"))
