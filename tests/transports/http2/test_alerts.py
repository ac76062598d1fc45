"""What a client hears when its handshake fails: the alert that says why. Event loops drop it, and grpc's core too."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from ratelimit_service.system.address import Tcp
from ratelimit_service.transports.http2 import Http2Transport
from ratelimit_service.transports.options import GrpcOptions, Tls
from tests.transports.certificates import Issued, authority, expired, issue
from tests.transports.http2.clients import told, until
from tests.transports.http2.talk import HELLO
from tests.transports.methods import WAIT_SECONDS, Echo
from tests.transports.servers import serving


@pytest.fixture(scope="module")
def ends(ca: Issued, server: Issued, tmp_path_factory: pytest.TempPathFactory) -> tuple[GrpcOptions, dict[str, Issued]]:
    """The service's, and what its clients show."""
    client = issue(ca, "caller", "DNS:caller")
    stranger = issue(authority(tmp_path_factory.mktemp("strangers")), "caller", "DNS:caller")
    shown = {"its own": client, "a stranger's": stranger, "an old one": Issued(expired(ca, client), client.key)}
    return GrpcOptions(tls=Tls(str(server.cert), str(server.key), str(ca.cert))), shown


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
@pytest.mark.parametrize(
    ("shows", "alerts"),
    [
        ("nothing", {"SSLV3_ALERT_HANDSHAKE_FAILURE", "TLSV13_ALERT_CERTIFICATE_REQUIRED"}),
        ("a stranger's", {"TLSV1_ALERT_UNKNOWN_CA"}),
        ("an old one", {"SSLV3_ALERT_CERTIFICATE_EXPIRED"}),
        ("its own", {None}),
    ],
)
def test_a_client_that_is_turned_away_hears_why(
    ends: tuple[GrpcOptions, dict[str, Issued]],
    loop: Callable[[], asyncio.AbstractEventLoop],
    version: ssl.TLSVersion,
    shows: str,
    alerts: set[str | None],
) -> None:
    options, shown = ends
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(options.tls.client_ca if options.tls else "")
    context.set_alpn_protocols(["h2"])
    context.minimum_version = context.maximum_version = version
    if shows in shown:
        context.load_cert_chain(*shown[shows])

    async def story() -> str | None:
        async with serving(Http2Transport, [Echo()], options=options) as (served, address):
            assert isinstance(served, Http2Transport)
            assert isinstance(address, Tcp)
            before = files()
            heard = await asyncio.to_thread(heard_by, address.port, context)
            await until(lambda: not told(served, "connections") and files() <= before)
            return heard

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(story()) in alerts


def files() -> int:
    """How many are open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def heard_by(port: int, context: ssl.SSLContext) -> str | None:
    """The alert that a client got; None when it was served."""
    with socket.create_connection(("127.0.0.1", port), WAIT_SECONDS) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as secure:
                secure.sendall(HELLO)
                assert secure.recv(9)
        except ssl.SSLError as error:
            return error.reason
    return None
