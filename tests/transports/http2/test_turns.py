"""However a client fills a read of 256 KiB, others have their turn after a few milliseconds; nothing of it is lost.

Time is counted in calls of functions, so that it is the same on every machine.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

from ratelimit_service.transports.http2.frames import Code
from ratelimit_service.transports.http2.limits import MAX_IDLE_FRAMES, Bound
from ratelimit_service.transports.http2.scheduling import STEP
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
    settings,
    window,
)

READ = 256 * 1024
CALL = 100
"""Nanoseconds of a call of a function, of Python's own too: about what it takes."""


class Work:
    """A clock that calls of functions move."""

    def __init__(self) -> None:
        self.time = 0

    def _count(self, _frame: object, event: str, _arg: object) -> None:
        if event in {"call", "c_call"}:
            self.time += CALL

    def __enter__(self) -> Self:
        self._before: Any = sys.getprofile()
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)

    def __call__(self) -> int:
        return self.time


MARK = frame(6, 0, 0, b"all read")
LONG = b"\xff\x9e\x3d" + bytes(7_965)
"""A string in Huffman's code: zeros stand for the character 0, five bits each."""


def filled(*parts: bytes) -> bytes:
    """As many of them as there is room for, and a PING."""
    out, size = [], 0
    for part in parts:
        size += len(part)
        if size > READ:
            break
        out.append(part)
    return b"".join(out) + MARK


def numbers(first: int = 1) -> Iterator[int]:
    """Of streams."""
    return iter(range(first, 100_000, 2))


FIELDS = b"".join(literal(b"%02x" % n, b"") for n in range(256))
READS: dict[str, Callable[[], tuple[int, bytes, bytes]]] = {  # made when they are needed: they are large
    "tiny DATA": lambda: (
        10,
        headers(1),
        filled(data(1, message(b"?" * 200_000)[:5], end=False), *30_000 * [data(1, b"?", end=False)]),
    ),
    "tiny DATA of a stream": lambda: (
        10,
        headers(1, block(STREAM)),
        filled(data(1, message(b"?" * 60_000)[:5], end=False), *25_000 * [data(1, b"?", end=False)]),
    ),
    "long questions": lambda: (
        10,
        headers(1) + data(1, message(b"")),
        filled(*(headers(n) + data(n, message(b"?" * 10_000)) for n in numbers(3))),
    ),
    "new blocks": lambda: (
        10,
        b"",
        filled(*(headers(n, block(UNARY, (b"id", b"%d" % n)), end=True) for n in numbers())),
    ),
    "new fields": lambda: (
        50,
        b"",
        filled(*(headers(n, block() + FIELDS + b"\0\2id\5%05d" % n, end=True) for n in numbers())),
    ),
    "long strings": lambda: (10, b"", filled(*(headers(n, block() + b"\0\1x" + LONG, end=True) for n in numbers()))),
    "blocks on streams that were reset": lambda: (
        10,
        headers(1) + window(1, 0),
        filled(*(headers(1, block() + FIELDS) for _ in range(100))),
    ),
    "messages of many streams": lambda: (
        40,
        b"".join(headers(n, block(STREAM)) for n in range(1, 1_999, 2)),
        filled(*(data(n, message(b"") * 50, end=False) for n in range(1, 1_999, 2))),
    ),
}


@pytest.mark.parametrize("name", READS)
def test_a_read_that_takes_long_is_read_in_turns(name: str) -> None:
    least, before, sent = READS[name]()
    tick = Work()
    talk = Talk(HELLO, before, tick=tick)
    talk.take()
    turns, rest = 0, sent
    while turns == 0 or talk.connection.more:
        talk.connection.refill(MAX_IDLE_FRAMES)
        began = tick()
        with tick:
            talk.connection.receive(rest, began + STEP)
        turns, rest = turns + 1, b""
        assert tick() - began < 2 * STEP

    assert turns >= least
    assert talk.error is None
    assert any(kind == 6 and flags == 1 for kind, flags, _, _ in talk.frames())


def waiting(window_of_connection: int) -> Talk:
    """A thousand answers wait, each for its own window."""
    talk = Talk(HELLO, settings((4, 0)), answer=True)
    talk.say(*(headers(n) + data(n, message(b"?" * n)) for n in range(1, 1_999, 2)))
    talk.connection.streams.send_window = window_of_connection
    talk.take()
    assert len(talk.connection.streams.blocked) == 999
    talk.connection.refill(MAX_IDLE_FRAMES)
    return talk


@pytest.mark.parametrize(
    ("one", "bound"),
    [
        (settings((4, 1)) + settings((4, 0)), Bound.SETTINGS),
        # The last of them has a window, and takes each byte that there is.
        (window(0, 1), Bound.WINDOW_UPDATES),
    ],
    ids=["SETTINGS", "WINDOW_UPDATE"],
)
def test_what_makes_us_look_through_a_thousand_streams_is_worth_more_than_a_frame(one: bytes, bound: Bound) -> None:
    talk = waiting(0)
    last = max(talk.connection.streams.blocked)
    talk.say(window(last, 2_000))
    count = 0
    while talk.error is None and count < MAX_IDLE_FRAMES:
        talk.say(one)
        count += 1

    assert talk.error is Code.ENHANCE_YOUR_CALM
    assert talk.counts.refused[bound] == 1
    assert count < MAX_IDLE_FRAMES // 5


def test_room_that_no_answer_waits_for_moves_none() -> None:
    work: list[int] = []
    for talk in (Talk(HELLO), waiting(1)):
        with Work() as tick:
            talk.say(window(0, 1) * 500, settings((4, 0)) * 500)
        assert talk.error is None
        work.append(tick())

    assert work[1] < 2 * work[0]
