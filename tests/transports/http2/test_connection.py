"""The connection as literal bytes: what it says, when, and what it keeps."""

import pytest

from ratelimit_service.errors import RpcError, Status
from ratelimit_service.transports.http2.frames import Code
from ratelimit_service.transports.http2.headers import MAX_CACHED, MAX_CACHED_SIZE
from ratelimit_service.transports.http2.limits import MAX_IDLE_FRAMES, MAX_RESET, Bound
from ratelimit_service.transports.options import GrpcOptions
from tests.transports.http2.talk import (
    ACK,
    HELLO,
    PREFACE,
    SETTINGS,
    STREAM,
    UNARY,
    Talk,
    block,
    data,
    frame,
    headers,
    message,
    question,
    settings,
    window,
)

OUR_SETTINGS = bytes.fromhex("00000c 04 00 00000000 0003 000003e8 0006 00004000")
NO_HEADER_TABLE = bytes.fromhex("000006 04 00 00000000 0001 00000000")
OUR_WINDOW = bytes.fromhex("000004 08 00 00000000 000f0001")
ANSWER = (
    bytes.fromhex("000014 01 04 00000001") + b"\x88\x0f\x10\x10application/grpc"
    + bytes.fromhex("000006 00 00 00000001") + b"\0\0\0\0\1!"
    + bytes.fromhex("00000f 01 05 00000001") + b"\0\x0bgrpc-status\0010"
)  # fmt: skip


def test_it_says_nothing_until_the_client_speaks_http_2() -> None:
    talk = Talk(PREFACE[:-1])
    before = talk.take()
    talk.say(PREFACE[-1:])

    assert before == b""
    assert talk.take() == OUR_SETTINGS + OUR_WINDOW


def test_a_question_is_answered_with_three_frames_in_one_piece() -> None:
    talk = Talk(HELLO)
    talk.take()
    heard = talk.say(question(1))
    talk.connection.streams.reply(1, b"!")

    assert heard == [("CALL", 1, b"?")]
    assert talk.take() == NO_HEADER_TABLE + ANSWER


def test_the_header_table_is_given_up_once_and_only_by_who_calls() -> None:
    talk = Talk(HELLO, headers(1, b"\x20\x82\x84\x86", end=True))
    looked = talk.frames()
    talk.say(question(3), question(5))

    assert [kind for kind, _, _, _ in looked] == [4, 8, 4, 1, 0, 0]
    assert talk.take() == NO_HEADER_TABLE


def test_a_table_of_the_usual_size_is_taken_until_ours_is_acknowledged() -> None:
    """RFC 7541, 6.3: the limit is what the encoder has acknowledged."""
    usual = b"\x3f\xe1\x1f" + block()[1:]
    talk = Talk(HELLO, headers(1, usual), headers(3, usual))
    before = talk.error
    talk.say(ACK, headers(5, usual))

    assert before is None
    assert talk.error is Code.COMPRESSION_ERROR


def test_a_question_in_a_known_block_makes_no_stream() -> None:
    talk = Talk(HELLO, question(1), question(3))

    assert talk.connection.streams.active[3] is None
    assert talk.heard[1] == ("CALL", 3, b"?")


def test_a_late_answer_wakes_once_however_many_there_are() -> None:
    talk = Talk(HELLO, question(1), question(3))
    woken = talk.wakes
    talk.connection.streams.reply(1, b"!")
    talk.connection.streams.reply(3, b"!")

    assert talk.wakes == woken + 1


def test_only_the_first_answer_counts() -> None:
    talk = Talk(HELLO, question(1))
    talk.take()
    talk.connection.streams.reply(1, b"!")
    talk.connection.streams.reply(1, b"?")

    assert talk.take() == ANSWER


def test_settings_and_pings_are_acknowledged_and_acknowledgements_are_not() -> None:
    talk = Talk(HELLO)
    talk.take()
    talk.say(SETTINGS, ACK, frame(6, 0, 0, b"12345678"), frame(6, 1, 0, b"87654321"))

    assert talk.take() == ACK + bytes.fromhex("000008 06 01 00000000") + b"12345678"


def test_a_stream_is_told_step_by_step() -> None:
    talk = Talk(HELLO, headers(1, block(STREAM)))
    talk.say(data(1, message(b"a")[:3], end=False), data(1, message(b"a")[3:] + message(b"b"), end=False))
    talk.say(data(1, b""))
    talk.connection.streams.finish(1)
    talk.say(b"")

    assert [(kind, body) for kind, _, body in talk.heard] == [
        ("OPEN", STREAM.encode()),
        ("MESSAGE", b"a"),
        ("MESSAGE", b"b"),
        ("HALF_CLOSE", STREAM.encode()),
        ("CLOSE", STREAM.encode()),
    ]


