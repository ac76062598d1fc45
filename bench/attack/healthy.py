"""The healthy client: a process that calls at an even pace, on a connection of its own and on fresh ones.

It begins a call when it is due, whether or not others were answered: what waits is seen as time, not as fewer calls.
Lines of standard input name the phases, and `end`; a call belongs to the phase in which it began. What came of them is
printed as JSON.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import uvloop

from attack.catalogue import Target
from attack.frames import block, calls, message
from attack.wire import Counts, Ended, Wire, connect

PATIENCE = 5.0
"""Seconds that a call may take; then it is lost."""

PHASES = ("before", "during", "after")


@dataclass
class Kind:
    """What came of the calls of one kind in one phase."""

    took: list[float] = field(default_factory=list)
    """Seconds, of those that were answered as a healthy service answers."""
    lost: Counter[str] = field(default_factory=Counter)
    """The others, by what came instead of that answer."""

    def summary(self) -> dict[str, object]:
        """As JSON, in milliseconds."""
        took = sorted(self.took)
        p50, p99 = (round(took[int(part * len(took))] * 1e3, 2) if took else None for part in (0.5, 0.99))
        return {"answered": len(took), "lost": self.lost, "p50": p50, "p99": p99}


class Healthy:
    """The calls of all kinds and phases."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._phase = "before"
        self._kinds = {phase: {kind: Kind() for kind in ("own", "fresh", "http")} for phase in PHASES}
        self._tasks: set[asyncio.Task[None]] = set()
        self._head = block(target.path, scheme=b"\x87" if target.tls else b"\x86")
        self._message = message(bytes.fromhex(target.request))
        self._opening: asyncio.Task[Calling] | None = None

    async def run(self) -> None:
        """Until standard input says `end`. TimeoutError, OSError or Ended when the first call is not answered."""
        async with asyncio.timeout(PATIENCE):
            await self._own()  # which pays for what a connection and a request cost once
        print("ready", flush=True)
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        paces = [("own", 0.01, self._own), ("fresh", 0.2, self._fresh)]
        if self._target.http_port:
            paces.append(("http", 0.1, self._http))
        pacing = [asyncio.create_task(self._pace(*pace)) for pace in paces]
        while (line := (await reader.readline()).decode().strip()) not in {"", "end"}:
            self._phase = line
        for task in pacing:
            task.cancel()
        await asyncio.gather(*self._tasks)
        print(
            json.dumps(
                {phase: {name: kind.summary() for name, kind in kinds.items()} for phase, kinds in self._kinds.items()}
            )
        )

    async def _pace(self, kind: str, every: float, call: Callable[[], Awaitable[str]]) -> None:
        due = time.monotonic()
        while True:
            due += every
            await asyncio.sleep(max(0, due - time.monotonic()))
            task = asyncio.create_task(self._timed(self._kinds[self._phase][kind], call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _timed(self, kind: Kind, call: Callable[[], Awaitable[str]]) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                status = await call()
        except TimeoutError:
            status = f"no answer in {PATIENCE:.0f} s"
        except Ended:
            status = "connection ended"
        except OSError as error:
            status = type(error).__name__
        if status == "OK":
            kind.took.append(time.monotonic() - began)
        else:
            kind.lost[status] += 1

    async def _open(self) -> "Calling":
        calling = Calling(Counts())
        target = self._target
        address = (target.host, target.port)
        await connect(calling, address, tls=target.tls, local_addr=target.healthy_address)
        return calling

    async def _own(self) -> str:
        """A call on the connection that all share; on a new one when that has ended or was asked to end."""
        opening = self._opening
        if opening is None or (opening.done() and (opening.exception() or opening.result().unusable)):
            self._opening = opening = asyncio.create_task(self._open())
        return await (await asyncio.shield(opening)).answer(self._head, self._message)

    async def _fresh(self) -> str:
        """A connection, and one call on it."""
        calling = await self._open()
        try:
            return await calling.answer(self._head, self._message)
        finally:
            calling.close()

    async def _http(self) -> str:
        """A connection, and one request on it."""
        target = self._target
        reader, writer = await asyncio.open_connection(target.host, target.http_port, local_addr=target.healthy_address)
        try:
            writer.write(b"GET /healthcheck HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            words = (await reader.readline()).decode(errors="replace").split()
        finally:
            writer.close()
        if len(words) < 2:
            raise Ended
        return "OK" if words[1] == "200" else f"HTTP {words[1]}"


class Calling(Wire):
    """A connection whose calls are awaited."""

    def __init__(self, counts: Counts) -> None:
        super().__init__(counts)
        self._waiting: dict[int, asyncio.Future[str]] = {}

    @property
    def unusable(self) -> bool:
        """New calls need another connection."""
        return self.gone or bool(self.goaway)

    async def answer(self, head: bytes, body: bytes) -> str:
        """The status that a call ends with. Ended when the connection ends before."""
        if self.gone:
            raise Ended
        number = self.number()
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self.transport.write(calls([number], head, body))
        try:
            return await future
        finally:
            self._waiting.pop(number, None)

    def connection_lost(self, error: Exception | None) -> None:
        """None of its calls will be answered."""
        super().connection_lost(error)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Ended())

    def stream_ended(self, number: int, status: str) -> None:
        """The answer to a call."""
        future = self._waiting.get(number)
        if future is not None and not future.done():
            future.set_result(status)


def main(target: Target) -> None:
    """Runs until standard input says `end`; exit code 1 when the first call is not answered."""
    try:
        uvloop.run(Healthy(target).run())
    except (TimeoutError, OSError, Ended):
        sys.exit(1)
