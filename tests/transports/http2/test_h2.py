"""python-hyper's h2 as the client: a state machine that is not ours reads every byte that we write."""

import gzip
from collections import defaultdict

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.errors import RpcError, Status
from ratelimit_service.transports.http2.connection import Connection
from ratelimit_service.transports.options import GrpcOptions
from tests.transports.http2.talk import METHODS, STREAM, UNARY, message

GRPC = [("content-type", "application/grpc"), ("te", "trailers")]


class Pair:
    """A client and our connection, joined by their bytes; every unary question comes back."""

    def __init__(self, options: GrpcOptions | None = None) -> None:
        config = h2.config.H2Configuration(client_side=True)
        self.client = h2.connection.H2Connection(config)
        self.server = Connection(METHODS, options or GrpcOptions(), lambda: None)
        self.headers: dict[int, dict[str, str]] = defaultdict(dict)
        self.bodies: dict[int, bytes] = defaultdict(bytes)
        self.ended: set[int] = set()
        self.others: list[h2.events.Event] = []
        self.client.initiate_connection()
        self.exchange()

    def ask(self, body: bytes = b"", path: str = UNARY, more: list[tuple[str, str]] | None = None) -> int:
        """A call, with its bytes as they are."""
        number = self.client.get_next_available_stream_id()
        first = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")]
        self.client.send_headers(number, [*first, *(more if more is not None else GRPC)])
        self.client.send_data(number, body, end_stream=True)
        return number

    def exchange(self, size: int = 1_000_000) -> None:
        """Until neither has anything to say; in reads of so many bytes."""
        while sent := self.client.data_to_send():
            for at in range(0, len(sent), size):
                for kind, number, _, body in self.server.receive(sent[at : at + size]):
                    match kind.name:
                        case "CALL":
                            self.server.streams.reply(number, body)
                        case "MESSAGE":
                            self.server.streams.send(number, body)
                        case "HALF_CLOSE":
                            self.server.streams.finish(number)
                self._hear(self.server.take_output())

    def _hear(self, sent: bytes) -> None:
        for event in self.client.receive_data(sent):
            match event:
                case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                    assert event.headers is not None
                    self.headers[event.stream_id].update((_text(name), _text(value)) for name, value in event.headers)
                case h2.events.DataReceived():
                    self.bodies[event.stream_id] += event.data
                    self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case h2.events.StreamEnded():
                    self.ended.add(event.stream_id)
                case _:
                    self.others.append(event)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def test_h2_gets_its_answers_and_its_blocks_are_looked_up_once_its_table_has_shrunk() -> None:
    pair = Pair()
    numbers = [pair.ask(message(b"one")), pair.ask(message(b"two"))]
    pair.exchange()
    for _ in range(3):
        numbers.append(pair.ask(message(b"more")))
        pair.exchange()

    assert [pair.bodies[number] for number in numbers] == [message(b"one"), message(b"two"), *3 * [message(b"more")]]
    assert pair.headers[5] == {":status": "200", "content-type": "application/grpc", "grpc-status": "0"}
    assert pair.ended == {1, 3, 5, 7, 9}
    # The first after those of the first call shrinks the header table too; the other two are one.
    assert len(pair.server.headers.cache) == 2


@pytest.mark.parametrize("size", [0, 100, 4095])
def test_a_client_that_wants_a_smaller_header_table_hears_that_ours_shrinks(size: int) -> None:
    """RFC 7541, 4.2: it takes the next block for a broken one otherwise, though none of ours ever used the table."""
    pair = Pair()
    first = pair.ask(message(b"before"))
    pair.exchange()
    numbers = []
    for _ in range(2):
        pair.client.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: size})
        pair.exchange()
        numbers += [pair.ask(path="/no/Such"), pair.ask(message(b"after"))]
        pair.exchange()

    assert [pair.bodies[number] for number in (first, *numbers)] == [message(b"before"), *2 * [b"", message(b"after")]]
    assert pair.ended == {first, *numbers}


