"""The resources that connections share: the time of the event loop, memory, and the number of connections.

Three laws, one for each:

- Time is charged by the clock, and shared by host (`FairQueue`).
- Memory is weighed per connection; when all hold too much, the heaviest are ended (`MemoryLimit`).
- When there are as many connections as allowed, the one without a call for longest is evicted (`EvictionOrder`).
"""

import socket
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, Generic, Protocol, TypeVar

from ratelimit_service.system.clock import Tick

SHARE: Final = 2_000_000
"""Nanoseconds of one host before its connections wait for the next iteration of the loop."""

STEP: Final = 1_000_000
"""Nanoseconds of one connection before the next one of the queue is served."""

QUANTUM: Final = 4_000_000
"""Nanoseconds of all connections that wait, in one iteration of the loop."""

HANDSHAKE: Final = 2_000_000
"""Nanoseconds of a TLS handshake, about (RSA with 2,048 bits): until it is over, its host's other work comes first."""


class Schedulable(Protocol):
    """A connection, as a FairQueue sees it."""

    host: "Host"
    scheduled: bool
    """It is in the queue of its host."""
    finish_tag: int
    """When its service ended, by the virtual time of its host."""
    cost: int
    """Nanoseconds of its last step."""

    def run_step(self) -> bool:
        """Work for a step; whether more is left to do."""


class Host:
    """The connections of one remote address."""

    __slots__ = ("connections", "key", "queue", "scheduled", "share_left", "virtual_time")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.connections = 0
        self.share_left = SHARE
        """Nanoseconds of its share in this iteration."""
        self.scheduled = False
        """It has connections that wait."""
        self.queue: list[tuple[int, int, Schedulable]] = []
        """A heap of those: the finish tag that each is expected to have, and a serial number, so that of equal ones the
        first that came is served first."""
        self.virtual_time = 0


