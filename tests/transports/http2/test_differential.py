"""The same bytes to both transports have the same answers, but for the differences that are stated."""

import asyncio
import gzip
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.api.method import Method
from ratelimit_service.system.address import Address
from ratelimit_service.transports.grpcio import GrpcioTransport
from ratelimit_service.transports.http2 import Http2Transport
from ratelimit_service.transports.options import GrpcOptions
from tests.loops import run
from tests.transports.exchange import Outcome, exchange
from tests.transports.http2.differences import ALIKE, DIFFERENCES, ENDED, NOTHING, OK, Difference, reaction
from tests.transports.http2.talk import HELLO, block, data, frame, headers, literal, message, settings, window
from tests.transports.http2.test_any_bytes import frames as any_frames
from tests.transports.methods import WAIT_SECONDS, Break, Echo, Grow, Refuse, Talk
from tests.transports.servers import LOCALHOST


class Both(NamedTuple):
    """Where they listen."""

    ours: Address
    grpcio: Address

    async def hear(self, sent: bytes, awaited: Collection[int] = (), seconds: float = 0) -> tuple[Outcome, Outcome]:
        """What becomes of the same bytes on each."""
        ours = exchange(self.ours, HELLO + sent, awaited, seconds)
        return await ours, await exchange(self.grpcio, HELLO + sent, awaited, seconds)


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    """For all these tests: starting takes longer than they."""
    options = GrpcOptions(max_message_size=5000)
    # Its clock stands still: all that is sent at once is then read before any of it is answered.
    transports = Http2Transport(options, tick=lambda: 0), GrpcioTransport(options)

    async def start() -> Both:
        methods: list[Method] = [Echo(), Refuse(), Grow(), Break()]
        addresses = [(await each.start(methods, [Talk()], [LOCALHOST]))[0] for each in transports]
        return Both(*addresses)

    async def stop() -> None:
        await asyncio.gather(*(each.stop(0) for each in transports))

    yield run(start())
    run(stop())


@pytest.mark.parametrize("difference", DIFFERENCES, ids=[each.name for each in DIFFERENCES])
def test_where_they_differ_each_does_what_is_stated(both: Both, difference: Difference) -> None:
    seconds = PATIENCE if NOTHING in difference else WAIT_SECONDS
    ours, grpcio = run(both.hear(difference.sent, [1], seconds))

    assert (reaction(ours), reaction(grpcio)) == (difference.ours, difference.grpcio)


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_strange_or_wrong_has_the_same_reaction_on_both(both: Both, name: str) -> None:
    ours, grpcio = run(both.hear(ALIKE[name], [1], WAIT_SECONDS))

    assert reaction(ours) == reaction(grpcio)


def pieces(whole: bytes, sizes: list[int]) -> Iterator[bytes]:
    """It, in as many parts and one more."""
    for size in sizes:
        yield whole[:size]
        whole = whole[size:]
    yield whole


class Call(NamedTuple):
    """A call as some client may send it."""

    path: str
    body: bytes
    fields: tuple[tuple[bytes, bytes], ...] = ()
    packed: bool = False
    block_sizes: tuple[int, ...] = ()
    body_sizes: tuple[int, ...] = ()
    priority: bool = False
    trailers: bool = False

    def frames(self, number: int) -> list[bytes]:
        """In order; other streams may come between them, but not within a header block."""
        fields = self.fields + ((b"grpc-encoding", b"gzip"),) * self.packed
        blocks = list(pieces(block(self.path, *fields), list(self.block_sizes)))
        kinds = [1] + [9] * (len(blocks) - 1)
        opening = b"".join(
            frame(
                kind,
                (0x20 if self.priority and kind == 1 else 0) | (4 if index == len(blocks) - 1 else 0),
                number,
                (b"\0\0\0\0\x10" if self.priority and kind == 1 else b"") + part,
            )
            for index, (kind, part) in enumerate(zip(kinds, blocks, strict=True))
        )
        packed = gzip.compress(self.body)
        asked = b"\1" + len(packed).to_bytes(4, "big") + packed if self.packed else message(self.body)
        parts = list(pieces(asked, list(self.body_sizes)))
        last = len(parts) - 1
        sent = [data(number, part, end=not self.trailers and index == last) for index, part in enumerate(parts)]
        return [opening, *sent, *([headers(number, literal(b"x", b"y"), end=True)] if self.trailers else [])]


