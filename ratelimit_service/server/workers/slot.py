"""The slot of one worker in the parent: the process that has it now, its state, its connections and its calls.

A slot outlives its processes: worker 2 is replaced by worker 2. Its states are::

    state      what it means                                         new connections   reports, rules
    ABSENT     no process yet, or a pause before the next one        no                no
    STARTING   a process runs, and has no rules yet                  no                rules
    READY      it answers                                            yes               yes
    SLOW       it let a connection wait, and has sent nothing since  no                yes
    SILENT     it has sent no message for 5 s                        no                no

and what each event does to them, where `-` is nothing::

    event                                            ABSENT    STARTING  READY   SLOW    SILENT
    a process starts                                 STARTING
    it sends `ready`                                           READY
    it sends any message                                       -         -       READY   READY, and gets the rules
    a connection waits 0.5 s, or finds no room                           SLOW    -       -
    it sends nothing for 5 s                                   -         SILENT  SILENT  -
    it sends nothing for 30 s and uses no CPU                  killed                    killed
    it sends nothing for 300 s                                 killed                    killed
    its process ends                                           ABSENT    ABSENT  ABSENT  ABSENT

The events of time come from the `watchdog`. A connection that waits for a worker that is SLOW, SILENT or ABSENT goes to
the others.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from time import monotonic
from typing import Any, Final

from ratelimit_service.api.method import Reply
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.rules.bans import BanSummary, read_ban
from ratelimit_service.server.workers.channel import Channel, Handoff, Message, bytes_of, text_of
from ratelimit_service.settings import SETTINGS
from ratelimit_service.stores.store import LostServer
from ratelimit_service.telemetry.gauges import Gauges
from ratelimit_service.telemetry.metric import Metric, unpack_metrics
from ratelimit_service.telemetry.tally import Path

log = logging.getLogger(__name__)

_SLOW_SECONDS: Final = 0.5
"""Seconds that a connection may wait in the handoff."""

_MAX_WAITING: Final = 64
"""Connections in one handoff. A worker that does not receive them gets no more than this."""

_EXIT_SECONDS: Final = 10.0
"""Seconds for a worker to end after it has closed its channel."""

_SETTINGS: Final = frozenset(setting.variable for setting in SETTINGS)

_GONE: Final = RpcError(Status.UNAVAILABLE, "the worker that had the call exited")


class SlotState(Enum):
    """See the tables above."""

    ABSENT = auto()
    STARTING = auto()
    READY = auto()
    SLOW = auto()
    SILENT = auto()


class WorkerSlot:
    """One of the workers, by its number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._starts = 0
        """Processes that were started in this place."""
        self._handoff: Handoff | None = None
        self.reset()

    def reset(self) -> None:
        """Close the handoff, and forget everything about the process that has ended."""
        if self._handoff is not None:
            self._handoff.close()
        self._handoff = None
        self.state = SlotState.ABSENT
        self.pid = 0
        """0 while there is no process."""
        self._started = 0.0
        self.problem = ""
        """Why it could not start, in its own words."""
        self.serving = False
        """What its health says."""
        self.healthy = False
        """What it says of its store."""
        self.counters = 0
        self.lost: Sequence[LostServer] = ()
        """Servers that it says cannot decide hits now."""
        self.warnings: Sequence[str] = ()
        """What it says is wrong with the settings of regions."""
        self.bans = BanSummary(0, ())
        """The bans that it enforces."""
        self.gauges: Sequence[tuple[Path, Gauges]] = ()
        """What is true of rules in it, by their paths, as in its last report."""
        self._next_gauges: list[tuple[Path, Gauges]] = []
        self.metrics: Sequence[Metric] = ()
        """The last metrics of its transport and its store."""
        self.reported = 0
        """The last request for a report that it answered."""
        self.last_message = self._last_connection = self._waiting_since = monotonic()
        self._handed = self._received = self._closed = 0
        """How many connections it was handed, has received, and has closed again."""
        self._calls: dict[int, Reply] = {}
        self._next_call = 0
        self._process: asyncio.subprocess.Process | None = None
        self._channel: Channel | None = None

    @property
    def alive(self) -> bool:
        """It has a process."""
        return self.state is not SlotState.ABSENT

    @property
    def age_seconds(self) -> float:
        """The seconds for which its process has run."""
        return monotonic() - self._started

    @property
    def restarts(self) -> int:
        """The number of processes before it."""
        return self._starts - 1

    @property
    def ready(self) -> bool:
        """Its process has the rules, or knows that there are none yet."""
        return self.state not in {SlotState.ABSENT, SlotState.STARTING}

    @property
    def silent(self) -> bool:
        """It has sent nothing for long: it is not waited for."""
        return self.state is SlotState.SILENT

    @property
    def connections(self) -> int:
        """Connections that it has, or that wait in its handoff."""
        return self._handed - self._closed

    @property
    def accepting(self) -> bool:
        """It may be handed a connection."""
        return self.state is SlotState.READY and self._handed - self._received < _MAX_WAITING

    @property
    def rank(self) -> tuple[int, float]:
        """The lowest gets the next connection: the worker that has the fewest, and of those the least recently used."""
        return self.connections, self._last_connection

    @property
    def calls(self) -> int:
        """Calls of ours that it has not answered."""
        return len(self._calls)

    async def run(
        self,
        settings: Mapping[str, Any],
        inform: Callable[["WorkerSlot"], None],
        on_message: Callable[["WorkerSlot", Message], None],
    ) -> str:
        """Start a process, and read its messages until it has ended; returns how it ended.

        `inform` is called when the process must be sent rules, and whether it drains: at its start, and after it was
        silent. What the process leaves is there until `reset`.
        """
        self._handoff = Handoff()
        self.last_message = monotonic()
        process, end = await _start_process(self._handoff)
        self._process, self.pid, self.state = process, process.pid, SlotState.STARTING
        self._starts += 1
        self._started = monotonic()
        self._channel = await Channel.over(end)
        try:
            self.send("start", self.number, settings)
            inform(self)
            async for message in self._channel.messages():
                self.last_message = monotonic()
                if self.silent:
                    log.warning("worker %d answers again", self.number)
                    inform(self)
                self._receive(message)
                on_message(self, message)
            async with asyncio.timeout(_EXIT_SECONDS):
                await process.wait()
        except TimeoutError:
            pass
        finally:
            self.kill()
            self.state, self.pid, self.serving, self.healthy = SlotState.ABSENT, 0, False, False
            await self._channel.close()
            while self._calls:
                self._calls.popitem()[1](_GONE)
        return f"with pid {process.pid} {_how(await process.wait())}"

    def send(self, *message: Any) -> None:
        """Send a message; never waits, and is a no-op when there is no process."""
        if self._channel is not None:
            self._channel.send(*message)

    def hand(self, connection: socket.socket) -> bool:
        """Put the connection into the handoff; False when there is no room."""
        now = monotonic()
        assert self._handoff is not None, "it accepts connections"
        if not self._handoff.put(connection):
            self.mark_slow()
            return False
        if self._handed == self._received:
            self._waiting_since = now
        self._handed += 1
        self._last_connection = now
        return True

    def take_back(self) -> list[socket.socket]:
        """The connections that it has not received."""
        connections = self._handoff.take_back() if self._handoff is not None else []
        self._handed -= len(connections)
        return connections

    def call(self, body: bytes, reply: Reply, what: str, timeout: int | None) -> None:
        """Send it a call that came to the parent: `what` it is, as `Worker` reads it."""
        self._next_call += 1
        self._calls[self._next_call] = reply
        self.send(what, self._next_call, text_of(body), timeout)

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    def restart_silence(self, now: float) -> None:
        """Count its silence from now on, not from its last message."""
        self.last_message = now

    def keeps_waiting(self, now: float) -> bool:
        """A connection has waited for it too long."""
        return self._handed > self._received and now - self._waiting_since > _SLOW_SECONDS

    def mark_slow(self) -> None:
        """A connection waited too long, or found no room."""
        if self.state is SlotState.READY:
            self.state = SlotState.SLOW

    def mark_silent(self) -> None:
        """It has sent nothing for long."""
        if self.ready:
            self.state = SlotState.SILENT

    def _receive(self, message: Message) -> None:
        match message:
            case ["connections", received, closed]:
                self._received, self._closed = received, closed
                self._waiting_since = self.last_message
            case ["report", number, summary]:
                self.reported = number
                self.serving, self.healthy, self.counters = (
                    summary[name] for name in ("serving", "healthy", "counters")
                )
                self.lost = [LostServer(*lost) for lost in summary["lost"]]
                self.warnings = summary["warnings"]
                total, texts = summary["bans"]
                self.bans = BanSummary(total, [read_ban(text) for text in texts])
                self.metrics = unpack_metrics(summary["metrics"])
                self.gauges, self._next_gauges = self._next_gauges, []
            case ["gauges", piece]:
                self._next_gauges += [(tuple(path), Gauges(*numbers)) for path, numbers in piece]
            case ["ready"]:
                self.state = SlotState.READY
            case ["failed", problem]:
                self.problem = problem
            case ["response", number, body]:
                self._calls.pop(number)(bytes_of(body))
            case ["error", number, status, text]:
                self._calls.pop(number)(RpcError(Status(status), text))
        if self.ready:
            self.state = SlotState.READY


async def _start_process(handoff: Handoff) -> tuple[asyncio.subprocess.Process, socket.socket]:
    """A new worker process, and our end of its channel."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    files = (theirs.fileno(), handoff.worker_end.fileno())
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
    return process, ours


def _environ() -> dict[str, str]:
    """The environment, for the interpreter and libraries; but settings, some of them secrets, go over the channel."""
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
