"""TLS: who is let in, and certificates that change while the service runs."""

import asyncio
import logging
import shutil
import ssl
import subprocess
from pathlib import Path

import grpc
import pytest

from ratelimit_service.address import Address
from ratelimit_service.errors import StartError
from ratelimit_service.transports.options import GrpcOptions, Tls
from ratelimit_service.transports.tls import bears
from tests.loops import run
from tests.transports.certificates import Issued, authority, issue
from tests.transports.methods import Echo, Talk
from tests.transports.servers import LOCALHOST, OpenTransport, ask, connect, failure, serving, talk


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    """Who signs."""
    return authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(ca: Issued) -> Issued:
    """The service's own."""
    return issue(ca, "server", "DNS:localhost")


@pytest.fixture
def replaced(server: Issued, tmp_path: Path) -> Issued:
    """A copy of the service's own, for a test that changes it."""
    return Issued(*(Path(shutil.copy(path, tmp_path)) for path in server))


def test_a_client_that_trusts_the_authority_is_served(transport: OpenTransport, ca: Issued, server: Issued) -> None:
    async def story() -> bytes:
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key)))
        served = serving(transport, [Echo()], options=options)
        async with served as (_, address), connect(address, trusting(ca)) as channel:
            return await ask(channel, Echo(), b"secret")

    assert run(story()) == b"secret"


def test_a_client_without_tls_is_not_served(transport: OpenTransport, server: Issued) -> None:
    async def story() -> grpc.StatusCode:
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key)))
        async with serving(transport, [Echo()], options=options) as (_, address), connect(address) as channel:
            return (await failure(channel, Echo(), b""))[0]

    assert run(story()) == grpc.StatusCode.UNAVAILABLE


def test_with_a_client_ca_only_clients_it_signed_are_served(
    transport: OpenTransport, ca: Issued, server: Issued, tmp_path: Path
) -> None:
    friend, stranger = issue(ca, "friend", "DNS:friend"), issue(authority(tmp_path, "other"), "stranger", "DNS:friend")

    async def story() -> tuple[bytes, list[grpc.StatusCode]]:
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key), str(ca.cert)))
        async with serving(transport, [Echo()], options=options) as (_, address):
            async with connect(address, trusting(ca, friend)) as channel:
                answer = await ask(channel, Echo(), b"hello")
            refused = []
            for credentials in trusting(ca), trusting(ca, stranger):
                async with connect(address, credentials) as channel:
                    refused.append((await failure(channel, Echo(), b""))[0])
            return answer, refused

    assert run(story()) == (b"hello", [grpc.StatusCode.UNAVAILABLE] * 2)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ("envoy.mesh.local", grpc.StatusCode.OK),
        ("spiffe://mesh.local/envoy", grpc.StatusCode.OK),
        ("10.1.2.3", grpc.StatusCode.OK),
        ("2001:db8::0:1", grpc.StatusCode.OK),
        ("other.mesh.local", grpc.StatusCode.UNAUTHENTICATED),
        ("client", grpc.StatusCode.UNAUTHENTICATED),  # its common name, which is no longer looked at (RFC 6125)
    ],
)
def test_a_client_must_bear_the_wanted_name(
    transport: OpenTransport, ca: Issued, server: Issued, wanted: str, code: grpc.StatusCode
) -> None:
    names = ["DNS:envoy.mesh.local", "URI:spiffe://mesh.local/envoy", "IP:10.1.2.3", "IP:2001:db8::1"]
    client = issue(ca, "client", *names)

    async def story() -> list[grpc.StatusCode]:
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key), str(ca.cert), wanted))
        served = serving(transport, [Echo()], [Talk()], options=options)
        async with served as (_, address), connect(address, trusting(ca, client)) as channel:
            unary = channel.unary_unary(Echo.path, None, None)(b"")
            stream = talk(channel, Talk())
            await stream.done_writing()
            return [await unary.code(), await stream.code()]

    assert run(story()) == [code, code]


@pytest.mark.parametrize(
    ("name", "wanted", "fits"),
    [
        ("Envoy.Mesh.local", "envoy.mesh.LOCAL", True),
        ("*.mesh.local", "envoy.mesh.local", True),
        ("*.mesh.local", "a.envoy.mesh.local", False),
        ("*.mesh.local", ".mesh.local", False),
        ("*.mesh.local", "mesh.local", False),
        ("envoy.mesh.local.", "envoy.mesh.local", True),
        ("spiffe://mesh/envoy", "spiffe://mesh/Envoy", False),
        ("10.1.2.3", "10.1.2.30", False),
        ("", "envoy", False),
    ],
)
def test_names_fit_as_certificates_have_it(name: str, wanted: str, fits: bool) -> None:
    assert bears([name], wanted) is fits


