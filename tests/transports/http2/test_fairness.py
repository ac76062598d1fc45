"""How hosts, and the connections of each, share the event loop: by a clock that the work itself moves."""

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count, pairwise

import pytest

from ratelimit_service.system.address import Tcp
from ratelimit_service.system.clock import steady_clock
from ratelimit_service.transports.http2 import Http2Transport
from ratelimit_service.transports.http2.scheduling import HANDSHAKE, QUANTUM, SHARE, STEP, FairQueue, host_of
from ratelimit_service.transports.http2.server import Server
from ratelimit_service.transports.http2.shared import Shared
from ratelimit_service.transports.http2.wire import Wire
from ratelimit_service.transports.options import GrpcOptions
from tests.loops import run
from tests.transports.http2.clients import frames_of, healthy, house, open_socket, told, until
from tests.transports.http2.talk import HELLO, block, data, frame, headers, message, window
from tests.transports.methods import Echo, From
from tests.transports.servers import ask, connect, serving

LOOK = 500
"""Nanoseconds between two looks at a clock: one is taken after each frame."""


class Loop:
    """An event loop that turns when the test says so, and a clock that only work moves."""

    def __init__(self) -> None:
        self.now = 0
        self.served: list[str] = []
        self.queue = FairQueue(self._call_soon, lambda: self.now)
        self._soon: deque[Callable[[], None]] = deque()

    def _call_soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def turn(self) -> bool:
        """What was asked for before it began; whether there was anything."""
        count = len(self._soon)
        for _ in range(count):
            self._soon.popleft()()
        return bool(count)

    def connect(self, name: str, host: str, *steps: int) -> "Connection":
        """A connection that waits, with steps that take so many nanoseconds."""
        connection = Connection(self, name, host, list(steps))
        self.queue.schedule(connection)
        return connection


class Connection:
    """One of the test's own."""

    def __init__(self, loop: Loop, name: str, host: str, steps: list[int]) -> None:
        self.host = loop.queue.add_connection(host.encode())
        self.scheduled = False
        self.finish_tag = self.cost = 0
        self._loop = loop
        self._name = name
        self._steps = steps

    def ask(self, *steps: int) -> None:
        """More comes on it."""
        self._steps += steps
        self._loop.queue.schedule(self)

    def run_step(self) -> bool:
        """A step, if there is one."""
        self._loop.served.append(self._name)
        self._loop.now += self._steps.pop(0)
        return bool(self._steps)


def test_those_that_wait_are_served_for_so_long_in_a_turn_and_not_longer() -> None:
    loop = Loop()
    loop.connect("a", "one", *[STEP] * 10)
    turns = []
    while loop.turn():
        turns.append(len(loop.served))

    assert turns == [4, 8, 10]
    assert QUANTUM == 4 * STEP


def test_a_host_with_a_hundred_connections_has_no_more_than_a_host_with_one() -> None:
    loop = Loop()
    for _ in range(100):
        loop.connect("many", "same", *[STEP] * 10)
    loop.connect("one", "other", *[STEP] * 10)
    for _ in range(5):
        loop.turn()

    assert loop.served.count("one") == loop.served.count("many") == 10


