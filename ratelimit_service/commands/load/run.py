"""A load under way: it keeps the connections open, says when calls are due, and sums up what comes of them."""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter_ns, process_time
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitResponse
from ratelimit_service.commands.load.connection import LoadConnection, call_headers
from ratelimit_service.commands.load.latencies import Latencies
from ratelimit_service.commands.load.requests import Requests
from ratelimit_service.commands.target import address_of, server_name
from ratelimit_service.system.address import Unix

_ALLOWED: Final = b"\x08\x01"
"""The begin of a response of OK, from a server that writes fields in the order of their numbers."""

_TICK: Final = 1_000_000
"""Nanoseconds: a timer is not more precise."""

_CONNECT_SECONDS: Final = 5.0
_RECONNECT_SECONDS: Final = 0.1
LAST_SECONDS: Final = 5.0
"""Seconds to wait for the responses to the last calls."""

MAX_WAITING: Final = 1_000_000
"""Calls that are due, and wait for a connection or for room on one; more have failed."""


class Load(NamedTuple):
    """The load to put on a server."""

    target: str
    connections: int
    in_flight: int
    """Calls at a time on each connection; with a rate, the most."""
    calls: int | None
    seconds: float | None
    """It ends with the last of its calls, or after this time; at least one of both is given."""
    rate: int | None
    """Calls per second, begun when they are due, whether or not others are answered; None: each waits for another."""
    timeout: int | None
    """The deadline of each call in microseconds; None: it has none."""
    tls: ssl.SSLContext | None


class Result(NamedTuple):
    """The sums of a load, or of a part of it."""

    allowed: int
    refused: int
    failures: Mapping[str, int]
    """Calls without an answer, by reason."""
    latencies: Latencies
    """Of the calls that were answered, since they were due."""
    seconds: float
    cpu_seconds: float
    """Processor time of the load itself."""

    @property
    def calls(self) -> int:
        """All calls that are over."""
        return self.allowed + self.refused + self.failed

    @property
    def failed(self) -> int:
        """The calls without an answer."""
        return sum(self.failures.values())


class _Sums:
    """The calls of all connections: what is left, and what came of those that are over."""

    def __init__(self, requests: Requests, calls: int | None) -> None:
        self.left = calls if calls is not None else -1
        """Calls that may still begin; below 0: any number."""
        self.latencies = Latencies()
        self.recent = Latencies()
        """Of the calls of this second, which are not in `latencies` yet."""
        self.allowed = self.refused = 0
        self.failures: dict[str, int] = {}
        self._next = requests.next

    def next(self) -> bytes | None:
        """As Calls says."""
        if not self.left:
            return None
        self.left -= 1
        return self._next()

    def answered(self, nanoseconds: int, status: str, message: bytes) -> None:
        """As Calls says."""
        if status != "0":
            self.failed(_status_name(status))
            return
        if message[5:7] == _ALLOWED:
            self.allowed += 1
        else:
            try:
                code = RateLimitResponse.FromString(message[5:]).overall_code
            except DecodeError:
                code = RateLimitResponse.UNKNOWN
            if code == RateLimitResponse.UNKNOWN:
                self.failed("the response is not from a rate-limit service")
                return
            if code == RateLimitResponse.OK:
                self.allowed += 1
            else:
                self.refused += 1
        self.recent.observe(nanoseconds)

    def failed(self, reason: str, calls: int = 1) -> None:
        """As Calls says."""
        self.failures[reason] = self.failures.get(reason, 0) + calls


_STATUS_NAMES: Final = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)


def _status_name(status: str) -> str:
    return _STATUS_NAMES[int(status)] if status.isdecimal() and int(status) < len(_STATUS_NAMES) else status


