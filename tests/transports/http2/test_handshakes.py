"""What the operator hears of clients that do not come through TLS; grpc's core has its own log, and its own mind."""

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from ratelimit_service.address import Address, Tcp
from ratelimit_service.clock import SECOND
from ratelimit_service.transports.http2 import Http2Transport
from ratelimit_service.transports.options import GrpcOptions, Tls
from tests.loops import run
from tests.transports.certificates import Issued, authority, issue
from tests.transports.http2.clients import told, until
from tests.transports.http2.talk import HELLO
from tests.transports.methods import WAIT_SECONDS, Echo
from tests.transports.servers import connect, failure, serving, trusting

LATER = "; more of these are told in a minute"


def test_clients_that_speak_plain_text_to_a_tls_port_are_told_of_once(
    server: Issued, caplog: pytest.LogCaptureFixture
) -> None:
    """Grpc's core has its own log, and its own mind."""

    async def story() -> None:
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key)))
        async with serving(Http2Transport, [Echo()], options=options) as (served, address):
            for sent in [HELLO, b"GET / HTTP/1.1\r\n\r\n", b"HELO\r\n"] * 5:
                await closed(address, sent)
            assert isinstance(served, Http2Transport)
            await until(lambda: told(served, "connections_ended_total", "tls_handshake") == 15)

    run(story())

    assert warnings(caplog) == [
        "a connection was ended (tls_handshake): the client does not speak TLS, and this port does" + LATER
    ]


def test_clients_that_speak_tls_to_a_plain_port_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with serving(Http2Transport, [Echo()]) as (served, address):
            assert isinstance(address, Tcp)
            for _ in range(5):
                with suppress(OSError):
                    await asyncio.open_connection(address.host, address.port, ssl=ssl.create_default_context())
            assert isinstance(served, Http2Transport)
            await until(lambda: told(served, "connections_ended_total", "protocol_error") == 5)

    run(story())

    assert warnings(caplog) == [
        "a connection was ended (protocol_error): the client speaks TLS, and this port does not" + LATER
    ]


@pytest.mark.parametrize(
    ("shows", "told"),
    [
        ("nothing", "the client shows no certificate"),
        ("a stranger's", "the certificate of the client is not accepted: unable to get local issuer certificate"),
    ],
)
def test_why_a_client_is_turned_away_is_told(
    ca: Issued, server: Issued, tmp_path: Path, caplog: pytest.LogCaptureFixture, shows: str, told: str
) -> None:
    stranger = issue(authority(tmp_path, "other"), "stranger", "DNS:friend")

    async def story() -> grpc.StatusCode:
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key), str(ca.cert)))
        credentials = trusting(ca, None if shows == "nothing" else stranger)
        served = serving(Http2Transport, [Echo()], options=options)
        async with served as (_, address), connect(address, credentials) as channel:
            return (await failure(channel, Echo(), b""))[0]

    assert run(story()) == grpc.StatusCode.UNAVAILABLE
    assert warnings(caplog) == [f"a connection was ended (tls_handshake): {told}{LATER}"]


def test_a_client_that_does_not_finish_its_handshake_is_sent_away(server: Issued) -> None:
    async def story() -> bytes:
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key)), preface_timeout=SECOND // 5)
        async with serving(Http2Transport, [Echo()], options=options) as (_, address):
            return await closed(address, b"\x16\x03\x01")

    assert run(story()) == b""


async def closed(address: Address, sent: bytes) -> bytes:
    """What comes back on a connection of its own until the service closes it."""
    assert isinstance(address, Tcp)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(sent)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()
        with suppress(ConnectionResetError, BrokenPipeError):
            await writer.wait_closed()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the service warned of."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("ratelimit_service")]