def test_a_stream_that_is_answered_before_it_ends_is_reset_without_an_error() -> None:
    """RFC 9113, 8.1: the client need not go on."""
    talk = Talk(HELLO, headers(1, block(STREAM)))
    talk.take()
    talk.connection.streams.finish(1, RpcError(Status.NOT_FOUND, "no"))

    assert [(kind, payload[-4:]) for kind, _, _, payload in talk.frames()][-1] == (3, b"\0\0\0\0")
    assert talk.say(data(1, b"still on its way")) == [("CLOSE", 1, STREAM.encode())]
    assert [kind for kind, _, _, _ in talk.frames()] == []
    assert talk.error is None


def test_going_away_takes_what_is_on_its_way_until_the_client_has_heard_it() -> None:
    talk = Talk(HELLO)
    talk.take()
    talk.connection.retire()
    away, ping = talk.frames()
    heard = talk.say(question(1))
    talk.say(frame(6, 1, 0, ping[3]))
    _, last = talk.frames()
    late = talk.say(question(3))

    assert away == (7, 0, 0, b"\x7f\xff\xff\xff\0\0\0\0draining")
    assert heard == [("CALL", 1, b"?")]
    assert last == (7, 0, 0, b"\0\0\0\1\0\0\0\0draining")
    assert late == []
    assert not talk.connection.drained
    talk.connection.streams.reply(1, b"!")
    assert talk.take() == ANSWER
    assert talk.connection.drained


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(6, 0, 0, b"12345678"), Code.PROTOCOL_ERROR),  # 3.4: not SETTINGS first
        (SETTINGS + frame(5, 4, 1, b"\0\0\0\2"), Code.PROTOCOL_ERROR),  # 8.4
        (SETTINGS + frame(6, 0, 1, b"12345678"), Code.PROTOCOL_ERROR),  # 6.7
        (SETTINGS + frame(6, 0, 0, b"1234567"), Code.FRAME_SIZE_ERROR),
        (SETTINGS + frame(4, 1, 0, b"123456"), Code.FRAME_SIZE_ERROR),  # 6.5
        (SETTINGS + frame(4, 0, 0, b"12345"), Code.FRAME_SIZE_ERROR),
        (SETTINGS + settings((2, 2)), Code.PROTOCOL_ERROR),  # 6.5.2
        (SETTINGS + settings((4, 2**31)), Code.FLOW_CONTROL_ERROR),
        (SETTINGS + settings((5, 16_383)), Code.PROTOCOL_ERROR),
        (SETTINGS + data(1, b""), Code.PROTOCOL_ERROR),  # 5.1, idle
        (SETTINGS + data(0, b""), Code.PROTOCOL_ERROR),  # 6.1
        (SETTINGS + headers(2), Code.PROTOCOL_ERROR),  # 5.1.1
        (SETTINGS + headers(3) + headers(1), Code.PROTOCOL_ERROR),
        (SETTINGS + frame(9, 4, 1), Code.PROTOCOL_ERROR),  # 6.10
        (SETTINGS + frame(1, 0, 1, block()) + data(1, b""), Code.PROTOCOL_ERROR),  # 4.3
        (SETTINGS + headers(1, b"\xff\xff\xff\xff\xff"), Code.COMPRESSION_ERROR),
        (SETTINGS + headers(1, b"\x3f\xe2\x1f" + block()), Code.COMPRESSION_ERROR),  # RFC 7541, 6.3: 4097 bytes
        (SETTINGS + ACK + headers(1) + ACK + headers(3, b"\x21" + block()), Code.COMPRESSION_ERROR),
        (SETTINGS + frame(0, 9, 1, b"\5"), Code.PROTOCOL_ERROR),
        (SETTINGS + frame(8, 0, 0, b"\0\0\0\0"), Code.PROTOCOL_ERROR),  # 6.9
        (SETTINGS + frame(8, 0, 0, b"\0\0\1"), Code.FRAME_SIZE_ERROR),
        (SETTINGS + frame(7, 0, 0, b"\0\0\1"), Code.FRAME_SIZE_ERROR),  # 6.8
        # 6.4: an idle stream cannot be reset, so that the connection ends.
        (SETTINGS + frame(2, 0, 1, b"\0\0\0\1\1"), Code.PROTOCOL_ERROR),
        (SETTINGS + frame(2, 0, 1, b"\0\0\0\1"), Code.FRAME_SIZE_ERROR),
    ],
)
def test_a_violation_ends_the_connection_with_the_code_of_the_rfc(sent: bytes, code: Code) -> None:
    talk = Talk(PREFACE + sent)

    *_, (kind, _, _, payload) = talk.frames()
    assert talk.error is code
    assert (kind, payload[4:8]) == (7, code.to_bytes(4, "big"))
    assert talk.say(question(1)) == []
    assert talk.take() == b""


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (headers(1, block(UNARY, (b"Upper", b"x"))), Code.PROTOCOL_ERROR),  # 8.2.1
        (headers(1, block(UNARY, (b"connection", b"close"))), Code.PROTOCOL_ERROR),  # 8.2.2
        (headers(1, block(UNARY, (b"te", b"gzip"))), Code.PROTOCOL_ERROR),
        (headers(1, block(UNARY, (b":path", b"/late"))), Code.PROTOCOL_ERROR),  # 8.3
        (headers(1, block(UNARY, (b"x", b"a\nb"))), Code.PROTOCOL_ERROR),  # 8.2.1
        (headers(1, b"\x20\x83\x86"), Code.PROTOCOL_ERROR),  # 8.3.1
        (headers(1, block(UNARY, (b"content-length", b"3"))) + data(1, b"four"), Code.PROTOCOL_ERROR),  # 8.1.1
        (headers(1) + window(1, 0), Code.PROTOCOL_ERROR),  # 6.9
        (headers(1) + window(1, 2**31 - 1), Code.FLOW_CONTROL_ERROR),  # 6.9.1
        (headers(1) + headers(1, b"\0\1x\1y"), Code.PROTOCOL_ERROR),  # 8.1
        (question(1) + data(1, b"more"), Code.STREAM_CLOSED),  # 5.1
        (headers(1) + frame(2, 0, 1, b"\0\0\0\1\1"), Code.PROTOCOL_ERROR),  # RFC 7540, 5.3.1
        (headers(1) + frame(2, 0, 1, b"\0\0\0\1"), Code.FRAME_SIZE_ERROR),  # 6.3
    ],
)
def test_a_violation_on_a_stream_ends_the_stream_and_no_other(sent: bytes, code: Code) -> None:
    talk = Talk(HELLO, sent)
    resets = [(number, payload) for kind, _, number, payload in talk.frames() if kind == 3]

    assert resets == [(1, code.to_bytes(4, "big"))]
    assert talk.say(question(3)) == [("CALL", 3, b"?")]


