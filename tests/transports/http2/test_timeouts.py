"""What a connection is due for, by a clock that the test sets; every time stands beside its limit."""

import pytest

from ratelimit_service.system.clock import HOUR, MINUTE, SECOND
from ratelimit_service.transports.http2.timeouts import ConnectionTimeouts, Due
from ratelimit_service.transports.options import GrpcOptions
from tests.transports.http2.talk import HELLO, PREFACE, SETTINGS, Talk, block, frame, headers, question

OPTIONS = GrpcOptions(
    keepalive_time=10 * MINUTE,
    keepalive_timeout=20 * SECOND,
    max_connection_age=0,
    max_connection_age_grace=5 * MINUTE,
    max_connection_idle=0,
    preface_timeout=10 * SECOND,
)

Look = tuple[int, bool, Due | None]
"""The time, whether anything came since the last, and what is due."""


@pytest.mark.parametrize(
    "looks",
    [
        [(10 * MINUTE, False, None), (10 * MINUTE + 1, False, Due.PING), (11 * MINUTE, False, Due.ABORT_SILENT)],
        [(10 * MINUTE + 1, False, Due.PING), (10 * MINUTE + 20 * SECOND, False, None), (11 * MINUTE, True, None)],
        [(9 * MINUTE, True, None), (19 * MINUTE, False, None), (19 * MINUTE + 1, False, Due.PING)],
    ],
    ids=["no answer", "an answer in time", "somebody speaks"],
)
def test_a_silent_client_is_pinged_and_cut_when_it_does_not_answer(looks: list[Look]) -> None:
    talk, age = Talk(HELLO), ConnectionTimeouts(0, 0, OPTIONS)

    assert [age.due(now, talk.connection, data_came=heard, left=None) for now, heard, _ in looks] == [
        due for _, _, due in looks
    ]


@pytest.mark.parametrize(
    ("sent", "due"),
    [
        (b"", Due.CLOSE_SLOW),
        (PREFACE[:5], Due.CLOSE_SLOW),
        (PREFACE, Due.CLOSE_SLOW),
        (HELLO + b"\0", Due.CLOSE_SLOW),
        (HELLO + frame(1, 0, 1, b"\x83"), Due.CLOSE_SLOW),
        (PREFACE + SETTINGS, None),
        (HELLO + headers(1), None),
    ],
    ids=["nothing", "half a preface", "no settings", "half a frame", "half a block", "settings", "half a call"],
)
def test_what_is_begun_must_be_finished_in_time(sent: bytes, due: Due | None) -> None:
    talk, age = Talk(sent), ConnectionTimeouts(0, 0, OPTIONS)
    before = age.due(10 * SECOND, talk.connection, data_came=True, left=None)

    assert before is None
    assert age.due(10 * SECOND + 1, talk.connection, data_came=True, left=None) is due


def test_a_client_that_finishes_each_frame_may_take_the_time_for_every_one() -> None:
    talk, age = Talk(HELLO), ConnectionTimeouts(0, 0, OPTIONS)
    due = []
    for second in range(9, 90, 9):
        talk.say(frame(6, 0, 0, b"12345678"), b"\0")
        due.append(age.due(second * SECOND, talk.connection, data_came=True, left=None))
        talk.say(b"\0\x08\x06\0\0\0\0\0" + b"12345678")
        due.append(age.due(second * SECOND, talk.connection, data_came=True, left=None))

    assert set(due) == {None}


def test_a_client_that_is_always_in_the_midst_of_something_is_not_slow() -> None:
    """One that sends without a pause is, whenever it is looked at: of frames, or of header blocks."""
    frames, blocks = Talk(HELLO, b"\0"), Talk(HELLO, frame(1, 0, 1, block()))
    ages = ConnectionTimeouts(0, 0, OPTIONS), ConnectionTimeouts(0, 0, OPTIONS)
    due = []
    for second in range(25):
        frames.say(b"\0\x08\x06\0\0\0\0\0" + b"12345678" + b"\0")
        blocks.say(frame(9, 4, 2 * second + 1) + frame(1, 0, 2 * second + 3, block()))
        for talk, age in zip((frames, blocks), ages, strict=True):
            due.append(age.due(second * SECOND, talk.connection, data_came=True, left=None))

    assert set(due) == {None}


def test_a_header_block_that_comes_frame_by_frame_is_one_thing_to_finish() -> None:
    talk, age = Talk(HELLO, frame(1, 0, 1, b"\x83")), ConnectionTimeouts(0, 0, OPTIONS)
    due = []
    for second in (0, 4, 8, 12):
        talk.say(frame(9, 0, 1, b"\x86"))
        due.append(age.due(second * SECOND, talk.connection, data_came=True, left=None))

    assert due == [None, None, None, Due.CLOSE_SLOW]


