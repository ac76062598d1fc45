"""Looking for a server until it is found: one attempt at a time, with growing pauses."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ratelimit_service.stores.redis.faults import Fault
from ratelimit_service.stores.redis.link import Link
from ratelimit_service.stores.redis.outage import Outage

log = logging.getLogger(__name__)


class Seeker:
    """Calls `missed` after each attempt that failed, and `found` with the link at the end."""

    def __init__(
        self,
        open_link: Callable[[], Awaitable[Link]],
        outage: Outage,
        found: Callable[[Link], None],
        missed: Callable[[Fault], None],
    ) -> None:
        self._open_link = open_link
        self._outage = outage
        self._found = found
        self._missed = missed
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._seek())

    async def close(self) -> None:
        """Give up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _seek(self) -> None:
        link: Link | None = None
        while link is None:
            try:
                link = await self._open_link()
            except Fault as fault:
                self._missed(fault)
                await asyncio.sleep(self._outage.breaker.pause())
            except Exception:
                if not self._outage.lasts:
                    log.exception("looking for Redis")
                self._missed(Fault("error"))
                await asyncio.sleep(self._outage.breaker.pause())
        self._outage.end()
        self._task = None
        self._found(link)
