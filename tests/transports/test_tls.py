"""TLS: who is let in, what is agreed on, and what the operator hears of those who are not."""

import asyncio
import shutil
import socket
import ssl
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, create_subprocess_exec
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from ratelimit_service.system.address import Tcp
from ratelimit_service.transports.http2 import Http2Transport
from ratelimit_service.transports.options import GrpcOptions, Tls
from ratelimit_service.transports.tls import bears
from tests import peers
from tests.loops import run
from tests.transports.certificates import Issued, authority, issue
from tests.transports.h2_client import h2_ask
from tests.transports.http2.talk import HELLO
from tests.transports.http2.test_tls_handshakes import LATER, warnings
from tests.transports.methods import WAIT_SECONDS, Echo, Talk
from tests.transports.servers import OpenTransport, ask, connect, failure, serving, talk, trusting


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


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["-tls1_3"], []),
        (["-tls1_2"], []),
        (["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], ["the client speaks no TLS newer than 1.1"]),
        # RFC 9113, appendix A.
        (["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA256"], ["the handshake failed: no shared cipher"]),
    ],
    ids=["1.3", "1.2", "1.1", "old cipher"],
)
def test_openssl_agrees_on_h2_and_on_nothing_old(
    transport: OpenTransport,
    ca: Issued,
    server: Issued,
    caplog: pytest.LogCaptureFixture,
    flags: list[str],
    told: list[str],
) -> None:
    async def story() -> str:
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key)))
        async with serving(transport, [Echo()], options=options) as (_, address):
            trust = ["-CAfile", str(ca.cert), "-verify_hostname", "localhost", "-verify_return_error"]
            return await output(["openssl", "s_client", "-connect", str(address), "-alpn", "h2", *trust, *flags])

    said = run(story())

    assert ("ALPN protocol: h2" in said) is (not told)
    if transport is Http2Transport:
        assert warnings(caplog) == [f"a connection was ended (tls_handshake): {reason}{LATER}" for reason in told]


def test_a_client_that_does_not_agree_on_h2_is_not_served(transport: OpenTransport, ca: Issued, server: Issued) -> None:
    """RFC 9113, 3.2: HTTP/2 over TLS is agreed on by ALPN, and gRPC's servers insist."""

    async def story() -> list[bytes]:
        answers = []
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key)))
        async with serving(transport, [Echo()], options=options) as (_, address):
            for protocols in ["h2"], [], ["http/1.1"]:
                context = ssl.create_default_context(cafile=str(ca.cert))
                if protocols:
                    context.set_alpn_protocols(protocols)
                with suppress(ConnectionError):
                    answers.append(await h2_ask(address, Echo.path, b"hello", context))
        return answers

    assert run(story()) == [b"hello"]


def test_curl_and_h2load_are_served(transport: OpenTransport, ca: Issued, server: Issued, tmp_path: Path) -> None:
    question = tmp_path / "question"
    question.write_bytes(b"\0\0\0\0\5hello")
    of_grpc = ["-H", "content-type: application/grpc", "-H", "te: trailers"]

    async def story() -> tuple[str, str]:
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key)))
        async with serving(transport, [Echo()], options=options) as (_, address):
            port = str(address).rpartition(":")[2]
            trust = ["--cacert", str(ca.cert), "--resolve", f"localhost:{port}:127.0.0.1"]
            url = f"https://localhost:{port}{Echo.path}"
            curl = [str(peers.curl()), "-si", "--http2", *trust, *of_grpc, "--data-binary", f"@{question}", url]
            load = [str(peers.h2load()), "-n", "500", "-c", "5", "-m", "20", "-d", str(question), *of_grpc, url]
            return await output(curl), await output(load)

    answer, report = run(story())

    assert answer.startswith("HTTP/2 200")
    assert "hello" in answer
    assert "500 succeeded, 0 failed, 0 errored, 0 timeout" in report


def test_no_session_outlives_the_authority_that_vouched_for_the_client(
    transport: OpenTransport, ca: Issued, server: Issued, tmp_path: Path
) -> None:
    """A session that is resumed shows no certificate again: it must not be when another authority is to be believed."""
    before, after = authority(tmp_path, "before"), authority(tmp_path, "after")
    client = issue(before, "client", "DNS:client")
    believed = Path(shutil.copy(before.cert, tmp_path / "believed.pem"))

    def connected(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession]:
        with (
            socket.create_connection(("127.0.0.1", port), WAIT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname="localhost", session=session) as secure,
        ):
            secure.sendall(HELLO)
            heard = secure.recv(9)
            assert secure.session is not None
            return heard, secure.session

    def story(port: int, version: ssl.TLSVersion) -> tuple[bool, bool]:
        context = ssl.create_default_context(cafile=str(ca.cert))
        context.load_cert_chain(client.cert, client.key)
        context.set_alpn_protocols(["h2"])
        context.minimum_version = context.maximum_version = version
        heard, session = connected(port, context, None)
        shutil.copy(after.cert, believed)
        try:
            again, _ = connected(port, context, session)
        except OSError:
            again = b""
        return bool(heard), bool(again)

    async def served(version: ssl.TLSVersion) -> tuple[bool, bool]:
        shutil.copy(before.cert, believed)
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key), str(believed)))
        async with serving(transport, [Echo()], options=options) as (_, address):
            assert isinstance(address, Tcp)
            return await asyncio.to_thread(story, address.port, version)

    for version in ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3:
        assert run(served(version)) == (True, False)


async def output(command: list[str]) -> str:
    """What the program says, once it has ended."""
    program = await create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
    async with asyncio.timeout(60):
        said, _ = await program.communicate()
    return said.decode(errors="replace")
