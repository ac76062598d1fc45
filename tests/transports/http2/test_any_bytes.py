"""Any bytes, however they are cut, are calls, refusals, or one error; no answer exceeds a window."""

from hypothesis import example, given
from hypothesis import strategies as st

from ratelimit_service.transports.http2.frames import Code
from ratelimit_service.transports.options import GrpcOptions
from tests.transports.http2.talk import (
    HELLO,
    PREFACE,
    SETTINGS,
    STREAM,
    Heard,
    Talk,
    block,
    data,
    frame,
    headers,
    message,
    parse,
    question,
    settings,
    window,
)

numbers = st.sampled_from([0, 1, 2, 3, 5, 7, 9, 2**31 - 1, 2**31 + 1])
payloads = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([message(b""), message(b"hello"), message(b"x" * 300), b"\1" + message(b"zip")[1:]]),
    st.sampled_from(
        [block(), block(STREAM), block("/no"), block()[1:], b"\x82\x84\x86", b"\x88", b"\0\0\0\0", b"\xff"]
    ),
)
frames = st.one_of(
    st.builds(frame, st.integers(0, 11), st.integers(0, 255), numbers, payloads),
    st.builds(question, st.sampled_from([1, 3, 5, 7, 9]), st.binary(max_size=20)),
    st.builds(lambda n, end: headers(n, block(STREAM), end=end), st.sampled_from([1, 3, 5, 7]), st.booleans()),
    st.builds(lambda n, body, end: data(n, body, end=end), st.sampled_from([1, 3, 5, 7]), payloads, st.booleans()),
    st.builds(window, numbers, st.sampled_from([0, 1, 7, 100, 65_535, 2**31 - 1])),
    st.builds(lambda value: settings((4, value)), st.sampled_from([0, 1, 100, 65_535, 2**31 - 1, 2**31])),
    st.binary(max_size=30),
)
sent = st.builds(
    lambda first, rest: first + b"".join(rest), st.sampled_from([HELLO, PREFACE + SETTINGS, b""]), st.lists(frames)
)


@given(sent)
@example(HELLO + question(1) + question(3))
@example(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
def test_any_bytes_are_calls_or_one_error_whole_and_byte_by_byte(sent: bytes) -> None:
    whole, cut = Talk(sent), Talk(*(sent[at : at + 1] for at in range(len(sent))))
    stopped = Talk(sent, stops=True)

    assert (stopped.error, stopped.heard, stopped.out) == (whole.error, whole.heard, whole.out)
    assert cut.error == whole.error
    assert whole.error is None or whole.error in Code
    # What came before an error in the same read is given out too.
    assert cut.heard == whole.heard
    assert cut.out == whole.out


def asked(number: int, body: bytes, kind: str, cut: int) -> bytes:
    """A call as an honest client may send it."""
    whole = message(body)
    match kind:
        case "together":
            return question(number, body)
        case "pieces":
            return headers(number) + data(number, whole[:cut], end=False) + data(number, whole[cut:])
        case "half closed by nothing":
            return headers(number) + data(number, whole, end=False) + data(number, b"")
        case "trailers":
            return headers(number) + data(number, whole, end=False) + headers(number, b"\0\1x\1y", end=True)
        case _:
            return headers(number, block(STREAM)) + data(number, whole + whole)


def by_stream(heard: list[Heard]) -> list[Heard]:
    """What happened, in order on each stream."""
    return sorted(heard, key=lambda happened: happened[1])


kinds = st.sampled_from(["together", "pieces", "half closed by nothing", "trailers", "stream"])
calls = st.lists(st.tuples(st.binary(max_size=50), kinds, st.integers(0, 20)), max_size=8)


@given(calls, st.lists(st.integers(1, 60)))
def test_the_same_calls_cut_anywhere_have_the_same_answers(
    calls: list[tuple[bytes, str, int]], sizes: list[int]
) -> None:
    sent = HELLO + b"".join(asked(2 * index + 1, *call) for index, call in enumerate(calls))
    pieces, at = [], 0
    for size in [*sizes, len(sent)]:
        pieces.append(sent[at : at + size])
        at += size
    whole = Talk(sent, answer=True)
    whole_frames = sorted(whole.frames())
    for cut in (Talk(*pieces, answer=True), Talk(sent, answer=True, stops=True)):
        assert cut.error is whole.error is None
        assert by_stream(cut.heard) == by_stream(whole.heard)
        assert sorted(cut.frames()) == whole_frames
        assert not cut.connection.streams.active


steps = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 40_000)),
    st.tuples(st.just("stream"), st.integers(0, 3_000)),
    st.tuples(st.just("connection"), st.integers(1, 100_000)),
    st.tuples(st.just("window"), st.integers(1, 50_000)),
    st.tuples(st.just("initial"), st.integers(0, 100_000)),
    st.tuples(st.just("size"), st.integers(16_384, 70_000)),
    st.tuples(st.just("reset"), st.just(0)),
    st.tuples(st.just("congest"), st.integers(0, 1)),
)


@given(st.lists(steps, max_size=40))
def test_answers_never_exceed_the_windows_by_a_byte_and_arrive_when_they_open(  # noqa: PLR0915 - a model of both sides
    steps: list[tuple[str, int]],
) -> None:
    talk = Talk(HELLO, options=GrpcOptions(max_connection_memory=2**30))
    connection, initial, largest, last = 65_535, 65_535, 16_384, -1
    windows: dict[int, int] = {}
    owed: dict[int, int] = {}
    gone: set[int] = set()

    def look() -> None:
        nonlocal connection
        for kind, flags, number, payload in parse(talk.take()):
            if kind == 0:
                connection -= len(payload)
                windows[number] -= len(payload)
                owed[number] -= len(payload)
                assert connection >= 0
                assert windows[number] >= 0
                assert len(payload) <= largest
                assert number not in gone
            if kind in {0, 1} and flags & 1:
                assert owed[number] == 0
                gone.add(number)

    for step, value in steps:
        match step:
            case "ask" | "stream":
                last += 2
                windows[last] = initial
                owed[last] = value + 5
                if step == "ask":
                    talk.say(question(last))
                    talk.connection.streams.reply(last, b"x" * value)
                else:
                    talk.say(headers(last, block(STREAM)))
                    talk.connection.streams.send(last, b"x" * value)
            case "connection":
                connection += value
                talk.say(window(0, value))
            case "window" if last > 0:
                windows[last] += value
                talk.say(window(last, value))
            case "initial":
                for number in windows:
                    windows[number] += value - initial
                initial = value
                talk.say(settings((4, value)))
            case "size":
                largest = value
                talk.say(settings((5, value)))
            case "reset" if last > 0:
                look()
                gone.add(last)
                owed[last] = 0
                talk.say(frame(3, 0, last, b"\0\0\0\x08"))
            case "congest":
                talk.connection.streams.congest(bool(value))
        look()

    assert talk.error is None
    talk.connection.streams.congest(False)
    connection += 2**24
    talk.say(window(0, 2**24))
    for number in windows:
        windows[number] += 200_000
        talk.say(window(number, 200_000))
    look()
    assert set(owed.values()) <= {0}
