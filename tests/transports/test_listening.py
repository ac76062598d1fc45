"""Addresses: several, of every kind, and what the operator reads when one cannot be had."""

import asyncio
import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from ratelimit_service.errors import StartError
from ratelimit_service.system.address import Address, Tcp, Unix
from ratelimit_service.system.clock import SECOND
from ratelimit_service.transports.options import GrpcOptions, Tls
from tests.loops import run
from tests.ports import free_port
from tests.transports.certificates import Issued
from tests.transports.methods import WAIT_SECONDS, Echo, Later
from tests.transports.servers import LOCALHOST, OpenTransport, ask, connect, deaf, serving


def test_it_listens_on_several_addresses_at_once(transport: OpenTransport, tmp_path: Path) -> None:
    async def story() -> list[bytes]:
        served = transport(GrpcOptions())
        wanted: list[Address] = [LOCALHOST, Tcp("::1", 0), Unix(str(tmp_path / "grpc.sock")), Tcp("localhost", 0)]
        addresses = await served.start([Echo()], [], wanted)
        answers = []
        for address in addresses:
            async with connect(address) as channel:
                answers.append(await ask(channel, Echo(), str(address).rpartition(":")[0].encode()))
        await served.stop(1)
        return answers

    assert run(story()) == [b"127.0.0.1", b"[::1]", b"unix", b"localhost"]


@pytest.mark.parametrize("hosts", [["0.0.0.0"], ["::"], ["0.0.0.0", "::"]])  # noqa: S104 - what operators write
def test_a_wildcard_is_reached_by_ipv4(transport: OpenTransport, hosts: list[str]) -> None:
    async def story() -> bytes:
        served, port = transport(GrpcOptions()), free_port()
        await served.start([Echo()], [], [Tcp(host, port) for host in hosts])
        async with connect(Tcp("127.0.0.1", port)) as channel:
            answer = await ask(channel, Echo(), b"here")
        await served.stop(1)
        return answer

    assert run(story()) == b"here"


def test_a_port_in_use_is_a_start_error_of_one_line_and_nothing_listens(
    transport: OpenTransport, capfd: pytest.CaptureFixture[str]
) -> None:
    other = free_port()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError) as refused:
            run(transport(GrpcOptions()).start([Echo()], [], [Tcp("127.0.0.1", other), Tcp("127.0.0.1", port)]))

    assert str(refused.value) == f"cannot listen on 127.0.0.1:{port}: address already in use"
    assert capfd.readouterr().err == ""
    assert not listens(other)


def test_two_services_do_not_share_a_port(transport: OpenTransport) -> None:
    """SO_REUSEPORT, which grpc sets unless told otherwise, would let the second start and take half of the calls."""

    async def story() -> str:
        async with serving(transport, [Echo()]) as (_, address):
            with pytest.raises(StartError) as refused:
                await transport(GrpcOptions()).start([Echo()], [], [address])
            return str(refused.value).replace(str(address), "there")

    assert run(story()) == "cannot listen on there: address already in use"


def test_the_same_address_twice_is_in_use_and_nothing_listens(transport: OpenTransport) -> None:
    """The second fails when the first is bound already: that one is given back."""
    port = free_port()
    with pytest.raises(StartError) as refused:
        run(transport(GrpcOptions()).start([Echo()], [], [Tcp("127.0.0.1", port)] * 2))

    assert str(refused.value) == f"cannot listen on 127.0.0.1:{port}: address already in use"
    assert not listens(port)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (Tcp("no such host", 8081), "cannot listen on no such host:8081: name or service not known"),
        (Tcp("192.0.2.1", 8081), "cannot listen on 192.0.2.1:8081: cannot assign requested address"),
        (Unix("/no/such/folder/s"), "cannot listen on unix:/no/such/folder/s: no such file or directory"),
        (Unix("/" + "x" * 200), "cannot listen on unix:/" + "x" * 200 + ": AF_UNIX path too long"),
        (Unix("/etc/passwd"), "cannot listen on unix:/etc/passwd: the file is there and is not a socket"),
    ],
    ids=["unknown name", "not ours", "no folder", "too long", "a file"],
)
def test_an_address_that_cannot_be_had_is_named_with_the_reason(
    transport: OpenTransport, address: Address, reason: str
) -> None:
    with pytest.raises(StartError) as refused:
        run(transport(GrpcOptions()).start([Echo()], [], [address]))

    assert str(refused.value) == reason


