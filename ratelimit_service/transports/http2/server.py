"""All connections of one transport: who may enter, when each is asked whether it is there, and how all of them end."""

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ratelimit_service.api.method import Method, StreamMethod
from ratelimit_service.errors import RpcError
from ratelimit_service.system.clock import SECOND, Clock, Tick
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.logs import ThrottledLog
from ratelimit_service.telemetry.metric import Metric
from ratelimit_service.transports.http2.ages import Age, Due
from ratelimit_service.transports.http2.counts import Counts
from ratelimit_service.transports.http2.deadlines import GRAIN, Deadlines
from ratelimit_service.transports.http2.frames import Code
from ratelimit_service.transports.http2.handshakes import Handshakes
from ratelimit_service.transports.http2.limits import FRAMES_PER_SECOND, MOST_IDLE_FRAMES, Bound, Limits
from ratelimit_service.transports.http2.memory import Memory
from ratelimit_service.transports.http2.places import Places
from ratelimit_service.transports.http2.shares import Shares
from ratelimit_service.transports.http2.wire import Wire
from ratelimit_service.transports.lag import of_lag, watch_lag
from ratelimit_service.transports.options import GrpcOptions
from ratelimit_service.transports.tls import bears
from ratelimit_service.transports.transport import STOPPING, not_admitted

log = logging.getLogger(__name__)

LOOK: Final = SECOND // 2
"""How often connections are looked at, in microseconds: every timeout of theirs may be so much longer."""

_AT_ONCE: Final = 200
"""Connections looked at, or calls whose deadline is over ended, before other work has its turn: 2 µs and 10 µs each."""

_FREED_AT_ONCE: Final = 20
"""Connections whose memory is freed before other work has its turn: 50 µs each."""


