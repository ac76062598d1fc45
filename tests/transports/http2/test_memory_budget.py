"""What all connections hold together: counted in bytes, and beyond the most there may be those end that hold most."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from ratelimit_service.system.address import Address, Tcp
from ratelimit_service.system.clock import HOUR, SECOND
from ratelimit_service.transports.http2.frames import Code
from ratelimit_service.transports.http2.limits import Bound
from ratelimit_service.transports.http2.scheduling import MemoryLimit
from ratelimit_service.transports.options import GrpcOptions, Tls
from tests.clocks import Clock
from tests.loops import run
from tests.transports.certificates import Issued
from tests.transports.http2.clients import frames_of, healthy, house, open_socket, told, until
from tests.transports.http2.talk import HELLO, STREAM, Talk, block, data, frame, headers, message, settings, window
from tests.transports.http2.waste import ECHO, GROW, LATER, calls
from tests.transports.methods import Echo, Later
from tests.transports.servers import trusting

MOST = 20 * 1024 * 1024
"""A thirteenth of the default, so that thirty clients are enough."""


class Some:
    """A connection of the test's own: what it holds, what of that it can do without, and whether it was ended."""

    def __init__(self, memory: MemoryLimit, headers: int = 0, messages: int = 0) -> None:
        self.weight = 0
        self.ended = False
        self.headers = headers
        self.messages = messages
        self._memory = memory

    def weigh(self) -> None:
        """Tell it."""
        before, self.weight = self.weight, self.headers + self.messages
        self._memory.add(self.weight - before)

    def clear_caches(self) -> None:
        """Without headers."""
        self.headers = 0

    def end_over_memory(self) -> None:
        """Without anything."""
        self.ended = True
        self.headers = self.messages = 0


def test_what_is_remembered_of_headers_goes_first_and_then_the_connections_that_hold_most() -> None:
    holders: list[Some] = []
    memory = MemoryLimit(1_000, holders)
    holders += [Some(memory, 50, 100) for _ in range(6)]
    small, large = Some(memory, 40, 10), Some(memory, 0, 500)
    holders += [small, large]
    for holder in holders[:7]:
        holder.weigh()
    before = memory.used
    large.weigh()

    assert before == 950
    assert [holder.headers for holder in holders[:6]] == [0] * 6
    assert [holder.ended for holder in holders] == [False] * 7 + [True]
    assert memory.used == 600 + 10 + small.headers


@asynccontextmanager
async def attackers(address: Address, count: int, sent: bytes) -> AsyncIterator[list[asyncio.StreamReader]]:
    """So many clients that send this and read nothing but the end."""
    opened = [await open_socket(address) for _ in range(count)]
    for _, writer in opened:
        writer.write(sent)
    yield [reader for reader, _ in opened]
    for _, writer in opened:
        writer.transport.abort()


UNREAD = HELLO + settings((4, 0)) + calls(300, block=GROW, body=b"9000")
"""2.7 MB of answers for which there is no room."""
HALF = HELLO + b"".join(
    headers(n, ECHO) + data(n, message(bytes(100_000))[:16_000], end=False) for n in range(1, 300, 2)
)
"""2.4 MB of messages that are not whole."""


@pytest.mark.parametrize("sent", [UNREAD, HALF], ids=["unread answers", "unfinished messages"])
def test_thirty_clients_hold_no_more_than_there_may_be_and_a_healthy_one_is_not_ended(sent: bytes) -> None:
    async def story() -> tuple[int, int, int, int]:
        most = 0
        async with house(GrpcOptions(max_memory=MOST)) as (transport, address), healthy(address):
            async with attackers(address, 30, sent):

                def ended() -> int:
                    nonlocal most
                    most = max(most, told(transport, "memory_bytes"))
                    return told(transport, "connections_ended_total", "enhance_your_calm")

                await until(lambda: told(transport, "received_bytes_total") >= 25 * len(sent) and ended() >= 15)
            await until(lambda: told(transport, "connections") == 1)
            await transport.check()
            return most, ended(), told(transport, "refused_total", Bound.MEMORY), told(transport, "memory_bytes")

    most, ended, counted, left = run(story())
    assert most <= MOST
    assert 15 <= ended <= counted < 30
    assert left < 50_000


def test_a_client_that_is_ended_for_the_memory_of_all_hears_so() -> None:
    async def story() -> list[Code]:
        async with (
            house(GrpcOptions(max_memory=1_000_000)) as (_, address),
            healthy(address),
            attackers(address, 1, HALF) as (reader,),
        ):
            return [
                Code(int.from_bytes(payload[4:8], "big"))
                async for kind, _, _, payload in frames_of(reader)
                if kind == 7
            ]

    assert run(story()) == [Code.ENHANCE_YOUR_CALM]


