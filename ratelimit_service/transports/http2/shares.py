"""Turns: how the event loop's time is shared among hosts, and a host's among its connections. Hot path.

Laws: work is charged by the time that it took, in whatever pieces the bytes come: uvloop hands over up to 32 reads of
256 KiB in one turn of the loop. All connections of one host have one share together; when it is used up, they wait for
the next turn. There, hosts that wait are served in rotation, one step of one connection each, for TURN in all. Of the
connections of a host the one that has had least is served first: one that asks little waits for one turn, however many
there are that ask much. A handshake of TLS always waits, so that those of any number of hosts take no more than TURN.

Theory: start-time fair queueing (Goyal, Vin and Cheng, 1996) within a host. Its `clock` is how far the service of its
connections has come. A connection that waits starts at that clock, or where its own service ended if that is later; the
order is by where it would end if it took as long as last time. Among hosts: round robin (deficits are below one step).
"""

import socket
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, Protocol

from ratelimit_service.system.clock import Tick

SHARE: Final = 2_000_000
"""Nanoseconds of one host before its connections wait for the next turn of the loop."""

STEP: Final = 1_000_000
"""Nanoseconds of one connection before it is asked whose turn it is."""

TURN: Final = 4_000_000
"""Nanoseconds of all connections that wait, in one turn of the loop."""

HANDSHAKE: Final = 2_000_000
"""What a handshake of TLS takes, about (RSA with 2,048 bits): until it is over, all other work of its host is first."""


class Waiting(Protocol):
    """A connection, as far as it waits."""

    host: "Host"
    waits: bool
    """It is in the queue of its host."""
    finish: int
    """Where its service ended, by the clock of its host."""
    cost: int
    """What its last step took."""

    def go_on(self) -> bool:
        """Work for a step; whether there is more to do."""


class Host:
    """The connections of one remote address."""

    __slots__ = ("behind", "clock", "connections", "key", "room", "waiting")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.connections = 0
        self.room = SHARE
        """Nanoseconds that are left of its share."""
        self.behind = False
        """Some of its connections wait."""
        self.waiting: list[tuple[int, int, Waiting]] = []
        """A heap of those: where each would end, and its number, so that of equals the first that came is first."""
        self.clock = 0


class Shares:
    """The hosts of a transport."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], Any], tick: Tick) -> None:
        self._call_soon = call_soon
        self._tick = tick
        self._hosts: dict[bytes, Host] = {}
        self._behind: deque[Host] = deque()
        self._asked = False
        """The next turn is asked for."""
        self._numbers = count()

    def join(self, key: bytes) -> Host:
        """One more connection of this host."""
        host = self._hosts.get(key)
        if host is None:
            host = self._hosts[key] = Host(key)
        host.connections += 1
        return host

    def leave(self, host: Host) -> None:
        """One less."""
        host.connections -= 1
        if not host.connections:
            del self._hosts[host.key]

    def wait(self, connection: Waiting) -> None:
        """Serve this connection when it is its turn."""
        host = connection.host
        connection.waits = True
        end = max(host.clock, connection.finish) + connection.cost
        heappush(host.waiting, (end, next(self._numbers), connection))
        if not host.behind:
            host.behind = True
            self._behind.append(host)
            self._ask()

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._call_soon(self._serve)

    def _serve(self) -> None:
        """A turn of those that wait."""
        self._asked = False
        behind, now = self._behind, self._tick()
        over = now + TURN
        while behind and now < over:
            host = behind.popleft()
            now = self._step(host, now)
            if host.waiting:
                behind.append(host)
            else:
                host.behind = False
                host.room = SHARE
        if behind:
            self._ask()

    def _step(self, host: Host, now: int) -> int:
        """Work for one connection of this host; the time after that."""
        end, _, connection = heappop(host.waiting)
        start = end - connection.cost
        host.clock = max(host.clock, start)
        connection.waits = False
        more = connection.go_on()
        after = self._tick()
        connection.cost = after - now
        connection.finish = start + connection.cost
        if more:
            self.wait(connection)
        return after


def host_of(peer: object) -> bytes:
    """The key of a host by what `getpeername` says; all clients of a unix socket are one host.

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
"""What IPv4 begins with on a socket for both: RFC 4291, 2.5.5.2."""
