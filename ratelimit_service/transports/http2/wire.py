"""The asyncio side of a connection: bytes in, events to methods, bytes out. Hot path.

One write answers a whole read. What is answered later is written once per iteration of the loop. While the socket
accepts no more, nothing is read: a client that does not read its responses sends no requests either. Nor is anything
read while what came waits in the `FairQueue`.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from ratelimit_service.api.method import Receiver, StreamMethod
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.transports.http2.connection import CLOSED, LEAVING, OPEN, Connection
from ratelimit_service.transports.http2.frames import Code
from ratelimit_service.transports.http2.headers import Head
from ratelimit_service.transports.http2.limits import LINGER_SECONDS, MAX_STREAMING, Bound
from ratelimit_service.transports.http2.scheduling import HANDSHAKE, STEP, Host
from ratelimit_service.transports.http2.shared import Shared
from ratelimit_service.transports.http2.stream import Event, EventKind
from ratelimit_service.transports.http2.streams import Streams
from ratelimit_service.transports.tls_session import TlsSession, tls_failure
from ratelimit_service.transports.transport import INTERNAL, STOPPING

log = logging.getLogger(__name__)

_CALL: Final = EventKind.CALL

TOO_MANY_STREAMING: Final = RpcError(
    Status.RESOURCE_EXHAUSTED, f"the connection has {MAX_STREAMING} streaming calls, the maximum"
)

TIMED: Final = 16
"""One read in 16 is timed: to time all would take a twentieth of what a call costs."""

_MAX_TIMED: Final = 64
"""Timed reads of one connection that wait for their response, so that the search for those answered takes no time."""


class StreamSender:
    """Carries one streaming call between its stream and its method; what the method raises ends it, and is logged."""

    __slots__ = ("_number", "_path", "_receiver", "_streams")

    def __init__(self, streams: Streams, number: int, path: str) -> None:
        self._streams = streams
        self._number = number
        self._path = path
        self._receiver: Receiver | None = None

    def send(self, message: bytes) -> None:
        """As Sender says; a client that leaves too much unread loses the call."""
        self._streams.send(self._number, message)

    def finish(self, error: RpcError | None = None) -> None:
        """As Sender says; what was sent before leaves first."""
        self._streams.finish(self._number, error)

    def open(self, method: StreamMethod) -> None:
        """Begin the call."""
        try:
            self._receiver = method.open(self)
        except Exception:
            log.exception("%s failed", self._path)
            self.finish(INTERNAL)

    def deliver(self, kind: EventKind, message: bytes) -> None:
        """Pass an event to the method."""
        receiver = self._receiver
        if receiver is None:
            return
        try:
            match kind:
                case EventKind.MESSAGE:
                    receiver.receive(message)
                case EventKind.HALF_CLOSE:
                    receiver.half_close()
                case EventKind.CLOSE:
                    self._receiver = None
                    receiver.closed()
        except Exception:
            log.exception("%s failed", self._path)
            self.finish(INTERNAL)


class Wire(asyncio.Protocol):
    """One connection; `on_lost` is called once, when its socket is gone.

    Nothing is read while it is `scheduled` or `write_paused`. Only TLS is sent while it is `handshaking`, and nothing
    once it lingers: then it is closed, and its client has LINGER_SECONDS to read the last bytes.
    """

    __slots__ = (
        *("_arrived", "_counts", "_data", "_lingering", "_loop", "_memory", "_on_lost", "_queue", "_reads"),
        *("_senders", "_session", "_shared", "_streams", "_tick", "_unanswered", "connection", "cost"),
        *("data_came", "end_reason", "finish_tag", "handshaking", "host", "lost", "opened", "received"),
        *("scheduled", "sent", "transport", "weight", "write_paused"),
    )

    transport: asyncio.Transport
    host: Host

    def __init__(self, shared: "Shared[Wire]", on_lost: Callable[[], None] | None = None) -> None:
        self._shared = shared
        self._on_lost = on_lost
        self._loop = shared.loop
        self._queue = shared.queue
        self._counts = shared.counts
        self._memory = shared.memory
        self._tick = shared.tick
        self.opened = shared.now()
        """When it was opened."""
        wake = partial(shared.loop.call_soon, self._flush)
        self.connection = Connection(shared.streaming, shared.options, wake, shared.counts, shared.tick, self.opened)
        self._streams = self.connection.streams
        self._senders: dict[int, StreamSender] = {}
        """Of the streaming calls."""
        self._session: TlsSession | None = None
        self.handshaking = False
        """The TLS handshake is not complete."""
        self._data = b""
        """What came and waits in the FairQueue."""
        self._arrived = 0
        """When that came."""
        self.scheduled = False
        self.finish_tag = self.cost = 0
        self.weight = 0
        self.data_came = True
        """Since the last check of the server."""
        self.received = 0
        """Bytes."""
        self.sent = 0
        self.write_paused = False
        """The socket accepts no more."""
        self.lost = False
        """The socket is gone."""
        self._lingering: asyncio.TimerHandle | None = None
        """While it lingers: what will abort it."""
        self.end_reason = ""
        """Why it ends, or will end; empty as long as only the client can have a reason."""
        self._reads = -1
        """Since the last one that was timed; 0 while one is."""
        self._unanswered: dict[int, tuple[int, int]] = {}
        """Timed reads that were not answered at once: their last call, when it came, how many calls they had."""

    # Bytes come.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own are not of asyncio's class
        shared = self._shared
        if not shared.admit(self, transport.get_extra_info("peername")):
            self.connection.abort()
            self.transport.abort()
        elif shared.tls is not None:
            self._session = shared.tls.begin()
            self.handshaking = True
            self.cost = HANDSHAKE

    def data_received(self, data: bytes) -> None:
        """Read the bytes now, or when the FairQueue serves the connection."""
        self.data_came = True
        self.received += len(data)
        host, now = self.host, self._tick()
        if host.share_left <= 0 or self.scheduled or self.handshaking:
            self._data += data
            self._arrived = now
            self._schedule()
            return
        more = self._read(data, now, now)
        self.cost = cost = self._tick() - now + (len(data) >> 2)  # recv() takes a quarter of a nanosecond per byte
        host.share_left -= cost
        if more:
            self._schedule()

    def _schedule(self) -> None:
        """Go on when the FairQueue serves this connection, and read nothing until then."""
        if not self.scheduled:
            self.transport.pause_reading()
            self._queue.schedule(self)
        self.weigh()

    def run_step(self) -> bool:
        """As Schedulable says."""
        if self.lost or self.write_paused:
            return False  # `resume_writing` goes on
        data, self._data = self._data, b""
        more = self._read(data, self._arrived, self._tick())
        if not (more or self.write_paused):
            self.transport.resume_reading()
        return more

    def _read(self, data: bytes, arrived: int, now: int) -> bool:
        """One step: decrypt, parse, call methods, write; whether more is left of what came."""
        connection, streams, session = self.connection, self._streams, self._session
        if connection.state is CLOSED:
            return False
        streams.flush_scheduled = True  # by the write below
        self._reads = (self._reads + 1) % TIMED
        if session is not None and (data or not connection.more):
            data = self._decrypt(session, data)
        over, count, last = now + STEP, 0, None
        while True:  # until all is read, or the step is over
            events = connection.receive(data, over)
            if events:
                count += len(events)
                last = events[-1]
            while events:  # what methods do may make others
                self._handle(events)
                events, streams.events = streams.events, []
            if not (connection.stopped or streams.readable) or self._tick() >= over:
                break
            data = b""
        if streams.out or streams.queued_bytes or connection.state is not OPEN or self._shared.draining:
            self._write()
        else:
            streams.flush_scheduled = False  # all calls wait for their methods
        if not self._reads and last is not None:
            self._time(last, count, arrived)
        if streams.held_bytes or streams.queued_bytes or self.write_paused:
            self.weigh()
        more = connection.stopped or bool(streams.readable)
        if session is None or more:
            return more
        if session.over:
            self.transport.close()  # gRPC has no use for a half-closed connection
        return session.more and not connection.closed

    # TLS.

    def _decrypt(self, session: TlsSession, raw: bytes) -> bytes:
        """The data in what came; what TLS sends by itself is written."""
        try:
            data = session.decrypt_record(raw)
            if data:
                return data
            if data is None:
                data = session.decrypt(raw)
        except ssl.SSLError as error:
            self.transport.write(session.take_output())  # the alert that tells the client
            self.handshaking = not session.established
            self.fail_tls(tls_failure(error, "the handshake" if self.handshaking else "a record of TLS"))
            return b""
        if out := session.take_output():
            self.sent += len(out)
            self.transport.write(out)
        if self.handshaking and session.established:
            self.handshaking = False
            # RFC 9113, 3.2: "HTTP/2 over TLS uses the "h2" protocol identifier."
            refusal = "" if session.protocol == "h2" else "TLS without h2 by ALPN (3.2)"
            self.connection.handshake_done(self._shared.denial(session.client_certificate), refusal)
        if session.empty:
            self.connection.spend_records(session.take_empty())
        return data

    def fail_tls(self, reason: str) -> None:
        """End the connection because of TLS."""
        self.end_reason = "tls_handshake" if self.handshaking else "tls_record"
        self._shared.warn(self.end_reason, reason)
        self.connection.abort()
        self._handle_all()
        self._linger()

    # Events go to methods.

    def _handle(self, events: list[Event]) -> None:
        shared, streams = self._shared, self._streams
        abandoned, reply, timed = streams.abandoned, streams.reply, streams.timed
        before: Head | None = None
        call: Any = None
        timeout: int | None = None
        now, caller = 0, self.host.key
        for kind, number, head, body in events:
            if kind is _CALL:
                if head is not before:  # calls that come together have equal headers, almost always
                    before, call, timeout = head, shared.methods[head.path].call, head.timeout
                    if head.context is not None:  # only where tracing is on
                        call = partial(call, context=head.context)
                    if timeout is not None:
                        now = shared.now()
                if number in abandoned:  # it was reset in the same read
                    abandoned.discard(number)
                    continue
                try:
                    left = timeout
                    if left is not None and number in timed:  # its message came after its headers
                        left = max(0, timed[number] - shared.now())
                    cancel = call(body, partial(reply, number), left, caller)
                    if cancel is not None:
                        streams.cancels[number] = cancel
                except Exception:
                    log.exception("%s failed", head.path)
                    reply(number, INTERNAL)
                if timeout is not None and number in streams.active and number not in timed:
                    shared.deadlines.add(streams, number, now + timeout, now)
            elif kind is EventKind.BEGIN:
                self._expire_in(number, head.timeout)
            else:
                self._handle_streaming(kind, number, head, body)

    def _handle_streaming(self, kind: EventKind, number: int, head: Head, body: bytes) -> None:
        if kind is EventKind.OPEN and len(self._senders) >= MAX_STREAMING:
            self._counts.refused[Bound.STREAMING] += 1
            self._streams.finish(number, TOO_MANY_STREAMING)
        elif kind is EventKind.OPEN:
            sender = self._senders[number] = StreamSender(self._streams, number, head.path)
            sender.open(self._shared.stream_methods[head.path])
            self._expire_in(number, head.timeout)
            if self._shared.ending_streams:
                sender.finish(STOPPING)
        elif kind is EventKind.CLOSE:
            if closed := self._senders.pop(number, None):
                closed.deliver(kind, b"")
        elif number in self._senders:
            self._senders[number].deliver(kind, body)

    def _handle_all(self) -> None:
        """Handle the events that no read returns."""
        streams = self._streams
        while streams.events:
            events, streams.events = streams.events, []
            self._handle(events)
        self._shared.note_change()

    def _expire_in(self, number: int, timeout: int | None) -> None:
        if timeout is not None and number in self._streams.active:
            shared = self._shared
            now = shared.now()
            shared.deadlines.add(self._streams, number, now + timeout, now)

    def end_streams(self, error: RpcError) -> None:
        """Finish all streaming calls."""
        for sender in tuple(self._senders.values()):
            sender.finish(error)

    # Bytes leave.

    def _flush(self) -> None:
        """Write output, and handle events, that come from no read; called soon after `streams` has some."""
        streams = self._streams
        streams.flush_scheduled = True
        if streams.output_full:
            streams.resume_output()
        if streams.events:
            self._handle_all()
        if streams.readable and not self.write_paused:
            self._schedule()
        self._write()
        if streams.queued_bytes or self.write_paused:
            self.weigh()
        if self._unanswered:
            self._time_answered()

    def _write(self) -> None:
        connection = self.connection
        out = connection.take_output()
        if self.lost:
            return
        if out and self._lingering is None and not self.handshaking:
            if self._session is not None:
                out = self._session.encrypt(out)
            self.sent += len(out)
            self.transport.write(out)
        if connection.state is CLOSED:
            self._hang_up()
        elif connection.state is LEAVING and connection.drained:
            connection.close(Code.NO_ERROR, "drained")
            self._write()
        if self._shared.draining:
            self._shared.note_change()

    def pause_writing(self) -> None:
        """The socket accepts no more for now."""
        self.write_paused = True
        self._streams.congest(True)
        if not self.lost:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """The socket accepts more again."""
        self.write_paused = False
        self._streams.congest(False)
        if not self.lost:
            self._schedule()  # there may be more of what came before
            self._flush()

    @property
    def left(self) -> int | None:
        """The number of bytes that have left, if the socket accepts no more."""
        return self.sent - self.transport.get_write_buffer_size() if self.write_paused else None

    # Service time.

    def _time(self, last: Event, count: int, arrived: int) -> None:
        """Observe a read by its last call, now if it is answered."""
        kind, number, _, _ = last
        if kind is _CALL:
            if number not in self._streams.active:
                self._counts.service_time.observe_all(self._tick() - arrived, count)
            elif len(self._unanswered) < _MAX_TIMED:
                self._unanswered[number] = arrived, count

    def _time_answered(self) -> None:
        active, now, service_time = self._streams.active, self._tick(), self._counts.service_time
        for number in [number for number in self._unanswered if number not in active]:
            arrived, count = self._unanswered.pop(number)
            service_time.observe_all(now - arrived, count)

    # The end.

    def _hang_up(self) -> None:
        """The connection is closed: send no more, and give the client a moment to read what was sent."""
        if self._lingering is None:
            if self.connection.error is not None:
                code, reason = self.connection.error
                self.end_reason = code.name.lower()
                self._shared.warn(self.end_reason, reason)
            self._linger()
            self._handle_all()

    def _linger(self) -> None:
        self._lingering = self._loop.call_later(LINGER_SECONDS, self.transport.abort)
        if self._session is not None and not self.handshaking:
            self.transport.write(self._session.close())
        self.transport.write_eof()

    def eof_received(self) -> bool:
        """The client sends no more. gRPC has no use for a half-closed connection: close it."""
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        """The socket is gone."""
        self.lost = True
        self._data = b""
        if self._lingering is not None:
            self._lingering.cancel()
        self.connection.abort()
        self._handle_all()
        self.weigh()
        self._shared.remove(self)
        self._queue.remove_connection(self.host)
        self._streams.detach()
        if self._on_lost is not None:
            self._on_lost()

    def evict(self) -> None:
        """End it, with GOAWAY, because another connection takes its place."""
        self.end_reason = "evicted"
        self.connection.close(Code.NO_ERROR, "others need its place")
        self._write()
        if self.write_paused:
            self.transport.abort()
        else:
            self.transport.close()
        self._shared.remove(self)

    def abort(self, reason: str) -> None:
        """End it at once, without sending what is left."""
        self.end_reason = reason
        self.connection.close(Code.NO_ERROR, "")
        self._handle_all()
        self.transport.abort()
        self._shared.remove(self)

    # What the server looks at.

    @property
    def last_stream(self) -> int:
        """As EvictionCandidate says."""
        return self.connection.last_stream

    @property
    def busy(self) -> bool:
        """As EvictionCandidate says."""
        return self.scheduled or self._streams.responding

    @property
    def has_unary_calls(self) -> bool:
        """A unary call is not answered."""
        return len(self._streams.active) > len(self._senders)

    @property
    def open_streams(self) -> int:
        """The number of open calls."""
        return len(self._streams.active)

    def check(self, now: int, timeout: int) -> None:
        """End streams that make no progress, and weigh what is left; called twice a second."""
        self._streams.check(now, timeout, reading=not self.write_paused)
        self.weigh()

    def weigh(self) -> None:
        """As Weighed says."""
        weight = 0
        if not self.lost:
            weight = self.connection.weight + len(self._data) + self.transport.get_write_buffer_size()
            if self._session is not None and not self.connection.closed:
                weight += self._session.weight
        change, self.weight = weight - self.weight, weight
        self._memory.add(change)

    def clear_caches(self) -> None:
        """As Weighed says."""
        self.connection.clear_caches()

    def end_over_memory(self) -> None:
        """As Weighed says; with GOAWAY, if the socket accepts it."""
        self._data = b""
        self.connection.close(Code.ENHANCE_YOUR_CALM, "it holds most of the memory of all connections", Bound.MEMORY)
        if self.write_paused:
            self._hang_up()
            self.transport.abort()  # what the client does not read would stay for a second
            self.lost = True
