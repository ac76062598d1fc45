"""One worker: an engine that answers on the connections its parent hands over, and obeys the messages of the parent."""

import asyncio
import json
import logging
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

import uvloop

from ratelimit_service.api.method import Reply
from ratelimit_service.errors import RpcError, StartError
from ratelimit_service.rules.book import RuleBook, free_books
from ratelimit_service.rules.sources import open_document
from ratelimit_service.rules.sources.source import Documents
from ratelimit_service.server.engine import SWITCH_SECONDS, Engine, rules_parser
from ratelimit_service.server.workers.channel import Channel, bytes_of, received, text_of
from ratelimit_service.server.workers.report import Reporter
from ratelimit_service.settings import Settings
from ratelimit_service.system.background import EXIT_SECONDS, exit_within
from ratelimit_service.telemetry.logs import pass_events, start_logging
from ratelimit_service.transports.http2 import Http2Transport

log = logging.getLogger(__name__)

_REPORT_SECONDS: Final = 1.0
"""Seconds between two reports of what it has counted, also when no report was requested: a killed worker loses this
much."""

_PAUSE_SECONDS: Final = 1.0
"""Seconds for which no connection is received after the process ran out of files. After half of this time the parent
hands the connections that wait to other workers."""


def main(channel: int, handoff: int) -> int:
    """Work with these open files until the parent ends it; returns the exit code."""
    # Signals are for the parent, which sends messages. One that goes to every process must not cut a drain short.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_SECONDS)
    return uvloop.run(_work(socket.socket(fileno=channel), socket.socket(fileno=handoff)))


async def _work(end: socket.socket, handoff: socket.socket) -> int:
    channel = await Channel.over(end)
    async for kind, number, settings in channel.messages():
        assert kind == "start", kind
        try:
            worker = Worker(number, Settings.model_validate(settings), channel, handoff)
            await worker.start()
        except StartError as error:
            channel.send("failed", str(error))
            await channel.close()
            return 1
        await worker.serve()
        await worker.stop()
        code = 1 if worker.failed else 0
        exit_within(EXIT_SECONDS, code)
        return code
    return 0