def test_a_changed_certificate_is_used_from_the_next_connection_on(
    transport: OpenTransport, ca: Issued, replaced: Issued, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ratelimit_service")
    renewed = issue(ca, "renewed", "DNS:localhost")

    async def story() -> tuple[bool, bool, bytes]:
        options = GrpcOptions(tls=Tls(str(replaced.cert), str(replaced.key)))
        async with serving(transport, [Echo()], options=options) as (_, address):
            before = await shown(address) == pem(replaced)
            shutil.copy(renewed.key, replaced.key)
            shutil.copy(renewed.cert, replaced.cert)
            after = await shown(address) == pem(renewed)
            async with connect(address, trusting(ca)) as channel:
                return before, after, await ask(channel, Echo(), b"still here")

    assert run(story()) == (True, True, b"still here")
    assert lines(caplog) == [f"certificate loaded again from {replaced.cert}"]


def test_a_broken_certificate_never_replaces_a_good_one(
    transport: OpenTransport, ca: Issued, replaced: Issued, caplog: pytest.LogCaptureFixture
) -> None:
    """One line when it breaks, however many connections come, and one when it is good again."""
    caplog.set_level(logging.INFO, "ratelimit_service")
    renewed = issue(ca, "again", "DNS:localhost")
    old = pem(replaced)

    async def story() -> list[bool]:
        options = GrpcOptions(tls=Tls(str(replaced.cert), str(replaced.key)))
        async with serving(transport, [Echo()], options=options) as (_, address):
            shutil.copy(renewed.cert, replaced.cert)  # and its key is not there yet
            kept = [await shown(address) == old for _ in range(3)]
            replaced.key.unlink()
            kept += [await shown(address) == old for _ in range(3)]
            shutil.copy(renewed.key, replaced.key)
            return [*kept, await shown(address) == pem(renewed)]

    cert, key = replaced
    stays = "certificate not loaded, the old one stays:"
    assert run(story()) == [True] * 7
    assert lines(caplog) == [
        f"{stays} cannot use the private key {key}: it does not belong to the certificate {cert}",
        f"{stays} cannot read the private key {key}: no such file or directory",
        f"certificate loaded again from {cert}",
    ]


@pytest.mark.parametrize("broken", ["no cert", "no key", "cert is none", "key is none", "locked", "mismatch", "no ca"])
def test_a_certificate_that_cannot_be_used_is_a_start_error_of_one_line(
    transport: OpenTransport, ca: Issued, server: Issued, tmp_path: Path, broken: str
) -> None:
    rubbish, locked = tmp_path / "rubbish", tmp_path / "locked"
    rubbish.write_text("no pem\n", encoding="utf-8")
    lock = ["openssl", "ec", "-aes128", "-passout", "pass:x", "-in", str(server.key), "-out", str(locked)]
    subprocess.run(lock, check=True, capture_output=True, timeout=60)
    cert, key = map(str, server)
    unusable = "it is not a private key in PEM without a password"
    tls, problem = {
        "no cert": (Tls("/no/cert", key), "cannot read the certificate /no/cert: no such file or directory"),
        "no key": (Tls(cert, "/no/key"), "cannot read the private key /no/key: no such file or directory"),
        "cert is none": (Tls(key, key), f"cannot use the certificate {key}: it is not a certificate in PEM"),
        "key is none": (Tls(cert, str(rubbish)), f"cannot use the private key {rubbish}: {unusable}"),
        "locked": (Tls(cert, str(locked)), f"cannot use the private key {locked}: {unusable}"),
        "mismatch": (
            Tls(cert, str(ca.key)),
            f"cannot use the private key {ca.key}: it does not belong to the certificate {cert}",
        ),
        "no ca": (Tls(cert, key, str(rubbish)), f"cannot use the client CA {rubbish}: it is not a certificate in PEM"),
    }[broken]

    with pytest.raises(StartError) as refused:
        run(transport(GrpcOptions(tls=tls)).start([Echo()], [], [LOCALHOST]))

    assert str(refused.value) == problem


def trusting(ca: Issued, own: Issued | None = None) -> grpc.ChannelCredentials:
    """What a client needs to know, and to show."""
    if own is None:
        return grpc.ssl_channel_credentials(ca.cert.read_bytes())
    return grpc.ssl_channel_credentials(ca.cert.read_bytes(), own.key.read_bytes(), own.cert.read_bytes())


async def shown(address: Address) -> str:
    """The certificate that a new connection is shown, as OpenSSL sees it."""
    host, _, port = str(address).rpartition(":")
    return (await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))).strip()


def pem(issued: Issued) -> str:
    """The certificate in its file."""
    return issued.cert.read_text(encoding="ascii").strip()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the service logged."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("ratelimit_service")]
