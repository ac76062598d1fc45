"""State that all connections of a transport share: methods, limits, clocks, counts, and the set of connections.

It is complete before the first connection: a `Wire` has it, and the `Server` drives the wires through it.
"""

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from ratelimit_service.api.method import Method, StreamMethod
from ratelimit_service.errors import RpcError
from ratelimit_service.system.clock import Clock, Tick
from ratelimit_service.telemetry.logs import ThrottledLog
from ratelimit_service.transports.http2.counts import Counts
from ratelimit_service.transports.http2.limits import Bound
from ratelimit_service.transports.http2.scheduling import (
    EvictionCandidate,
    EvictionOrder,
    FairQueue,
    Host,
    MemoryLimit,
    Weighed,
    host_of,
)
from ratelimit_service.transports.http2.timeouts import ConnectionTimeouts, Deadlines
from ratelimit_service.transports.options import GrpcOptions
from ratelimit_service.transports.tls import bears
from ratelimit_service.transports.tls_session import TlsServer
from ratelimit_service.transports.transport import not_admitted

log = logging.getLogger(__name__)


class Member(Weighed, EvictionCandidate, Protocol):
    """A connection, as `Shared` sees it."""

    host: Host
    opened: int
    end_reason: str
    received: int
    sent: int

    def evict(self) -> None:
        """End it, for another one takes its place."""


M = TypeVar("M", bound=Member)


class Shared(Generic[M]):
    """The state that connections share."""

    def __init__(
        self,
        methods: Sequence[Method],
        streams: Sequence[StreamMethod],
        options: GrpcOptions,
        tls: TlsServer | None,
        clock: Clock,
        tick: Tick,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.methods = {method.path: method for method in methods}
        self.stream_methods = {method.path: method for method in streams}
        self.streaming = dict.fromkeys(self.methods, False) | dict.fromkeys(self.stream_methods, True)
        """Of each method, whether it is streaming."""
        self.options = options
        self.tls = tls
        self.now = clock
        """Microseconds of a clock that does not go back."""
        self.tick = tick
        """Nanoseconds, for measuring."""
        self.counts = Counts()
        self.queue = FairQueue(self.loop.call_soon, tick)
        self.deadlines = Deadlines()
        self.members: dict[M, ConnectionTimeouts] = {}
        self.memory = MemoryLimit(options.max_memory, self.members)
        self.eviction: EvictionOrder[M] = EvictionOrder()
        self.removed: list[M] = []
        """Connections that are gone, and still have their memory: a thousand may end in one iteration of the loop."""
        self.draining = False
        self.ending_streams = False
        """Streaming calls are ended, those too that begin from now on."""
        self._changed = asyncio.Event()
        self._log = ThrottledLog(log, self.now)

    def admit(self, member: M, peer: object) -> bool:
        """Add a new connection to its host, and evict another one if there is no room; False if none can be evicted."""
        member.host = self.queue.add_connection(host_of(peer))
        options, counts = self.options, self.counts
        most = options.max_connections
        if most and len(self.members) >= most:
            evicted = self.eviction.first()
            if evicted is None:
                counts.refuse_connection(most)
                return False
            counts.refused[Bound.CONNECTIONS] += 1
            self.warn("evicted", f"{most} are open, the maximum, and it had been without a call for longest")
            evicted.evict()
        counts.accepted += 1
        self.eviction.add(member)
        # A tenth more or less, so that connections that came together do not come again together.
        oldest = int(options.max_connection_age * random.uniform(0.9, 1.1))  # noqa: S311 - not a secret
        self.members[member] = ConnectionTimeouts(member.opened, oldest, options)
        return True

    def remove(self, member: M) -> None:
        """A connection is gone; a second time has no effect."""
        if self.members.pop(member, None) is not None:
            self.eviction.remove(member)
            counts = self.counts
            counts.ended[member.end_reason or "client"] += 1
            counts.received += member.received
            counts.sent += member.sent
            self.removed.append(member)
        self.note_change()

    def note_change(self) -> None:
        """A call or a connection has ended: a drain may go on."""
        self._changed.set()

    async def change(self) -> None:
        """Wait for the next such end."""
        self._changed.clear()
        await self._changed.wait()

    def denial(self, certificate: Mapping[str, Any]) -> RpcError | None:
        """The error of every call of a client with this certificate, if it may call no method."""
        wanted = self.options.tls.client_san if self.options.tls else ""
        if not wanted:
            return None
        names = (value for _, value in certificate.get("subjectAltName", ()))
        return None if bears(names, wanted) else not_admitted(wanted)

    def warn(self, name: str, reason: str) -> None:
        """Log why a connection was ended; similar lines at most once a minute."""
        self._log.warn(f"a connection was ended ({name}): {reason}")
