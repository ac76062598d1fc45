"""The place of one worker, as the parent sees it: the process that has it now, and how that one is doing."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from ratelimit_service.api.method import Reply
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.server.workers.channel import Channel, Handoff, Message, bytes_of, text_of
from ratelimit_service.settings import SETTINGS
from ratelimit_service.stores.store import Lost
from ratelimit_service.telemetry.metric import Metric, unpack_metrics

PATIENCE_SECONDS: Final = 0.5
"""How long a connection waits at a door. Then the worker is passed over, and others get what it has not taken."""

_MOST_WAITING: Final = 64
"""Connections at one door. One that does not take its connections gets no more of them than this."""

_EXIT_SECONDS: Final = 10.0
"""For a worker to end after it has hung up."""

_SETTINGS: Final = frozenset(setting.variable for setting in SETTINGS)

_GONE: Final = RpcError(Status.UNAVAILABLE, "the worker that had the call has ended")


class Post:
    """Worker number so and so."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid = 0
        """0 while there is no process."""
        self._reset()

    def _reset(self) -> None:
        self.ready = False
        """It has the rules, or knows that there are none yet."""
        self.problem = ""
        """Why it could not start, in its own words."""
        self.serving = False
        """What its health says."""
        self.healthy = False
        """What it says of its store."""
        self.counters = 0
        self.lost: Sequence[Lost] = ()
        """Servers that it says cannot decide hits now."""
        self.metrics: Sequence[Metric] = ()
        """What it told last of its transport and its store."""
        self.reported = 0
        """The last request for a report that it answered."""
        self.passed_over = False
        """It gets no connections until it says something."""
        self.silent = False
        """It was seen to say nothing for long."""
        self.busy = False
        """It was seen to compute meanwhile."""
        self.used: int | None = None
        """CPU that it had used at the last look, while it says nothing."""
        self.heard = self.moved = self._handed_at = self._waits_since = monotonic()
        self._given = self._taken = self._lost = 0
        self._calls: dict[int, Reply] = {}
        self._next_call = 0
        self._process: asyncio.subprocess.Process | None = None
        self._channel: Channel | None = None
        self._handoff: Handoff | None = None

    @property
    def alive(self) -> bool:
        """It has a process."""
        return self.pid != 0

    @property
    def load(self) -> int:
        """Connections that it has, or that wait at its door."""
        return self._given - self._lost

    @property
    def open_to_more(self) -> bool:
        """It may be given a connection."""
        return self.ready and not self.passed_over and self._given - self._taken < _MOST_WAITING

    @property
    def turn(self) -> tuple[int, float]:
        """The least gets the next connection: who has the fewest, and of those who got none for longest."""
        return self.load, self._handed_at

    @property
    def calls(self) -> int:
        """Calls of ours that it has not answered."""
        return len(self._calls)

    async def live(
        self, settings: Mapping[str, Any], greet: Callable[["Post"], None], hear: Callable[["Post", Message], None]
    ) -> str:
        """Start a process, greet it, and hear it until it has ended; the answer says how it ended.

        What it leaves is there until `vacate`.
        """
        self._handoff = Handoff()
        self.heard = monotonic()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        files = (theirs.fileno(), self._handoff.worker_end.fileno())
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "ratelimit_service.server.workers", *map(str, files)),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=files,
                start_new_session=True,
                env=_environ(),
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._process, self.pid = process, process.pid
        self._channel = await Channel.over(ours)
        try:
            self.send("start", self.number, settings)
            greet(self)
            async for message in self._channel.messages():
                self.heard = monotonic()
                self._hear(message)
                hear(self, message)
            async with asyncio.timeout(_EXIT_SECONDS):
                await process.wait()
        except TimeoutError:
            pass
        finally:
            self.kill()
            self.pid, self.ready, self.serving, self.healthy = 0, False, False, False
            await self._channel.close()
            while self._calls:
                self._calls.popitem()[1](_GONE)
        return f"with pid {process.pid} {_how(await process.wait())}"

    def send(self, *message: Any) -> None:
        """Say something, if somebody is there; never waits."""
        if self._channel is not None:
            self._channel.send(*message)

    def hand(self, connection: socket.socket) -> bool:
        """Let the connection wait at its door; False when there is no room."""
        now = monotonic()
        assert self._handoff is not None, "it is open to more"
        if not self._handoff.put(connection):
            self.passed_over = True
            return False
        if self._given == self._taken:
            self._waits_since = now
        self._given += 1
        self._handed_at = now
        return True

    def take_back(self) -> list[socket.socket]:
        """The connections that it has not taken."""
        connections = self._handoff.take_back() if self._handoff is not None else []
        self._given -= len(connections)
        return connections

    def vacate(self) -> None:
        """Forget who has ended."""
        if self._handoff is not None:
            self._handoff.close()
        self._reset()

    def call(self, body: bytes, reply: Reply, what: str, timeout: int | None) -> None:
        """Have it answer a call that came by another way, or `explain` what it would answer."""
        self._next_call += 1
        self._calls[self._next_call] = reply
        self.send(what, self._next_call, text_of(body), timeout)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    def is_slow(self, now: float) -> bool:
        """It has not taken what it was given."""
        return self._given > self._taken and now - self._waits_since > PATIENCE_SECONDS

    def _hear(self, message: Message) -> None:
        match message:
            case ["connections", taken, lost]:
                self._taken, self._lost = taken, lost
                self._waits_since = self.heard
            case ["report", number, summary]:
                self.reported = number
                self.serving, self.healthy, self.counters = (
                    summary[name] for name in ("serving", "healthy", "counters")
                )
                self.lost = [Lost(*lost) for lost in summary["lost"]]
                self.metrics = unpack_metrics(summary["metrics"])
            case ["ready"]:
                self.ready = True
            case ["failed", problem]:
                self.problem = problem
            case ["answer", number, body]:
                self._calls.pop(number)(bytes_of(body))
            case ["refusal", number, status, text]:
                self._calls.pop(number)(RpcError(Status(status), text))


def _environ() -> dict[str, str]:
    """What is here, for interpreter and libraries; but settings, some of them secrets, go over the channel alone."""
    others = {name: value for name, value in os.environ.items() if name not in _SETTINGS}
    # It finds modules where this process does, however this one was started.
    return others | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