@pytest.mark.parametrize("opened", [headers(1), headers(1, block(STREAM)), question(1)])
def test_settings_that_move_the_window_of_a_stream_over_its_maximum_end_the_connection(opened: bytes) -> None:
    """RFC 9113, 6.9.2."""
    talk = Talk(HELLO, opened, window(1, 2**31 - 1 - 65_535), settings((4, 65_535)))
    assert talk.error is None

    talk.say(settings((4, 65_536)))

    assert talk.error is Code.FLOW_CONTROL_ERROR


def test_what_is_kept_is_bounded_whatever_comes() -> None:
    talk = Talk(HELLO, options=GrpcOptions(max_concurrent_streams=10), answer=True)
    for index in range(3_000):
        number = 2 * index + 1
        one = block(UNARY, (b"id", b"%d" % number))
        talk.say(headers(number, one) + data(number, message(b"")))
    for index in range(3_000, 3_000 + 2 * MAX_RESET):
        talk.connection.refill(MAX_IDLE_FRAMES)
        talk.say(headers(2 * index + 1) + window(2 * index + 1, 0))

    assert talk.error is None
    assert talk.connection.headers.cached_bytes <= MAX_CACHED
    assert max(map(len, talk.connection.headers.cache)) <= MAX_CACHED_SIZE
    assert len(talk.connection.streams.reset_by_us) == MAX_RESET
    assert not talk.connection.streams.active
    assert not talk.connection.streams.abandoned


def test_a_stream_that_does_not_read_is_not_read_either() -> None:
    talk = Talk(HELLO, settings((4, 0)), headers(1, block(STREAM)))
    for _ in range(40):
        talk.say(data(1, message(b"q"), end=False))
        talk.connection.streams.send(1, b"x" * 4_000)
    heard = sum(kind == "MESSAGE" for kind, _, _ in talk.heard)
    talk.say(window(1, 1_000_000), window(0, 1_000_000))

    assert heard < 40
    assert sum(kind == "MESSAGE" for kind, _, _ in talk.heard) == 40


def test_a_stream_that_is_not_read_may_not_send_more_than_its_window() -> None:
    """6.9.1: its answers are unread, so that it has no new room; the connection has."""
    talk = Talk(HELLO, settings((4, 0)), headers(1, block(STREAM)))
    talk.connection.streams.send(1, b"x" * 70_000)
    talk.say(*(data(1, message(b"y" * 10_000), end=False) for _ in range(6)))
    before = talk.take()
    talk.say(data(1, message(b"y" * 10_000), end=False))

    assert frame(3, 0, 1, Code.FLOW_CONTROL_ERROR.to_bytes(4, "big")) not in before
    assert talk.frames()[-1] == (3, 0, 1, Code.FLOW_CONTROL_ERROR.to_bytes(4, "big"))
    assert talk.counts.refused[Bound.RECEIVE_WINDOW] == 1
    assert talk.say(question(3)) == [("CALL", 3, b"?")]


def test_a_client_that_may_not_call_is_told_so_for_each_call() -> None:
    talk = Talk(HELLO, denial=RpcError(Status.UNAUTHENTICATED, "who are you"))
    talk.take()

    assert talk.say(question(1), question(3)) == []
    assert [number for kind, _, number, payload in talk.frames() if b"grpc-status\x0216" in payload] == [1, 3]