@pytest.mark.parametrize(
    ("body", "more", "status", "text"),
    [
        (b"", [], "12", "the method takes one message, there was none"),
        (message(b"") * 2, [], "12", "the method takes one message, there were more"),
        (message(b"hello")[:-1], [], "13", "the last message ends before its length"),
        (b"\0\0", [], "13", "the last message ends before its length"),
        (b"\1\0\0\0\0", [], "13", "a message is compressed, and grpc-encoding names no compression"),
        (b"\2\0\0\0\0", [], "13", "the first byte of a message is not 0 or 1"),
        (b"\0\x7f\0\0\0", [], "8", "the message has 2130706432 bytes, the maximum is 131072"),
        (message(b""), [("grpc-encoding", "snappy")], "12", "grpc-encoding is not one of identity, gzip"),
        (message(b""), [("grpc-timeout", "soon")], "13", None),
        (message(b""), [("grpc-timeout", "0n")], "4", "the deadline has passed"),
        (message(b""), [("x", "v" * 20_000)], "8", "the headers have 20305 bytes, the maximum is 16384"),
    ],
)
def test_a_call_that_cannot_be_one_is_told_why(
    body: bytes, more: list[tuple[str, str]], status: str, text: str | None
) -> None:
    pair = Pair()
    number = pair.ask(body, more=[*GRPC, *more])
    pair.exchange()
    after = pair.ask(message(b"well"))
    pair.exchange()

    assert pair.headers[number]["grpc-status"] == status
    assert text is None or pair.headers[number]["grpc-message"] == text
    assert number in pair.ended
    assert pair.bodies[after] == message(b"well")


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ([("content-type", "application/json")], "415"),
        ([("content-type", "application/grpc-web")], "415"),
        ([], "415"),
        ([("content-type", "application/grpc+proto")], "200"),
        ([("content-type", "application/grpc;charset=utf-8")], "200"),
    ],
)
def test_only_content_types_of_grpc_are_calls(more: list[tuple[str, str]], status: str) -> None:
    pair = Pair()
    number = pair.ask(message(b""), more=more)
    pair.exchange()

    assert pair.headers[number][":status"] == status
    assert number in pair.ended


def test_a_compressed_question_is_unpacked_and_no_further_than_the_most() -> None:
    pair = Pair(GrpcOptions(max_message_size=1000))
    encoded = [*GRPC, ("grpc-encoding", "gzip")]
    packed = [gzip.compress(body) for body in (b"x" * 1000, b"x" * 1001)]
    numbers = [pair.ask(b"\1" + len(body).to_bytes(4, "big") + body, more=encoded) for body in packed]
    numbers += [pair.ask(b"\1\0\0\0\3abc", more=encoded), pair.ask(message(b"plain"), more=encoded)]
    pair.exchange()

    assert pair.bodies[numbers[0]] == message(b"x" * 1000)
    assert [pair.headers[number]["grpc-status"] for number in numbers] == ["0", "8", "13", "0"]


def test_the_message_of_an_error_is_percent_encoded_and_bounded() -> None:
    pair = Pair()
    number = pair.ask(message(b""))
    ((_, at, _, _),) = pair.server.receive(pair.client.data_to_send())
    pair.server.streams.reply(at, RpcError(Status.NOT_FOUND, "größer 100 %\n" + "ü" * 5000))
    pair._hear(pair.server.take_output())

    text = pair.headers[number]["grpc-message"]
    assert text.startswith("gr%C3%B6%C3%9Fer 100 %25%0A%C3%BC")
    assert len(text) < 8192
    assert pair.headers[number]["grpc-status"] == "5"


@given(st.lists(st.binary(max_size=200_000), min_size=1, max_size=4), st.integers(0, 100_000))
def test_answers_of_any_size_arrive_whole_however_small_the_window(bodies: list[bytes], initial: int) -> None:
    pair = Pair()
    pair.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: initial})
    pair.exchange()
    asked = {}
    for body in bodies:
        number = pair.client.get_next_available_stream_id()
        first = [(":method", "POST"), (":scheme", "http"), (":path", STREAM), (":authority", "x")]
        pair.client.send_headers(number, [*first, *GRPC], end_stream=True)
        pair.server.receive(pair.client.data_to_send())
        pair.server.streams.send(number, body)
        asked[number] = body
    for number in asked:
        pair.client.increment_flow_control_window(300_000, number)
    pair.client.increment_flow_control_window(1_000_000)
    pair._hear(pair.server.take_output())
    pair.exchange()

    assert {number: pair.bodies[number] for number in asked} == {n: message(body) for n, body in asked.items()}
