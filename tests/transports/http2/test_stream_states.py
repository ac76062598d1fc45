"""The tables of `streams` and `connection`: which state follows on which event."""

from collections.abc import Callable

import pytest

from ratelimit_service.errors import RpcError, Status
from ratelimit_service.transports.http2.connection import ConnectionState
from ratelimit_service.transports.http2.frames import Code
from ratelimit_service.transports.http2.stream import StreamState
from tests.transports.http2.talk import (
    ACK,
    HELLO,
    PREFACE,
    SETTINGS,
    STREAM,
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

ERROR = RpcError(Status.NOT_FOUND, "no")
NO_WINDOW = settings((4, 0))
HTTP = block().replace(b"application/grpc", b"application/text")

ABANDONED, CLOSED = "ABANDONED", "CLOSED"
RECEIVING, CALLED, STREAMING, SENDING, LINGERING = (state.name for state in StreamState)


def in_state(name: str) -> Talk:
    """A connection with one stream, 1, in this state."""
    match name:
        case "RECEIVING":
            return Talk(HELLO, headers(1))
        case "CALLED":
            return Talk(HELLO, question(1))
        case "STREAMING":
            return Talk(HELLO, headers(1, block(STREAM)))
        case "SENDING":
            talk = Talk(HELLO, NO_WINDOW, question(1))
            talk.connection.streams.reply(1, b"waits for a window")
            return talk
    return Talk(HELLO, headers(1, HTTP))


def state_of(talk: Talk) -> str:
    """The state of stream 1."""
    streams = talk.connection.streams
    if 1 not in streams.active:
        return ABANDONED if 1 in streams.abandoned else CLOSED
    stream = streams.active[1]
    return stream.state.name if stream else CALLED


Event = Callable[[Talk], object]
EVENTS: dict[str, Event] = {
    "DATA": lambda talk: talk.say(data(1, message(b"?")[:5], end=False)),
    "END_STREAM": lambda talk: talk.say(data(1, message(b"?"))),
    "a wrong message": lambda talk: talk.say(data(1, b"\2\0\0\0\1?")),
    "reply": lambda talk: talk.connection.streams.reply(1, b"!"),
    "send": lambda talk: talk.connection.streams.send(1, b"!"),
    "finish": lambda talk: talk.connection.streams.finish(1),
    "fail": lambda talk: talk.connection.streams.fail(1, ERROR),
    "expire": lambda talk: talk.connection.streams.expire(1),
    "the window opens": lambda talk: talk.say(window(1, 1_000)),
    "reset": lambda talk: talk.connection.streams.reset(1, Code.CANCEL),
    "RST_STREAM": lambda talk: talk.say(frame(3, 0, 1, b"\0\0\0\x08")),
}


@pytest.mark.parametrize(
    ("before", "event", "after"),
    [
        (RECEIVING, "DATA", RECEIVING),
        (RECEIVING, "END_STREAM", CALLED),
        (RECEIVING, "a wrong message", CLOSED),
        (RECEIVING, "fail", CLOSED),
        (RECEIVING, "expire", CLOSED),
        (RECEIVING, "the window opens", RECEIVING),
        (RECEIVING, "reset", CLOSED),
        (RECEIVING, "RST_STREAM", CLOSED),
        (CALLED, "DATA", ABANDONED),
        (CALLED, "END_STREAM", ABANDONED),
        (CALLED, "reply", CLOSED),
        (CALLED, "fail", ABANDONED),
        (CALLED, "expire", ABANDONED),
        (CALLED, "the window opens", CALLED),
        (CALLED, "reset", ABANDONED),
        (CALLED, "RST_STREAM", ABANDONED),
        (STREAMING, "DATA", STREAMING),
        (STREAMING, "END_STREAM", STREAMING),
        (STREAMING, "a wrong message", CLOSED),
        (STREAMING, "send", STREAMING),
        (STREAMING, "finish", CLOSED),
        (STREAMING, "fail", CLOSED),
        (STREAMING, "expire", CLOSED),
        (STREAMING, "the window opens", STREAMING),
        (STREAMING, "reset", CLOSED),
        (STREAMING, "RST_STREAM", CLOSED),
        (SENDING, "reply", SENDING),
        (SENDING, "send", SENDING),
        (SENDING, "finish", SENDING),
        (SENDING, "fail", CLOSED),
        (SENDING, "expire", CLOSED),
        (SENDING, "the window opens", CLOSED),
        (SENDING, "reset", CLOSED),
        (SENDING, "RST_STREAM", CLOSED),
        (LINGERING, "DATA", LINGERING),
        (LINGERING, "END_STREAM", CLOSED),
        (LINGERING, "a wrong message", CLOSED),
        (LINGERING, "send", LINGERING),
        (LINGERING, "finish", LINGERING),
        (LINGERING, "the window opens", LINGERING),
        (LINGERING, "reset", CLOSED),
        (LINGERING, "RST_STREAM", CLOSED),
    ],
)
def test_a_stream_goes_from_state_to_state_as_the_table_says(before: str, event: str, after: str) -> None:
    """What is SENDING has left when the windows allow, and is closed then."""
    talk = in_state(before)
    started = state_of(talk)
    EVENTS[event](talk)

    assert (started, state_of(talk)) == (before, after)
    assert talk.error is None


@pytest.mark.parametrize("before", [RECEIVING, STREAMING])
@pytest.mark.parametrize("ended", [False, True])
def test_a_response_that_finds_no_window_is_sending_until_it_does(before: str, ended: bool) -> None:
    talk = in_state(before)
    talk.say(NO_WINDOW)
    if before == STREAMING:
        talk.connection.streams.send(1, b"waits")
        if ended:
            talk.say(data(1, b""))
        talk.connection.streams.finish(1)
    else:
        talk.say(data(1, message(b"?"), end=True))
        talk.connection.streams.reply(1, b"waits")
    waiting = state_of(talk)
    talk.say(window(1, 1_000))

    assert (waiting, state_of(talk)) == (SENDING, CLOSED)


def test_a_method_that_can_be_cancelled_leaves_no_abandoned_stream() -> None:
    talk = in_state(CALLED)
    talk.connection.streams.cancels[1] = lambda: True
    talk.connection.streams.reset(1, Code.CANCEL)

    assert state_of(talk) == CLOSED


def test_an_abandoned_stream_is_closed_when_its_method_responds() -> None:
    talk = in_state(CALLED)
    talk.connection.streams.reset(1, Code.CANCEL)
    before = state_of(talk)
    talk.connection.streams.reply(1, b"too late")

    assert (before, state_of(talk)) == (ABANDONED, CLOSED)


FAREWELL = frame(6, 1, 0, b"farewell")


@pytest.mark.parametrize(
    ("sent", "state"),
    [
        ([], ConnectionState.PREFACE),
        ([PREFACE[:10]], ConnectionState.PREFACE),
        ([b"GET / HTTP/1.1\r\n\r\n"], ConnectionState.CLOSED),
        ([b"\0"], ConnectionState.CLOSED),
        ([PREFACE], ConnectionState.SETTINGS),
        ([PREFACE, ACK], ConnectionState.CLOSED),
        ([PREFACE, SETTINGS], ConnectionState.OPEN),
        ([PREFACE, SETTINGS, FAREWELL], ConnectionState.LEAVING),
        ([PREFACE, SETTINGS, FAREWELL, question(1)], ConnectionState.LEAVING),
        ([PREFACE, SETTINGS, FAREWELL, frame(5, 0, 1)], ConnectionState.CLOSED),
    ],
)
def test_a_connection_goes_from_state_to_state_as_the_table_says(sent: list[bytes], state: ConnectionState) -> None:
    assert Talk(*sent).connection.state is state


@pytest.mark.parametrize(
    ("sent", "state"),
    [
        ([], ConnectionState.CLOSED),
        ([PREFACE], ConnectionState.CLOSED),
        ([HELLO], ConnectionState.LEAVING),
        ([HELLO, FAREWELL], ConnectionState.LEAVING),
        ([b"\0"], ConnectionState.CLOSED),
    ],
)
def test_one_that_shall_leave_before_it_may_have_streams_is_closed(sent: list[bytes], state: ConnectionState) -> None:
    talk = Talk(*sent)
    talk.connection.leave()

    assert talk.connection.state is state
