"""Any bytes, whole or split anywhere, lead to calls or a documented error; never another exception; memory is bounded; output never exceeds the peer's windows.

A case is two bytes of how (limits, cuts, stops, how methods behave) and the rest of what: bytes as they are, or steps that
become frames and acts. The same case always does the same.
"""  # noqa: E501 - the invariant stands in one line

import math
from collections.abc import Iterable, Iterator
from typing import Final

from ratelimit_service.errors import RpcError, Status
from ratelimit_service.transports.http2.connection import Connection
from ratelimit_service.transports.http2.frames import DEFAULT_FRAME_SIZE, Code
from ratelimit_service.transports.http2.headers import MAX_CACHED, MAX_CACHED_SIZE
from ratelimit_service.transports.http2.limits import MAX_RESET
from ratelimit_service.transports.http2.stream import Event, EventKind
from ratelimit_service.transports.options import GrpcOptions
from ratelimit_service.transports.transport import MESSAGE_BYTES
from tests.fuzz.client import MOST, Client
from tests.fuzz.steps import METHODS, Act, Step, steps
from tests.transports.http2.talk import HELLO, window

SMALL: Final = GrpcOptions(
    max_message_size=300, max_concurrent_streams=4, max_header_list_size=600, max_connection_memory=2_000
)
REFUSAL: Final = RpcError(Status.NOT_FOUND, "größer ✗")
AT_ONCE, WHEN_TOLD, REFUSE, NEVER = range(4)
"""How methods answer."""
_MAX_LINE_LENGTH: Final = 8_192


def try_case(case: bytes) -> None:
    """Runs one; AssertionError, or whatever else is raised, is a find."""
    if len(case) < 2:
        return
    how, cut, rest = case[0], case[1], case[2:]
    options = SMALL if how & 1 else GrpcOptions()
    begin = HELLO if how & 2 else b""
    manner = how >> 3 & 3
    denial = REFUSAL if how & 0x60 == 0x60 else None
    stops = bool(how & 0x80)
    driver = Driver(options, manner, denial, stops=stops)
    if how & 4:
        driver.play([begin, *steps(rest)], cut)
        return
    driver.play([begin + rest], cut)
    if manner == NEVER and (cut or stops):
        whole = Driver(options, manner, denial)
        whole.play([begin + rest], 0)
        if Code.ENHANCE_YOUR_CALM not in {driver.error, whole.error}:  # how much is too much depends on the reads
            assert driver.error == whole.error, "another error when it comes in pieces"
            assert driver.heard == whole.heard, "other calls when it comes in pieces"