def test_of_one_host_a_connection_that_asks_little_goes_before_all_that_ask_much() -> None:
    """As behind a proxy: it waits for the step that is taken, and not for two hundred."""
    loop = Loop()
    crowd = [loop.connect(f"much {number}", "proxy", *[STEP] * 100) for number in range(200)]
    for _ in range(100):
        loop.turn()
    little = loop.connect("little", "proxy", STEP // 50)
    before = len(loop.served)
    loop.turn()
    first = loop.served[before]
    for _ in range(50):
        loop.turn()
        little.ask(STEP // 50)
    loop.turn()

    assert first == "little"
    assert loop.served.count("little") == 51
    counts = [loop.served.count(f"much {number}") for number in range(len(crowd))]
    assert max(counts) - min(counts) <= 1


def test_connections_that_never_stop_have_equal_shares_whatever_a_step_of_theirs_takes() -> None:
    loop = Loop()
    loop.connect("short", "one", *[STEP // 4] * 4_000)
    loop.connect("long", "one", *[STEP] * 1_000)
    while loop.now < 400 * STEP:
        loop.turn()

    assert abs(loop.served.count("short") // 4 - loop.served.count("long")) <= 2


def test_a_handshake_waits_for_connections_that_are_through_with_theirs() -> None:
    loop = Loop()
    handshakes = [Connection(loop, "handshake", "one", [2 * STEP]) for _ in range(100)]
    for handshake in handshakes:
        handshake.cost = HANDSHAKE
        loop.queue.schedule(handshake)
    loop.turn()
    before = len(loop.served)
    loop.connect("established", "one", STEP // 50)
    loop.turn()

    assert before == QUANTUM // (2 * STEP)
    assert loop.served[before] == "established"


def test_a_host_without_connections_is_forgotten_also_while_one_of_them_waits() -> None:
    loop = Loop()
    gone = loop.connect("gone", "one", STEP)
    loop.queue.remove_connection(gone.host)
    again = loop.queue.add_connection(b"one")
    while loop.turn():
        pass

    assert again is not gone.host
    assert again.share_left == SHARE


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("127.0.0.1", 1), ("127.0.0.1", 2), True),
        (("127.0.0.1", 1), ("127.0.0.2", 1), False),
        (("::ffff:127.0.0.1", 1, 0, 0), ("127.0.0.1", 2), True),
        (("2001:db8::1", 1, 0, 0), ("2001:db8::ffff:2", 1, 0, 0), True),
        (("2001:db8::1", 1, 0, 0), ("2001:db8:0:1::1", 1, 0, 0), False),
        (("fe80::1%eth0", 1, 0, 2), ("fe80::2%eth1", 1, 0, 3), True),
        ("", None, True),
    ],
)
def test_a_host_is_an_address_or_a_network_of_ipv6_or_all_of_a_unix_socket(
    one: object, other: object, same: bool
) -> None:
    assert (host_of(one) == host_of(other)) is same


def test_however_many_reads_uvloop_has_for_a_turn_a_connection_gives_way_after_its_share() -> None:
    """It reads up to 32 times in a turn, as long as the socket has bytes and the connection has not paused it."""
    begin = HELLO + headers(1) + window(1, 0)
    frames = STEP // 2 // LOOK
    read = data(1, bytes(130), end=False) * frames

    async def story() -> tuple[int, int]:
        reads = 0
        async with accepted(LOOK) as wire:
            wire.data_received(begin)
            while wire.transport.is_reading() and reads < 32:
                wire.data_received(read)
                reads += 1
            await until(wire.transport.is_reading)
            return reads, wire.received

    reads, received = run(story())
    assert reads == SHARE // (STEP // 2) + 1, "the last one waits"
    assert received == len(begin) + reads * len(read)


def test_of_a_hundred_connections_that_ask_at_once_a_turn_answers_so_many_as_have_a_share() -> None:
    async def story() -> list[int]:
        transport = Http2Transport(GrpcOptions(), tick=slow(STEP // 8))  # four looks: before, after, and at each frame
        turns = [0]
        async with serving(lambda _: transport, [Echo()]) as (_, address):
            writers = [(await open_socket(address))[1] for _ in range(100)]
            for writer in writers:
                writer.write(HELLO)
            await until(lambda: told(transport, "received_bytes_total") == 100 * len(HELLO))

            def look() -> None:
                turns.append(told(transport, "streams_opened_total"))
                if turns[-1] < 100:
                    asyncio.get_running_loop().call_soon(look)

            for writer in writers:
                writer.write(headers(1, block(Echo.path)) + data(1, message(b"?")))
            look()
            await until(lambda: turns[-1] == 100)
            for writer in writers:
                writer.close()
        return [after - before for before, after in pairwise(turns)]

    assert max(run(story())) <= SHARE // (STEP // 2) + QUANTUM // (STEP // 2)


def slow(look: int) -> Callable[[], int]:
    """A clock that moves by so many nanoseconds whenever it is asked."""
    return count(0, look).__next__


@asynccontextmanager
async def accepted(look: int) -> AsyncIterator[Wire]:
    """A connection as the event loop has it; so many nanoseconds pass between two looks at its clock."""
    server = Server(Shared([Echo()], [], GrpcOptions(), None, steady_clock, slow(look)))
    own, other = socket.socketpair()
    own.setblocking(False)
    with other:
        _, wire = await asyncio.get_running_loop().connect_accepted_socket(lambda: Wire(server.shared), own)
        try:
            yield wire
        finally:
            await server.drain(0)


@pytest.mark.parametrize(
    "flood",
    [
        headers(1) + window(1, 0) + data(1, bytes(130), end=False) * 20_000,
        headers(1) + window(1, 0) + frame(0, 8, 1, b"\xfe" + bytes(255)) * 10_000,
        b"".join(headers(n, block(Echo.path)) + data(n, message(b"?")) for n in range(1, 20_000, 2)),
    ],
    ids=["DATA after a reset", "padding", "calls"],
)
def test_connections_that_send_as_fast_as_they_are_read_take_no_call_of_another(flood: bytes) -> None:
    async def attack(address: Tcp) -> None:
        reader, writer = await open_socket(address)
        writer.write(HELLO + flood + frame(6, 0, 0, b"all read"))
        async for kind, flags, _, _ in frames_of(reader):
            if (kind, flags) == (6, 1):
                break
        writer.close()

    async def story() -> None:
        async with house() as (_, address), healthy(address):
            assert isinstance(address, Tcp)
            await asyncio.gather(*(attack(address) for _ in range(4)))

    run(story())


def test_a_method_knows_the_address_of_its_caller() -> None:
    async def story() -> bytes:
        async with serving(Http2Transport, [From()]) as (_, address), connect(address) as channel:
            return await ask(channel, From(), b"")

    assert run(story()) == b"\x7f\0\0\1"
