"""All connections of one transport: who may enter, when each is asked whether it is there, and how all of them end."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from ratelimit_service.api.method import Method, StreamMethod
from ratelimit_service.clock import SECOND
from ratelimit_service.errors import RpcError
from ratelimit_service.transports.http2.deadlines import GRAIN, Deadlines
from ratelimit_service.transports.http2.frames import MOST_WINDOW, Code
from ratelimit_service.transports.http2.limits import FRAMES_PER_SECOND, Limits
from ratelimit_service.transports.http2.wire import Wire
from ratelimit_service.transports.options import GrpcOptions
from ratelimit_service.transports.refusals import STOPPING

log = logging.getLogger(__name__)

LOOK: Final = SECOND // 2
"""How often connections are looked at, in microseconds: every timeout of theirs may be so much longer."""

_AT_ONCE: Final = 200
"""Connections looked at before other work has its turn: 2 µs each."""

_FAREWELL: Final = SECOND
"""How long a client may take to say that it heard the first GOAWAY; then the second follows all the same."""

_STALL: Final = 60 * SECOND
"""How long answers may wait without one byte of them leaving (zero-window stall, CVE-2019-9517): they fill the memory
that is theirs, and hold the places of other calls."""

_LAST_STREAMS: Final = MOST_WINDOW - 1_000_000
"""Streams are numbered once (5.1.1): before a client runs out of numbers it is asked to connect anew."""


class Age:
    """What is known of one connection in time, in microseconds."""

    __slots__ = ("born", "dying", "heard", "leaving", "oldest", "pinged", "progress", "stalled", "used")

    def __init__(self, now: int, oldest: int) -> None:
        self.born = self.heard = self.used = self.progress = now
        self.oldest = oldest
        """How old it may get; 0 is for ever."""
        self.pinged: int | None = None
        self.leaving: int | None = None
        """When it was first told to go."""
        self.dying = 0
        self.stalled = -1


class Server:
    """What the connections of one transport share."""

    def __init__(
        self,
        methods: Sequence[Method],
        streams: Sequence[StreamMethod],
        options: GrpcOptions,
        admit: Callable[[asyncio.Transport], RpcError | None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.methods = {method.path: method for method in methods}
        self.stream_methods = {method.path: method for method in streams}
        self.kinds = dict.fromkeys(self.methods, False) | dict.fromkeys(self.stream_methods, True)
        self.limits = Limits(
            options.max_message_size,
            options.max_concurrent_streams,
            options.max_header_list_size,
            options.max_connection_memory,
        )
        self.denial = admit
        self.deadlines: Deadlines[tuple[Wire, int]] = Deadlines()
        self.ended: Counter[str] = Counter()
        """Connections that we ended because of what their clients did, by the code that those were told, or why."""
        self.streams_end = False
        self._options = options
        self._wires: dict[Wire, Age] = {}
        self.draining = False
        self._changed = asyncio.Event()
        self._timers = [self.loop.create_task(self._look()), self.loop.create_task(self._expire())]

    @property
    def open(self) -> int:
        """Connections that there are."""
        return len(self._wires)

    def now(self) -> int:
        """Microseconds of a clock that does not go back."""
        return int(self.loop.time() * SECOND)

    def enter(self, wire: Wire) -> bool:
        """Whether there is room for one more."""
        most = self._options.max_connections
        if most and len(self._wires) >= most:
            # Connections without end: each costs a file and some memory, and the other clients' must not suffer.
            self.ended["TOO_MANY_CONNECTIONS"] += 1
            if self.ended["TOO_MANY_CONNECTIONS"] == 1:
                log.warning("connections are refused: there are %d, the most there may be", most)
            return False
        # A tenth more or less: those who came together shall not come again together.
        age = self._options.max_connection_age
        oldest = int(age * random.uniform(0.9, 1.1))  # noqa: S311 - nobody gains by guessing it
        self._wires[wire] = Age(self.now(), oldest)
        return True

    def leave(self, wire: Wire) -> None:
        """It is gone."""
        self._wires.pop(wire, None)
        self._changed.set()

    def quiet(self) -> None:
        """A call has ended."""
        self._changed.set()

    def count_error(self, code: Code, _reason: str) -> None:
        """A connection was ended because of what its client did."""
        self.ended[code.name] += 1

    async def drain(self, grace_seconds: float) -> None:
        """Let calls finish, then streams end, then connections; what is left when the grace is over is cut."""
        self.draining = True
        for wire, age in tuple(self._wires.items()):
            if wire.connection.begun:
                self._retire(wire, age)
            else:
                wire.cut()  # it has no calls, and nobody who would hear that there are to be none
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
            wire.cut()

    def release(self, count: int) -> None:
        """Tell so many clients, the youngest that are here, to go."""
        staying = [(wire, age) for wire, age in self._wires.items() if age.leaving is None and wire.connection.begun]
        for wire, age in staying[::-1][:count]:
            self._retire(wire, age)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _retire(self, wire: Wire, age: Age) -> None:
        if age.leaving is None:
            age.leaving = self.now()
            wire.connection.drain()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK / SECOND)
            now = self.now()
            for index, (wire, age) in enumerate(tuple(self._wires.items())):
                if index % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)
                if wire.gone:
                    continue
                try:
                    self._look_at(wire, age, now)
                except Exception:
                    log.exception("a connection could not be looked after")
                    wire.transport.abort()

    def _look_at(self, wire: Wire, age: Age, now: int) -> None:  # noqa: PLR0912 - a list of deadlines
        options, connection = self._options, wire.connection
        connection.refill(FRAMES_PER_SECOND * LOOK // SECOND)
        flow = connection.calls.flow
        if wire.heard:
            wire.heard = False
            age.heard, age.pinged = now, None
        if connection.calls.streams:
            age.used = now
        if connection.closed:
            return
        if connection.begun and not connection.unfinished:
            age.progress = now
        elif now - age.progress > options.preface_timeout:
            # Slow preface and slow headers (Slowloris): a byte now and then holds a connection for ever.
            connection.close(Code.ENHANCE_YOUR_CALM, "the client takes too long to finish what it began")
            return
        if wire.stuck or flow.blocked:
            sent = flow.window, flow.queued, wire.transport.get_write_buffer_size()
            stalled = hash(sent)
            if stalled != age.stalled:
                age.stalled, age.dying = stalled, now
            elif now - age.dying > _STALL:
                wire.cut()
                self.ended["STALLED"] += 1
                return
        if age.leaving is not None:
            if now - age.leaving > _FAREWELL:
                connection.leave()
            grace = options.max_connection_age_grace
            if not self.draining and grace and now - age.leaving > grace:
                wire.cut()
            return
        idle = options.max_connection_idle
        if (
            (age.oldest and now - age.born > age.oldest)
            or (idle and now - age.used > idle)
            or connection.peer.last > _LAST_STREAMS
        ):
            self._retire(wire, age)
        if age.pinged is not None:
            if now - age.pinged > options.keepalive_timeout:
                wire.cut()
                self.ended["NOT_ALIVE"] += 1
        elif options.keepalive_time and now - age.heard > options.keepalive_time:
            age.pinged = now
            connection.ping()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(GRAIN / SECOND if self.deadlines else LOOK / SECOND / 10)
            for wire, number in self.deadlines.over(self.now()):
                wire.expire(number)
