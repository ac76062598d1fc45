"""Header blocks: whether they are looked up, put together from fields, or decoded, they ask for the same."""

import gc
import tracemalloc
from collections.abc import Callable

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.errors import WireError
from ratelimit_service.transports.http2.frames import Code
from ratelimit_service.transports.http2.headers import MAX_CACHED, MAX_CACHED_SIZE, Head, HeaderReader, split_fields
from tests.transports.http2.talk import HELLO, METHODS, UNARY, Talk, block, data, headers, literal, message, window

NAMES = [":method", ":scheme", ":path", ":authority", ":other", "content-type", "te", "grpc-timeout", "grpc-encoding"]
VALUES = [
    "POST",
    "http",
    "/t/U",
    "/t/S",
    "application/grpc",
    "trailers",
    "20m",
    "gzip",
    "x",
    "5",
    "",
    "a\nb",
    "y" * 300,
]
HEAD = [(":method", "POST"), (":scheme", "http"), (":path", "/t/U"), ("content-type", "application/grpc")]
others = st.sampled_from([*NAMES, "content-length", "connection", "x-request-id", "Upper", "cookie"])
lists = st.lists(st.tuples(others, st.sampled_from(VALUES)), max_size=6)


@given(st.lists(st.tuples(st.booleans(), lists, st.booleans()), min_size=1, max_size=4))
def test_a_block_put_together_from_fields_asks_for_what_it_says(
    blocks: list[tuple[bool, list[tuple[str, str]], bool]],
) -> None:
    reader = HeaderReader(METHODS, 400)
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    for common, more, huffman in blocks:
        sent = encoder.encode([*HEAD, *more] if common else more, huffman=huffman)

        assert asked(reader, sent) == decoded(sent)


@given(st.binary(max_size=40), st.booleans())
def test_any_bytes_are_read_alike_from_fields_and_whole(sent: bytes, common: bool) -> None:
    reader = HeaderReader(METHODS, 400)
    asked(reader, block())

    assert asked(reader, block()[1:] + sent if common else sent) == decoded(block()[1:] + sent if common else sent)


def test_a_field_that_changes_with_each_call_leaves_the_others_known() -> None:
    reader = HeaderReader(METHODS, 16_384)
    heads = {reader.read(block("/t/U", (b"traceparent", b"%d" % number))) for number in range(1_000)}

    assert heads == {Head("/t/U", plain=True)}
    assert len(reader._heads) == 1
    assert reader.cached_bytes <= MAX_CACHED


def test_a_block_is_cut_at_its_fields() -> None:
    assert split_fields(b"\x83\x86\x44\x01/\x00\x01a\x01b\x0f\x10\x01c") == [
        b"\x83",
        b"\x86",
        b"\x44\x01/",
        b"\0\1a\1b",
        b"\x0f\x10\1c",
    ]
    assert split_fields(b"\x20\x83") == [b"\x83"]
    assert split_fields(b"\x83\x20") is None
    assert split_fields(b"\xbe") is None
    assert split_fields(b"\x00\x05a") is None


def _of_paths(number: int) -> bytes:
    return block("/" + f"{number:0110}")


def _of_long_fields(number: int) -> bytes:
    return block(UNARY, (b"id", b"%0120d" % number), (b"more", b"%0120d" % (number + 1)))


def _of_short_fields(number: int) -> bytes:
    return block(UNARY, *((b"a%d" % name, b"%d" % number) for name in range(10)))


def _of_huffman(number: int) -> bytes:
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    return encoder.encode([*HEAD[:2], (":path", "/" + f"{number}".zfill(1_500)), *HEAD[3:]])


def _of_timeouts(number: int) -> bytes:
    return block(UNARY, (b"grpc-timeout", b"%dm" % number))


def _of_refusals(number: int) -> bytes:
    """Lists that are too large, by fields of the static table; each refusal has a text of its own."""
    return block(UNARY, (b"id", b"%d" % number)) + b"\x90" * 300


