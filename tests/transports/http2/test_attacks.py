"""What one client may do to the others: nothing. A healthy client calls all the while, and loses no call."""

import asyncio
import gzip
from contextlib import suppress

import pytest

from ratelimit_service.transports.http2 import Http2Transport
from ratelimit_service.transports.http2.frames import Code
from ratelimit_service.transports.http2.limits import Bound
from ratelimit_service.transports.options import GrpcOptions
from tests.loops import run
from tests.processes import ROOT
from tests.transports.http2.clients import frames_of, goaway_of, healthy, house, open_socket, told, until
from tests.transports.http2.talk import (
    HELLO,
    data,
    frame,
    headers,
    literal,
    message,
    settings,
    window,
)
from tests.transports.http2.talk import block as block_of
from tests.transports.http2.waste import CANCEL, ECHO, GROW, LATER, calls, reset_after
from tests.transports.methods import WAIT_SECONDS, Echo, Later
from tests.transports.servers import ask, connect, serving

HUGE = ECHO + b"".join(literal(b"h%d" % n, b"v" * 100) for n in range(150))


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
        async with house() as (_, address), healthy(address):
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
        options = GrpcOptions(max_concurrent_streams=3)
        async with house(options, later=later) as (transport, address), healthy(address):
            reader, writer = await open_socket(address)
            writer.write(HELLO + calls(5, block=LATER))
            replies = [await later.asked() for _ in range(3)]
            refused, answered = [], 0
            async for kind, flags, number, payload in frames_of(reader):
                if kind == 3:
                    assert payload == b"\0\0\0\x07"
                    refused.append(number)
                    if len(refused) == 2:
                        for reply in replies:
                            reply(b"yes")
                answered += kind == 1 and flags == 5
                if answered == 3 and len(refused) == 2:
                    break
            writer.close()
            assert told(transport, "refused_total", Bound.STREAMS) == 2
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
    async def story() -> tuple[Code | None, int]:
        options = GrpcOptions(max_connection_memory=1_000_000)
        async with house(options) as (transport, address), healthy(address):
            code = await goaway_of(address, HELLO + settings((4, 0)) + calls(200, block=GROW, body=b"9000"))
            return code, told(transport, "refused_total", Bound.UNREAD_ANSWERS)

    assert run(story()) == (Code.ENHANCE_YOUR_CALM, 1)


def test_unfinished_questions_are_bounded_together() -> None:
    async def story() -> set[bytes]:
        options = GrpcOptions(max_connection_memory=100_000)
        async with house(options) as (transport, address), healthy(address):
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
            assert told(transport, "refused_total", Bound.UNREAD_QUESTIONS) > 0
            return found

    (ends,) = run(story())
    assert ends.endswith(b"bytes of unread messages")


def test_connections_above_the_most_are_closed_and_those_at_work_go_on() -> None:
    async def story() -> tuple[bytes, int]:
        later = Later()
        async with (
            house(GrpcOptions(max_connections=1), later=later) as (transport, address),
            connect(address) as channel,
        ):
            asking = asyncio.create_task(ask(channel, Later(), b""))
            reply = await later.asked()
            for _ in range(50):
                reader, writer = await open_socket(address)
                writer.write(HELLO)
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.close()
            reply(b"still here")
            return await asking, told(transport, "refused_total", Bound.CONNECTIONS)

    assert run(story()) == (b"still here", 50)


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
        async with house() as (_, address):
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


def test_headers_and_messages_that_are_too_large_refuse_their_call_and_no_other() -> None:
    bomb = gzip.compress(bytes(5_000_000))
    packed = block_of(Echo.path, (b"grpc-encoding", b"gzip"))
    long = b"\0" + (5_000_000).to_bytes(4, "big") + b"x"

    async def story() -> tuple[list[bytes], int, int]:
        async with house() as (transport, address), healthy(address):
            reader, writer = await open_socket(address)
            writer.write(HELLO + headers(1, HUGE) + data(1, message(b"")) + headers(3, ECHO) + data(3, long, end=False))
            writer.write(headers(5, packed) + data(5, b"\1" + message(bomb)[1:]))
            writer.write(headers(7, ECHO) + data(7, message(b"fits")))
            ends: list[bytes] = []
            async for kind, flags, _, payload in frames_of(reader):
                if kind == 1 and flags == 5:
                    ends.append(payload)
                    if len(ends) == 4:
                        break
            writer.close()
            of_headers = told(transport, "refused_total", Bound.HEADER_LIST)
            return ends, of_headers, told(transport, "refused_total", Bound.MESSAGE)

    ends, of_headers, of_messages = run(story())

    assert [b"grpc-status\x018" in end for end in ends] == [True, True, True, False]
    assert (of_headers, of_messages) == (1, 2)


def test_clients_that_vanish_with_calls_in_flight_leave_nothing() -> None:
    async def story() -> tuple[int, int, int]:
        later = Later()
        async with house(later=later) as (transport, address), healthy(address):
            for _ in range(10):
                _, writer = await open_socket(address)
                writer.write(HELLO + calls(50, block=LATER))
                replies = [await later.asked() for _ in range(50)]
                writer.transport.abort()
                for reply in replies[::2]:
                    reply(b"nobody hears")
            await until(lambda: told(transport, "connections_ended_total", "client") == 10)
            gone = told(transport, "connections"), told(transport, "streams")
            return *gone, told(transport, "streams_opened_total")

    connections, streams, opened = run(story())

    assert connections == 1  # the healthy one
    assert streams <= 1
    assert opened > 500


def test_one_that_opens_every_stream_it_may_delays_nobody() -> None:
    async def story() -> int:
        async with house() as (transport, address), healthy(address):
            sockets = []
            for _ in range(5):
                reader, writer = await open_socket(address)
                writer.write(
                    HELLO + b"".join(headers(n, ECHO) for n in range(1, 2_000, 2)) + frame(6, 0, 0, b"12345678")
                )
                async for kind, flags, _, _ in frames_of(reader):
                    if (kind, flags) == (6, 1):
                        break
                sockets.append(writer)
            async with healthy(address):
                streams = told(transport, "streams")
            for writer in sockets:
                writer.close()
            await until(lambda: told(transport, "streams") <= 1)
            return streams

    assert run(story()) >= 5_000


def test_what_is_counted_adds_up() -> None:
    async def story() -> None:
        async with house() as (transport, address):
            async with healthy(address):
                _, writer = await open_socket(address)
                writer.write(HELLO + calls(3) + headers(7, LATER) + frame(3, 0, 7, CANCEL))
                await until(lambda: told(transport, "resets_total", "client") == 1)
                writer.close()
            await until(lambda: told(transport, "connections") == 0)
            ended = told(transport, "connections_ended_total", "client")
            assert ended == told(transport, "connections_accepted_total") == 2
            assert told(transport, "streams_opened_total") >= 26
            assert told(transport, "streams") == 0
            assert told(transport, "received_bytes_total") > 26 * 50
            assert told(transport, "sent_bytes_total") > 26 * 50
            assert told(transport, "answer_seconds") > 0

    run(story())


def test_every_limit_is_documented() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")

    assert [bound for bound in Bound if f"`{bound}`" not in text] == []