class Driver:
    """One connection, its client and its methods."""

    def __init__(self, options: GrpcOptions, manner: int, denial: RpcError | None, *, stops: bool = False) -> None:
        self.client = Client()
        self.heard: list[tuple[str, int, bytes]] = []
        self.error: Code | None = None
        self.connection = Connection(METHODS, options, self._wake)
        self.connection.handshake_done(denial, "")
        self._options = options
        self._manner = manner
        self._over = 0 if stops else math.inf
        """A step is over after each frame, as when a frame took all of its time; or never."""
        self._waiting: list[int] = []
        self._open: set[int] = set()
        self._wakes = 0

    def _wake(self) -> None:
        self._wakes += 1

    def play(self, played: Iterable[Step], cut: int) -> None:
        """All of it, then the end of the connection."""
        for step in played:
            if isinstance(step, Act):
                self._act(step)
            else:
                for piece in self._pieces(step, cut):
                    self._say(piece)
        self._settle()
        self.connection.abort()
        self._events(self.connection.streams.events)
        while self._waiting:
            self._reply(b"too late")
        calls = self.connection.streams
        left = calls.active, calls.abandoned, calls.held_bytes, calls.queued_bytes, calls.blocked, calls.readable
        assert not any((*left, calls.timed, self._open)), "leftovers"

    def _pieces(self, sent: bytes, cut: int) -> Iterator[bytes]:
        """With 0 whole, with 1 frame by frame, so that windows are known to the byte, with more anywhere besides."""
        if not cut:
            yield sent
            return
        state = cut
        while sent:
            if self.connection.closed:  # nothing that comes counts any more
                yield sent
                return
            size = max(1, self.client.border(sent))
            if cut > 1:
                state = state * 1_103_515_245 + 12_345 & MOST
                size = min(size, 1 + (state >> 16) % (1 + cut) + size // 200)
            yield sent[:size]
            sent = sent[size:]

    def _say(self, piece: bytes) -> None:
        connection, calls = self.connection, self.connection.streams
        self.client.say(piece)
        while True:
            calls.flush_scheduled = True
            self._events(connection.receive(piece, self._over))
            self._take()
            if not connection.more:
                return
            piece = b""

    def _act(self, act: Act) -> None:
        """What nobody expects must wake somebody, when there is something to take."""
        self.client.say(b"")
        wakes = self._wakes
        self._do(act)
        news = self._take() or self.connection.streams.events
        if not act.name.endswith("congest"):  # whoever tells of that takes at once
            assert not news or self._wakes > wakes, "nobody was woken"
        self._events(self.connection.streams.events)
        self._take()

    def _do(self, act: Act) -> None:
        connection, calls = self.connection, self.connection.streams
        match act.name:
            case "reply":
                self._reply(b"a" * act.size if act.size else REFUSAL)
            case "send" if act.number in self._open:
                calls.send(act.number, b"s" * act.size)
            case "finish" if act.number in self._open:
                calls.finish(act.number)
            case "refuse" if act.number in self._open:
                calls.finish(act.number, REFUSAL)
            case "expire":
                calls.expire(act.number)
            case "congest":
                connection.streams.congest(True)
            case "decongest":
                connection.streams.congest(False)
            case "drain":
                connection.retire()
            case "leave":
                connection.leave()
            case "ping" if not connection.closed:
                connection.ping()
            case "refill":
                connection.refill(500)

    def _events(self, events: list[Event]) -> None:
        calls = self.connection.streams
        while events:
            for kind, number, _, body in tuple(events):
                self.heard.append((kind.name, number, body))
                match kind:
                    case EventKind.CALL if number not in calls.active:
                        calls.abandoned.discard(number)
                    case EventKind.CALL:
                        self._waiting.append(number)
                        if self._manner in {AT_ONCE, REFUSE}:
                            self._reply(body if self._manner == AT_ONCE else REFUSAL)
                    case EventKind.OPEN:
                        assert number not in self._open, "opened twice"
                        self._open.add(number)
                    case EventKind.MESSAGE:
                        assert number in self._open, "a message after the end"
                        if self._manner == AT_ONCE:
                            calls.send(number, body)
                    case EventKind.HALF_CLOSE:
                        assert number in self._open, "a half close after the end"
                        if self._manner in {AT_ONCE, REFUSE}:
                            calls.finish(number, None if self._manner == AT_ONCE else REFUSAL)
                    case EventKind.CLOSE:
                        self._open.remove(number)
            events.clear()
            events, calls.events = calls.events, []

    def _reply(self, answer: bytes | RpcError) -> None:
        """To the call that waits longest."""
        if self._waiting:
            self.connection.streams.reply(self._waiting.pop(0), answer)

    def _take(self) -> bytes:
        connection = self.connection
        out = connection.take_output()
        self.client.hear(out)
        if connection.drained:
            connection.close(Code.NO_ERROR, "drained")
            self.client.hear(connection.take_output())
        if connection.error is not None:
            self.error = Code(connection.error[0])
            assert connection.closed, "an error that ends nothing"
        self._look()
        return out

    def _look(self) -> None:
        """What is kept is bounded, and the sums are right."""
        connection, calls, options = self.connection, self.connection.streams, self._options
        streams = [stream for stream in calls.active.values() if stream is not None]
        assert len(calls.active) + len(calls.abandoned) <= options.max_concurrent_streams, "too many streams"
        assert calls.held_bytes == sum(len(stream.body) for stream in streams), "what is held is counted wrong"
        assert calls.held_bytes <= options.max_connection_memory, "too much is held"
        assert calls.queued_bytes == sum(stream.queued_bytes for stream in streams), "what waits is counted wrong"
        max_unread = options.max_connection_memory + options.max_message_size + MESSAGE_BYTES
        assert calls.queued_bytes <= max_unread or connection.closed, "too much waits"
        assert all(number in calls.active for number in (*calls.readable, *calls.blocked)), "a stream that is gone"
        assert len(connection._buffer) <= DEFAULT_FRAME_SIZE + 9 or connection.more, "too much is not read"
        assert connection.begun or len(connection._buffer) <= _MAX_LINE_LENGTH, "a line without end"
        assert len(connection.block.bytes if connection.block else b"") <= 2 * options.max_header_list_size
        reader = connection.headers
        assert reader.cached_bytes <= MAX_CACHED, "too much is remembered of headers"
        assert all(len(known) <= MAX_CACHED_SIZE for known in reader.cache), "a long block"
        assert len(calls.reset_by_us) <= MAX_RESET, "too many resets"

    def _settle(self) -> None:
        """Every answer leaves, once all methods have answered and the client makes room."""
        self._act(Act("decongest"))
        while self._waiting:
            self._act(Act("reply", 0, 10))
        for number in tuple(self._open):
            self._act(Act("finish", number))
        client, calls = self.client, self.connection.streams
        if self.connection.closed or client.border(b"\0" * 9) != 9 or self.connection.block is not None:
            return
        self.connection.refill(MOST)
        if room := min(MOST, MOST - client.window):
            self._say(window(0, room))
        for number in tuple(calls.active):
            if number in calls.active and (room := min(MOST, MOST - client.windows[number])):
                self._say(window(number, room))
        while calls.output_full:  # as much as is written in one turn has left
            self.connection.streams.resume_output()
            self._take()
        if not self.connection.closed:
            left = ((number, stream is None or stream.tail) for number, stream in calls.active.items())
            answered = [number for number, over in left if over and number not in client.ended]
            assert not answered, f"answers that do not leave: {answered}"
