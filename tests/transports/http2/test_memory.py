"""What a connection keeps, at the worst: measured by Python's own account of its memory."""

import gc
import ssl
import tracemalloc
from collections.abc import Iterable

import pytest

from ratelimit_service.transports.http2.connection import Connection
from ratelimit_service.transports.http2.limits import MAX_IDLE_FRAMES, MAX_RESET, MAX_WRITTEN
from ratelimit_service.transports.http2.stream import EventKind
from ratelimit_service.transports.http2.wire import Wire
from ratelimit_service.transports.options import GrpcOptions, Tls
from ratelimit_service.transports.tls_session import TlsSession
from tests.loops import run
from tests.transports.certificates import Issued
from tests.transports.http2.clients import house, open_socket, told, until
from tests.transports.http2.talk import (
    HELLO,
    METHODS,
    STREAM,
    UNARY,
    Talk,
    block,
    data,
    headers,
    literal,
    message,
    question,
    settings,
    window,
)
from tests.transports.http2.waste import calls

MEMORY = 1024 * 1024
LIMITS = GrpcOptions(max_concurrent_streams=1_000, max_connection_memory=MEMORY)
BESIDES = 1024 * 1024
"""Bytes for all that is no message: 1,000 streams, 64 KiB of headers, 1,000 resets."""


def feed(connection: Connection, pieces: Iterable[bytes], answer: bytes = b"") -> None:
    """What a client sends, read whole; what it gets is thrown away."""
    for piece in pieces:
        rest = piece
        while True:
            for kind, number, _, _ in connection.receive(rest):
                if answer and kind is EventKind.CALL:
                    connection.streams.reply(number, answer)
            connection.streams.events.clear()
            connection.take_output()
            connection.refill(MAX_IDLE_FRAMES)
            rest = b""
            if not connection.more:
                break


def test_the_worst_client_makes_a_connection_keep_no_more_than_it_may() -> None:
    """It leaves questions unfinished and answers unread up to the limit, and fills everything that is remembered."""
    count = 2 * MAX_RESET
    resets = [headers(n) + window(n, 0) for n in range(1, count, 2)]
    blocks = [
        question_in(n, block(UNARY, *((b"a%d" % index, b"%d-%d" % (index, n) + b"v" * 70) for index in range(9))))
        for n in range(count + 1, count + 401, 2)
    ]
    parts = message(b"x" * 120_000)[:10_000]
    unfinished = [headers(n) + data(n, parts, end=False) for n in range(count + 401, count + 601, 2)]
    unread = [question(n) for n in range(count + 601, count + 2_001, 2)]
    short = [headers(n, block(STREAM)) + data(n, b"\0", end=False) for n in range(count + 2_001, count + 2_601, 2)]
    tail = [headers(count + 2_601)[:-1]]
    gc.collect()
    tracemalloc.start()
    try:
        connection = Connection(METHODS, LIMITS, lambda: None)
        feed(connection, [HELLO + settings((4, 0)), *resets, *blocks])
        feed(connection, unfinished)
        feed(connection, unread, b"y" * 1_300)
        feed(connection, short + tail)
        gc.collect()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert not connection.closed
    assert connection.streams.held_bytes > 0.9 * MEMORY
    assert connection.streams.queued_bytes > 0.9 * MEMORY
    assert len(connection.streams.reset_by_us) == MAX_RESET
    assert kept < 2 * MEMORY + BESIDES
    assert peak < 2 * MEMORY + 2 * BESIDES


def test_a_connection_that_does_nothing_keeps_little() -> None:
    gc.collect()
    tracemalloc.start()
    try:
        connections = [Connection(METHODS, LIMITS, lambda: None) for _ in range(100)]
        for connection in connections:
            feed(connection, [HELLO + question(1)], b"!")
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept / len(connections) < 16_000


@pytest.mark.parametrize("secure", [False, True])
def test_a_connection_leaves_nothing_when_it_ends(secure: bool, server: Issued, ca: Issued) -> None:
    """Not until the collector looks either: it looks at old objects after 70 million new ones."""
    options, context = GrpcOptions(), None
    if secure:
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key)))
        context = ssl.create_default_context(cafile=str(ca.cert))
        context.set_alpn_protocols(["h2"])
    unfinished = headers(11, block("/tests.Methods/Talk")) + data(11, message(b"?")[:-1], end=False)

    def kept() -> int:
        return sum(1 for each in gc.get_objects() if isinstance(each, (Wire, Connection, TlsSession)))

    async def story() -> None:
        async with house(options) as (transport, address):
            for _ in range(20):
                reader, writer = await open_socket(address, context)
                writer.write(HELLO + calls(5) + unfinished)
                await reader.readuntil(b"\x01\x05\x00\x00\x00\x09")  # the end of the fifth answer
                writer.close()
            await until(lambda: told(transport, "connections") == 0)
            await until(lambda: kept() == 0)

    gc.collect()
    gc.disable()
    try:
        run(story())
    finally:
        gc.enable()


def test_answers_that_one_read_asks_for_are_written_in_turns() -> None:
    """All at once they would fill the memory before anybody knows whether the client reads."""
    talk = Talk(HELLO, window(0, 2**30), settings((4, 2**30)), options=GrpcOptions())
    talk.say(*(headers(n, block(STREAM)) for n in range(1, 21, 2)))
    talk.take()
    for number in range(1, 21, 2):
        talk.connection.streams.send(number, b"x" * 100_000)
    first = len(talk.connection.take_output())
    woken = talk.wakes
    rest = len(talk.take())

    assert MAX_WRITTEN <= first < MAX_WRITTEN + 20_000
    assert woken > 0
    assert first + rest >= 1_000_000


def question_in(number: int, sent: bytes) -> bytes:
    """A whole call with these headers."""
    return headers(number, sent) + data(number, message(b"?"))


def test_the_blocks_of_the_worst_client_are_as_long_as_any_that_are_remembered() -> None:
    sent = block(UNARY, *((b"a%d" % index, b"%d-%d" % (index, 5) + b"v" * 70) for index in range(9)))

    assert 700 < len(sent) < 1024
    assert literal(b"a0", b"0-5" + b"v" * 70) in sent
