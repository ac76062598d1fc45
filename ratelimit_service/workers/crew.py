"""All workers: starts them, replaces those that die, gives connections and calls to them, and stops them."""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from ratelimit_service.api.method import Reply
from ratelimit_service.clock import SECOND
from ratelimit_service.errors import RpcError, StartError, Status
from ratelimit_service.rules.source import Source
from ratelimit_service.settings import Settings
from ratelimit_service.workers.channel import Message, handed_over, text_of
from ratelimit_service.workers.post import Post
from ratelimit_service.workers.sums import Sums

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.1
"""How often it is looked whether connections wait too long."""

_SILENCE_SECONDS: Final = 5.0
"""A worker reports every second; one that says nothing for so long hangs."""

_HUNG_SECONDS: Final = 30.0
"""One that hangs for so long, or does not begin to speak, hangs for good: its clients had better connect anew. So
long waits gunicorn, too."""

_STOOD_STILL_SECONDS: Final = 1.0
"""A look that comes so late finds nothing out about the workers: this process did not run, nor perhaps did they."""

_REFRESH_SECONDS: Final = 0.5
"""How long a scrape waits for reports. The counts of a worker that hangs are those of its last."""

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 30.0
"""Seconds before a worker that died is replaced: doubled each time, until one has lived as long as the longest."""

_STOP_SECONDS: Final = 10.0
"""A worker cuts its calls off when the drain is over; one that has not ended so long after that is killed."""

_NOBODY: Final = RpcError(Status.UNAVAILABLE, "no worker is there to answer")