class Server:
    """What the connections of one transport share."""

    def __init__(
        self,
        methods: Sequence[Method],
        streams: Sequence[StreamMethod],
        options: GrpcOptions,
        handshakes: Handshakes | None,
        clock: Clock,
        tick: Tick,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.methods = {method.path: method for method in methods}
        self.stream_methods = {method.path: method for method in streams}
        self.kinds = dict.fromkeys(self.methods, False) | dict.fromkeys(self.stream_methods, True)
        self.limits = Limits(
            options.max_message_size,
            options.max_answer_size,
            options.max_concurrent_streams,
            options.max_header_list_size,
            options.max_connection_memory,
        )
        self.handshakes = handshakes
        self.now = clock
        """Microseconds of a clock that does not go back."""
        self.tick = tick
        self.shares = Shares(self.loop.call_soon, tick)
        self.deadlines = Deadlines()
        self.counts = Counts()
        self.streams_end = False
        self.draining = False
        self._options = options
        self._notices = ThrottledLog(log, self.now)
        self._wires: dict[Wire, Age] = {}
        self._places: Places[Wire] = Places()
        self._ended: list[Wire] = []
        """Connections that are gone and still have their memory: a thousand may end in one turn of the loop."""
        self.memory = Memory(options.max_memory, self._wires)
        self._changed = asyncio.Event()
        self._lag = Latency()
        self._timers = [self.loop.create_task(work) for work in (self._look(), self._expire(), watch_lag(self._lag))]

    def metrics(self) -> Sequence[Metric]:
        """As Transport says."""
        counts, wires = self.counts, self._wires
        counted = counts.metrics(
            connections=len(wires),
            streams=sum(len(wire.connection.calls.streams) for wire in wires),
            memory=self.memory.used,
            received=counts.received + sum(wire.received for wire in wires),
            sent=counts.sent + sum(wire.sent for wire in wires),
        )
        return (*counted, of_lag(self._lag))

    def enter(self, wire: Wire) -> bool:
        """Whether there is room for one more, be it through TLS or not."""
        options, counts = self._options, self.counts
        most = options.max_connections
        if most and len(self._wires) >= most:
            idlest = self._places.idlest()
            if idlest is None:
                counts.turn_away(most)
                return False
            counts.refused[Bound.CONNECTIONS] += 1
            self.tell("made_way", f"there are {most}, the most there may be, and it had no call for longest")
            idlest.make_way()
        counts.accepted += 1
        # A tenth more or less: those who came together shall not come again together.
        oldest = int(options.max_connection_age * random.uniform(0.9, 1.1))  # noqa: S311 - nobody gains by guessing it
        now = wire.connection.calls.flow.now = self.now()
        self._wires[wire] = Age(now, oldest, options)
        self._places.take(wire)
        return True

    def denial(self, shown: Mapping[str, Any]) -> RpcError | None:
        """Why a client with this certificate may call nothing."""
        wanted = self._options.tls.client_san if self._options.tls else ""
        if not wanted:
            return None
        names = (value for _, value in shown.get("subjectAltName", ()))
        return None if bears(names, wanted) else not_admitted(wanted)

    def leave(self, wire: Wire) -> None:
        """It is gone."""
        if self._wires.pop(wire, None) is not None:
            self._places.leave(wire)
            counts = self.counts
            counts.ended[wire.reason or "client"] += 1
            counts.received += wire.received
            counts.sent += wire.sent
            self._ended.append(wire)
        self._changed.set()

    def quiet(self) -> None:
        """A call has ended."""
        self._changed.set()

    def tell(self, name: str, reason: str) -> None:
        """Why a connection was ended, for the operator, though not each time."""
        self._notices.warn(f"a connection was ended ({name}): {reason}")

    async def drain(self, grace_seconds: float) -> None:
        """Let calls finish, then streams end, then connections; what is left when the grace is over is cut."""
        self.draining = True
        for wire, age in tuple(self._wires.items()):
            age.grace = 0
            if wire.connection.begun:
                self._retire(wire, age, "drain")
            else:
                wire.cut("drain")  # it has no calls, and nobody who would hear that there are to be none
        try:
            async with asyncio.timeout(grace_seconds):
                while any(wire.unary for wire in self._wires):
                    await self._change()
                self.streams_end = True
                for wire in tuple(self._wires):
                    wire.end_streams(STOPPING)
                while self._wires:
                    await self._change()
        except TimeoutError:
            pass
        for task in self._timers:
            task.cancel()
        for wire in tuple(self._wires):
            wire.cut("drain_timeout")

    def release(self, count: int) -> None:
        """Tell so many clients, the youngest that are here, to go."""
        staying = [(wire, age) for wire, age in self._wires.items() if age.leaving is None and wire.connection.begun]
        for wire, age in staying[::-1][:count]:
            self._retire(wire, age, "shared_out")

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _retire(self, wire: Wire, age: Age, reason: str) -> None:
        if age.retire(self.now()):
            wire.reason = reason
            wire.connection.drain()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK / SECOND)
            await self.look()
            while self._ended:
                del self._ended[-_FREED_AT_ONCE:]
                await asyncio.sleep(0)

    async def look(self) -> None:
        """See what each connection is due for."""
        now = self.now()
        for index, (wire, age) in enumerate(tuple(self._wires.items())):
            if index % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            connection = wire.connection
            if wire.gone or connection.closed:
                continue
            try:
                calls = connection.calls
                if connection.peer.budget < MOST_IDLE_FRAMES:
                    connection.refill(FRAMES_PER_SECOND * LOOK // SECOND)
                calls.flow.now = now
                if calls.lingering:
                    calls.dismiss()
                if calls.flow.blocked:
                    calls.cut_stalled(now)
                if calls.owing and wire.stuck:
                    calls.owing = dict.fromkeys(calls.owing, now)  # nothing is read that may have come
                calls.cut_unfinished(now, self._options.preface_timeout)
                wire.weigh()
                self._places.notice(wire)
                due = age.due(now, connection, heard=wire.heard, left=wire.left)
                wire.heard = False
                if due is not None:
                    self._do(due, wire, age)
            except Exception:
                log.exception("a connection could not be looked after")
                wire.transport.abort()

    def _do(self, due: Due, wire: Wire, age: Age) -> None:
        connection, refused = wire.connection, self.counts.refused
        match due:
            case Due.PING:
                connection.ping()
            case Due.CUT_SILENT:
                refused[Bound.SILENT] += 1
                wire.cut("silent")
            case Due.CUT_STALLED:
                refused[Bound.STALLED] += 1
                wire.cut("stalled")
            case Due.CLOSE_SLOW:
                # Slow preface and slow headers (Slowloris): a byte now and then holds a connection for ever.
                bound = Bound.UNFINISHED if connection.begun else Bound.PREFACE
                if wire.securing:
                    refused[bound] += 1
                    wire.end_tls("the client takes too long for its handshake")
                    return
                connection.close(Code.ENHANCE_YOUR_CALM, "the client takes too long to finish what it began", bound)
            case Due.RETIRE_OLD:
                self._retire(wire, age, "age")
            case Due.RETIRE_IDLE:
                self._retire(wire, age, "idle")
            case Due.RETIRE_SPENT:
                self._retire(wire, age, "stream_numbers")
            case Due.LEAVE:
                connection.leave()
            case Due.CUT_OLD:
                wire.cut("age_grace")

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(GRAIN / SECOND if self.deadlines else LOOK / SECOND / 10)
            for index, (calls, number) in enumerate(self.deadlines.over(self.now())):
                calls.expire(number)
                if index % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)
