"""What one client may do to the others: nothing. A healthy client calls all the while, and loses no call."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from ratelimit_service.address import Address, Tcp
from ratelimit_service.clock import SECOND
from ratelimit_service.transports.http2 import Http2Transport
from ratelimit_service.transports.http2.frames import Code
from ratelimit_service.transports.options import GrpcOptions
from tests.loops import run
from tests.transports.http2.talk import (
    HELLO,
    PREFACE,
    SETTINGS,
    data,
    frame,
    headers,
    literal,
    message,
    settings,
    window,
)
from tests.transports.http2.talk import block as block_of
from tests.transports.methods import WAIT_SECONDS, Echo, Grow, Later, Talk
from tests.transports.servers import ask, connect, serving

ECHO, GROW, LATER = (block_of(method.path) for method in (Echo, Grow, Later))
CANCEL = b"\0\0\0\x08"


def calls(count: int, block: bytes = ECHO, body: bytes = b"", after: bytes = b"") -> bytes:
    """So many whole calls, each followed by something."""
    return b"".join(headers(n, block) + data(n, message(body)) + after for n in range(1, 2 * count, 2))


def reset_after(count: int, block: bytes, *, asked: bool) -> bytes:
    """So many calls that are reset at once."""
    whole = (headers(n, block) + (data(n, message(b"")) if asked else b"") for n in range(1, 2 * count, 2))
    return b"".join(call + frame(3, 0, 2 * index + 1, CANCEL) for index, call in enumerate(whole))


BOMB = b"\x40\1x\x7f\x81\x1e" + b"v" * 4000 + b"\xbe" * 16_000
HUGE = ECHO + b"".join(literal(b"h%d" % n, b"v" * 100) for n in range(150))
FLOODS = {
    "PING (CVE-2019-9512)": (frame(6, 0, 0, b"12345678") * 20_000, Code.ENHANCE_YOUR_CALM),
    "SETTINGS (CVE-2019-9515)": (settings((3, 1)) * 20_000, Code.ENHANCE_YOUR_CALM),
    "PRIORITY (CVE-2019-9513)": (frame(2, 0, 1, b"\0\0\0\0\1") * 20_000, Code.ENHANCE_YOUR_CALM),
    "empty DATA (CVE-2019-9518)": (headers(1, ECHO) + data(1, b"", end=False) * 20_000, Code.ENHANCE_YOUR_CALM),
    "unknown frames": (frame(77, 0, 0) * 20_000, Code.ENHANCE_YOUR_CALM),
    "WINDOW_UPDATE": (window(0, 1) * 20_000, Code.ENHANCE_YOUR_CALM),
    "rapid reset (CVE-2023-44487)": (reset_after(20_000, ECHO, asked=False), Code.ENHANCE_YOUR_CALM),
    "resets by us (CVE-2025-8671)": (
        b"".join(headers(n, ECHO) + window(n, 0) for n in range(1, 20_000, 2)),
        Code.ENHANCE_YOUR_CALM,
    ),
    "CONTINUATION (CVE-2024-27316)": (
        frame(1, 0, 1, ECHO) + frame(9, 0, 1, b"") * 20_000,
        Code.ENHANCE_YOUR_CALM,
    ),
    "CONTINUATION of much": (frame(1, 0, 1, ECHO) + frame(9, 0, 1, b"\0" * 16_000) * 20, Code.ENHANCE_YOUR_CALM),
    "HPACK bomb (CVE-2016-6581)": (
        frame(1, 0, 1, BOMB[:16_000]) + frame(9, 4, 1, BOMB[16_000:]),
        Code.ENHANCE_YOUR_CALM,
    ),
    "streams out of order": (headers(5, ECHO) + headers(3, ECHO), Code.PROTOCOL_ERROR),
    "window over 2^31-1": (window(0, 2**31 - 1), Code.FLOW_CONTROL_ERROR),
    "a frame too large": (b"\0\x40\x01\0\0\0\0\0\1" + b"x" * 16_385, Code.FRAME_SIZE_ERROR),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_its_connection_with_the_right_code_and_no_other(name: str) -> None:
    flood, code = FLOODS[name]

    async def story() -> Code | None:
        async with house() as address, healthy(address):
            return await goaway_of(address, HELLO + flood)

    assert run(story()) is code


@pytest.mark.parametrize(
    "harmless",
    [
        reset_after(5_000, ECHO, asked=True),
        calls(3_000, after=frame(6, 0, 0, b"12345678") + window(0, 6)),
        b"".join(headers(n, HUGE) + data(n, message(b"")) for n in range(1, 200, 2)),
        b"".join(headers(n, ECHO) for n in range(1, 4_000, 2)),
        calls(300, block=GROW, body=b"9000"),
        settings((4, 0)) + calls(900, block=GROW, body=b"9000"),
        settings((4, 1)) + calls(100),
    ],
    ids=[
        "reset when asked",
        "pings and updates",
        "huge headers",
        "all streams",
        "unread",
        "zero window",
        "tiny window",
    ],
)
def test_a_client_that_is_only_wasteful_harms_nobody(harmless: bytes) -> None:
    async def story() -> None:
        async with house() as address, healthy(address):
            reader, writer = await open_socket(address)
            writer.write(HELLO + harmless)
            await asyncio.wait([asyncio.ensure_future(reader.read(1))], timeout=WAIT_SECONDS)
            async with healthy(address):
                pass
            writer.close()

    run(story())


def test_more_streams_than_announced_are_refused_and_those_before_are_answered() -> None:
    async def story() -> tuple[list[int], int]:
        later = Later()
        async with serving(Http2Transport, [later], options=GrpcOptions(max_concurrent_streams=3)) as (_, address):
            reader, writer = await open_socket(address)
            writer.write(HELLO + calls(5, block=LATER))
            for _ in range(3):
                (await later.asked())(b"yes")
            refused, answered = [], 0
            async for kind, flags, number, payload in frames_of(reader):
                if kind == 3:
                    assert payload == b"\0\0\0\x07"
                    refused.append(number)
                answered += kind == 1 and flags == 5
                if answered == 3 and len(refused) == 2:
                    break
            writer.close()
            return refused, answered

    assert run(story()) == ([7, 9], 3)


def test_a_call_that_was_reset_keeps_its_place_until_its_method_answers() -> None:
    """Otherwise resetting were a way to keep any number of calls at work."""

    async def story() -> tuple[list[int], list[int]]:
        later = Later()
        async with serving(Http2Transport, [later], options=GrpcOptions(max_concurrent_streams=2)) as (_, address):
            reader, writer = await open_socket(address)
            writer.write(HELLO + reset_after(2, LATER, asked=False))
            writer.write(headers(5, LATER) + data(5, message(b"")) + headers(7, LATER) + data(7, message(b"")))
            replies = [await later.asked(), await later.asked()]
            writer.write(b"".join(frame(3, 0, n, CANCEL) for n in (5, 7)) + headers(9, LATER) + data(9, message(b"")))
            refused = [
                number async for kind, _, number, _ in frames_of(reader, until=lambda kind: kind == 3) if kind == 3
            ]
            for reply in replies:
                reply(b"too late")
            writer.write(headers(11, LATER) + data(11, message(b"")))
            (await later.asked())(b"in time")
            async for kind, flags, number, _ in frames_of(reader):
                if kind == 1 and flags == 5:
                    writer.close()
                    return refused, [number]
            raise AssertionError

    assert run(story()) == ([9], [11])


def test_answers_that_nobody_reads_end_the_connection_before_they_fill_the_memory() -> None:
    async def story() -> Code | None:
        options = GrpcOptions(max_connection_memory=1_000_000)
        async with serving(Http2Transport, [Echo(), Grow()], options=options) as (_, address), healthy(address):
            return await goaway_of(address, HELLO + settings((4, 0)) + calls(200, block=GROW, body=b"9000"))

    assert run(story()) is Code.ENHANCE_YOUR_CALM


def test_unfinished_questions_are_bounded_together() -> None:
    async def story() -> set[bytes]:
        options = GrpcOptions(max_connection_memory=100_000)
        async with serving(Http2Transport, [Echo()], options=options) as (_, address), healthy(address):
            reader, writer = await open_socket(address)
            part = message(b"x" * 60_000)[:16_000]
            writer.write(HELLO + b"".join(headers(n, ECHO) + data(n, part, end=False) for n in range(1, 20, 2)))
            found = set()
            async for kind, flags, _, payload in frames_of(reader):
                if kind == 1 and flags == 5:
                    found.add(payload[-50:])
                    if b"bytes of unread messages" in payload:
                        break
            writer.close()
            return found

    (ends,) = run(story())
    assert ends.endswith(b"bytes of unread messages")


@pytest.mark.parametrize("begun", [b"", b"P", PREFACE, PREFACE + SETTINGS + frame(1, 0, 1, ECHO), HELLO + b"\0"])
def test_a_client_that_does_not_finish_what_it_begins_is_sent_away(begun: bytes) -> None:
    """Slowloris: a byte now and then would hold the connection for ever."""

    async def story() -> bool:
        options = GrpcOptions(preface_timeout=SECOND // 5)
        async with serving(Http2Transport, [Echo()], options=options) as (_, address), healthy(address):
            reader, writer = await open_socket(address)
            writer.write(begun)
            async with asyncio.timeout(WAIT_SECONDS):
                await reader.read()
            writer.close()
            return True

    assert run(story())


def test_connections_above_the_most_are_closed_and_those_before_go_on() -> None:
    async def story() -> bytes:
        served = serving(Http2Transport, [Echo()], options=GrpcOptions(max_connections=1))
        async with served as (_, address), connect(address) as channel:
            await ask(channel, Echo(), b"")
            reader, writer = await open_socket(address)
            writer.write(HELLO)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
            return await ask(channel, Echo(), b"still here")

    assert run(story()) == b"still here"


def test_a_connection_that_is_gone_makes_room() -> None:
    async def story() -> bytes:
        async with serving(Http2Transport, [Echo()], options=GrpcOptions(max_connections=1)) as (_, address):
            _, writer = await open_socket(address)
            writer.close()
            await writer.wait_closed()
            async with connect(address) as channel:
                return await ask(channel, Echo(), b"here")

    assert run(story()) == b"here"


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"POST /x HTTP/1.0\r\n\r\n"])
def test_a_client_of_http_1_gets_a_plain_answer_and_a_close(sent: bytes) -> None:
    async def story() -> bytes:
        async with house() as address:
            reader, writer = await open_socket(address)
            writer.write(sent)
            async with asyncio.timeout(WAIT_SECONDS):
                answer = await reader.read()
            writer.close()
            return answer

    assert run(story()) == (
        b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: 35\r\n\r\n"
        b"This port speaks gRPC over HTTP/2.\n"
    )


@asynccontextmanager
async def house() -> AsyncIterator[Address]:
    """A transport with every method."""
    async with serving(Http2Transport, [Echo(), Grow(), Later()], [Talk()]) as (_, address):
        yield address


@asynccontextmanager
async def healthy(address: Address) -> AsyncIterator[None]:
    """A client that calls before, all the while, and after; it must lose no call."""
    async with connect(address) as channel:
        assert await ask(channel, Echo(), b"before") == b"before"
        over = False

        async def call() -> int:
            count = 0
            while not over or count < 20:
                assert await ask(channel, Echo(), b"%d" % count) == b"%d" % count
                count += 1
            return count

        calling = asyncio.create_task(call())
        try:
            yield
        finally:
            over = True
            assert await calling >= 20
        assert await ask(channel, Echo(), b"after") == b"after"


async def open_socket(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of the attacker's."""
    assert isinstance(address, Tcp)
    return await asyncio.open_connection(address.host, address.port)


async def frames_of(
    reader: asyncio.StreamReader, until: Callable[[int], bool] = lambda _: False
) -> AsyncIterator[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of each frame, to the end of the connection."""
    async with asyncio.timeout(WAIT_SECONDS):
        while head := await reader.read(1):
            head += await reader.readexactly(8)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            yield head[3], head[4], int.from_bytes(head[5:9], "big"), payload
            if until(head[3]):
                return


async def goaway_of(address: Address, attack: bytes) -> Code | None:
    """Why the attacker's connection was closed."""
    reader, writer = await open_socket(address)
    writer.write(attack)
    code = None
    with suppress(ConnectionResetError):  # the rest of a flood that nobody reads
        async for kind, _, _, payload in frames_of(reader):
            if kind == 7:
                code = Code(int.from_bytes(payload[4:8], "big"))
    writer.close()
    return code
