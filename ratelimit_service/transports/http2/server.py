"""Drives all connections of one transport: timeouts, metrics, and how they end."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.metric import Metric
from ratelimit_service.transports.http2.frames import Code
from ratelimit_service.transports.http2.limits import FRAMES_PER_SECOND, Bound
from ratelimit_service.transports.http2.shared import Shared
from ratelimit_service.transports.http2.timeouts import GRAIN, ConnectionTimeouts, Due
from ratelimit_service.transports.http2.wire import Wire
from ratelimit_service.transports.lag import of_lag, watch_lag
from ratelimit_service.transports.transport import STOPPING

log = logging.getLogger(__name__)

CHECK_INTERVAL: Final = SECOND // 2
"""Microseconds between two checks of a connection: each of its timeouts may be so much longer."""

_BATCH: Final = 200
"""Connections checked, or expired calls ended, before other work is done: 2 µs and 10 µs each."""

_FREED_BATCH: Final = 20
"""Connections, at least, whose memory is freed before other work is done: 50 µs each."""


class Server:
    """The timers of all connections, and their end."""

    def __init__(self, shared: Shared[Wire]) -> None:
        self.shared = shared
        self._lag = Latency()
        self._timers = [
            shared.loop.create_task(work)
            for work in (self._check_often(), self._free_removed(), self._expire(), watch_lag(self._lag))
        ]

    def metrics(self) -> Sequence[Metric]:
        """All counts and gauges, and how late the event loop was."""
        counts, wires, memory = self.shared.counts, self.shared.members, self.shared.memory
        counted = counts.metrics(
            connections=len(wires),
            streams=sum(wire.open_streams for wire in wires),
            memory=memory.used,
            received=counts.received + sum(wire.received for wire in wires),
            sent=counts.sent + sum(wire.sent for wire in wires),
        )
        return (*counted, of_lag(self._lag))

    async def drain(self, grace_seconds: float) -> None:
        """Let unary calls finish, then end streaming ones, then connections; after the grace period all are cut."""
        shared = self.shared
        shared.draining = True
        for wire, timeouts in tuple(shared.members.items()):
            timeouts.grace = 0
            if wire.connection.begun:
                self._retire(wire, timeouts, "drain")
            elif not wire.connection.closed:
                wire.abort("drain")  # it has no calls, and its client cannot read a GOAWAY yet
        try:
            async with asyncio.timeout(grace_seconds):
                while any(wire.has_unary_calls for wire in shared.members):
                    await shared.change()
                shared.ending_streams = True
                for wire in tuple(shared.members):
                    wire.end_streams(STOPPING)
                while shared.members:
                    await shared.change()
        except TimeoutError:
            pass
        for task in self._timers:
            task.cancel()
        for wire in tuple(shared.members):
            wire.abort("drain_timeout")

    def release(self, count: int) -> None:
        """Retire the `count` youngest connections: their clients connect again, perhaps to another worker."""
        members = self.shared.members
        staying = [
            (wire, timeouts)
            for wire, timeouts in members.items()
            if timeouts.retired_at is None and wire.connection.begun
        ]
        for wire, timeouts in staying[::-1][:count]:
            self._retire(wire, timeouts, "shared_out")

    def _retire(self, wire: Wire, timeouts: ConnectionTimeouts, reason: str) -> None:
        if timeouts.retire(self.shared.now()):
            wire.end_reason = reason
            wire.connection.retire()

    async def _check_often(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL / SECOND)
            await self.check()

    async def _free_removed(self) -> None:
        """Free the memory of connections that are gone."""
        removed = self.shared.removed
        while True:
            await asyncio.sleep(0 if removed else CHECK_INTERVAL / SECOND)
            # A share of them: in a flood more than a fixed number may end in each iteration.
            del removed[-max(_FREED_BATCH, len(removed) // 20) :]

    async def check(self) -> None:
        """Check the timeouts of each connection."""
        shared = self.shared
        now, timeout = shared.now(), shared.options.preface_timeout
        for index, (wire, timeouts) in enumerate(tuple(shared.members.items())):
            if index % _BATCH == _BATCH - 1:
                await asyncio.sleep(0)
            connection = wire.connection
            if wire.lost or connection.closed:
                continue
            try:
                connection.refill(FRAMES_PER_SECOND * CHECK_INTERVAL // SECOND)
                wire.check(now, timeout)
                shared.eviction.note_calls(wire)
                due = timeouts.due(now, connection, data_came=wire.data_came, left=wire.left)
                wire.data_came = False
                if due is not None:
                    self._act(due, wire, timeouts)
            except Exception:
                log.exception("a connection could not be checked")
                wire.transport.abort()

    def _act(self, due: Due, wire: Wire, timeouts: ConnectionTimeouts) -> None:
        connection, refused = wire.connection, self.shared.counts.refused
        match due:
            case Due.PING:
                connection.ping()
            case Due.ABORT_SILENT:
                refused[Bound.SILENT] += 1
                wire.abort("silent")
            case Due.ABORT_STALLED:
                refused[Bound.STALLED] += 1
                wire.abort("stalled")
            case Due.CLOSE_SLOW:
                # Slow preface and slow headers (Slowloris): a byte now and then holds a connection for ever.
                bound = Bound.UNFINISHED if connection.begun else Bound.PREFACE
                if wire.handshaking:
                    refused[bound] += 1
                    wire.fail_tls("the client takes too long for its handshake")
                    return
                connection.close(Code.ENHANCE_YOUR_CALM, "the client takes too long to finish what it began", bound)
            case Due.RETIRE_OLD:
                self._retire(wire, timeouts, "age")
            case Due.RETIRE_IDLE:
                self._retire(wire, timeouts, "idle")
            case Due.RETIRE_SPENT:
                self._retire(wire, timeouts, "stream_numbers")
            case Due.LEAVE:
                connection.leave()
            case Due.ABORT_OLD:
                wire.abort("age_grace")

    async def _expire(self) -> None:
        """End calls whose deadline has passed."""
        deadlines = self.shared.deadlines
        while True:
            await asyncio.sleep(GRAIN / SECOND if deadlines else CHECK_INTERVAL / SECOND / 10)
            for index, (calls, number) in enumerate(deadlines.take_expired(self.shared.now())):
                calls.expire(number)
                if index % _BATCH == _BATCH - 1:
                    await asyncio.sleep(0)
