"""Attempts to connect to a server, one after the other."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ratelimit_service.stores.redis.breaker import Backoff
from ratelimit_service.stores.redis.faults import Fault
from ratelimit_service.stores.redis.link import Link

log = logging.getLogger(__name__)


class Connector:
    """Attempts to connect until one succeeds, one at a time, with backoff.

    Calls `on_failed` after each attempt that failed, and `on_link` with the link at the end.
    """

    def __init__(
        self,
        open_link: Callable[[], Awaitable[Link]],
        backoff: Backoff,
        on_link: Callable[[Link], None],
        on_failed: Callable[[Fault], None],
    ) -> None:
        self._open_link = open_link
        self._backoff = backoff
        self._on_link = on_link
        self._on_failed = on_failed
        self._task: asyncio.Task[None] | None = None
        self._unexpected = False

    @property
    def runs(self) -> bool:
        """It was started, and no attempt has succeeded yet."""
        return self._task is not None

    def start(self, pause: float = 0.0) -> None:
        """Begin after `pause` seconds, unless it runs."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._connect(pause))

    def stop(self) -> None:
        """Cancel the attempts; no callback is called."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self) -> None:
        """Cancel the attempts, and wait until that is done."""
        task = self._task
        self.stop()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    async def _connect(self, pause: float) -> None:
        while True:
            await asyncio.sleep(pause)
            try:
                link = await self._open_link()
            except Fault as fault:
                self._on_failed(fault)
            except Exception:
                if not self._unexpected:
                    self._unexpected = True
                    log.exception("connecting to Redis failed")
                self._on_failed(Fault("error"))
            else:
                self._task = None
                self._unexpected = False
                self._on_link(link)
                return
            pause = self._backoff.next()
