"""When there are as many connections as may be, one makes way: that without a call for longest, and none at work."""

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest

from ratelimit_service.system.address import Address
from ratelimit_service.system.clock import HOUR, MINUTE, SECOND
from ratelimit_service.transports.http2.limits import MAX_STREAMING, Bound
from ratelimit_service.transports.http2.scheduling import EvictionOrder
from ratelimit_service.transports.http2.timeouts import ConnectionTimeouts, Due
from ratelimit_service.transports.options import GrpcOptions
from tests.loops import run
from tests.transports.http2.clients import Deaf, frames_of, healthy, house, open_socket, told, until
from tests.transports.http2.talk import HELLO, Talk, block, data, frame, headers, message, question
from tests.transports.http2.waste import ECHO, LATER, calls
from tests.transports.methods import WAIT_SECONDS, Echo, Later
from tests.transports.servers import ask, connect, failure


class Some:
    """A connection of the test's own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.last_stream = 0
        self.busy = False

    def __repr__(self) -> str:
        return self.name


def of(*names: str) -> tuple[EvictionOrder[Some], list[Some]]:
    """These connections, in this order."""
    places: EvictionOrder[Some] = EvictionOrder()
    guests = [Some(name) for name in names]
    for guest in guests:
        places.add(guest)
    return places, guests


def order(places: EvictionOrder[Some]) -> list[str]:
    """In which they make way."""
    found = []
    while (guest := places.first()) is not None:
        found.append(guest.name)
        places.remove(guest)
    return found


def test_those_that_never_called_make_way_first_and_then_who_called_longest_ago() -> None:
    places, (_, old, recent, _, work) = of("first", "old", "recent", "new", "work")
    recent.last_stream, work.last_stream = 1, 5
    assert places.note_calls(recent)
    assert places.note_calls(work)
    old.last_stream = 1
    assert places.note_calls(old)
    recent.last_stream = 3
    assert places.note_calls(recent)
    work.busy = True

    assert order(places) == ["first", "new", "old", "recent"]
    assert places.first() is None


def test_bytes_that_may_be_a_call_are_none_yet() -> None:
    """Such as a handshake: else a flood of them would be before connections that did call."""
    places, (called, shaking) = of("called", "shaking")
    called.last_stream = 1
    places.note_calls(called)
    shaking.busy = True
    first = places.first()
    shaking.busy = False

    assert first is called
    assert order(places) == ["shaking", "called"]


def test_one_that_called_since_the_last_look_does_not_make_way() -> None:
    places, (first, second, _) = of("first", "second", "third")
    for guest in (first, second):
        guest.last_stream = 1
        places.note_calls(guest)
    first.last_stream = 3

    assert order(places) == ["third", "second", "first"]


async def greet(address: Address, stack: AsyncExitStack, count: int) -> None:
    """So many connections that say hello, and no more."""
    for _ in range(count):
        reader, writer = await open_socket(address)
        stack.callback(writer.close)
        writer.write(HELLO)
        async with asyncio.timeout(WAIT_SECONDS):
            await reader.read(1)


def test_connections_that_never_call_take_no_place_from_those_that_do() -> None:
    """A newcomer is served although all places are taken, and the healthy one of before loses no call."""

    async def story() -> tuple[list[bytes], int, int]:
        async with AsyncExitStack() as stack:
            transport, address = await stack.enter_async_context(house(GrpcOptions(max_connections=20)))
            stack.push_async_callback(until, lambda: not told(transport, "connections"))
            await stack.enter_async_context(healthy(address))
            await greet(address, stack, 30)
            answers = []
            for _ in range(10):
                channel = await stack.enter_async_context(connect(address))
                answers.append(await ask(channel, Echo(), b"let in"))
            await greet(address, stack, 30)
            evicted = told(transport, "connections_ended_total", "evicted")
            assert told(transport, "refused_total", Bound.CONNECTIONS) == evicted
            return answers, evicted, told(transport, "connections")

    answers, evicted, connections = run(story())
    assert answers == [b"let in"] * 10
    assert evicted == 1 + 30 + 10 + 30 - 20
    assert connections == 20


def test_one_that_makes_way_is_told_that_no_call_of_it_was_taken() -> None:
    async def story() -> list[tuple[int, bytes]]:
        async with house(GrpcOptions(max_connections=1)) as (_, address):
            reader, writer = await open_socket(address)
            writer.write(HELLO + calls(2, block=ECHO))
            seen = []
            ended = 0
            async for kind, flags, _, _ in frames_of(reader):
                ended += kind == 1 and flags == 5
                if ended == 2:
                    break
            async with connect(address) as channel:
                await ask(channel, Echo(), b"")
                async for kind, _, _, payload in frames_of(reader):
                    if kind == 7:
                        seen.append((int.from_bytes(payload[:4], "big"), payload[4:8]))
            writer.close()
            return seen

    assert run(story()) == [(3, b"\0\0\0\0")]


@pytest.mark.parametrize(
    "opened",
    [headers(1, block(Deaf.path)), headers(1, ECHO), headers(1, ECHO) + data(1, message(b"half")[:-1], end=False)],
    ids=["a stream", "headers", "half a message"],
)
def test_calls_that_are_only_kept_open_keep_no_place(opened: bytes) -> None:
    async def story() -> int:
        async with AsyncExitStack() as stack:
            transport, address = await stack.enter_async_context(house(GrpcOptions(max_connections=5)))
            stack.push_async_callback(until, lambda: not told(transport, "connections"))
            for _ in range(5):
                reader, writer = await open_socket(address)
                stack.callback(writer.close)
                writer.write(HELLO + opened + frame(6, 0, 0, b"all read"))
                async for kind, flags, _, _ in frames_of(reader):
                    if (kind, flags) == (6, 1):
                        break
            channel = await stack.enter_async_context(connect(address))
            assert await ask(channel, Echo(), b"let in") == b"let in"
            return told(transport, "connections_ended_total", "evicted")

    assert run(story()) == 1


def test_while_all_are_busy_new_ones_are_refused() -> None:
    async def story() -> tuple[grpc.StatusCode, int, int]:
        later = Later()
        async with house(GrpcOptions(max_connections=2), later=later) as (transport, address):
            writers = []
            for _ in range(2):
                _, writer = await open_socket(address)
                writer.write(HELLO + headers(1, LATER) + data(1, message(b"")))
                writers.append(writer)
            replies = [await later.asked(), await later.asked()]
            async with connect(address) as channel:
                code, _ = await failure(channel, Echo(), b"")
            for reply in replies:
                reply(b"")
            for writer in writers:
                writer.close()
            await until(lambda: not told(transport, "connections"))
            ended = "connections_ended_total"
            return code, min(1, told(transport, ended, "too_many_connections")), told(transport, ended, "evicted")

    assert run(story()) == (grpc.StatusCode.UNAVAILABLE, 1, 0)


def test_a_connection_that_never_called_has_a_minute_and_one_that_did_its_hour() -> None:
    options = GrpcOptions(keepalive_time=0, max_connection_age=0)
    never, once = (
        (Talk(HELLO), ConnectionTimeouts(0, 0, options)),
        (Talk(HELLO, question(1), answer=True), ConnectionTimeouts(0, 0, options)),
    )
    found = [
        [age.due(now, talk.connection, data_came=True, left=None) for talk, age in (never, once)]
        for now in (0, MINUTE, MINUTE + 1, HOUR, HOUR + 1)
    ]

    assert found == [[None] * 2, [None] * 2, [Due.RETIRE_IDLE, None], [Due.RETIRE_IDLE, None], [Due.RETIRE_IDLE] * 2]
    assert options.max_connection_idle > 60 * SECOND


def test_streaming_calls_of_one_connection_are_bounded_and_those_of_others_and_its_unary_ones_go_on() -> None:
    """Eleven connections with 999 calls of Watch each had all that there may be: other clients took that for unwell."""

    async def story() -> tuple[int, int, int]:
        async with house() as (transport, address), healthy(address):
            reader, writer = await open_socket(address)
            deaf = block(Deaf.path)
            writer.write(HELLO + b"".join(headers(n, deaf) for n in range(1, 2 * MAX_STREAMING + 21, 2)))
            writer.write(headers(999, ECHO) + data(999, message(b"unary")))
            refused = 0
            async for kind, _, number, payload in frames_of(reader):
                refused += kind == 1 and b"grpc-status\x018" in payload
                if number == 999 and b"grpc-status" in payload:
                    break
            other, second = await open_socket(address)
            second.write(HELLO + headers(1, deaf) + headers(3, ECHO) + data(3, message(b"unary")))
            async for kind, flags, number, _ in frames_of(other):
                if (kind, flags, number) == (1, 5, 3):
                    break
            open_ones = told(transport, "streams")
            writer.close()
            second.close()
            return refused, told(transport, "refused_total", Bound.STREAMING), open_ones

    refused, counted, open_ones = run(story())
    assert refused == counted == 10
    assert open_ones in {MAX_STREAMING + 1, MAX_STREAMING + 2}  # the healthy one may have a call open
