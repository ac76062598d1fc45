"""All workers from their start to their end: told the rules, asked for their counts, replaced when they die."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Final

from ratelimit_service.errors import StartError
from ratelimit_service.rules.document import Source
from ratelimit_service.server.state import Death
from ratelimit_service.server.workers.channel import Message, settings_as_json, text_of
from ratelimit_service.server.workers.dispatch import Dispatcher
from ratelimit_service.server.workers.slot import WorkerSlot
from ratelimit_service.server.workers.sums import Sums
from ratelimit_service.server.workers.watchdog import watch
from ratelimit_service.settings import Settings
from ratelimit_service.system.clock import SECOND, system_clock

log = logging.getLogger(__name__)

_REFRESH_SECONDS: Final = 0.5
"""How long a scrape waits for reports. The counts of a worker that hangs are those of its last."""

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 30.0
"""Seconds before a worker that died is replaced: doubled each time, until one has lived as long as the longest."""

_MOST_DEATHS: Final = 100
"""That are remembered, for the page."""

_STOP_SECONDS: Final = 10.0
"""A worker cuts its calls off when the drain is over; one that has not ended so long after that is killed."""


class Crew:
    """So many workers, and the sums of what they count."""

    def __init__(self, settings: Settings, count: int) -> None:
        self._posts = [WorkerSlot(number) for number in range(1, count + 1)]
        self.dispatcher = Dispatcher(self._posts)
        self.sums = Sums(settings, self._posts)
        self.deaths = 0
        """Workers that ended without being told to."""
        self.last_deaths: deque[Death] = deque(maxlen=_MOST_DEATHS)
        self.draining_since: int | None = None
        # Without the store each worker counts alone: it is an instance among instances. Connections go to the worker
        # that has the fewest, so each has its part of them, within which the one that is idle for longest makes way.
        parts = {
            "instances": settings.instances * count,
            "grpc_max_connections": -(-settings.grpc_max_connections // count),
        }
        self._settings = settings_as_json(settings.model_copy(update=parts))
        self._drain_seconds = settings.drain_timeout / SECOND
        self._sources: Sequence[Source] = ()
        self._up = False
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._question = 0
        self._keeping: list[asyncio.Task[None]] = []
        self._looking: asyncio.Task[None] | None = None

    @property
    def alive(self) -> list[WorkerSlot]:
        """Those that run."""
        return [post for post in self._posts if post.alive]

    @property
    def serving(self) -> bool:
        """At least one worker wants calls."""
        return self.draining_since is None and any(post.serving and not post.silent for post in self._posts)

    async def start(self) -> None:
        """Start all; StartError when one cannot."""
        self._looking = asyncio.create_task(watch(self._posts, self.dispatcher))
        for post in self._posts:
            task = asyncio.create_task(self._keep(post))
            task.add_done_callback(lambda _: self._changed.set())
            self._keeping.append(task)
        while not all(post.ready for post in self._posts):
            await self._change()
            for task in self._keeping:
                if task.done():
                    await self._give_up()
                    task.result()
        self._up = True

    def load(self, sources: Sequence[Source]) -> None:
        """Have all answer by the rules in these files."""
        self._sources = sources
        for post in self._posts:
            if not post.silent:
                self._send_rules(post)

    def drain(self) -> None:
        """Have the health of all say NOT_SERVING."""
        self.draining_since = system_clock()
        for post in self._posts:
            post.send("drain")

    async def stop(self) -> None:
        """Have all finish what is in flight, and end."""
        self._stopping.set()
        for post in self._posts:
            if post.ready:
                post.send("stop")
            else:
                post.kill()  # it has no connections yet
        if self._keeping:
            _, late = await asyncio.wait(self._keeping, timeout=self._drain_seconds + _STOP_SECONDS)
            if late:
                log.error("%d workers do not end: they are killed", len(late))
                self.kill()
                await asyncio.wait(late)
        if self._looking is not None:
            self._looking.cancel()
        self.dispatcher.close()

    def kill(self) -> None:
        """End all at once."""
        for post in self._posts:
            post.kill()

    async def refresh(self) -> None:
        """Have all tell what they have counted until now."""
        self._question += 1
        question = self._question
        asked = [post for post in self._posts if post.ready and not post.silent]
        for post in asked:
            post.send("report", question)
        try:
            async with asyncio.timeout(_REFRESH_SECONDS):
                while any(post.alive and post.reported < question for post in asked):
                    await self._change()
        except TimeoutError:
            pass

    async def _keep(self, post: WorkerSlot) -> None:
        """Have somebody at the post, until all shall end; StartError when the first one there cannot start."""
        pause = _FIRST_PAUSE
        while True:
            began = monotonic()
            try:
                how = await post.run(self._settings, self._greet, self._hear)
            except OSError as error:
                how = f"could not be started: {error}"
            except Exception:
                log.exception("worker %d is not understood", post.number)
                how = "was ended"
            left, problem = post.take_back(), post.problem
            lost = post.connections
            self.sums.bury(post)
            post.reset()
            if self._stopping.is_set() or not self._up:
                for connection in left:
                    connection.close()
                if self._stopping.is_set():
                    return
                raise StartError(problem or f"worker {post.number} {how}")
            self.deaths += 1
            self.last_deaths.append(Death(post.number, system_clock(), how))
            if monotonic() - began >= _LONGEST_PAUSE:
                pause = _FIRST_PAUSE
            log.error(
                "worker %d %s%s; its %d connections are lost, and it is replaced in %g s",
                *(post.number, how, f", {problem}" if problem else "", lost, pause),
            )
            for connection in left:
                self.dispatcher.hand(connection)
            self._changed.set()
            try:
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
                    return
            except TimeoutError:
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _give_up(self) -> None:
        self._stopping.set()
        self.kill()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        assert self._looking is not None
        self._looking.cancel()

    def _greet(self, post: WorkerSlot) -> None:
        """Tell somebody new what the others know."""
        self._send_rules(post)
        if self.draining_since is not None:
            post.send("drain")
        if self._stopping.is_set():
            post.send("stop")

    def _send_rules(self, post: WorkerSlot) -> None:
        post.send("rules", [(source.path, text_of(source.text)) for source in self._sources])

    def _hear(self, post: WorkerSlot, message: Message) -> None:
        match message:
            case ["tallies", piece]:
                self.sums.add_tallies(piece)
            case ["report", _, summary]:
                self.sums.add(summary)
            case ["ready"] if self._up:
                self.dispatcher.rebalance(post)
        self._changed.set()
        self.dispatcher.resume()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
