"""Every timer of a transport, seen by a client on a socket; the test turns the clock, and has connections looked at."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ratelimit_service.system.address import Address
from ratelimit_service.system.clock import HOUR, SECOND
from ratelimit_service.transports.http2 import Http2Transport
from ratelimit_service.transports.http2.frames import Code
from ratelimit_service.transports.http2.limits import Bound
from ratelimit_service.transports.options import GrpcOptions
from tests.clocks import Clock
from tests.loops import run
from tests.transports.http2.clients import frames_of, healthy, house, open_socket, read_frame, told, until
from tests.transports.http2.talk import HELLO, PREFACE, SETTINGS, block, data, frame, headers, message, settings, window
from tests.transports.methods import WAIT_SECONDS, Echo, Grow, Later

ECHO, GROW, LATER = (block(method.path) for method in (Echo, Grow, Later))
FOR_EVER = {"keepalive_time": 0, "max_connection_age": 0, "max_connection_age_grace": 0, "max_connection_idle": 0}
GET = b"\x20\x82\x86\x84\x01\x01x"
"""GET /"""


class Client:
    """One connection, and the clock of the transport that it is to."""

    def __init__(self, transport: Http2Transport, address: Address, clock: Clock, later: Later) -> None:
        self.transport = transport
        self.address = address
        self.clock = clock
        self.later = later
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter
        self.beside = False
        """A healthy client calls all the while."""

    async def say(self, sent: bytes) -> None:
        """Returns when the service has read it; after HELLO only."""
        self.writer.write(sent + frame(6, 0, 0, b"have you"))
        while await self.hear(6) != (1, 0, b"have you"):
            pass

    async def hear(self, wanted: int) -> tuple[int, int, bytes]:
        """Flags, stream and payload of the next frame of a kind; the others are passed over."""
        async with asyncio.timeout(WAIT_SECONDS):
            while found := await read_frame(self.reader):
                if found[0] == wanted:
                    return found[1:]
        raise EOFError

    async def end(self) -> list[int]:
        """The kinds of the frames to the end of the connection."""
        return [kind async for kind, _, _, _ in frames_of(self.reader)]

    async def pass_time(self, microseconds: int) -> None:
        """Let it pass, and have the connections looked at before and after; the healthy client has spoken before."""
        if self.beside:
            calls = told(self.transport, "streams_opened_total")
            await until(lambda: told(self.transport, "streams_opened_total") > calls + 1)
        await self.transport.check()
        self.clock.advance(microseconds)
        await self.transport.check()


@asynccontextmanager
async def connected(first: bytes = HELLO, **chosen: int) -> AsyncIterator[Client]:
    """A client; what is not chosen is for ever."""
    clock, later = Clock(1_000 * HOUR), Later()
    options = GrpcOptions(**{**FOR_EVER, **chosen})  # type: ignore[arg-type] # there is no TLS among them
    async with house(options, clock, later) as (transport, address):
        client = Client(transport, address, clock, later)
        client.reader, client.writer = await open_socket(address)
        client.writer.write(first)
        if first == HELLO:
            await client.say(b"")
        else:
            await until(lambda: told(transport, "received_bytes_total") == len(first))
        yield client
        client.writer.close()


@asynccontextmanager
async def connected_beside(first: bytes = HELLO, **chosen: int) -> AsyncIterator[Client]:
    """The same, and a healthy client that loses no call."""
    async with connected(first, **chosen) as client, healthy(client.address):
        client.beside = True
        yield client
        client.beside = False


def test_a_silent_client_is_pinged_and_stays_if_it_answers() -> None:
    async def story() -> tuple[tuple[int, int, bytes], int]:
        async with connected(keepalive_time=2 * HOUR, keepalive_timeout=20 * SECOND) as client:
            await client.pass_time(2 * HOUR + 1)
            ping = await client.hear(6)
            await client.say(frame(6, 1, 0, ping[2]))
            await client.pass_time(21 * SECOND)
            await client.say(b"")
            return ping, told(client.transport, "connections")

    assert run(story()) == ((0, 0, b"alive ? "), 1)


def test_a_client_that_has_vanished_is_cut() -> None:
    async def story() -> tuple[list[int], int, int]:
        async with connected_beside(keepalive_time=2 * HOUR, keepalive_timeout=20 * SECOND) as client:
            await client.pass_time(2 * HOUR + 1)
            await client.hear(6)
            await client.pass_time(20 * SECOND + 1)
            kinds, transport = await client.end(), client.transport
            return (
                kinds,
                told(transport, "connections_ended_total", "silent"),
                told(transport, "refused_total", "silent"),
            )

    assert run(story()) == ([], 1, 1)


def test_an_idle_connection_is_asked_to_go_and_goes_when_the_client_has_heard_it() -> None:
    async def story() -> tuple[bytes, bytes, list[int], int]:
        async with connected(max_connection_idle=HOUR) as client:
            await client.pass_time(HOUR + 1)
            _, _, first = await client.hear(7)
            _, _, farewell = await client.hear(6)
            client.writer.write(frame(6, 1, 0, farewell))
            _, _, second = await client.hear(7)
            kinds = await client.end()
            await until(lambda: not told(client.transport, "connections"))
            return first, second, kinds, told(client.transport, "connections_ended_total", "idle")

    first, second, kinds, idle = run(story())

    assert (first[:8], second[:8]) == (b"\x7f\xff\xff\xff\0\0\0\0", b"\0\0\0\0\0\0\0\0")
    assert kinds == [7]
    assert idle == 1


def test_an_old_connection_is_asked_to_go_hears_it_twice_and_its_calls_are_cut_in_the_end() -> None:
    async def story() -> tuple[list[bytes], bytes, int]:
        async with connected(max_connection_age=24 * HOUR, max_connection_age_grace=HOUR) as client:
            await client.say(headers(1, LATER) + data(1, message(b"")))
            await client.later.asked()
            await client.pass_time(27 * HOUR)
            away = [(await client.hear(7))[2][:8]]
            # It does not say that it heard: a call that was on its way is taken.
            await client.say(headers(3, ECHO) + data(3, message(b"late")))
            await client.pass_time(SECOND + 1)
            away.append((await client.hear(7))[2][:8])
            await client.say(headers(5, ECHO) + data(5, message(b"too late")))
            await client.pass_time(HOUR)
            rest = await client.reader.read()
            return away, rest, told(client.transport, "connections_ended_total", "age_grace")

    away, rest, cut = run(story())

    assert away == [b"\x7f\xff\xff\xff\0\0\0\0", b"\0\0\0\3\0\0\0\0"]
    assert b"too late" not in rest
    assert cut == 1


@pytest.mark.parametrize(
    ("begun", "bound"),
    [
        (b"", Bound.PREFACE),
        (b"P", Bound.PREFACE),
        (PREFACE + SETTINGS + frame(1, 0, 1, ECHO), Bound.UNFINISHED),
        (HELLO + b"\0", Bound.UNFINISHED),
    ],
)
def test_a_client_that_does_not_finish_what_it_begins_is_sent_away(begun: bytes, bound: Bound) -> None:
    """Slowloris: a byte now and then would hold the connection for ever."""

    async def story() -> tuple[bytes, int]:
        async with connected_beside(begun, preface_timeout=10 * SECOND) as client:
            await client.pass_time(10 * SECOND + 1)
            async with asyncio.timeout(WAIT_SECONDS):
                rest = await client.reader.read()
            return rest[-80:], told(client.transport, "refused_total", bound)

    rest, refused = run(story())

    assert rest.endswith(b"the client takes too long to finish what it began")
    assert refused == 1


@pytest.mark.parametrize("byte_by_byte", [False, True], ids=["zero window", "tiny window"])
def test_an_answer_that_does_not_leave_is_given_up_while_others_are_answered(byte_by_byte: bool) -> None:
    async def story() -> tuple[tuple[int, int, bytes], int]:
        async with connected_beside() as client:
            await client.say(settings((4, 0)) + headers(1, GROW) + data(1, message(b"9000")))
            for second in range(7):
                # Other calls go on: the connection is not still.
                number = 2 * second + 3
                await client.say(headers(number, ECHO) + data(number, message(b"")) + window(number, 100))
                if byte_by_byte:
                    await client.say(window(1, 1))
                await client.pass_time(10 * SECOND)
            reset = await client.hear(3)
            return reset, told(client.transport, "refused_total", Bound.STALLED)

    assert run(story()) == ((0, 1, Code.CANCEL.to_bytes(4, "big")), 1)


def test_an_answer_that_leaves_slowly_is_left_alone() -> None:
    async def story() -> tuple[int, int, int]:
        async with connected() as client:
            await client.say(settings((4, 0)) + headers(1, GROW) + data(1, message(b"9000")))
            for _ in range(7):
                await client.say(window(1, 1_200))
                await client.pass_time(59 * SECOND)
            client.writer.write(window(1, 1_200))
            flags, number, _ = await client.hear(1)
            return flags, number, told(client.transport, "refused_total", Bound.STALLED)

    assert run(story()) == (5, 1, 0)


def test_a_client_that_reads_nothing_is_cut_and_a_healthy_one_is_not() -> None:
    clock = Clock(1_000 * HOUR)

    async def story() -> int:
        options = GrpcOptions(**{**FOR_EVER, "max_connection_memory": 2**30})  # type: ignore[arg-type] # as above
        async with house(options, clock) as (transport, address):
            reader, writer = await open_socket(address)
            writer.write(HELLO + window(0, 2**30) + settings((4, 2**30)))
            writer.write(b"".join(headers(n, GROW) + data(n, message(b"4000000")) for n in range(1, 20, 2)))
            # 40 MB: more than any socket holds. None of it is read.
            server = transport._server
            assert server is not None
            await until(lambda: any(wire.write_paused for wire in server.shared.members))
            async with healthy(address), asyncio.timeout(WAIT_SECONDS):
                while told(transport, "connections") > 1:
                    await transport.check()
                    clock.advance(31 * SECOND)
                    await asyncio.sleep(0)
            writer.transport.abort()
            reader.feed_eof()
            return told(transport, "connections_ended_total", "stalled")

    assert run(story()) == 1


def test_a_deadline_is_kept_by_the_same_clock() -> None:
    async def story() -> bytes:
        async with connected() as client:
            hour = block(Later.path, (b"grpc-timeout", b"1H"))
            await client.say(headers(1, hour) + data(1, message(b"")))
            await client.later.asked()
            client.clock.advance(HOUR + SECOND)
            while True:
                flags, _, payload = await client.hear(1)
                if flags == 5:
                    return payload

    assert b"grpc-status\x014" in run(story())


def test_a_method_knows_what_is_left_when_the_message_comes_after_its_headers() -> None:
    async def story() -> list[int | None]:
        async with connected() as client:
            minute = block(Later.path, (b"grpc-timeout", b"1M"))
            await client.say(headers(1, minute))
            client.clock.advance(20 * SECOND)
            await client.say(data(1, message(b"")) + headers(3, minute) + data(3, message(b"")))
            return client.later.timeouts

    assert run(story()) == [40 * SECOND, 60 * SECOND]


def test_a_connection_that_is_ended_and_not_closed_by_its_client_is_gone_soon() -> None:
    async def story() -> int:
        async with connected() as client:
            client.writer.write(frame(5, 4, 1, b"\0\0\0\2"))  # PUSH_PROMISE
            await until(lambda: not told(client.transport, "connections"))
            return told(client.transport, "connections_ended_total", "protocol_error")

    assert run(story()) == 1


def test_a_request_that_is_no_call_and_never_ends_is_reset_some_time_after_its_answer() -> None:
    async def story() -> tuple[int, int, bytes]:
        async with connected() as client:
            await client.say(headers(1, GET))
            await client.pass_time(0)
            await client.pass_time(0)
            return await client.hear(3)

    assert run(story()) == (0, 1, b"\0\0\0\0")


def test_a_request_that_is_no_call_and_never_ends_does_not_hold_up_a_stop() -> None:
    async def story() -> list[int]:
        async with connected() as client:
            await client.say(headers(1, GET))
            async with asyncio.timeout(WAIT_SECONDS):
                stopping = asyncio.create_task(client.transport.stop(1_000))
                _, _, farewell = await client.hear(6)
                client.writer.write(frame(6, 1, 0, farewell))
                kinds = await client.end()
                await stopping
            return kinds

    assert 7 in run(story())


def test_connections_are_checked_while_others_end_in_every_turn_of_the_loop() -> None:
    """Two that are too slow are ended one after the other, each by a check that comes while others end."""

    async def story() -> None:
        async with connected(PREFACE[:5], preface_timeout=SECOND) as client:
            loop, server = asyncio.get_running_loop(), client.transport._server
            assert server is not None
            removed, (wire,) = server.shared.removed, server.shared.members

            def ended() -> int:
                return told(client.transport, "connections_ended_total", "enhance_your_calm")

            def end_others() -> None:
                if ended() < 2:
                    removed.extend([wire] * 30)
                    loop.call_soon(end_others)

            end_others()
            client.clock.advance(2 * SECOND)
            await until(lambda: ended() == 1)
            _, writer = await open_socket(client.address)
            writer.write(PREFACE[:5])
            await until(lambda: told(client.transport, "received_bytes_total") == 10)
            client.clock.advance(2 * SECOND)
            await until(lambda: ended() == 2)
            writer.close()

    run(story())
