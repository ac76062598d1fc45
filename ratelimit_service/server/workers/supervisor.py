"""The supervisor: starts the workers, replaces those that end, and adds up what they count.

To `App` it is what an `Engine` is: it listens, answers, drains and stops.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Final, NamedTuple

from ratelimit_service.api.method import NOT_TOLD_APART, Reply
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.errors import StartError
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.data_files import DataFile
from ratelimit_service.rules.loading import Loading
from ratelimit_service.rules.syntax.document import Document
from ratelimit_service.server.events import EventLog
from ratelimit_service.server.state import Death, ServiceState
from ratelimit_service.server.workers.channel import PIECE, Message, settings_as_json, text_of
from ratelimit_service.server.workers.dispatch import Dispatcher
from ratelimit_service.server.workers.explainer import workers_explainer
from ratelimit_service.server.workers.report import MergedCounts
from ratelimit_service.server.workers.slot import WorkerSlot
from ratelimit_service.server.workers.watchdog import Watchdog
from ratelimit_service.settings import Settings
from ratelimit_service.system.address import Address
from ratelimit_service.system.clock import SECOND, system_clock
from ratelimit_service.system.listen import remove_socket
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.logs import about

log = logging.getLogger(__name__)

_REFRESH_SECONDS: Final = 0.5
"""Seconds that a scrape waits for reports. The counts of a worker that hangs are those of its last one."""

_FIRST_BACKOFF: Final = 0.1
_MAX_BACKOFF: Final = 30.0
"""Seconds before a worker that died is replaced: doubled each time, until one has lived as long as the longest."""

_MAX_DEATHS: Final = 100
"""The deaths that are remembered, for the page."""

_STOP_SECONDS: Final = 10.0
"""A worker cuts its calls off after DRAIN_TIMEOUT; one that has not ended this much later is killed."""


class Supervisor:
    """`count` workers, which answer gRPC on the sockets that this process listens on."""

    def __init__(self, settings: Settings, count: int, events: EventLog) -> None:
        self._events = events
        self._slots = [WorkerSlot(number) for number in range(1, count + 1)]
        self._dispatcher = Dispatcher(self._slots)
        self._sums = MergedCounts(settings, self._slots)
        self._method = _Method(self._sums, self._dispatcher)
        self.explainer = workers_explainer(self._slots, self._dispatcher, self._sums)
        self.ban_method = _ForwardedMethod(self._dispatcher, "bans")
        self.reset_method = _ForwardedMethod(self._dispatcher, "reset")
        self.deaths = 0
        """Workers that ended unexpectedly."""
        self.last_deaths: deque[Death] = deque(maxlen=_MAX_DEATHS)
        self.draining_since: int | None = None
        # Without the store each worker counts alone: it is one instance of several. Connections go to the worker that
        # has the fewest, so each has its share of them, of which it closes the one that has been idle longest.
        shares = {
            "instances": settings.instances * count,
            "grpc_max_connections": -(-settings.grpc_max_connections // count),
        }
        self._settings = settings_as_json(settings.model_copy(update=shares))
        self._drain_timeout_seconds = settings.drain_timeout / SECOND
        self._documents: Sequence[Document] | None = None
        self._data: Sequence[DataFile] = ()
        self._started = False
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        """A worker has sent a message, or ended."""
        self._reports = 0
        """How many times reports were asked for."""
        self._running: list[asyncio.Task[None]] = []
        """One task for each slot."""
        self._watchdog: asyncio.Task[None] | None = None

    @property
    def addresses(self) -> Sequence[Address]:
        """The addresses on which gRPC listens."""
        return self._dispatcher.addresses

    @property
    def alive(self) -> list[WorkerSlot]:
        """The workers that run."""
        return [slot for slot in self._slots if slot.alive]

    @property
    def serving(self) -> bool:
        """At least one worker answers calls, and the service does not drain."""
        return self.draining_since is None and any(slot.serving and not slot.silent for slot in self._slots)

    def state(self, loading: Loading) -> ServiceState:
        """The service as metrics and pages read it."""
        return ServiceState(self._sums, self._method, loading, self, self._sums.metrics, self)

    async def listen(self, addresses: Sequence[Address]) -> None:
        """Listen; connections wait in the kernel until `begin`. StartError when an address cannot be had."""
        await self._dispatcher.listen(addresses)

    async def begin(self) -> None:
        """Finish the start after `listen`: start all workers, then accept connections.

        StartError when a worker cannot start; `abort` ends the others.
        """
        self._watchdog = asyncio.create_task(Watchdog(self._slots, self._dispatcher).run())
        for slot in self._slots:
            task = asyncio.create_task(self._keep_running(slot))
            task.add_done_callback(lambda _: self._changed.set())
            self._running.append(task)
        while not all(slot.ready for slot in self._slots):
            await self._change()
            for task in self._running:
                if task.done():
                    task.result()
        self._started = True
        self._dispatcher.accept()

    def publish(self, book: RuleBook) -> None:
        """Add up by these rules from now on."""
        self._sums.publish(book)

    def send_rules(self, documents: Sequence[Document], data: Sequence[DataFile]) -> None:
        """Send all workers the rules in these documents, and the data files that they name."""
        self._documents = documents
        self._data = data
        for slot in self._slots:
            if not slot.silent:
                self._send_rules(slot)

    def drain(self) -> None:
        """Report NOT_SERVING from now on, in all workers."""
        self.draining_since = system_clock()
        for slot in self._slots:
            slot.send("drain")

    async def stop(self) -> None:
        """Accept no more connections, and wait until all workers have finished their calls and ended."""
        self._dispatcher.close_listeners()
        self._stopping.set()
        for slot in self._slots:
            if slot.ready:
                slot.send("stop")
            else:
                slot.kill()  # it has no connections yet
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=self._drain_timeout_seconds + _STOP_SECONDS)
            if late:
                log.error("killing %d workers that did not exit in time", len(late))
                self._kill()
                await asyncio.wait(late)

    async def close(self) -> None:
        """Release what is left when no worker runs."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        self.explainer.close()
        self._dispatcher.close()

    async def abort(self) -> None:
        """Stop at once, after a start that failed."""
        self._stopping.set()
        self._kill()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._dispatcher.close_listeners()
        await self.close()

    def abandon(self) -> None:
        """Kill the workers and remove the files of unix sockets: the process is about to end without a stop."""
        self._kill()
        for address in self.addresses:
            remove_socket(address)

    async def refresh(self) -> None:
        """Ask all workers for a report, and wait a moment for them."""
        self._reports += 1
        number = self._reports
        asked = [slot for slot in self._slots if slot.ready and not slot.silent]
        for slot in asked:
            slot.send("report", number)
        with suppress(TimeoutError):
            async with asyncio.timeout(_REFRESH_SECONDS):
                while any(slot.alive and slot.reported < number for slot in asked):
                    await self._change()

    async def _keep_running(self, slot: WorkerSlot) -> None:
        """Run one process after the other until the service stops; StartError when the first one cannot start."""
        backoff = _FIRST_BACKOFF
        while True:
            began = monotonic()
            try:
                how = await slot.run(self._settings, self._inform, self._on_message)
            except OSError as error:
                how = f"could not be started: {error}"
            except Exception:
                log.exception("invalid message from worker %d", slot.number)
                how = "was ended"
            not_received, problem = slot.take_back(), slot.problem
            lost = slot.connections
            self._sums.add_final_counters(slot)
            slot.reset()
            if self._stopping.is_set() or not self._started:
                for connection in not_received:
                    connection.close()
                if self._stopping.is_set():
                    return
                raise StartError(problem or f"worker {slot.number} {how}")
            self.deaths += 1
            self.last_deaths.append(Death(slot.number, system_clock(), how))
            if monotonic() - began >= _MAX_BACKOFF:
                backoff = _FIRST_BACKOFF
            log.error(
                "worker %d %s%s; its %d connections are lost, and it is replaced in %g s",
                *(slot.number, how, f", {problem}" if problem else "", lost, backoff),
                extra=about("worker_ended", number=slot.number, how=how, connections=lost),
            )
            for connection in not_received:
                self._dispatcher.hand(connection)
            self._changed.set()
            try:
                async with asyncio.timeout(backoff):
                    await self._stopping.wait()
                    return
            except TimeoutError:
                backoff = min(2 * backoff, _MAX_BACKOFF)

    def _kill(self) -> None:
        for slot in self._slots:
            slot.kill()

    def _inform(self, slot: WorkerSlot) -> None:
        """Send a worker what the others know: the rules, and whether the service drains or stops."""
        self._send_rules(slot)
        if self.draining_since is not None:
            slot.send("drain")
        if self._stopping.is_set():
            slot.send("stop")

    def _send_rules(self, slot: WorkerSlot) -> None:
        for file in self._data:
            for start in range(0, len(file.text) or 1, PIECE):  # of an empty file, one piece without text
                slot.send("data", file.path, text_of(file.text[start : start + PIECE]))
        sent = None
        if self._documents is not None:
            sent = [(each.kind, each.source, each.name, text_of(each.text)) for each in self._documents]
        slot.send("rules", sent)

    def _on_message(self, slot: WorkerSlot, message: Message) -> None:
        match message:
            case ["tallies", piece]:
                self._sums.add_tallies(piece)
            case [
                "reservations" | "overrides" | "unknown_domains" | "unmatched" | "hot" | "domains" | "refusals" as kind,
                piece,
            ]:
                self._sums.add_piece(kind, piece)
            case ["report", _, summary]:
                self._sums.add(summary)
            case ["event", when, text, fields]:
                self._events.record(when, text, fields, slot.number)
            case ["ready"] if self._started:
                self._dispatcher.rebalance(slot)
        self._changed.set()
        self._dispatcher.resume()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class _Method:
    """ShouldRateLimit as the workers answer it."""

    path = ShouldRateLimit.path

    def __init__(self, sums: MergedCounts, dispatcher: Dispatcher) -> None:
        self._sums = sums
        self._dispatcher = dispatcher

    @property
    def calls(self) -> int:
        """Calls of all workers."""
        return self._sums.calls

    @property
    def latency(self) -> Latency:
        """The times that calls took in all workers."""
        return self._sums.latency

    def call(self, body: bytes, reply: Reply, timeout: int | None = None, caller: bytes = NOT_TOLD_APART) -> None:
        """Send the call to a worker."""
        self._dispatcher.call(body, reply, timeout=timeout)


class _ForwardedMethod(NamedTuple):
    """Bans, or resets, as the workers have them: they can ask the store, and have the same rules."""

    dispatcher: Dispatcher
    kind: str

    def call(self, body: bytes, reply: Reply) -> None:
        """Send the question to a worker."""
        self.dispatcher.call(body, reply, self.kind)
