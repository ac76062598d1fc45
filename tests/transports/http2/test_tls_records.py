"""Records of TLS: read in turns, however many come at once, and those that carry nothing cost their client."""

import _ssl
import asyncio
import ctypes
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import uvloop

from ratelimit_service.system.address import Tcp
from ratelimit_service.transports.http2 import Http2Transport
from ratelimit_service.transports.http2.limits import FRAMES_PER_RECORD, MAX_IDLE_FRAMES, Bound
from ratelimit_service.transports.options import GrpcOptions, Tls
from ratelimit_service.transports.tls_session import MAX_RECORDS, TlsServer, TlsSession
from tests.loops import run
from tests.transports.certificates import Issued
from tests.transports.http2.clients import healthy, house, told, until
from tests.transports.http2.talk import HELLO, block, data, headers, message, parse
from tests.transports.methods import WAIT_SECONDS, Echo
from tests.transports.servers import serving, trusting

_SSL_AT = 3 * ctypes.sizeof(ctypes.c_void_p)
"""Where an `_ssl._SSLSocket` keeps OpenSSL's own: after the head of every object, and a reference."""

_PLEASE_TOO = 1
"""SSL_KEY_UPDATE_REQUESTED: the other side is to change its keys as well."""


class Client:
    """TLS 1.3 as OpenSSL speaks it; `ssl` has no name for the change of keys."""

    def __init__(self, ca: Issued) -> None:
        context = ssl.create_default_context(cafile=str(ca.cert))
        context.set_alpn_protocols(["h2"])
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.back, self.there = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.end = context.wrap_bio(self.back, self.there, server_hostname="localhost")

    def shake(self) -> bool:
        """One step of the handshake; whether it is over."""
        with suppress(ssl.SSLWantReadError):
            self.end.do_handshake()
            return True
        return False

    def records(self, *sent: bytes) -> bytes:
        """Each as a record of its own."""
        for each in sent:
            self.end.write(each)
        return self.there.read()

    def new_keys(self, count: int) -> bytes:
        """So many changes of its keys, each of which asks for one of the other side's."""
        library = ctypes.CDLL(_ssl.__file__)
        own = ctypes.c_void_p.from_address(id(self.end._sslobj) + _SSL_AT)  # type: ignore[attr-defined] # typeshed hides it
        for _ in range(count):
            assert library.SSL_key_update(own, _PLEASE_TOO) == 1
            self.end.do_handshake()
        return self.there.read()


def established(ca: Issued, server: Issued) -> tuple[Client, TlsSession]:
    """Both ends, through with their handshake."""
    client, session = Client(ca), TlsServer(Tls(str(server.cert), str(server.key)), "h2").begin()
    while not (client.shake() and session.established):
        session.decrypt(client.there.read())
        client.back.write(session.take_output())
    return client, session


def reads(session: TlsSession, raw: bytes) -> Iterator[bytes]:
    """All that it makes of these bytes, turn by turn."""
    yield session.decrypt(raw)
    while session.more:
        yield session.decrypt(b"")


def test_data_comes_out_as_it_went_in_however_the_bytes_are_cut(ca: Issued, server: Issued) -> None:
    client, session = established(ca, server)
    sent = [b"a", b"b" * 20_000, b"", b"c" * 300]
    raw = client.records(*sent)
    whole = b"".join(reads(session, raw))
    bytewise = b"".join(session.decrypt(bytes((byte,))) for byte in client.records(*sent))
    back = session.encrypt(b"d" * 100_000)
    client.back.write(back)
    answer = b""
    with suppress(ssl.SSLWantReadError):
        while True:
            answer += client.end.read(65_536)

    assert whole == bytewise == b"".join(sent)
    assert answer == b"d" * 100_000


def test_one_record_is_read_at_once_and_what_is_none_is_left(ca: Issued, server: Issued) -> None:
    client, session = established(ca, server)
    two = client.records(b"one", b"two")
    neither = session.decrypt_record(two), session.decrypt_record(two[:10]), session.decrypt_record(b"")
    both = session.decrypt(two[:-1])
    cut = session.decrypt_record(two[-1:])
    rest = session.decrypt(two[-1:])

    assert neither == (None, None, None)
    assert (both, cut, rest) == (b"one", None, b"two")
    assert session.decrypt_record(client.records(b"three")) == b"three"
    assert session.decrypt_record(client.new_keys(1)) == b""
    assert session.empty == 1
    assert session.decrypt_record(client.records(b"four")) == b"four"