class FairQueue:
    """Connections that wait to be served.

    Laws: uvloop hands over up to 32 reads of 256 KiB in one iteration of the loop, so work is charged by the time it
    took, however the bytes come. All connections of a host share SHARE; when it is used up, they wait for the next one.
    There, hosts are served in rotation, one step of one connection each, for QUANTUM in all. Of a host's connections
    the one that has had least is served first: a client that asks little waits for one iteration, however many ask
    much. TLS handshakes always wait, so that those of any number of hosts take no more than QUANTUM.

    Theory: start-time fair queueing (Goyal, Vin and Cheng, 1996) within a host. Its virtual time is the start tag of
    the connection in service. A connection's start tag is that time, or its own finish tag if that is later; the order
    is by the finish tag that it would have if its step took as long as the last one. Among hosts: round robin, since
    the deficit is below one step.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], Any], tick: Tick) -> None:
        self._call_soon = call_soon
        self._tick = tick
        self._hosts: dict[bytes, Host] = {}
        self._waiting: deque[Host] = deque()
        self._run_requested = False
        self._serial_numbers = count()

    def add_connection(self, key: bytes) -> Host:
        """The host of a new connection."""
        host = self._hosts.get(key)
        if host is None:
            host = self._hosts[key] = Host(key)
        host.connections += 1
        return host

    def remove_connection(self, host: Host) -> None:
        """A connection of this host is gone."""
        host.connections -= 1
        if not host.connections:
            del self._hosts[host.key]

    def schedule(self, connection: Schedulable) -> None:
        """Queue a connection to be served."""
        host = connection.host
        connection.scheduled = True
        expected = max(host.virtual_time, connection.finish_tag) + connection.cost
        heappush(host.queue, (expected, next(self._serial_numbers), connection))
        if not host.scheduled:
            host.scheduled = True
            self._waiting.append(host)
            self._request_run()

    def _request_run(self) -> None:
        if not self._run_requested:
            self._run_requested = True
            self._call_soon(self._run)

    def _run(self) -> None:
        self._run_requested = False
        waiting, now = self._waiting, self._tick()
        over = now + QUANTUM
        while waiting and now < over:
            host = waiting.popleft()
            now = self._run_step(host, now)
            if host.queue:
                waiting.append(host)
            else:
                host.scheduled = False
                host.share_left = SHARE
        if waiting:
            self._request_run()

    def _run_step(self, host: Host, now: int) -> int:
        """Serve one connection of this host; the time after that."""
        expected, _, connection = heappop(host.queue)
        start_tag = expected - connection.cost
        host.virtual_time = max(host.virtual_time, start_tag)
        connection.scheduled = False
        more = connection.run_step()
        after = self._tick()
        connection.cost = after - now
        connection.finish_tag = start_tag + connection.cost
        if more:
            self.schedule(connection)
        return after


def host_of(peer: object) -> bytes:
    """The key of a host, by what `getpeername` returns; all clients of a unix socket are one host.

    Of IPv6 it is the network of 64 bits, for one host may have all addresses of that.
    """
    if not isinstance(peer, tuple):
        return b""
    address = str(peer[0]).partition("%")[0]
    if ":" not in address:
        return socket.inet_pton(socket.AF_INET, address)
    packed = socket.inet_pton(socket.AF_INET6, address)
    return packed[12:] if packed.startswith(_MAPPED) else packed[:8]


_MAPPED: Final = bytes(10) + b"\xff\xff"
"""The first bytes of an IPv4 address on a socket for both: RFC 4291, 2.5.5.2."""


class Weighed(Protocol):
    """A connection, as a MemoryLimit sees it."""

    weight: int
    """Bytes that it held when it was weighed last."""

    def weigh(self) -> None:
        """Update `weight`, and report the change by `MemoryLimit.add`."""

    def clear_caches(self) -> None:
        """Free memory that no call needs."""

    def end_over_memory(self) -> None:
        """End it: it holds more than others."""


class MemoryLimit:
    """Bytes that all connections hold for their clients.

    A connection is weighed when it holds messages, or bytes that wait to be parsed; all of them twice a second.
    Beyond the limit, header caches are cleared first, which costs no call; then the heaviest connections are ended,
    until an eighth is free again. So a connection that holds little is safe, however many hold much.
    """

    __slots__ = ("_connections", "_most", "_relieving", "used")

    def __init__(self, most: int, connections: Collection[Weighed]) -> None:
        self.used = 0
        self._most = most
        self._connections = connections
        self._relieving = False

    def add(self, change: int) -> None:
        """A connection holds `change` bytes more; less, if it is negative."""
        self.used += change
        if change > 0 and self.used > self._most and not self._relieving:
            self._relieving = True
            self._relieve()
            self._relieving = False

    def _relieve(self) -> None:
        target = self._most - self._most // 8
        heaviest = sorted(self._connections, key=lambda each: each.weight, reverse=True)
        for connection in heaviest:
            if self.used <= target:
                return
            connection.clear_caches()
            connection.weigh()
        for connection in sorted(heaviest, key=lambda each: each.weight, reverse=True):
            if self.used <= target:
                return
            connection.end_over_memory()
            connection.weigh()


class EvictionCandidate(Protocol):
    """A connection, as an EvictionOrder sees it."""

    @property
    def last_stream(self) -> int:
        """The number of its last call; 0 when there was none."""

    @property
    def busy(self) -> bool:
        """A method is at work for it, or it has sent bytes that may be a call."""


E = TypeVar("E", bound=EvictionCandidate)


class EvictionOrder(Generic[E]):
    """Connections by when they had their last call, least recent first.

    Those that never had one come before all others, so that a flood of connections evicts itself. A busy connection is
    never evicted; a stream that is only kept open (Watch, or headers without their message) does not make it busy.
    Calls are noted twice a second, and once more before a connection is chosen.
    """

    def __init__(self) -> None:
        self._new: OrderedDict[E, int] = OrderedDict()
        """Connections that never called, in the order in which they came."""
        self._called: OrderedDict[E, int] = OrderedDict()
        """The others, and the last call of each that was noted."""

    def add(self, connection: E) -> None:
        """A new connection."""
        self._new[connection] = 0

    def remove(self, connection: E) -> None:
        """It is gone, or will be."""
        self._new.pop(connection, None)
        self._called.pop(connection, None)

    def note_calls(self, connection: E) -> bool:
        """Move it to the end if it had a call since this was called last; whether it had."""
        last = connection.last_stream
        if last == self._called.get(connection, 0):
            return False
        self._new.pop(connection, None)
        self._called[connection] = last
        self._called.move_to_end(connection)
        return True

    def first(self) -> E | None:
        """The connection to evict, if there is one."""
        for connections in self._new, self._called:
            for _ in range(len(connections)):
                connection = next(iter(connections))
                if self.note_calls(connection):
                    continue
                if not connection.busy:
                    return connection
                connections.move_to_end(connection)
        return None
