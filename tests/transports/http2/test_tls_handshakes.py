"""What the operator hears of clients that do not come through TLS; grpc's core has its own log, and its own mind."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from itertools import count, pairwise
from pathlib import Path

import grpc
import pytest
import uvloop

from ratelimit_service.system.address import Address, Tcp
from ratelimit_service.system.clock import SECOND
from ratelimit_service.transports.http2 import Http2Transport
from ratelimit_service.transports.http2.limits import Bound
from ratelimit_service.transports.http2.scheduling import QUANTUM
from ratelimit_service.transports.options import GrpcOptions, Tls
from tests.loops import run
from tests.transports.certificates import Issued, authority, issue
from tests.transports.http2.clients import healthy, open_socket, told, until
from tests.transports.http2.talk import HELLO, block, data, headers, message, parse
from tests.transports.methods import WAIT_SECONDS, Echo
from tests.transports.servers import ask, connect, failure, serving, trusting

LATER = "; logged at most once a minute"


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


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"], ids=["nothing", "the head of a record"])
def test_a_client_that_does_not_finish_its_handshake_is_sent_away(
    server: Issued, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    async def story() -> tuple[bytes, list[int]]:
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key)), preface_timeout=SECOND // 5)
        async with serving(Http2Transport, [Echo()], options=options) as (served, address):
            assert isinstance(served, Http2Transport)
            rest = await closed(address, sent)
            await until(lambda: not told(served, "connections"))
            return rest, [
                told(served, "connections_accepted_total"),
                told(served, "connections_ended_total", "tls_handshake"),
                told(served, "refused_total", Bound.PREFACE),
            ]

    assert run(story()) == (b"", [1, 1, 1])
    assert warnings(caplog) == [
        f"a connection was ended (tls_handshake): the client takes too long for its handshake{LATER}"
    ]


def test_a_client_that_only_connects_and_goes_is_counted_and_not_told_of(
    server: Issued, caplog: pytest.LogCaptureFixture
) -> None:
    """Load balancers look in this way whether a port is open."""

    async def story() -> tuple[int, int]:
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key)))
        async with serving(Http2Transport, [Echo()], options=options) as (served, address):
            assert isinstance(served, Http2Transport)
            for _ in range(3):
                _, writer = await open_socket(address)
                writer.close()
                await writer.wait_closed()
            await until(lambda: told(served, "connections_ended_total", "client") == 3)
            return told(served, "connections"), told(served, "connections_accepted_total")

    assert run(story()) == (0, 3)
    assert warnings(caplog) == []


def test_clients_that_never_begin_their_handshake_count_and_the_healthy_one_goes_on(ca: Issued, server: Issued) -> None:
    async def story() -> tuple[int, int, bytes]:
        options = GrpcOptions(
            tls=Tls(str(server.cert), str(server.key)), max_connections=10, preface_timeout=5 * SECOND
        )
        async with (
            serving(Http2Transport, [Echo()], options=options) as (served, address),
            healthy(address, trusting(ca)),
        ):
            assert isinstance(served, Http2Transport)
            opened = [await open_socket(address) for _ in range(50)]
            await until(lambda: told(served, "connections_accepted_total") == 51)
            most = told(served, "connections")
            # The first make way for the last, and those end when their time is over.
            evicted = told(served, "connections_ended_total", "evicted")
            assert evicted == told(served, "refused_total", Bound.CONNECTIONS)
            for reader, writer in opened:
                async with asyncio.timeout(WAIT_SECONDS):
                    with suppress(ConnectionResetError):
                        assert await reader.read() == b""
                writer.close()
            await until(lambda: told(served, "connections_ended_total", "tls_handshake") == 9)
            async with connect(address, trusting(ca)) as channel:
                return most, evicted, await ask(channel, Echo(), b"room again")

    assert run(story()) == (10, 41, b"room again")


def test_clients_in_their_handshake_do_not_hold_up_a_stop(server: Issued) -> None:
    async def story() -> tuple[bytes, int]:
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key)))
        async with serving(Http2Transport, [Echo()], options=options) as (served, address):
            assert isinstance(served, Http2Transport)
            reader, writer = await open_socket(address)
            await until(lambda: told(served, "connections") == 1)
            connections = served._server
            async with asyncio.timeout(WAIT_SECONDS):
                await served.stop(1_000)
                rest = await reader.read()
            writer.close()
            assert connections is not None
            return rest, connections.shared.counts.ended["drain"]

    assert run(story()) == (b"", 1)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_what_a_client_says_before_anybody_listens_is_heard(
    ca: Issued, server: Issued, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """It may begin TLS before that is there; and ask with the last words of its handshake, which it ends first."""

    async def story() -> list[tuple[int, int]]:
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key)))
        async with serving(Http2Transport, [Echo()], options=options) as (_, address):
            assert isinstance(address, Tcp)
            client = ssl.create_default_context(cafile=str(ca.cert))
            client.set_alpn_protocols(["h2"])
            there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
            end = client.wrap_bio(back, there, server_hostname="localhost")
            with pytest.raises(ssl.SSLWantReadError):
                end.do_handshake()
            # It connects and begins at once: before the service, on the same loop, can accept.
            hasty = socket.create_connection(address)
            hasty.sendall(there.read())
            reader, writer = await asyncio.open_connection(sock=hasty)
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    back.write(await reader.read(65_536))
                    with suppress(ssl.SSLWantReadError):
                        end.do_handshake()
                        break
                end.write(HELLO + headers(1, block(Echo.path)) + data(1, message(b"early")))
                writer.write(there.read())  # with Finished, in one segment
                said = b""
                while b"early" not in said:
                    back.write(await reader.read(65_536))
                    with suppress(ssl.SSLWantReadError):
                        while True:
                            said += end.read(65_536)
            writer.close()
            return [(kind, number) for kind, _, number, _ in parse(said) if number]

    with asyncio.Runner(loop_factory=loop) as runner:
        assert (0, 1) in runner.run(story())


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


def hello() -> bytes:
    """What a client begins its handshake with."""
    context, there = ssl.create_default_context(), ssl.MemoryBIO()
    context.set_alpn_protocols(["h2"])
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), there, server_hostname="localhost").do_handshake()
    return there.read()


def test_handshakes_that_begin_at_once_are_answered_so_many_in_a_turn(server: Issued) -> None:
    """Each is half a millisecond of work by this clock; all in one turn, they kept every other client waiting."""

    async def story() -> list[int]:
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key)), preface_timeout=60 * SECOND)
        served = Http2Transport(options, tick=count(0, 500_000).__next__)
        turns, begun = [0], hello()  # before, since it takes long
        async with serving(lambda _: served, [Echo()]) as (_, address):
            writers = [(await open_socket(address))[1] for _ in range(60)]
            await until(lambda: told(served, "connections") == 60)

            def look() -> None:
                assert served._server is not None
                turns.append(sum(wire.sent > 0 for wire in served._server.shared.members))
                if turns[-1] < 60:
                    asyncio.get_running_loop().call_soon(look)

            for writer in writers:
                writer.write(begun)
            look()
            await until(lambda: turns[-1] == 60)
            for writer in writers:
                writer.close()
            await until(lambda: not told(served, "connections"))
        return [after - before for before, after in pairwise(turns)]

    assert max(run(story())) <= QUANTUM // 500_000