def test_late_answers_that_a_client_does_not_read_count_as_soon_as_they_are_written() -> None:
    """They leave the connection at once, which had 12 MB for the calls, and stay with its socket."""
    count, later = 20_000, Later()

    async def story() -> int:
        async with house(GrpcOptions(max_concurrent_streams=count), later=later) as (transport, address):
            assert isinstance(address, Tcp)
            with socket.create_connection((address.host, address.port)) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.setblocking(False)
                await asyncio.get_running_loop().sock_sendall(client, HELLO + window(0, 2**30) + calls(count, LATER))
                replies = [await later.asked() for _ in range(count)]
                for reply in replies:
                    reply(b"x" * 1_000)
                await asyncio.sleep(0)
                return told(transport, "memory_bytes")

    assert run(story()) > 14_000_000


def test_the_buffers_that_tls_keeps_count_and_their_holders_are_ended_one_by_one(ca: Issued, server: Issued) -> None:
    """44 KB after a record of 16 KB each way."""
    options = GrpcOptions(max_memory=1_000_000, tls=Tls(str(server.cert), str(server.key)))
    secure = ssl.create_default_context(cafile=str(ca.cert))
    secure.set_alpn_protocols(["h2"])
    sent = HELLO + headers(1, ECHO) + data(1, message(b"x" * 16_000))

    async def story() -> tuple[int, int]:
        async with house(options) as (transport, address), healthy(address, trusting(ca)):
            opened = [await open_socket(address, secure) for _ in range(40)]
            for reader, writer in opened:
                writer.write(sent)
                with suppress(asyncio.IncompleteReadError):
                    await reader.readexactly(16_000)
            await transport.check()
            for _, writer in opened:
                writer.transport.abort()
            return told(transport, "refused_total", Bound.MEMORY), told(transport, "memory_bytes")

    ended, used = run(story())
    assert 15 < ended < 25
    assert 500_000 < used <= 1_000_000


def test_headers_that_fill_the_memory_cost_no_connection() -> None:
    """Each remembers up to 64 KiB of them."""

    def distinct(number: int) -> bytes:
        return block(Echo.path, *((b"a%d" % index, b"%d" % number + b"v" * 70) for index in range(9)))

    sent = HELLO + b"".join(headers(n, distinct(n)) + data(n, message(b"?")) for n in range(1, 160, 2))

    async def story() -> tuple[int, int]:
        async with house(GrpcOptions(max_memory=500_000)) as (transport, address), healthy(address):
            writers = []
            for _ in range(20):
                reader, writer = await open_socket(address)
                writer.write(sent + frame(6, 0, 0, b"all read"))
                async for kind, flags, _, _ in frames_of(reader):
                    if (kind, flags) == (6, 1):
                        break
                writers.append(writer)
            await transport.check()
            used, connections = told(transport, "memory_bytes"), told(transport, "connections")
            for writer in writers:
                writer.close()
            return used, connections

    used, connections = run(story())
    assert used <= 500_000
    assert connections == 21


def test_a_message_that_does_not_go_on_ends_its_call_and_no_other() -> None:
    clock = Clock(1_000 * HOUR)

    async def story() -> tuple[list[int], int]:
        async with house(GrpcOptions(preface_timeout=10 * SECOND), clock) as (transport, address), healthy(address):
            reader, writer = await open_socket(address)
            half = message(b"?" * 100)[:50]
            writer.write(
                HELLO + headers(1, ECHO) + data(1, half, end=False) + headers(3, ECHO) + data(3, half, end=False)
            )
            ended: list[int] = []
            for sent in [*[data(3, b"?", end=False) + frame(6, 0, 0, b"have you")] * 4, data(3, b"?" * 51)]:
                writer.write(sent)
                async for kind, flags, number, payload in frames_of(reader):
                    if kind == 1 and b"grpc-status" in payload:
                        ended.append(number)
                    if (kind, flags) == (6, 1) or 3 in ended:
                        break
                await transport.check()
                clock.advance(4 * SECOND)
                await transport.check()
            writer.close()
            return ended, told(transport, "refused_total", Bound.UNFINISHED)

    ended, refused = run(story())
    assert ended == [1, 3]
    assert refused == 1


def test_a_message_that_waits_because_its_client_does_not_read_is_no_half_message() -> None:
    talk = Talk(HELLO + settings((4, 0)), answer=True)
    talk.say(headers(1, block(STREAM)), *(data(1, message(b"x" * 10_000), end=False) for _ in range(6)))
    waiting = dict(talk.connection.streams.incomplete)
    talk.say(headers(3, block(STREAM)), data(3, message(b"?")[:3], end=False))

    assert waiting == {}
    assert list(talk.connection.streams.incomplete) == [3]
