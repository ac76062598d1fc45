"""Header blocks: whether they are looked up, put together from fields, or decoded, they ask for the same."""

import hpack
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.errors import WireError
from ratelimit_service.transports.http2.fields import cut
from ratelimit_service.transports.http2.headers import MOST_FIELDS, Head, HeaderReader
from tests.transports.http2.talk import METHODS, block

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
    reader = HeaderReader(METHODS, 400, None)
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    for common, more, huffman in blocks:
        sent = encoder.encode([*HEAD, *more] if common else more, huffman=huffman)

        assert asked(reader, sent) == decoded(sent)


@given(st.binary(max_size=40), st.booleans())
def test_any_bytes_are_read_alike_from_fields_and_whole(sent: bytes, common: bool) -> None:
    reader = HeaderReader(METHODS, 400, None)
    asked(reader, block())

    assert asked(reader, block()[1:] + sent if common else sent) == decoded(block()[1:] + sent if common else sent)


def test_a_field_that_changes_with_each_call_leaves_the_others_known() -> None:
    reader = HeaderReader(METHODS, 16_384, None)
    heads = {reader.read(block("/t/U", (b"traceparent", b"%d" % number))) for number in range(1_000)}

    assert heads == {Head("/t/U", plain=True)}
    assert len(reader._heads) == 1
    assert len(reader._fields) <= MOST_FIELDS


def test_a_block_is_cut_at_its_fields() -> None:
    assert cut(b"\x83\x86\x44\x01/\x00\x01a\x01b\x0f\x10\x01c") == [
        b"\x83",
        b"\x86",
        b"\x44\x01/",
        b"\0\1a\1b",
        b"\x0f\x10\1c",
    ]
    assert cut(b"\x20\x83") == [b"\x83"]
    assert cut(b"\x83\x20") is None
    assert cut(b"\xbe") is None
    assert cut(b"\x00\x05a") is None


def asked(reader: HeaderReader, sent: bytes) -> str | int:
    """What a block asks for, or the code of the error that it is."""
    try:
        return repr(reader.read(sent))
    except WireError as error:
        return error.code


def decoded(sent: bytes) -> str | int:
    """The same, decoded whole by a reader that knows nothing."""
    reader = HeaderReader(METHODS, 400, None)
    reader._decode(b"\x20")
    try:
        return repr(reader._head(reader._decode(sent)))
    except WireError as error:
        return error.code
