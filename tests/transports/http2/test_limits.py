"""Limits that end a stream, or send a client away who did nothing wrong; a healthy client calls all the while."""

import pytest

from ratelimit_service.transports.http2.frames import Code
from ratelimit_service.transports.http2.limits import MAX_CONTINUATIONS, Bound
from ratelimit_service.transports.options import GrpcOptions
from tests.loops import run
from tests.transports.http2.clients import frames_of, healthy, house, open_socket, told, until
from tests.transports.http2.talk import (
    HELLO,
    UNARY,
    block,
    data,
    frame,
    headers,
    literal,
    message,
    parse,
    settings,
    window,
)
from tests.transports.http2.talk import Talk as Conversation
from tests.transports.http2.waste import ECHO
from tests.transports.methods import Later, Talk

LATE = 2**31 - 999_999
"""The first stream of the last million."""


def test_a_stream_that_sends_more_than_its_window_is_reset_and_no_other() -> None:
    """6.9.1: its answers are unread, so it is not read either and has no new room; the connection has."""
    part = data(1, message(b"y" * 10_000), end=False)

    async def story() -> tuple[list[tuple[int, int, int, bytes]], bool, int]:
        async with house() as (transport, address), healthy(address):
            reader, writer = await open_socket(address)
            writer.write(HELLO + settings((4, 0)) + headers(1, block(Talk.path)) + part * 20)
            resets = [each async for each in frames_of(reader, until=lambda kind: kind == 3) if each[0] == 3]
            writer.write(headers(3, ECHO) + data(3, message(b"another")) + window(3, 100))
            answered = False
            async for kind, flags, number, _ in frames_of(reader):
                answered = (kind, flags, number) == (1, 5, 3)
                if answered:
                    break
            writer.close()
            return resets, answered, told(transport, "refused_total", Bound.RECEIVE_WINDOW)

    assert run(story()) == ([(3, 0, 1, Code.FLOW_CONTROL_ERROR.to_bytes(4, "big"))], True, 1)


@pytest.mark.parametrize(("taken", "refused"), [(True, 0), (False, 1)], ids=["taken back", "at work"])
def test_a_call_that_is_reset_leaves_its_place_when_nothing_works_on_it(taken: bool, refused: int) -> None:
    def call(number: int) -> bytes:
        return headers(number, block(Later.path)) + data(number, message(b""))

    async def story() -> tuple[int, list[int], list[int]]:
        later = Later(lambda: taken)
        async with house(GrpcOptions(max_concurrent_streams=1), later=later) as (transport, address):
            reader, writer = await open_socket(address)
            writer.write(HELLO + call(1))
            reply = await later.asked()
            writer.write(frame(3, 0, 1, Code.CANCEL.to_bytes(4, "big")) + call(3))
            if not taken:
                assert [each async for each in frames_of(reader, until=lambda kind: kind == 3)][-1][2] == 3
                reply(b"nobody hears it")
                writer.write(call(5))
            (await later.asked())(b"")
            answered = [
                number async for kind, _, number, _ in frames_of(reader, until=lambda kind: not kind) if not kind
            ]
            assert transport._server is not None
            (wire,) = transport._server.shared.members
            calls = wire.connection.streams
            kept = [*calls.active, *calls.abandoned, *calls.cancels]
            writer.close()
            return told(transport, "refused_total", Bound.STREAMS), answered, kept

    assert run(story()) == (refused, [3 + 2 * refused], [])


def test_a_client_that_runs_out_of_stream_numbers_is_asked_to_connect_anew_and_loses_no_call() -> None:
    def call(number: int) -> bytes:
        return headers(number, ECHO) + data(number, message(b""))

    async def story() -> tuple[list[tuple[int, int]], list[bytes], int]:
        async with house() as (transport, address), healthy(address):
            reader, writer = await open_socket(address)
            writer.write(HELLO + call(LATE))
            found, away = [], []
            async for kind, flags, number, payload in frames_of(reader):
                if (kind, flags) == (1, 5):
                    found.append((kind, number))
                    await transport.check()
                if kind == 7:
                    away.append(payload[:8])
                    if len(away) == 1:
                        writer.write(call(LATE + 2))  # which was on its way
                if (kind, flags) == (6, 0):
                    writer.write(frame(6, 1, 0, payload))
            await until(lambda: told(transport, "connections_ended_total", "stream_numbers") == 1)
            writer.close()
            return found, away, told(transport, "connections")

    found, away, left = run(story())

    assert found == [(1, LATE), (1, LATE + 2)]
    # The last one is the end.
    assert away == [b"\x7f\xff\xff\xff\0\0\0\0", *[(LATE + 2).to_bytes(4, "big") + b"\0\0\0\0"] * 2]
    assert left == 1


def pieces(whole: bytes, count: int) -> bytes:
    """A header block in so many frames of one byte, and one with the rest."""
    parts = [whole[at : at + 1] for at in range(count)] + [whole[count:]]
    kinds = [1] + [9] * count
    return b"".join(
        frame(kind, 4 if at == count else 0, 1, part) for at, (kind, part) in enumerate(zip(kinds, parts, strict=True))
    )


def of_size(size: int) -> bytes:
    """The headers of a call, so many bytes as RFC 9113, 6.5.2 counts them."""
    plain = {b":method": b"POST", b":scheme": b"http", b":authority": b"x", b":path": UNARY.encode()}
    plain |= {b"content-type": b"application/grpc", b"te": b"trailers"}
    left = size - sum(len(name) + len(value) + 32 for name, value in plain.items())
    many = left // 100
    return block() + literal(b"x", b"v" * 67) * (many - 1) + _long(left - 100 * (many - 1))


def _long(size: int) -> bytes:
    """A header of 100 to 199 bytes."""
    length = size - 33
    return b"\0\1x" + (bytes((length,)) if length < 127 else b"\x7f" + bytes((length - 127,))) + b"v" * length


@pytest.mark.parametrize(
    ("size", "outcome"),
    [(16_384, "CALL"), (16_385, "refused"), (32_768, "refused"), (32_769, Code.ENHANCE_YOUR_CALM)],
)
def test_headers_of_the_most_bytes_are_a_call_and_of_one_more_are_none(size: int, outcome: str | Code) -> None:
    talk, whole = Conversation(HELLO), of_size(size)
    heard = talk.say(frame(1, 0, 1, whole[:16_000]) + frame(9, 4, 1, whole[16_000:]) + data(1, message(b"")))
    refused = any(kind == 1 and b"grpc-status\x018" in payload for kind, _, _, payload in parse(talk.take()))

    assert (heard[0][0] if heard else "refused" if refused else talk.error) == outcome


@pytest.mark.parametrize(("more", "error"), [(0, None), (1, Code.ENHANCE_YOUR_CALM)])
def test_headers_may_come_in_so_many_frames_and_no_more(more: int, error: Code | None) -> None:
    talk = Conversation(HELLO, pieces(block(), MAX_CONTINUATIONS + more) + data(1, message(b"")))

    assert talk.error is error
    assert len(talk.heard) == (1 if error is None else 0)