EXAMPLES: Final = {
    "a question": Call(Echo.path, b"hello"),
    "nothing in it": Call(Echo.path, b""),
    "all there may be": Call(Echo.path, b"x" * 5000),
    "too large": Call(Echo.path, b"x" * 5001),
    "an answer too large": Call(Grow.path, b"5001"),
    "an error": Call(Refuse.path, b""),
    "an unknown path": Call("/nobody/Knows", b""),
    "secrets": Call(Echo.path, b"hello", ((b"authorization", b"secret"), (b"grpc-timeout", b"10S"))),
    "its length": Call(Echo.path, b"hello", ((b"content-length", b"10"), (b"grpc-encoding", b"identity"))),
    "a stream": Call(Talk.path, b"hello", body_sizes=(3,)),
    "gzip": Call(Echo.path, b"x" * 5000, packed=True),
    "gzip of too much": Call(Echo.path, b"x" * 5001, packed=True),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_same_call_has_the_same_answer(both: Both, name: str) -> None:
    ours, grpcio = run(both.hear(b"".join(EXAMPLES[name].frames(1)), [1], WAIT_SECONDS))

    assert ours == grpcio
    assert ours.alive


PATIENCE: Final = 0.2
"""Seconds for an answer that is not to come."""
RESERVED: Final = {"te", "connection", "upgrade", "host", "content-length", "content-type", "keep-alive", "user-agent"}
names: st.SearchStrategy[str] = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.", min_size=1, max_size=20).filter(
    lambda name: not name.startswith(("grpc-", ".", "-")) and not name.endswith("-bin") and name not in RESERVED
)
values = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=60).map(str.strip)
fields = st.lists(st.tuples(names.map(str.encode), values.map(str.encode)), max_size=5).map(tuple)
calls = st.one_of(
    st.builds(
        Call,
        st.sampled_from([Echo.path, Talk.path, "/nobody/Knows", Refuse.path]),
        st.binary(max_size=200) | st.integers(4_900, 5_100).map(lambda size: b"x" * size),
        fields,
        st.booleans(),
        st.lists(st.integers(0, 60), max_size=2).map(tuple),
        st.lists(st.integers(0, 40), max_size=3).map(tuple),
        st.booleans(),
        st.booleans(),
    ),
    st.integers(0, 5_100).map(lambda size: Call(Grow.path, b"%d" % size)),
)
between = st.sampled_from(
    [
        b"",
        frame(77, 3, 0, b"unknown"),
        frame(2, 0, 99, b"\0\0\0\0\x10"),
        settings((4, 0)),
        settings((4, 1), (1, 0)),
        settings((4, 70_000), (1, 65_536), (5, 20_000)),
        settings((3, 0), (2, 0), (6, 100_000)),
        window(0, 10_000),
    ]
)


@given(st.lists(calls, min_size=1, max_size=5), st.data())
def test_any_calls_have_the_same_answers(both: Both, calls: list[Call], draw: st.DataObject) -> None:
    """Interleaved, in pieces, with what else a client may say between them."""
    left = [call.frames(2 * index + 1) for index, call in enumerate(calls)]
    sent, opened = [], 0
    while any(left):
        ready = [index for index, frames in enumerate(left) if frames and index <= opened]
        index = draw.draw(st.sampled_from(ready))
        opened = max(opened, index + 1)
        sent += [left[index].pop(0), draw.draw(between)]
    wide = settings((4, 65_535)) + b"".join(window(2 * index + 1, 10_000) for index in range(len(calls)))

    numbers = [2 * index + 1 for index in range(len(calls))]

    ours, grpcio = run(both.hear(b"".join(sent) + wide + window(0, 100_000), numbers, WAIT_SECONDS))

    assert ours == grpcio
    assert ours.alive


def whole(sent: bytes) -> bool:
    """It ends with a frame: for the rest of half a one both would wait."""
    while len(sent) >= 9:
        end = 9 + int.from_bytes(sent[:3], "big")
        if len(sent) < end:
            return False
        sent = sent[end:]
    return not sent


@given(st.lists(any_frames.filter(whole), min_size=1, max_size=4).map(b"".join))
def test_any_frames_end_no_less_on_ours_and_never_without_a_reason(both: Both, sent: bytes) -> None:
    """What ends a connection of grpc's is never answered by ours; what ends ours is named by RFC 9113."""
    ours, grpcio = run(both.hear(sent + settings((4, 65_535))))

    if reaction(ours) == ENDED:
        assert ours.code in {1, 3, 5, 6, 9, 11}
    if reaction(grpcio) == ENDED:
        assert reaction(ours) != OK
