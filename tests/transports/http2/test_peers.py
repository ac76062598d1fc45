"""Other people's programs at our port."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from ratelimit_service.system.address import Address, Tcp
from ratelimit_service.transports.http2 import Http2Transport
from ratelimit_service.transports.options import GrpcOptions, Tls
from tests import peers
from tests.loops import run
from tests.transports.certificates import authority, issue
from tests.transports.methods import Echo, Talk
from tests.transports.servers import serving

SECONDS = 120


def test_h2spec_finds_nothing_wrong() -> None:
    async def story() -> str:
        async with serving(Http2Transport, [Echo()], [Talk()]) as (_, address):
            host, port = of(address)
            return await output([str(peers.h2spec()), "-h", host, "-p", port, "--timeout", "10"])

    report = run(story())

    assert "145 tests, 145 passed, 0 skipped, 0 failed" in report, report


@pytest.mark.parametrize("table", [4096, 0])
def test_h2load_loses_no_request(tmp_path: Path, table: int) -> None:
    question = [*asked(tmp_path), f"--header-table-size={table}"]

    async def story() -> str:
        async with serving(Http2Transport, [Echo()]) as (_, address):
            load = [str(peers.h2load()), "-n", "20000", "-c", "10", "-m", "50", *question]
            return await output([*load, f"http://{address}{Echo.path}"])

    report = run(story())

    assert "20000 succeeded, 0 failed, 0 errored, 0 timeout" in report
    assert "status codes: 20000 2xx" in report


def test_curl_calls_and_is_told_what_to_do_instead() -> None:
    async def story() -> tuple[str, str, str]:
        async with serving(Http2Transport, [Echo()]) as (_, address):
            curl, url = str(peers.curl()), f"http://{address}{Echo.path}"
            http1 = await output([curl, "-si", url])
            http2 = await output([curl, "-si", "--http2-prior-knowledge", url])
            grpc = [curl, "-si", "--http2-prior-knowledge", "-H", "content-type: application/grpc", "--data-binary"]
            return http1, http2, await output([*grpc, "@-", url], b"\0\0\0\0\5hello")

    http1, http2, grpc = run(story())

    assert http1.startswith("HTTP/1.1 400 Bad Request")
    assert http1.endswith("This port speaks gRPC over HTTP/2.\n")
    assert http2.startswith("HTTP/2 405")
    assert http2.endswith("This port speaks gRPC: POST, with content-type application/grpc.\n")
    assert grpc.startswith("HTTP/2 200")
    assert "hello" in grpc
    assert "grpc-status: 0" in grpc


def test_who_asks_for_the_head_only_gets_no_body() -> None:
    """RFC 9110, 9.3.2; one that comes all the same is a PROTOCOL_ERROR to nghttp2."""

    async def story() -> tuple[str, str]:
        async with serving(Http2Transport, [Echo()]) as (_, address):
            curl, url = [str(peers.curl()), "-sSI", "--max-time", "10"], f"http://{address}{Echo.path}"
            return await output([*curl, "--http2-prior-knowledge", url]), await output([*curl, url])

    http2, http1 = run(story())

    assert http2 == "HTTP/2 405 \ncontent-type: text/plain\nallow: POST\n\n"
    assert http1.startswith("HTTP/1.1 400 Bad Request")
    assert http1.endswith("content-length: 35\n\n")


def test_nghttp_sees_the_frames_of_a_call(tmp_path: Path) -> None:
    question = asked(tmp_path)

    async def story() -> str:
        async with serving(Http2Transport, [Echo()]) as (_, address):
            return await output([str(peers.nghttp()), "-nv", *question, f"http://{address}{Echo.path}"])

    report = run(story())

    assert "grpc-status: 0" in report


@pytest.mark.parametrize("plain", [False, True])
def test_tls_is_spoken_with_h2_only(tmp_path: Path, plain: bool) -> None:
    ca = authority(tmp_path, "ca")
    server = issue(ca, "server", "DNS:localhost")

    async def story() -> str:
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key)))
        async with serving(Http2Transport, [Echo()], options=options) as (_, address):
            _, port = of(address)
            version = "--http1.1" if plain else "--http2"
            trust = ["--cacert", str(ca.cert), "--resolve", f"localhost:{port}:127.0.0.1"]
            return await output([str(peers.curl()), "-si", version, *trust, f"https://localhost:{port}/"])

    assert run(story()).startswith("HTTP/1.1 400" if plain else "HTTP/2 405")


def asked(folder: Path) -> list[str]:
    """How nghttp2's programs are told what to ask."""
    body = folder / "question"
    body.write_bytes(b"\0\0\0\0\5hello")
    return ["-d", str(body), "-H", "content-type: application/grpc", "-H", "te: trailers"]


def of(address: Address) -> tuple[str, str]:
    """Host and port."""
    assert isinstance(address, Tcp)
    return address.host, str(address.port)


async def output(command: list[str], stdin: bytes = b"") -> str:
    """What the program says, once it has ended."""

    def program() -> str:
        done = subprocess.run(
            command, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS, check=False
        )
        return done.stdout.decode(errors="replace").replace("\r\n", "\n")

    return await asyncio.to_thread(program)