@pytest.mark.parametrize(
    ("left", "due"),
    [
        ([(0, 5_000), (60, 5_000), (61, 5_000)], [None, None, Due.ABORT_STALLED]),
        ([(0, 5_000), (59, 6_024), (61, 6_024), (120, 6_024)], [None, None, None, Due.ABORT_STALLED]),
        ([(0, 5_000), (59, 6_023), (61, 6_023)], [None, None, Due.ABORT_STALLED]),
        ([(0, 5_000), (30, None), (61, 5_000), (91, 5_000)], [None, None, None, None]),
    ],
    ids=["nothing leaves", "1024 bytes leave", "1023 bytes leave", "it was free in between"],
)
def test_a_socket_that_takes_nothing_is_cut(left: list[tuple[int, int | None]], due: list[Due | None]) -> None:
    talk, age = Talk(HELLO), ConnectionTimeouts(0, 0, OPTIONS)

    assert [age.due(at * SECOND, talk.connection, data_came=True, left=count) for at, count in left] == due


def test_a_client_is_not_slow_to_finish_what_is_not_read_while_the_socket_takes_nothing() -> None:
    talk, age = Talk(HELLO, question(1)[:-1]), ConnectionTimeouts(0, 0, OPTIONS)
    due = [age.due(at * SECOND, talk.connection, data_came=False, left=5_000) for at in (1, 12, 50)]
    due += [age.due(at * SECOND, talk.connection, data_came=False, left=None) for at in (51, 59, 61)]

    assert due == [None, None, None, None, None, Due.CLOSE_SLOW]


def test_an_old_connection_is_told_to_go_then_that_it_must_then_its_calls_are_cut() -> None:
    talk, age = Talk(HELLO, question(1)), ConnectionTimeouts(0, HOUR, OPTIONS)
    due = [age.due(HOUR, talk.connection, data_came=True, left=None)]
    due.append(age.due(HOUR + 1, talk.connection, data_came=True, left=None))
    told = age.retire(HOUR + 1), age.retire(HOUR + 2)
    for later in (1 * SECOND, 1 * SECOND + 1, 5 * MINUTE, 5 * MINUTE + 1):
        due += [age.due(HOUR + 1 + later, talk.connection, data_came=True, left=None)]

    assert due == [None, Due.RETIRE_OLD, None, Due.LEAVE, Due.LEAVE, Due.ABORT_OLD]
    assert told == (True, False)


def test_a_grace_of_0_is_for_ever() -> None:
    talk, age = Talk(HELLO, question(1)), ConnectionTimeouts(0, 0, OPTIONS)
    age.retire(0)
    age.grace = 0

    assert age.due(1000 * HOUR, talk.connection, data_came=True, left=None) is Due.LEAVE


def test_a_connection_without_calls_is_told_to_go_and_one_with_calls_is_not() -> None:
    options = GrpcOptions(max_connection_idle=MINUTE, keepalive_time=0)
    idle, busy, age, other = (
        Talk(HELLO),
        Talk(HELLO, question(1)),
        ConnectionTimeouts(0, 0, options),
        ConnectionTimeouts(0, 0, options),
    )

    assert age.due(MINUTE, idle.connection, data_came=True, left=None) is None
    assert age.due(MINUTE + 1, idle.connection, data_came=True, left=None) is Due.RETIRE_IDLE
    assert other.due(MINUTE + 1, busy.connection, data_came=True, left=None) is None


def test_a_connection_whose_calls_are_answered_at_once_is_not_idle() -> None:
    """Nobody who looks now and then ever sees one of them."""
    options = GrpcOptions(max_connection_idle=MINUTE, keepalive_time=0)
    talk, age = Talk(HELLO, answer=True), ConnectionTimeouts(0, 0, options)
    due = []
    for minute in range(1, 5):
        talk.say(question(2 * minute + 1))
        assert not talk.connection.streams.active
        due.append(age.due(minute * MINUTE, talk.connection, data_came=True, left=None))
    due.append(age.due(5 * MINUTE + 1, talk.connection, data_came=True, left=None))

    assert due == [None, None, None, None, Due.RETIRE_IDLE]


def test_a_client_that_runs_out_of_stream_numbers_is_asked_to_connect_anew() -> None:
    talk, age = Talk(HELLO, question(2**31 - 1_000_001)), ConnectionTimeouts(0, 0, OPTIONS)
    before = age.due(1, talk.connection, data_came=True, left=None)
    talk.say(question(2**31 - 999_999))

    assert before is None
    assert age.due(2, talk.connection, data_came=True, left=None) is Due.RETIRE_SPENT
