"""Attempts to connect to a server until one succeeds: one at a time, with growing pauses."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ratelimit_service.stores.redis.breaker import Pauses
from ratelimit_service.stores.redis.faults import Fault
from ratelimit_service.stores.redis.link import Link

log = logging.getLogger(__name__)


class Seeker:
    """Calls `missed` after each attempt that failed, and `found` with the link at the end."""

    def __init__(
        self,
        open_link: Callable[[], Awaitable[Link]],
        pauses: Pauses,
        found: Callable[[Link], None],
        missed: Callable[[Fault], None],
    ) -> None:
        self._open_link = open_link
        self._pauses = pauses
        self._found = found
        self._missed = missed
        self._task: asyncio.Task[None] | None = None
        self._unexpected = False

    @property
    def seeks(self) -> bool:
        """It has begun, and not found anything yet."""
        return self._task is not None

    def start(self, pause: float = 0.0) -> None:
        """Begin after so many seconds, unless it has begun."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._seek(pause))

    def stop(self) -> None:
        """Give up; nothing is called."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self) -> None:
        """Give up, and wait until that is done."""
        task = self._task
        self.stop()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    async def _seek(self, pause: float) -> None:
        link: Link | None = None
        while link is None:
            await asyncio.sleep(pause)
            try:
                link = await self._open_link()
            except Fault as fault:
                pause = self._miss(fault)
            except Exception:
                if not self._unexpected:
                    self._unexpected = True
                    log.exception("looking for Redis")
                pause = self._miss(Fault("error"))
        self._task = None
        self._unexpected = False
        self._found(link)

    def _miss(self, fault: Fault) -> float:
        """Tell of it; says after how many seconds to try again."""
        self._missed(fault)
        return self._pauses.next()
