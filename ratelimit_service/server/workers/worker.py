"""One worker: an engine that answers the connections its parent hands over, and does what the parent says."""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

import uvloop

from ratelimit_service.errors import RpcError, StartError
from ratelimit_service.rules.book import RuleBook, free_books
from ratelimit_service.rules.document import Source
from ratelimit_service.server.engine import SWITCH_SECONDS, Engine, parse_rules
from ratelimit_service.server.workers.channel import Channel, bytes_of, received, text_of
from ratelimit_service.server.workers.report import Reporter
from ratelimit_service.settings import Settings
from ratelimit_service.system.background import EXIT_SECONDS, exit_within
from ratelimit_service.telemetry.logs import start_logging
from ratelimit_service.transports.http2 import Http2Transport

log = logging.getLogger(__name__)

REPORT_SECONDS: Final = 1.0
"""How often it tells what it has counted, asked or not: so much is lost when it is killed."""

_PAUSE_SECONDS: Final = 1.0
"""When files have run out: the parent gives what waits at the door to others in half that time."""


def main(channel: int, door: int) -> int:
    """Work with these open files; the answer is the exit code."""
    # They are the parent's, who says what is to be done. Whatever sends them to every process must not hurry a worker.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_SECONDS)
    return uvloop.run(_work(socket.socket(fileno=channel), socket.socket(fileno=door)))


async def _work(end: socket.socket, door: socket.socket) -> int:
    channel = await Channel.over(end)
    async for kind, number, settings in channel.messages():
        assert kind == "start", kind
        try:
            worker = Worker(number, Settings.model_validate(settings), channel, door)
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
    """Start, serve, stop."""

    def __init__(self, number: int, settings: Settings, channel: Channel, door: socket.socket) -> None:
        start_logging(settings.log_level, settings.log_format, worker=number)
        self.failed = False
        """It stops because something went wrong here."""
        self._settings = settings
        self._channel = channel
        self._door = door
        self._engine = Engine(settings)
        assert isinstance(self._engine.transport, Http2Transport), "the settings have seen to it"
        self._transport = self._engine.transport
        self._reporter = Reporter(self._engine)
        self._sources: asyncio.Queue[Sequence[Source]] = asyncio.Queue()
        self._asked = asyncio.Event()
        self._question = 0
        self._told_to_stop = asyncio.Event()
        self._taken = 0
        self._lost = 0
        self._out_of_files = False
        self._resuming: asyncio.TimerHandle | None = None
        self._telling = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Make ready to answer, though there are no rules yet."""
        await self._engine.listen([])
        await self._engine.serve()

    async def serve(self) -> None:
        """Until the parent says stop, or is gone."""
        self._tasks = [asyncio.create_task(work) for work in (self._listen(), self._load(), self._report())]
        for task in self._tasks:
            task.add_done_callback(self._has_ended)
        self._open_door()
        await self._told_to_stop.wait()

    async def stop(self) -> None:
        """Finish what is in flight, tell the last counts, and close."""
        if self._resuming is not None:
            self._resuming.cancel()
        asyncio.get_running_loop().remove_reader(self._door)
        self._door.close()
        await self._engine.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._reporter.report(self._channel.send, self._question)
        await self._engine.close()
        await self._channel.close()

    async def _listen(self) -> None:
        async for message in self._channel.messages():
            match message:
                case ["rules", sources]:
                    self._sources.put_nowait([Source(path, bytes_of(text)) for path, text in sources])
                case ["call", number, body, timeout]:
                    self._engine.method.call(bytes_of(body), partial(self._answer, number), timeout)
                case ["explain", number, body, _]:
                    self._engine.explainer.call(bytes_of(body), partial(self._answer, number))
                case ["report", number]:
                    self._question = number
                    self._asked.set()
                case ["release", count]:
                    self._transport.release(count)
                case ["drain"]:
                    self._engine.health.drain()
                case ["stop"]:
                    self._told_to_stop.set()
        if not self._told_to_stop.is_set():
            log.warning("the parent is gone: finishing what is in flight")
            self._engine.health.drain()
            self._told_to_stop.set()

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("a task of this worker failed", exc_info=error)
            self.failed = True
            self._told_to_stop.set()

    async def _load(self) -> None:
        """The parent's book, made of the same files; ready when the first is there, or when there is none yet."""
        book: RuleBook | None = None
        ready = False
        while True:
            sources = await self._sources.get()
            while not self._sources.empty():
                sources = self._sources.get_nowait()
            if sources:
                old = [] if book is None else [book]
                book = await asyncio.to_thread(parse_rules, self._settings, sources, book)
                self._engine.publish(book)
                await asyncio.to_thread(free_books, old)
            if not ready:
                ready = True
                self._channel.send("ready")
            self._asked.set()  # health may have changed

    async def _report(self) -> None:
        while True:
            try:
                async with asyncio.timeout(REPORT_SECONDS):
                    await self._asked.wait()
            except TimeoutError:
                pass
            self._asked.clear()
            if not self._channel.behind:
                await self._reporter.report(self._channel.send, self._question)

    def _answer(self, number: int, answer: bytes | RpcError) -> None:
        if isinstance(answer, RpcError):
            self._channel.send("refusal", number, answer.status, answer.message)
        else:
            self._channel.send("answer", number, text_of(answer))

    def _open_door(self) -> None:
        asyncio.get_running_loop().add_reader(self._door, self._take)

    def _take(self) -> None:
        """Whoever waits at the door, while files may be opened."""
        try:
            for connection in received(self._door):
                if self._out_of_files:
                    self._out_of_files = False
                    log.info("connections can be taken again")
                self._taken += 1
                self._transport.adopt(connection, self._lose)
                self._tell()
        except OSError as error:
            if not self._out_of_files:
                self._out_of_files = True
                log.warning("connections cannot be taken, and go to other workers: %s", error.strerror)
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._door)
            self._resuming = loop.call_later(_PAUSE_SECONDS, self._open_door)

    def _lose(self) -> None:
        self._lost += 1
        self._tell()

    def _tell(self) -> None:
        """Once for all that happens in one turn of the loop."""
        if not self._telling:
            self._telling = True
            asyncio.get_running_loop().call_soon(self._tell_now)

    def _tell_now(self) -> None:
        self._telling = False
        self._channel.send("connections", self._taken, self._lost)
