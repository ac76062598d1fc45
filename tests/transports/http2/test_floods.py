"""Floods: each ends its connection, with the code and under the label that it should have, and no other."""

import asyncio
import ssl
from collections.abc import Callable

import pytest
import uvloop

from ratelimit_service.transports.http2.frames import Code
from ratelimit_service.transports.http2.limits import Bound
from ratelimit_service.transports.options import GrpcOptions, Tls
from tests.loops import run
from tests.transports.certificates import Issued
from tests.transports.http2.clients import goaway_of, healthy, house, open_socket, told, until
from tests.transports.http2.talk import HELLO, data, frame, headers, settings, window
from tests.transports.http2.talk import block as block_of
from tests.transports.http2.waste import ECHO, reset_after
from tests.transports.methods import Echo
from tests.transports.servers import trusting

BOMB = b"\x40\1x\x7f\x81\x1e" + b"v" * 4000 + b"\xbe" * 16_000
MALFORMED = block_of(Echo.path, (b"connection", b"close"))
FLOODS = {
    "PING (CVE-2019-9512)": (frame(6, 0, 0, b"12345678") * 20_000, Code.ENHANCE_YOUR_CALM, Bound.PINGS),
    "SETTINGS (CVE-2019-9515)": (settings((3, 1)) * 20_000, Code.ENHANCE_YOUR_CALM, Bound.SETTINGS),
    "PRIORITY (CVE-2019-9513)": (frame(2, 0, 1, b"\0\0\0\0\1") * 20_000, Code.ENHANCE_YOUR_CALM, Bound.PRIORITIES),
    "empty DATA (CVE-2019-9518)": (
        headers(1, ECHO) + data(1, b"", end=False) * 20_000,
        Code.ENHANCE_YOUR_CALM,
        Bound.EMPTY_DATA,
    ),
    "unknown frames": (frame(77, 0, 0) * 20_000, Code.ENHANCE_YOUR_CALM, Bound.UNKNOWN_FRAMES),
    "WINDOW_UPDATE": (window(0, 1) * 20_000, Code.ENHANCE_YOUR_CALM, Bound.WINDOW_UPDATES),
    "rapid reset (CVE-2023-44487)": (reset_after(20_000, ECHO, asked=False), Code.ENHANCE_YOUR_CALM, Bound.RESETS),
    "resets by us (CVE-2025-8671)": (
        b"".join(headers(n, ECHO) + window(n, 0) for n in range(1, 20_000, 2)),
        Code.ENHANCE_YOUR_CALM,
        Bound.WINDOW_UPDATES,
    ),
    "CONTINUATION (CVE-2024-27316)": (
        frame(1, 0, 1, ECHO) + frame(9, 0, 1, b"") * 20_000,
        Code.ENHANCE_YOUR_CALM,
        Bound.CONTINUATIONS,
    ),
    "CONTINUATION of much": (
        frame(1, 0, 1, ECHO) + frame(9, 0, 1, b"\0" * 16_000) * 20,
        Code.ENHANCE_YOUR_CALM,
        Bound.HEADER_BLOCK,
    ),
    "HPACK bomb (CVE-2016-6581)": (
        frame(1, 0, 1, BOMB[:16_000]) + frame(9, 4, 1, BOMB[16_000:]),
        Code.ENHANCE_YOUR_CALM,
        Bound.HEADER_BLOCK,
    ),
    "malformed calls": (
        b"".join(headers(n, MALFORMED) for n in range(1, 20_000, 2)),
        Code.ENHANCE_YOUR_CALM,
        Bound.FAILED_STREAMS,
    ),
    "a stream again": (reset_after(1, ECHO, asked=False) + headers(1, ECHO), Code.STREAM_CLOSED, Bound.STREAM_NUMBERS),
    "streams out of order": (headers(5, ECHO) + headers(3, ECHO), Code.PROTOCOL_ERROR, Bound.STREAM_NUMBERS),
    "window over 2^31-1": (window(0, 2**31 - 1), Code.FLOW_CONTROL_ERROR, None),
    "a frame too large": (b"\0\x40\x01\0\0\0\0\0\1" + b"x" * 16_385, Code.FRAME_SIZE_ERROR, None),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_its_connection_with_the_right_code_and_no_other(name: str) -> None:
    flood, code, bound = FLOODS[name]

    async def story() -> tuple[Code | None, int, int]:
        async with house() as (transport, address), healthy(address):
            told_code = await goaway_of(address, HELLO + flood)
            ended = code.name.lower()
            await until(lambda: told(transport, "connections_ended_total", ended) > 0)
            refused = told(transport, "refused_total", bound) if bound else 1
            return told_code, told(transport, "connections_ended_total", ended), refused

    assert run(story()) == (code, 1, 1)


@pytest.mark.parametrize("name", ["rapid reset (CVE-2023-44487)", "PING (CVE-2019-9512)", "malformed calls"])
def test_a_flood_through_tls_does_too(ca: Issued, server: Issued, name: str) -> None:
    """There, what comes is read in records, and goes on to come for a while when nothing more is to be read."""
    flood, code, bound = FLOODS[name]
    secure = ssl.create_default_context(cafile=str(ca.cert))
    secure.set_alpn_protocols(["h2"])

    async def story() -> tuple[Code | None, int]:
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key)))
        async with house(options) as (transport, address), healthy(address, trusting(ca)):
            told_code = await goaway_of(address, HELLO + flood, secure)
            await until(lambda: told(transport, "connections") == 1)
            assert bound
            return told_code, told(transport, "refused_total", bound)

    assert run(story()) == (code, 1)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_client_that_stays_when_it_was_told_why_it_is_ended_is_cut_through_tls_too(
    ca: Issued, server: Issued, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """TLS cannot be half closed: nothing but our own patience ends it."""
    secure = ssl.create_default_context(cafile=str(ca.cert))
    secure.set_alpn_protocols(["h2"])

    async def story() -> int:
        async with house(GrpcOptions(tls=Tls(str(server.cert), str(server.key)))) as (transport, address):
            _, writer = await open_socket(address, secure)
            writer.write(HELLO + frame(5, 4, 1, b"\0\0\0\2"))  # PUSH_PROMISE
            await until(lambda: told(transport, "connections_ended_total", "protocol_error") == 1)
            writer.close()
            return told(transport, "connections")

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(story()) == 0