class Worker:
    """The worker, from its start to its end."""

    def __init__(self, number: int, settings: Settings, channel: Channel, handoff: socket.socket) -> None:
        start_logging(settings.log_level, settings.log_format, worker=number)
        pass_events(partial(channel.send, "event"))
        self.failed = False
        """It stops because of an error of its own."""
        self._channel = channel
        self._handoff = handoff
        self._engine = Engine(settings)
        self._parse = rules_parser(settings)
        assert isinstance(self._engine.transport, Http2Transport), "settings with another transport are refused"
        self._transport = self._engine.transport
        self._methods: Mapping[str, Callable[[bytes, Reply], None]] = {
            "explain": self._engine.explainer.call,
            "held": self._reply_held,
            "bans": self._engine.ban_method.call,
            "reset": self._engine.reset_method.call,
        }
        self._reporter = Reporter(self._engine)
        self._rules: asyncio.Queue[Documents | None] = asyncio.Queue()
        """Rules that are not loaded yet."""
        self._report_due = asyncio.Event()
        self._report_number = 0
        """The number of the last report that the parent has requested."""
        self._stopping = asyncio.Event()
        self._received = 0
        self._closed = 0
        self._out_of_files = False
        self._resuming: asyncio.TimerHandle | None = None
        self._counts_due = False
        """The parent does not yet know how many connections were received and closed."""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Get ready to answer; there are no rules yet."""
        await self._engine.listen([])
        await self._engine.begin()

    async def serve(self) -> None:
        """Answer until the parent sends `stop`, or is gone."""
        self._tasks = [
            asyncio.create_task(work) for work in (self._read_messages(), self._load_rules(), self._send_reports())
        ]
        for task in self._tasks:
            task.add_done_callback(self._on_task_end)
        self._receive_connections()
        await self._stopping.wait()

    async def stop(self) -> None:
        """Finish the calls in flight, send the last report, and close."""
        if self._resuming is not None:
            self._resuming.cancel()
        asyncio.get_running_loop().remove_reader(self._handoff)
        self._handoff.close()
        await self._engine.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._reporter.report(self._channel.send, self._report_number)
        await self._engine.close()
        await self._channel.close()

    async def _read_messages(self) -> None:
        data: dict[str, bytearray] = {}
        async for message in self._channel.messages():
            match message:
                case ["data", path, piece]:  # of the rules that come next
                    data.setdefault(path, bytearray()).extend(bytes_of(piece))
                case ["rules", None]:
                    self._rules.put_nowait(None)
                case ["rules", sent]:
                    documents = [open_document(kind, source, name, bytes_of(text)) for kind, source, name, text in sent]
                    read_data = {path: bytes(text) for path, text in data.items()}.__getitem__  # all that they name
                    self._rules.put_nowait(Documents(documents, "", read_data))
                    data = {}
                case ["call", number, body, timeout]:
                    self._engine.method.call(bytes_of(body), partial(self._reply, number), timeout)
                case ["explain" | "held" | "bans" | "reset" as kind, number, body, _]:
                    self._methods[kind](bytes_of(body), partial(self._reply, number))
                case ["report", number]:
                    self._report_number = number
                    self._report_due.set()
                case ["release", count]:
                    self._transport.release(count)
                case ["drain"]:
                    self._engine.drain()
                case ["stop"]:
                    self._stopping.set()
        if not self._stopping.is_set():
            log.warning("the parent process exited: draining")
            self._engine.drain()
            self._stopping.set()

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("a task of this worker failed", exc_info=error)
            self.failed = True
            self._stopping.set()

    async def _load_rules(self) -> None:
        """Load the newest rules that the parent sent; ready after the first, also when there are none yet."""
        book: RuleBook | None = None
        ready = False
        while True:
            rules = await self._rules.get()
            while not self._rules.empty():
                rules = self._rules.get_nowait()
            if rules is not None:
                old = [] if book is None else [book]
                book = await asyncio.to_thread(self._parse, rules.documents, previous=book, read_data=rules.read_data)
                self._engine.publish(book)
                await asyncio.to_thread(free_books, old)
            del rules  # or the bytes would stay until the next ones come
            if not ready:
                ready = True
                self._channel.send("ready")
            self._report_due.set()  # health may have changed

    async def _send_reports(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_REPORT_SECONDS):
                    await self._report_due.wait()
            self._report_due.clear()
            if not self._channel.behind:
                await self._reporter.report(self._channel.send, self._report_number)

    def _reply_held(self, body: bytes, reply: Reply) -> None:
        """Reply with the units that are held of each counter in a list, as JSON."""
        reply(json.dumps([self._engine.store.held(key) for key in json.loads(body)]).encode())

    def _reply(self, number: int, response: bytes | RpcError) -> None:
        if isinstance(response, RpcError):
            self._channel.send("error", number, response.status, response.message)
        else:
            self._channel.send("response", number, text_of(response))

    def _receive_connections(self) -> None:
        asyncio.get_running_loop().add_reader(self._handoff, self._on_connections)

    def _on_connections(self) -> None:
        """Serve all connections that wait in the handoff, or as many as the process may open files for."""
        try:
            for connection in received(self._handoff):
                if self._out_of_files:
                    self._out_of_files = False
                    log.info("accepting connections again")
                self._received += 1
                self._transport.adopt(connection, self._on_connection_closed)
                self._count_connections()
        except OSError as error:
            if not self._out_of_files:
                self._out_of_files = True
                log.warning("cannot accept connections, which go to other workers: %s", error.strerror)
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._handoff)
            self._resuming = loop.call_later(_PAUSE_SECONDS, self._receive_connections)

    def _on_connection_closed(self) -> None:
        self._closed += 1
        self._count_connections()

    def _count_connections(self) -> None:
        """Send the parent one message for all that happens in one iteration of the loop."""
        if not self._counts_due:
            self._counts_due = True
            asyncio.get_running_loop().call_soon(self._send_counts)

    def _send_counts(self) -> None:
        self._counts_due = False
        self._channel.send("connections", self._received, self._closed)