@pytest.mark.parametrize("carried", [True, False], ids=["a byte each", "changes of keys"])
def test_however_many_records_come_they_are_read_so_many_in_a_turn(ca: Issued, server: Issued, carried: bool) -> None:
    client, session = established(ca, server)
    raw = client.records(*[b"x"] * 1_000) if carried else client.new_keys(1_000)
    turns = []
    for each in reads(session, raw):
        turns.append(len(each) if carried else session.empty)
        session.empty = 0

    assert sum(turns) == 1_000
    assert max(turns) <= MAX_RECORDS


def test_what_is_kept_of_a_long_read_is_no_more_than_the_record_that_is_not_whole(ca: Issued, server: Issued) -> None:
    client, session = established(ca, server)
    raw = client.records(*[b"x" * 16_000] * 16)
    got = b"".join(reads(session, raw[:-100]))

    assert len(got) == 15 * 16_000
    assert len(session._raw) < 17_000


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_client_that_changes_its_keys_again_and_again_is_ended(
    ca: Issued, server: Issued, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Each takes us 50 µs, and nothing of it is seen by HTTP/2: 36,000 on four connections took two seconds."""

    async def story() -> tuple[int, int, int]:
        async with serving(Http2Transport, [Echo()], options=with_tls(server)) as (served, address):
            assert isinstance(served, Http2Transport)
            client, reader, writer = await secured(ca, address)
            writer.write(client.records(HELLO) + client.new_keys(2 * MAX_IDLE_FRAMES // FRAMES_PER_RECORD))
            kinds = []
            async with asyncio.timeout(WAIT_SECONDS):
                with suppress(ConnectionResetError):
                    while raw := await reader.read(65_536):
                        client.back.write(raw)
                        with suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                            while got := client.end.read(65_536):
                                kinds += [(kind, payload[4:8]) for kind, _, _, payload in parse(got)]
            writer.close()
            await until(lambda: not told(served, "connections"))
            ended = told(served, "connections_ended_total", "enhance_your_calm")
            assert kinds[-1] == (7, b"\0\0\0\x0b")
            return ended, told(served, "refused_total", Bound.EMPTY_RECORDS), len(kinds)

    with asyncio.Runner(loop_factory=loop) as runner:
        ended, refused, _ = runner.run(story())
    assert (ended, refused) == (1, 1)


def test_a_client_that_changes_its_keys_now_and_then_is_served_and_harms_nobody(ca: Issued, server: Issued) -> None:
    async def story() -> list[bytes]:
        async with house(with_tls(server)) as (_, address), healthy(address, trusting(ca)):
            client, reader, writer = await secured(ca, address)
            writer.write(client.records(HELLO))
            answers = []
            for number in range(1, 41, 2):
                body = b"%d" % number
                call = headers(number, block(Echo.path)) + data(number, message(body))
                writer.write(client.new_keys(1) + client.records(call))
                said = b""
                async with asyncio.timeout(WAIT_SECONDS):
                    while b"grpc-status" not in said:
                        client.back.write(await reader.read(65_536))
                        with suppress(ssl.SSLWantReadError):
                            while True:
                                said += client.end.read(65_536)
                answers += [payload[5:] for kind, _, _, payload in parse(said) if kind == 0]
            writer.close()
            return answers

    assert run(story()) == [b"%d" % number for number in range(1, 41, 2)]


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_what_is_no_record_ends_the_connection_and_no_other(
    ca: Issued, server: Issued, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def story() -> tuple[int, bytes]:
        async with serving(Http2Transport, [Echo()], options=with_tls(server)) as (served, address):
            assert isinstance(served, Http2Transport)
            client, _, writer = await secured(ca, address)
            writer.write(client.records(HELLO) + b"GET / HTTP/1.1\r\n\r\n")
            await until(lambda: told(served, "connections_ended_total", "tls_record") == 1)
            writer.close()
            _, reader, writer = await secured(ca, address)
            writer.write(b"\x17\x03\x03\0\x20" + bytes(32))  # a record that nobody has sealed
            await until(lambda: told(served, "connections_ended_total", "tls_record") == 2)
            alert = await reader.read()
            writer.close()
            await until(lambda: not told(served, "connections"))
            return told(served, "connections"), alert[:3]

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(story()) == (0, b"\x17\x03\x03")


def with_tls(server: Issued) -> GrpcOptions:
    """The options of a transport that shows this certificate."""
    return GrpcOptions(tls=Tls(str(server.cert), str(server.key)))


async def secured(ca: Issued, address: object) -> tuple[Client, asyncio.StreamReader, asyncio.StreamWriter]:
    """A client on a socket, through with its handshake."""
    assert isinstance(address, Tcp)
    client = Client(ca)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    async with asyncio.timeout(WAIT_SECONDS):
        while not client.shake():
            writer.write(client.there.read())
            client.back.write(await reader.read(65_536))
        writer.write(client.there.read())
    return client, reader, writer
