"""Warnings about a Redis that works: its version and settings, once each; its clock, whenever it begins to be off."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from ratelimit_service.stores.redis.faults import Fault, one_line
from ratelimit_service.stores.redis.link import Link
from ratelimit_service.stores.redis.replies import fitting, read_time
from ratelimit_service.system.clock import SECOND, Clock, system_clock

log = logging.getLogger(__name__)

OLDEST: Final = (6, 2)
MAX_OFFSET: Final = SECOND
SAFE: Final = "noeviction"
"""The maxmemory-policy that forgets no counter."""


class Checks:
    """Checks the settings of each server once, and its clock whenever `compare_clocks` is called."""

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._checked: set[str] = set()
        self._off: set[str] = set()
        """Servers whose clock is known to be off."""
        self._tasks: set[asyncio.Task[None]] = set()

    def check_once(self, link: Link, name: str) -> None:
        """Check the server in a task, unless that was done before."""
        if name not in self._checked:
            self._checked.add(name)
            task = asyncio.get_running_loop().create_task(self._check(link, name))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def compare_clocks(self, link: Link, name: str) -> None:
        """Warn if the server's clock differs from this machine's: after a failover it is another clock."""
        link.send(("TIME",), partial(self._on_time, name, self._clock()))

    def _on_time(self, name: str, before: int, reply: Any) -> None:
        if not isinstance(reply, list):
            return  # our user may not send TIME
        now = self._clock()
        offset = read_time(reply) - (before + now) // 2
        # The server read its clock anywhere within the round trip: at most half of it before or after its middle.
        if abs(offset) - (now - before) // 2 <= MAX_OFFSET:
            self._off.discard(name)
        elif name not in self._off:
            self._off.add(name)
            direction = "ahead of" if offset > 0 else "behind"
            log.warning(
                "Redis at %s: its clock is %.1f s %s this machine's: windows follow Redis's clock; synchronise both",
                *(name, abs(offset) / SECOND, direction),
            )

    async def close(self) -> None:
        """Cancel the checks that run."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _check(self, link: Link, name: str) -> None:
        """Warn of what is wrong. A server that does not reply to INFO is not checked."""
        try:
            reply = await link.execute("INFO")
            with fitting("INFO"):
                found = list(warnings(_read_info(reply)))
        except Fault as fault:
            log.debug("Redis at %s does not reply to INFO: %s", name, fault)
            return
        for warning in found:
            log.warning("Redis at %s: %s", name, warning)


def warnings(information: Mapping[str, str]) -> Iterator[str]:
    """The warnings about a server, by its reply to INFO."""
    version = information.get("redis_version", "")
    if version and tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        yield f"it is version {version}, and not tested: use 6.2 or newer"
    policy = information.get("maxmemory_policy", SAFE)
    if policy != SAFE:
        first = ", those that end soonest first, however busy they are" if policy == "volatile-ttl" else ""
        yield (
            f"maxmemory-policy is {policy}: when memory is short, counters and bans are forgotten{first}, and limits "
            f"begin anew; set it to {SAFE}"
        )


def _read_info(reply: bytes) -> Mapping[str, str]:
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: one_line(value) for name, colon, value in lines if colon}