@pytest.mark.parametrize(
    "made",
    [_of_paths, _of_long_fields, _of_short_fields, _of_huffman, _of_timeouts, _of_refusals],
    ids=lambda made: made.__name__,
)
def test_what_is_remembered_of_headers_is_bounded_in_bytes(made: Callable[[int], bytes]) -> None:
    """Blocks, fields and what they ask for together, whatever they are like."""
    sent = [made(number) for number in range(300)]
    gc.collect()
    gc.freeze()  # what there is already takes no part in the collections below
    tracemalloc.start()
    try:
        reader = HeaderReader(METHODS, 16_384)
        reader.read(block())
        before, _ = tracemalloc.get_traced_memory()
        most = 0
        for each in sent:
            reader.read(bytes(bytearray(each)))  # as they come, in bytes of their own
            if reader.cached_bytes > 0.95 * MAX_CACHED:
                gc.collect()  # tuples that Python keeps to make others of
                most = max(most, tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
        gc.unfreeze()

    assert 0 < most <= MAX_CACHED


def test_a_block_that_is_longer_is_not_remembered() -> None:
    reader = HeaderReader(METHODS, 16_384)
    reader.read(block(UNARY, *((b"a%d" % name, b"x" * 100) for name in range(10))))

    assert max(map(len, reader.cache), default=0) <= MAX_CACHED_SIZE


GROWN = b"\x3f\xe1\x1f"
"""The client's table has 4,096 bytes again: RFC 7541, 6.3."""


@pytest.mark.parametrize("where", ["trailers", "HEADERS of a stream that was reset"])
def test_a_table_that_grows_where_headers_count_for_nothing_grows_all_the_same(where: str) -> None:
    """A client that has not acknowledged our table of no entries may; what it then adds to it is decoded."""
    adds = block() + b"\x40\3new\5value"
    refers = block()[1:] + b"\xbe"
    talk = Talk(HELLO, headers(1, adds) + data(1, message(b"")), headers(3, adds[1:]) + data(3, message(b"")))
    talk.say(headers(5) + (data(5, message(b""), end=False) if where == "trailers" else window(5, 0)))
    talk.say(headers(5, GROWN + literal(b"x", b"y"), end=True))
    talk.say(headers(7, adds[1:]) + data(7, message(b"")))
    talk.say(headers(9, adds[1:]) + data(9, message(b"")))
    talk.say(headers(11, refers) + data(11, message(b"last")))

    assert talk.error is None
    assert talk.heard[-1] == ("CALL", 11, b"last")


@pytest.mark.parametrize("name", [b"Upper", b"a b", b"", b"a:b", b"\xff"])
def test_trailers_whose_names_are_none_are_malformed(name: bytes) -> None:
    talk = Talk(HELLO, headers(1), data(1, message(b""), end=False))
    talk.take()
    talk.say(headers(1, literal(name, b"y"), end=True))

    assert [(kind, number, payload) for kind, _, number, payload in talk.frames()] == [
        (3, 1, Code.PROTOCOL_ERROR.to_bytes(4, "big"))
    ]


def asked(reader: HeaderReader, sent: bytes) -> str | int:
    """What a block asks for, or the code of the error that it is."""
    try:
        return repr(reader.read(sent))
    except WireError as error:
        return error.code


def decoded(sent: bytes) -> str | int:
    """The same, decoded whole by a reader that knows nothing."""
    reader = HeaderReader(METHODS, 400)
    reader._decode(b"\x20")
    try:
        return repr(reader._head(reader._decode(sent)))
    except WireError as error:
        return error.code


def test_a_traced_method_gets_the_trace_of_each_call_in_bounded_memory() -> None:
    reader = HeaderReader(METHODS, 16_384, "/t/U")
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    for number in range(1, 1000):
        sent = encoder.encode([*HEAD, ("traceparent", f"00-{'a' * 32}-{number:016x}-01")], huffman=number % 2 == 0)
        head = reader.read(sent)

        assert head.context is not None
        assert head.context.span_id == number
        assert reader.cache[sent].context == head.context
        assert head.plain
        assert reader.cached_bytes <= MAX_CACHED


def test_without_a_traced_method_a_trace_is_not_read() -> None:
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    traceparent = ("traceparent", f"00-{'a' * 32}-{'b' * 16}-01")
    for reader in (HeaderReader(METHODS, 16_384), HeaderReader(METHODS, 16_384, "/t/S")):
        assert reader.read(encoder.encode([*HEAD, traceparent])).context is None
