"""Valid traffic as few clients send it: it is answered like any other, whole and byte by byte."""

import h2.settings
import pytest

from tests.transports.http2.talk import (
    HELLO,
    STREAM,
    UNARY,
    Talk,
    block,
    data,
    frame,
    headers,
    literal,
    message,
    question,
    settings,
    window,
)
from tests.transports.http2.test_h2 import GRPC, Pair

FIRST = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), *GRPC]
UNKNOWN_FLAGS = 0xD2
"""All that HEADERS does not define: 6.2."""
ASKED = data(1, message(b"?"))


@pytest.mark.parametrize("size", [1, 7, 100_000], ids=["byte by byte", "in sevens", "whole"])
def test_h2_is_answered_whatever_it_mixes_in(size: int) -> None:
    """Priorities, padding, DATA of a byte and of none, PINGs, changed settings, trailers, and streams in turn."""
    pair = Pair()
    client = pair.client
    first, second, third = 1, 3, 5
    client.send_headers(first, [(":path", UNARY), *FIRST], priority_weight=200, priority_exclusive=True)
    for byte in message(b"one"):
        client.send_data(first, bytes([byte]), pad_length=byte)
        client.ping(b"midst of")
    client.prioritize(9, weight=16, depends_on=first)
    client.send_headers(second, [(":path", STREAM), *FIRST])
    client.send_data(second, b"")
    client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    client.send_data(second, message(b"two")[:4])
    client.send_headers(third, [(":path", UNARY), *FIRST])
    client.send_data(third, message(b"three"), pad_length=255)
    client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 3, h2.settings.SettingCodes.ENABLE_PUSH: 0})
    client.send_data(second, message(b"two")[4:])
    client.send_headers(third, [("x-checksum", "1")], end_stream=True)
    client.send_data(first, b"", pad_length=0, end_stream=True)
    client.end_stream(second)
    client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 70_000})

    pair.exchange(size)

    answers = {number: (pair.bodies[number], pair.headers[number].get("grpc-status")) for number in sorted(pair.ended)}
    assert answers == {
        first: (message(b"one"), "0"),
        second: (message(b"two"), "0"),
        third: (message(b"three"), "0"),
    }


def test_an_answer_leaves_byte_by_byte_through_a_window_of_one() -> None:
    talk = Talk(HELLO, settings((4, 1)), question(1, b"hello"), answer=True)
    got = []
    for _ in range(20):
        got += [payload for kind, _, _, payload in talk.frames() if kind == 0]
        talk.say(window(1, 1))

    assert [len(payload) for payload in got] == [1] * 10
    assert b"".join(got) == message(b"hello")


@pytest.mark.parametrize(
    "asked",
    [
        question(2**31 - 1),
        frame(1, 4, 2**31 + 1, block()) + frame(0, 1, 2**31 + 1, message(b"?")),  # 4.1: the reserved bit is ignored
        frame(1, 4 | UNKNOWN_FLAGS, 1, block()) + frame(0, 1 | UNKNOWN_FLAGS, 1, message(b"?")),
        frame(1, 0, 1) + frame(9, 0, 1, block()[:1]) + frame(9, 0, 1) + frame(9, 4, 1, block()[1:]) + ASKED,
        frame(1, 0x2C, 1, b"\5" + b"\x80\0\0\x07\xff" + block() + b"\0" * 5) + frame(0, 9, 1, b"\0" + message(b"?")),
        headers(1) + data(1, b"", end=False) * 3 + data(1, message(b"?"), end=False) + data(1, b""),
        headers(1) + data(1, message(b"?"), end=False) + headers(1, literal(b"x", b"y"), end=True),
        headers(1) + frame(6, 0, 0, b"12345678") + settings((99, 7), (4, 9), (4, 65_535)) + ASKED,
        headers(1) + frame(7, 0, 0, b"\0" * 8 + b"bye") + ASKED,
        headers(1) + frame(2, 0, 9, b"\0\0\0\1\xff") + frame(2, 0, 1, b"\x80\0\0\3\0") + ASKED,
        headers(1) + window(0, 1) + window(1, 2**31 - 1 - 65_535) + frame(200, 255, 1, b"x" * 99) + ASKED,
        headers(1) + frame(3, 0, 1, b"\0\0\0\x08") + question(3),
    ],
    ids=[
        "the last number there is",
        "the reserved bit",
        "unknown flags",
        "CONTINUATION of nothing",
        "padding and priority",
        "DATA of nothing",
        "trailers",
        "PING and SETTINGS in the midst",
        "a GOAWAY of the client",
        "priorities of all",
        "windows as wide as they go",
        "after one that was reset",
    ],
)
def test_a_call_is_answered_however_it_is_framed(asked: bytes) -> None:
    for pieces in [HELLO, asked], [(HELLO + asked)[at : at + 1] for at in range(len(HELLO + asked))]:
        talk = Talk(*pieces, answer=True)

        assert [body for kind, _, body in talk.heard if kind == "CALL"] == [b"?"]
        assert [payload for kind, _, _, payload in talk.frames() if kind == 0] == [message(b"?")]
        assert talk.error is None
