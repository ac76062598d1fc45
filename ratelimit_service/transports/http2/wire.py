"""The asyncio side of a connection: bytes in, events to methods, bytes out. Hot path.

One write answers a whole read. What is answered later is written once per turn of the loop. While the socket takes no
more, nothing is read: a client that does not read its answers asks nothing either. Nor is anything read while what came
waits for its turn (`shares`).
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from ratelimit_service.api.method import Method, StreamMethod
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.transports.http2.connection import Connection
from ratelimit_service.transports.http2.events import Event, Kind
from ratelimit_service.transports.http2.frames import Code
from ratelimit_service.transports.http2.handshakes import Session, why
from ratelimit_service.transports.http2.limits import LINGER_SECONDS, MOST_STREAMING, Bound
from ratelimit_service.transports.http2.shares import HANDSHAKE, STEP, host_of
from ratelimit_service.transports.http2.stream_call import StreamCall
from ratelimit_service.transports.transport import INTERNAL, STOPPING

if TYPE_CHECKING:
    from ratelimit_service.transports.http2.server import Server

log = logging.getLogger(__name__)

_CALL: Final = Kind.CALL

TOO_MANY_STREAMING: Final = RpcError(
    Status.RESOURCE_EXHAUSTED, f"the connection has {MOST_STREAMING} streaming calls, the most there may be"
)

TIMED: Final = 16
"""One read in so many is timed: all of them would be a twentieth of what a call costs."""

_MOST_TIMED: Final = 64
"""Reads of one connection that are timed until they are answered, so that looking for those takes no time."""


class Wire(asyncio.Protocol):
    """One connection; `tell_gone` is called once, when it is over, now or later."""

    transport: asyncio.Transport
    connection: Connection

    def __init__(self, server: "Server", tell_gone: Callable[[], None] | None = None) -> None:
        self._server = server
        self._tell_gone = tell_gone
        self._loop = server.loop
        self._methods: Mapping[str, Method] = server.methods
        self._stream_methods: Mapping[str, StreamMethod] = server.stream_methods
        self._streams: dict[int, StreamCall] = {}
        self._unanswered: dict[int, tuple[int, int]] = {}
        """Of timed reads that were not answered at once: their last call, when it came, and how many calls they had."""
        self._turn = -1
        self._session: Session | None = None
        """TLS, if there is any."""
        self._closing: asyncio.TimerHandle | None = None
        self._tick = server.tick
        self._data = b""
        """What came and waits for its turn."""
        self._arrived = 0
        """When that came."""
        self.waits = False
        self.finish = self.cost = 0
        """As `Waiting` says, and nanoseconds too."""
        self.weight = 0
        self.securing = False
        """The client is not through with TLS."""
        self.gone = False
        self.heard = True
        """Something came since the server looked last."""
        self.stuck = False
        """The socket takes no more."""
        self.received = 0
        """Bytes."""
        self.sent = 0
        self.reason = ""
        """Why it ends, or was asked to end; empty as long as only the client can know."""

    @property
    def left(self) -> int | None:
        """How many bytes have left, when the socket takes no more."""
        return self.sent - self.transport.get_write_buffer_size() if self.stuck else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is here."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own are not of asyncio's class
        server = self._server
        self.host = server.shares.join(host_of(transport.get_extra_info("peername")))
        self.connection = Connection(server.kinds, server.limits, self._wake, server.counts, server.tick)
        if not server.enter(self):
            self.connection.lose()
            self.transport.abort()
        elif server.handshakes is not None:
            self._session = server.handshakes.begin()
            self.securing = True
            self.cost = HANDSHAKE

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        self.heard = True
        self.received += len(data)
        host, now = self.host, self._tick()
        if host.room <= 0 or self.waits or self.securing:
            self._data += data
            self._arrived = now
            self._wait()
            return
        more = self._work(data, now, now)
        self.cost = cost = self._tick() - now + (len(data) >> 2)  # to read a byte takes a quarter of a nanosecond
        host.room -= cost
        if more:
            self._wait()

    def _wait(self) -> None:
        """Let others have their turn."""
        if not self.waits:
            self.transport.pause_reading()
            self._server.shares.wait(self)
        self.weigh()

    def go_on(self) -> bool:
        """It is its turn; whether there is more to do."""
        if self.gone or self.stuck:
            return False  # the socket will take more, and then this goes on
        data, self._data = self._data, b""
        more = self._work(data, self._arrived, self._tick())
        if not (more or self.stuck):
            self.transport.resume_reading()
        return more

    def _work(self, data: bytes, arrived: int, now: int) -> bool:
        """A step; whether there is more to do of what has come."""
        connection, session = self.connection, self._session
        if connection.closed:
            return False
        calls = connection.calls
        calls.expected = True
        self._turn = (self._turn + 1) % TIMED
        if session is not None and (data or not connection.more):
            data = self._decrypt(session, data)
        over, count, kind, last = now + STEP, 0, None, 0
        while True:
            events = connection.receive(data, over)
            if events:
                count += len(events)
                kind, last, _, _ = events[-1]
            while events:
                self._handle(events)
                events, calls.events = calls.events, []
            if not (connection.stopped or calls.ready) or self._tick() >= over:
                break
            data = b""
        self._write()
        if not self._turn and kind is _CALL:
            if last not in calls.streams:
                self._server.counts.answers.observe_all(self._tick() - arrived, count)
            elif len(self._unanswered) < _MOST_TIMED:
                self._unanswered[last] = arrived, count
        if calls.held or calls.flow.queued:
            self.weigh()
        more = connection.more
        if session is None or more:
            return bool(more)
        if session.over:
            self.transport.close()  # nobody speaks gRPC half open
        return session.more and not connection.closed

    def _decrypt(self, session: Session, raw: bytes) -> bytes:
        """The data in what has come; what TLS answers by itself is written."""
        try:
            data = session.whole(raw)
            if data:
                return data
            if data is None:
                data = session.receive(raw)
        except ssl.SSLError as error:
            self.transport.write(session.take())  # the alert that tells the client
            self.securing = not session.established
            self.end_tls(why(error, "the handshake" if self.securing else "a record of TLS"))
            return b""
        if out := session.take():
            self.sent += len(out)
            self.transport.write(out)
        if self.securing and session.established:
            self.securing = False
            refusal = "" if session.agreed == "h2" else "TLS without h2 by ALPN (3.2)"
            self.connection.admit(self._server.denial(session.shown), refusal)
        if session.empty:
            self.connection.waste(session.empty)
            session.empty = 0
        return data

    def end_tls(self, reason: str) -> None:
        """It is over because of TLS."""
        self.reason = "tls_handshake" if self.securing else "tls_record"
        self._server.tell(self.reason, reason)
        self.connection.lose()
        self._finish_events()
        self._linger()

    def _handle(self, events: list[Event]) -> None:
        calls = self.connection.calls
        abandoned, reply, before = calls.abandoned, calls.reply, None
        for kind, number, head, body in events:
            if kind is _CALL:
                if head is not before:  # calls that come together ask the same, almost always
                    before, call, timeout = head, self._methods[head.path].call, head.timeout
                    if timeout is not None:
                        now = self._server.now()
                if number in abandoned:  # it was reset in the same read
                    abandoned.discard(number)
                    continue
                try:
                    left = timeout  # type: ignore[possibly-undefined] # no head is None: the first is new
                    if left is not None and number in calls.timed:  # its message came after its headers
                        left = max(0, calls.timed[number] - self._server.now())
                    cancel = call(body, partial(reply, number), left)  # type: ignore[possibly-undefined] # as above
                    if cancel is not None:
                        calls.cancels[number] = cancel
                except Exception:
                    log.exception("%s failed", head.path)
                    reply(number, INTERNAL)
                if timeout is not None and number in calls.streams and number not in calls.timed:  # type: ignore[possibly-undefined] # as above
                    self._server.deadlines.add(calls, number, now + timeout, now)  # type: ignore[possibly-undefined] # as above
            elif kind is Kind.BEGIN:
                self._expire_in(number, head.timeout)
            else:
                self._stream_event(kind, number, head.path, body, head.timeout)

    def _stream_event(self, kind: Kind, number: int, path: str, body: bytes, timeout: int | None) -> None:
        if kind is Kind.OPEN and len(self._streams) >= MOST_STREAMING:
            self._server.counts.refused[Bound.STREAMING] += 1
            self.connection.calls.finish(number, TOO_MANY_STREAMING)
        elif kind is Kind.OPEN:
            call = self._streams[number] = StreamCall(self.connection.calls, number, path)
            call.open(self._stream_methods[path])
            self._expire_in(number, timeout)
            if self._server.streams_end:
                call.finish(STOPPING)
        elif kind is Kind.CLOSE:
            if closed := self._streams.pop(number, None):
                closed.happen(kind, b"")
        elif number in self._streams:
            self._streams[number].happen(kind, body)

    def _wake(self) -> None:
        """Something is to be written, or to be told, that no read waits for."""
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        events, calls = self.connection.calls.events, self.connection.calls
        calls.expected = True
        self.connection.go_on()
        while events:
            calls.events = []
            self._handle(events)
            events = calls.events
        if self.connection.calls.ready and not self.stuck:
            self._wait()
        self._write()
        if self.connection.calls.flow.queued:
            self.weigh()
        if self._unanswered:
            self._time()

    def _time(self) -> None:
        """Some of the calls that were not answered at once may have been now."""
        streams, now, answers = self.connection.calls.streams, self._tick(), self._server.counts.answers
        for number in [number for number in self._unanswered if number not in streams]:
            arrived, count = self._unanswered.pop(number)
            answers.observe_all(now - arrived, count)

    def _write(self) -> None:
        connection = self.connection
        out = connection.take()
        if self.gone:
            return
        if out and self._closing is None and not self.securing:
            if self._session is not None:
                out = self._session.send(out)
            self.sent += len(out)
            self.transport.write(out)
        if connection.closed:
            self._hang_up()
        elif connection.peer.leaving and connection.left and not connection.calls.ready:
            self.connection.close(Code.NO_ERROR, "drained")
            self._write()
        if self._server.draining:
            self._server.quiet()

    def _hang_up(self) -> None:
        """No more from us; the client has a moment to read what it was told."""
        if self._closing is None:
            if self.connection.error is not None:
                code, reason = self.connection.error
                self.reason = code.name.lower()
                self._server.tell(self.reason, reason)
            self._linger()
            self._finish_events()

    def _linger(self) -> None:
        self._closing = self._loop.call_later(LINGER_SECONDS, self.transport.abort)
        if self._session is not None and not self.securing:
            self.transport.write(self._session.close())
        self.transport.write_eof()

    def _finish_events(self) -> None:
        calls = self.connection.calls
        while calls.events:
            events, calls.events = calls.events, []
            self._handle(events)
        self._server.quiet()

    def pause_writing(self) -> None:
        """The socket takes no more for now."""
        self.stuck = True
        self.connection.congest(True)
        if not self.gone:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """It does again."""
        self.stuck = False
        self.connection.congest(False)
        if not self.gone:
            self._wait()  # there may be more of what was read before
            self._flush()

    def eof_received(self) -> bool:
        """The client sends no more: nobody speaks gRPC half open."""
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        """It is over."""
        self.gone = True
        self._data = b""
        if self._closing is not None:
            self._closing.cancel()
        self.connection.lose()
        self._finish_events()
        self.weigh()
        self._server.leave(self)
        self._server.shares.leave(self.host)
        # The two would keep each other, until the collector looks at old objects: after 70 million new ones (`engine`).
        self.connection.calls.wake = _nothing
        if self._tell_gone is not None:
            self._tell_gone()

    def _expire_in(self, number: int, timeout: int | None) -> None:
        calls = self.connection.calls
        if timeout is not None and number in calls.streams:
            now = self._server.now()
            self._server.deadlines.add(calls, number, now + timeout, now)

    @property
    def last_call(self) -> int:
        """As Guest says."""
        return self.connection.peer.last

    @property
    def at_work(self) -> bool:
        """As Guest says."""
        calls = self.connection.calls
        if self.waits or calls.abandoned:
            return True
        return any(stream is None or stream.waiting for stream in calls.streams.values())

    def make_way(self) -> None:
        """End it, and tell it so: another takes its place now."""
        self.reason = "made_way"
        self.connection.close(Code.NO_ERROR, "others need its place")
        self._write()
        if self.stuck:
            self.transport.abort()
        else:
            self.transport.close()
        self._server.leave(self)

    def weigh(self) -> None:
        """As Holder says."""
        weight = 0
        if not self.gone:
            weight = self.connection.weight + len(self._data) + self.transport.get_write_buffer_size()
            if self._session is not None:
                weight += self._session.weight
        change, self.weight = weight - self.weight, weight
        self._server.memory.add(change)

    def shed(self) -> None:
        """As Holder says."""
        self.connection.peer.headers.clear_cache()

    def end_heavy(self) -> None:
        """As Holder says: with its reason, if the socket takes that."""
        self._data = b""
        self.connection.close(Code.ENHANCE_YOUR_CALM, "it holds most of the memory of all connections", Bound.MEMORY)
        if self.stuck:
            self._hang_up()
            self.transport.abort()  # what it does not read would stay for a second
            self.gone = True

    def cut(self, reason: str) -> None:
        """End it now, whatever it waits for."""
        self.reason = reason
        self.connection.close(Code.NO_ERROR, "")
        self._finish_events()
        self.transport.abort()
        self._server.leave(self)

    def end_streams(self, error: RpcError) -> None:
        """Finish all streaming calls."""
        for call in tuple(self._streams.values()):
            call.finish(error)

    @property
    def unary(self) -> bool:
        """A method that answers once is at work."""
        return len(self.connection.calls.streams) > len(self._streams)


def _nothing() -> None:
    """No-op."""