def test_a_unix_socket_is_removed_on_stop(transport: OpenTransport, tmp_path: Path) -> None:
    path = tmp_path / "a folder %41" / "grpc.sock"
    path.parent.mkdir()

    async def story() -> bool:
        async with serving(transport, [Echo()], address=Unix(str(path))):
            return path.is_socket()

    assert run(story())
    assert not path.exists()


def test_the_next_instance_may_listen_on_a_unix_socket_while_the_last_one_drains(
    transport: OpenTransport, tmp_path: Path
) -> None:
    path = Unix(str(tmp_path / "grpc.sock"))

    async def story() -> bytes:
        later = Later()
        async with serving(transport, [later], address=path) as (first, _), connect(path) as channel:
            call = asyncio.create_task(ask(channel, later, b""))
            reply = await later.asked()
            stopping = asyncio.create_task(first.stop(30))
            await deaf(path)
            async with serving(transport, [Echo()], address=path):
                assert not stopping.done()
                reply(b"")
                await call
                await stopping
                async with connect(path) as newcomer:
                    return await ask(newcomer, Echo(), b"the next")

    assert run(story()) == b"the next"


def test_a_unix_socket_has_the_permissions_the_umask_leaves(transport: OpenTransport, tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"

    async def story() -> int:
        before = os.umask(0o027)
        try:
            async with serving(transport, [Echo()], address=Unix(str(path))):
                return path.stat().st_mode & 0o777
        finally:
            os.umask(before)

    assert run(story()) == 0o750


def test_a_stale_unix_socket_is_replaced(transport: OpenTransport, tmp_path: Path) -> None:
    """A service that was killed leaves its file behind; the next one starts all the same."""
    path = tmp_path / "grpc.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def story() -> bytes:
        address = Unix(str(path))
        async with serving(transport, [Echo()], address=address), connect(address) as channel:
            return await ask(channel, Echo(), b"alive")

    assert run(story()) == b"alive"


def test_a_unix_socket_in_use_is_left_alone(transport: OpenTransport, tmp_path: Path) -> None:
    async def story() -> tuple[str, bytes]:
        address = Unix(str(tmp_path / "grpc.sock"))
        async with serving(transport, [Echo()], address=address), connect(address) as channel:
            with pytest.raises(StartError) as refused:
                await transport(GrpcOptions()).start([Echo()], [], [address])
            return str(refused.value).replace(address.path, "there"), await ask(channel, Echo(), b"alive")

    assert run(story()) == ("cannot listen on unix:there: address already in use", b"alive")


@pytest.mark.parametrize("sent", [b"", b"P", b"\x16\x03\x01\x00\xc8\x01\x00"])
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
def test_a_client_that_does_not_begin_is_sent_away(
    transport: OpenTransport, server: Issued, secure: bool, sent: bytes
) -> None:
    """Slowloris: those who never say anything would hold their connections for ever."""

    async def story() -> None:
        tls = Tls(str(server.cert), str(server.key)) if secure else None
        options = GrpcOptions(preface_timeout=SECOND // 5, tls=tls)
        async with serving(transport, [Echo()], options=options) as (_, address):
            assert isinstance(address, Tcp)
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(sent)
            async with asyncio.timeout(WAIT_SECONDS):
                with suppress(ConnectionResetError):
                    await reader.read()  # to the end
            writer.close()

    run(story())


def listens(port: int) -> bool:
    """Whether somebody does."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