class Crew:
    """So many workers, and the sums of what they count."""

    def __init__(self, settings: Settings, count: int) -> None:
        self.posts = [Post(number) for number in range(1, count + 1)]
        self.sums = Sums(settings, self.posts)
        self.deaths = 0
        """Workers that ended without being told to."""
        self.wake: Callable[[], None] = _nothing
        """Called when a connection may find room that found none before."""
        # Without the store each worker counts alone: it is an instance among instances.
        self._settings = handed_over(settings.model_copy(update={"instances": settings.instances * count}))
        self._drain_seconds = settings.drain_timeout / SECOND
        self._sources: Sequence[Source] = ()
        self._waiting: deque[socket.socket] = deque()
        self._up = self._draining = False
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._question = 0
        self._keeping: list[asyncio.Task[None]] = []
        self._looking: asyncio.Task[None] | None = None

    @property
    def alive(self) -> list[Post]:
        """Those that run."""
        return [post for post in self.posts if post.alive]

    @property
    def open(self) -> int:
        """Connections of all."""
        return sum(post.load for post in self.posts) + len(self._waiting)

    @property
    def serving(self) -> bool:
        """At least one worker wants calls."""
        return not self._draining and any(post.serving and not post.silent for post in self.posts)

    async def start(self) -> None:
        """Start all; StartError when one cannot."""
        self._looking = asyncio.create_task(self._look())
        for post in self.posts:
            task = asyncio.create_task(self._keep(post))
            task.add_done_callback(lambda _: self._changed.set())
            self._keeping.append(task)
        while not all(post.ready for post in self.posts):
            await self._change()
            for task in self._keeping:
                if task.done():
                    await self._give_up()
                    task.result()
        self._up = True

    def load(self, sources: Sequence[Source]) -> None:
        """Have all answer by the rules in these files."""
        self._sources = sources
        for post in self.posts:
            if not post.silent:
                self._send_rules(post)

    def drain(self) -> None:
        """Have the health of all say NOT_SERVING."""
        self._draining = True
        for post in self.posts:
            post.send("drain")

    async def stop(self) -> None:
        """Have all finish what is in flight, and end."""
        self._stopping.set()
        for post in self.posts:
            if post.ready:
                post.send("stop")
            else:
                post.kill()  # it has no connections yet
        if self._looking is not None:
            self._looking.cancel()
        if self._keeping:
            _, late = await asyncio.wait(self._keeping, timeout=self._drain_seconds + _STOP_SECONDS)
            if late:
                log.error("%d workers do not end: they are killed", len(late))
                self.kill()
                await asyncio.wait(late)
        while self._waiting:
            self._waiting.popleft().close()

    def kill(self) -> None:
        """End all at once."""
        for post in self.posts:
            post.kill()

    async def refresh(self) -> None:
        """Have all tell what they have counted until now."""
        self._question += 1
        question = self._question
        asked = [post for post in self.posts if post.ready and not post.silent]
        for post in asked:
            post.send("report", question)
        try:
            async with asyncio.timeout(_REFRESH_SECONDS):
                while any(post.alive and post.reported < question for post in asked):
                    await self._change()
        except TimeoutError:
            pass

    def call(self, body: bytes, reply: Reply) -> None:
        """Have the worker that has the fewest of them answer a call that came to the parent."""
        able = [post for post in self.posts if post.open_to_more]
        if able:
            min(able, key=lambda post: post.calls).call(body, reply)
        else:
            reply(_NOBODY)

    @property
    def has_room(self) -> bool:
        """A connection would be taken at once."""
        return self._next() is not None

    def hand(self, connection: socket.socket) -> None:
        """Give it to the worker that has the fewest, as soon as there is one."""
        while (post := self._next()) is not None:
            if post.hand(connection):
                return
        self._waiting.append(connection)

    def _next(self) -> Post | None:
        return min((post for post in self.posts if post.open_to_more), key=lambda post: post.turn, default=None)

    async def _keep(self, post: Post) -> None:
        """Have somebody at the post, until all shall end; StartError when the first one there cannot start."""
        pause = _FIRST_PAUSE
        while True:
            began = monotonic()
            try:
                how = await post.live(self._settings, self._greet, self._hear)
            except OSError as error:
                how = f"could not be started: {error}"
            except Exception:
                log.exception("worker %d is not understood", post.number)
                how = "was ended"
            left, problem = post.take_back(), post.problem
            lost = post.load
            self.sums.bury(post)
            post.vacate()
            if self._stopping.is_set() or not self._up:
                for connection in left:
                    connection.close()
                if self._stopping.is_set():
                    return
                raise StartError(problem or f"worker {post.number} {how}")
            self.deaths += 1
            if monotonic() - began >= _LONGEST_PAUSE:
                pause = _FIRST_PAUSE
            log.error(
                "worker %d %s%s; its %d connections are lost, and it is replaced in %g s",
                *(post.number, how, f", {problem}" if problem else "", lost, pause),
            )
            for connection in left:
                self.hand(connection)
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

    def _greet(self, post: Post) -> None:
        """Tell somebody new what the others know."""
        self._send_rules(post)
        if self._draining:
            post.send("drain")
        if self._stopping.is_set():
            post.send("stop")

    def _send_rules(self, post: Post) -> None:
        post.send("rules", [(source.path, text_of(source.text)) for source in self._sources])

    def _hear(self, post: Post, message: Message) -> None:
        match message:
            case ["tallies", piece]:
                self.sums.add_tallies(piece)
            case ["report", _, summary]:
                self.sums.add(summary)
            case ["ready"] if self._up:
                self._share_out(post)
        if post.silent:
            log.warning("worker %d answers again", post.number)
            self._send_rules(post)
        post.passed_over = post.silent = False
        self._changed.set()
        while self._waiting and self.has_room:
            self.hand(self._waiting.popleft())
        self.wake()

    def _share_out(self, fresh: Post) -> None:
        """Have clients of the others come again, if somebody is new and they all have gone to the others meanwhile."""
        fair = -(-self.open // len(self.posts))
        if fresh.load == 0:
            for post in self.posts:
                if post.load > fair:
                    post.send("release", post.load - fair)

    async def _look(self) -> None:
        looked = monotonic()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = monotonic()
            for post in self.alive:
                if now - looked > _STOOD_STILL_SECONDS:
                    post.heard = now
                else:
                    self._look_at(post, now)
            looked = now

    def _look_at(self, post: Post, now: float) -> None:
        silence = now - post.heard
        if silence > _HUNG_SECONDS:
            log.error("worker %d has said nothing for %g s: it is killed", post.number, _HUNG_SECONDS)
            post.heard = now
            post.kill()
        elif post.ready and not post.silent and silence > _SILENCE_SECONDS:
            log.warning(
                "worker %d has said nothing for %g s: new connections go to the others", post.number, _SILENCE_SECONDS
            )
            post.passed_over = post.silent = True
        if post.is_slow(now):
            post.passed_over = True
            for connection in post.take_back():
                self.hand(connection)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _nothing() -> None:
    """Nobody waits."""
