"""Bans in Redis: two keys of the main Redis. All instances read them each second; any of them writes, or a command.

A read costs one small command as long as no ban was written. After that the bans are read fifty at a time, so that
neither Redis nor this process stops for ten thousand. When Redis cannot be read, the bans known stay until they end.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import files
from time import monotonic
from typing import Any, Final

from ratelimit_service.errors import BanError, StoreError
from ratelimit_service.rules.bans import FOR_EVER, MAX_BANS, Ban, Bans, log_ban, read_ban, too_many
from ratelimit_service.rules.rule import plural
from ratelimit_service.stores.redis.keys import bans_keys
from ratelimit_service.stores.redis.link import within
from ratelimit_service.stores.redis.replies import fitting, read_time, text
from ratelimit_service.system.clock import SECOND

log = logging.getLogger(__name__)

Execute = Callable[..., Awaitable[Any]]
"""Sends a command to the server that has the key, its first argument; returns its reply, or raises StoreError."""

ALLOWED: Final = (
    "~<CACHE_KEY_PREFIX>* +time +hget +hscan, to ban and unban +eval +hset +hdel +zadd +zrem +zcard +zscore"
    " +zrangebyscore +zrevrange +pexpireat +persist, in a Cluster +cluster|slots +asking"
)
"""The rights that an ACL user needs for the commands on bans."""

_POLL_SECONDS: Final = 0.7
"""Between two reads: all instances know of a ban within a second."""

_FIRST_POLL_SECONDS: Final = 0.05
"""Before the first read has succeeded."""

_REPLY_SECONDS: Final = 2.0
_READ_SECONDS: Final = 20.0
"""For all that is read at once."""
_SILENT_SECONDS: Final = 3.0
"""Reads that fail for less than this are not logged: a connection was lost and made again."""

_PAGE: Final = 50
"""Bans that one command reads, up to 100 KB: 2 ms for this process."""

_MAX_KNOWN: Final = 2 * MAX_BANS
"""Until a read is complete, the bans of before are known beside those that took their place."""

_LIFTED_FOR: Final = 60 * SECOND
"""How long a lifted ban stays in Redis, so that every instance can log who lifted it."""


class BanTable:
    """The bans as they are in Redis, reached by `execute`."""

    def __init__(self, execute: Execute, prefix: str) -> None:
        self._keys = bans_keys(prefix)
        self._execute = partial(execute, self._keys[0])
        self._script = files(__package__).joinpath("bans.lua").read_text("utf-8")

    async def now(self) -> int:
        """The time of Redis, in microseconds."""
        return read_time(await self._execute("TIME"))

    async def version(self) -> bytes | None:
        """Changes with each write; None when there is nothing."""
        return await self._get("")

    async def pages(self) -> AsyncIterator[Sequence[tuple[bytes, bytes]]]:
        """All keys with the JSON of their bans, a page at a time; one may come twice."""
        cursor = None
        while cursor != 0:  # HSCAN returns 0 when all were returned
            reply = await self._execute("HSCAN", self._keys[0], cursor or 0, "COUNT", _PAGE)
            with fitting("HSCAN"):
                cursor, page = int(reply[0]), [(text(key), text(ban)) for key, ban in _pairs(reply[1])]
            yield [(key, ban) for key, ban in page if key]

    async def read(self) -> list[Ban]:
        """All bans that are in force; what is no ban is left out."""
        now = await self.now()
        found: dict[bytes, Ban] = {}
        async for page in self.pages():
            for key, json in page:
                with suppress(BanError):
                    found[key] = read_ban(json)
        return [ban for ban in found.values() if not ban.lifted_by and ban.until > now]

    async def get(self, key: str) -> Ban | None:
        """The ban with this key that was not lifted and is not over."""
        found = await self._get(key)
        if found is None:
            return None
        ban = read_ban(found)
        return None if ban.lifted_by or ban.until <= await self.now() else ban

    async def _get(self, field: str) -> bytes | None:
        found = await self._execute("HGET", self._keys[0], field)
        with fitting("HGET"):
            return None if found is None else text(found)

    async def put(self, ban: Ban) -> None:
        """Write the ban, in place of one with the same key. BanError when there are too many."""
        until = "inf" if ban.until == FOR_EVER else ban.until
        if not await self._execute("EVAL", self._script, 2, *self._keys, ban.key, ban.text, until, MAX_BANS):
            raise too_many()

    async def lift(self, key: str, who: str) -> Ban | None:
        """End the ban with this key; returns it, or None if there is none."""
        ban = await self.get(key)
        if ban is not None:
            await self.put(ban.lifted(who, await self.now() + _LIFTED_FOR))
        return ban


class BanFollower:
    """Makes `bans` what is in Redis, in a task of its own, again and again.

    It is the `BanStore` of a service: what it writes holds here when it is read again, within a second as elsewhere.
    """

    def __init__(self, bans: Bans, table: BanTable) -> None:
        self._bans = bans
        self._table = table
        self._version: bytes | None = None
        self._texts: dict[bytes, int] = {}
        """Hashes of what was read by key: what has not changed is not read again."""
        self._read_once = False
        self._failing_since: float | None = None
        self._logged = False
        self._task: asyncio.Task[None] | None = None
        self._written = asyncio.Event()

    async def now(self) -> int:
        """The time of Redis."""
        return await within(_REPLY_SECONDS, self._table.now())

    def start(self) -> None:
        """Begin to read."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop reading; the bans known stay."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def put(self, ban: Ban) -> None:
        """Write the ban. BanError when there are too many."""
        await within(_REPLY_SECONDS, self._table.put(ban))
        self._written.set()

    async def lift(self, key: str, who: str) -> Ban | None:
        """End the ban with this key; returns it, or None if there is none."""
        ban = await within(_REPLY_SECONDS, self._table.lift(key, who))
        self._written.set()
        return ban

    async def _run(self) -> None:
        while True:
            try:
                await within(_READ_SECONDS, self._follow())
            except StoreError as error:
                self._on_failure(error)
            except Exception as error:
                log.exception("reading the bans")
                self._on_failure(error)
            else:
                self._on_success()
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS if self._read_once else _FIRST_POLL_SECONDS):
                    await self._written.wait()
            self._written.clear()

    async def _follow(self) -> None:
        """Read the bans if they have changed."""
        version = await within(_REPLY_SECONDS, self._table.version())
        if version == self._version and self._read_once:
            return
        left = set(self._texts)
        if version is not None:
            async for page in self._table.pages():
                for key, json in page:
                    left.discard(key)
                    if self._texts.get(key) != hash(json) and len(self._texts) < _MAX_KNOWN:
                        self._texts[key] = hash(json)
                        self._use(json)
        for key in left:
            del self._texts[key]
            self._bans.drop(key.decode(errors="replace"), "it is no longer in Redis")
        if not self._read_once and len(self._bans):
            log.info("%s in force, as Redis has them; the last ones made are:", plural(len(self._bans), "ban"))
            for ban in self._bans.summary().newest:
                log_ban(ban)
        # A write during the read has made another version, so that the next time all is read again.
        self._version = version
        self._read_once = True

    def _use(self, json: bytes) -> None:
        """Enforce or lift the ban of this JSON."""
        bans = self._bans
        try:
            ban = read_ban(json)
        except BanError as error:
            log.debug("what is in Redis as a ban cannot be read: %s", error)
            return
        if ban.lifted_by:
            bans.drop(ban.key, f"lifted by {ban.lifted_by}")
        elif ban.until > bans.clock() and (len(bans) < _MAX_KNOWN or bans.get(ban.key) is not None):
            bans.put(ban, quietly=not self._read_once)

    def _on_failure(self, error: Exception) -> None:
        now = monotonic()
        if self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since > _SILENT_SECONDS and not self._logged:
            self._logged = True
            log.warning("bans cannot be read: %s; those known stay until they end", error)

    def _on_success(self) -> None:
        if self._logged:
            log.warning("bans are read again")
        self._failing_since, self._logged = None, False


def _pairs(page: Any) -> Iterable[tuple[bytes, bytes]]:
    """The fields and values of a reply to HSCAN, which redis-py has made a dictionary of."""
    return page.items() if isinstance(page, dict) else zip(page[::2], page[1::2], strict=True)
