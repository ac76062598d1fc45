"""An attacker: a process that runs one attack until its time is over, and prints what it counted."""

import asyncio
import json
import logging
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable

import uvloop

from attack.catalogue import Attack, Target
from attack.frames import HELLO, block, message
from attack.wire import Counts, Ended, Wire, connect

AGAIN = 0.05
"""Seconds until a connection that was ended or refused is tried again."""

AT_ONCE = 200
"""Connections that are opened together: a backlog has room for no more."""

NICE = 10
"""The healthy client has the same core and goes first: what it waits for is the server, not its attackers."""


class Attacker:
    """What an attack works with: its target, connections, and what is counted."""

    def __init__(self, target: Target, seconds: float) -> None:
        self.target = target
        self.counts = Counts()
        self.random = random.Random(1)
        self.message = message(bytes.fromhex(target.request))
        """A plain call's."""
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds."""
        return self._until - time.monotonic()

    def block(self, *more: tuple[bytes, bytes], path: str = "") -> bytes:
        """The headers of a call, a plain one's unless it says otherwise."""
        return block(path or self.target.path, *more, scheme=b"\x87" if self.target.tls else b"\x86")

    async def open(self, hello: bytes = HELLO) -> Wire:
        """A connection to the gRPC port. OSError when there is none."""
        return await self._connect(self.target.port, Wire(self.counts, hello), tls=self.target.tls)

    async def open_http(self, *, debug: bool = False) -> Wire:
        """A connection to an HTTP port."""
        port = self.target.debug_port if debug else self.target.http_port
        return await self._connect(port, Wire(self.counts, b"", frames=False), tls=False)

    async def open_raw(self, port: int) -> Wire:
        """A connection on which nothing is sent but what the attack sends, not even TLS."""
        return await self._connect(port, Wire(self.counts, b"", frames=False), tls=False)

    async def _connect(self, port: int, wire: Wire, *, tls: bool) -> Wire:
        try:
            await connect(wire, (self.target.host, port), tls=tls)
        except OSError:
            self.counts.refused += 1
            raise
        return wire

    async def each(
        self, count: int, client: Callable[[Wire], Awaitable[None]], opened: Callable[[], Awaitable[Wire]] | None = None
    ) -> None:
        """Hold `count` connections open; reopen each that ends."""
        opening = asyncio.Semaphore(AT_ONCE)

        async def one() -> None:
            while True:
                try:
                    async with opening:
                        wire = await (opened or self.open)()
                except OSError:
                    await asyncio.sleep(AGAIN)
                    continue
                try:
                    await client(wire)
                except Ended:
                    pass
                finally:
                    if not wire.gone:
                        wire.abort()
                await asyncio.sleep(AGAIN)

        await asyncio.gather(*(one() for _ in range(count)))

    def harm(self, what: str) -> None:
        """The attack has seen for itself that something is wrong: the verdict is `broken`."""
        if what not in self.counts.harm:
            self.counts.harm.append(what)

    def note(self, what: str) -> None:
        """For the reader of the row."""
        if what not in self.counts.notes:
            self.counts.notes.append(what)


def main(attack: Attack, target: Target, seconds: float) -> None:
    """Waits for a line of standard input, attacks, and prints its counts as JSON."""
    os.nice(NICE)
    logging.disable()  # uvloop warns of each connection of TLS that the server ended
    print("ready", flush=True)
    sys.stdin.readline()
    attacker = Attacker(target, seconds)

    async def run() -> None:
        try:
            async with asyncio.timeout(seconds):
                await attack.run(attacker)
        except TimeoutError:
            pass
        except Ended:
            attacker.note("its connection was ended")
        except OSError as error:
            attacker.note(f"it ended with {type(error).__name__}")

    uvloop.run(run())
    print(json.dumps(vars(attacker.counts)), flush=True)