class Run:
    """One run of a load. `on_second` is called every second with the sums of that second."""

    def __init__(self, load: Load, requests: Requests, on_second: Callable[[Result], None] | None) -> None:
        self._load = load
        self._sums = _Sums(requests, load.calls)
        self._on_second = on_second
        authority = "localhost" if load.target.startswith("unix:") else load.target
        self._headers = call_headers(authority, "https" if load.tls else "http", load.timeout)
        self._connections: list[LoadConnection] = []
        self._waiting: deque[int] = deque()
        """The moments of calls that are due while no connection is open."""
        self._beginning: asyncio.Task[None] | None = None
        self._ended = False
        """No more calls become due."""

    async def run(self) -> Result:
        """Make all calls. Raises OSError if the connections cannot be made."""
        load = self._load
        began, cpu_began = perf_counter_ns(), process_time()
        self._connections = [await self._connect() for _ in range(load.connections)]
        keepers = [asyncio.create_task(self._keep(place)) for place in range(load.connections)]
        reporter = asyncio.create_task(self._report())
        self._beginning = asyncio.create_task(self._begin_calls(keepers))
        with suppress(asyncio.CancelledError):  # by `stop`
            await self._beginning
        self._ended = True
        for connection in self._connections:
            connection.finish()
        await asyncio.wait(keepers, timeout=LAST_SECONDS)
        for connection in self._connections:
            connection.abort()
        await asyncio.gather(*keepers)
        reporter.cancel()
        await asyncio.wait([reporter])
        sums = self._sums
        sums.latencies.add(sums.recent)
        seconds = (perf_counter_ns() - began) / 1e9
        return Result(sums.allowed, sums.refused, sums.failures, sums.latencies, seconds, process_time() - cpu_began)

    def stop(self) -> None:
        """Begin no more calls."""
        if self._beginning is not None:
            self._beginning.cancel()

    async def _begin_calls(self, keepers: Sequence[asyncio.Task[None]]) -> None:
        """Returns when no more calls are to begin."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._load.seconds):
                if self._load.rate is not None:
                    await self._keep_pace(self._load.rate)
                else:
                    await asyncio.wait(keepers)

    async def _keep_pace(self, rate: int) -> None:
        """Begin calls at this rate, those of a millisecond together.

        A late timer moves no call: each is due at its own moment, from which its latency counts.
        """
        start, begun, ticks = perf_counter_ns(), 0, 0
        calls = self._load.calls
        while calls is None or begun < calls:
            await asyncio.sleep(_TICK / 1e9)
            now = perf_counter_ns()
            while (moment := start + (ticks + 1) * _TICK) <= now:
                ticks += 1
                due = ticks * rate * _TICK // 1_000_000_000
                if calls is not None:
                    due = min(due, calls)
                # Within a tick it is the timer that is not more precise; beyond, the load is late.
                self._call(begun, due - begun, now if now - moment < _TICK else moment)
                begun = due

    def _call(self, first: int, count: int, moment: int) -> None:
        """So many calls are due, the connections in turn."""
        connections = [each for each in self._connections if each.open]
        if not connections:
            room = max(0, MAX_WAITING - len(self._waiting))
            self._waiting.extend([moment] * min(count, room))
            if count > room:
                self._sums.failed("no connection", count - room)
            return
        for number in range(first, first + count):
            connection = connections[number % len(connections)]
            if len(connection.due) < MAX_WAITING // self._load.connections:
                connection.call_at(moment)
            else:
                self._sums.failed("too many calls wait for answers to others")

    async def _connect(self) -> LoadConnection:
        load, loop = self._load, asyncio.get_running_loop()
        address = address_of(load.target)
        make = partial(LoadConnection, self._sums, load.in_flight, self._headers, closed_loop=load.rate is None)
        async with asyncio.timeout(_CONNECT_SECONDS):
            if isinstance(address, Unix):
                name = server_name(address) if load.tls else None
                _, connection = await loop.create_unix_connection(
                    make, address.path, ssl=load.tls, server_hostname=name
                )
            else:
                _, connection = await loop.create_connection(make, *address, ssl=load.tls)
        return connection

    async def _keep(self, place: int) -> None:
        """Replace the connection at this place whenever it is lost, until the end."""
        connection = self._connections[place]
        while True:
            await connection.closed
            self._waiting.extend(connection.due)
            while not (self._ended or not self._sums.left):
                await asyncio.sleep(_RECONNECT_SECONDS)
                with suppress(OSError, TimeoutError):
                    connection = self._connections[place] = await self._connect()
                    break
            else:
                if self._waiting and not any(each.open for each in self._connections):
                    self._sums.failed("no connection", len(self._waiting))
                    self._waiting.clear()
                return
            waiting, self._waiting = self._waiting, deque()
            for moment in waiting:
                connection.call_at(moment)

    async def _report(self) -> None:
        """Call `on_second` each second."""
        sums, seconds, cpu = self._sums, perf_counter_ns(), process_time()
        allowed = refused = 0
        failures: dict[str, int] = {}
        while True:
            await asyncio.sleep(1)
            now, cpu_now = perf_counter_ns(), process_time()
            recent, sums.recent = sums.recent, Latencies()
            failed = {reason: count - failures.get(reason, 0) for reason, count in sums.failures.items()}
            if self._on_second is not None:
                elapsed = (now - seconds) / 1e9
                self._on_second(
                    Result(sums.allowed - allowed, sums.refused - refused, failed, recent, elapsed, cpu_now - cpu)
                )
            sums.latencies.add(recent)
            seconds, cpu, allowed, refused, failures = now, cpu_now, sums.allowed, sums.refused, dict(sums.failures)
