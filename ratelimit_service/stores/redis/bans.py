"""Bans in Redis: a table of the main Redis, with their JSON by their key."""

import logging
from contextlib import suppress
from math import inf
from typing import Final

from ratelimit_service.errors import BanError
from ratelimit_service.rules.bans import FOR_EVER, MAX_BANS, Ban, Bans, log_ban, read_ban, too_many
from ratelimit_service.rules.rule import plural
from ratelimit_service.stores.redis.keys import bans_keys
from ratelimit_service.stores.redis.link import within
from ratelimit_service.stores.redis.table import REPLY_SECONDS, Execute, RedisTable, TableFollower
from ratelimit_service.system.clock import SECOND

log = logging.getLogger(__name__)

ALLOWED: Final = (
    "~<CACHE_KEY_PREFIX>* +time +hget +hscan, to ban and unban +eval +hset +hdel +zadd +zrem +zcard +zscore"
    " +zrangebyscore +zrevrange +pexpireat +persist, in a Cluster +cluster|slots +asking"
)
"""The rights that an ACL user needs for the commands on bans."""

_MAX_ENTRY: Final = 2_500
"""Bytes of a ban as JSON, and of who has lifted it."""

_LIFTED_FOR: Final = 60 * SECOND
"""The time for which a lifted ban stays in Redis, so that every instance can log who lifted it."""


class BanTable:
    """The bans as they are in Redis, reached by `execute`."""

    def __init__(self, execute: Execute, prefix: str) -> None:
        self.table = RedisTable(execute, bans_keys(prefix), MAX_BANS, _MAX_ENTRY)
        self.now = self.table.now

    async def read(self) -> list[Ban]:
        """All bans that are in force; what is no ban is left out."""
        now = await self.now()
        found: dict[bytes, Ban] = {}
        async for page in self.table.pages():
            for key, json in page:
                with suppress(BanError):
                    found[key] = read_ban(json)
        return [ban for ban in found.values() if not ban.lifted_by and ban.until > now]

    async def get(self, key: str) -> Ban | None:
        """The ban with this key that was not lifted and is not over."""
        found = await self.table.get(key)
        if found is None:
            return None
        ban = read_ban(found)
        return None if ban.lifted_by or ban.until <= await self.now() else ban

    async def put(self, ban: Ban) -> None:
        """Write the ban, in place of one with the same key. BanError when there are too many."""
        if not await self.table.put(ban.key, ban.text, inf if ban.until == FOR_EVER else ban.until):
            raise too_many()

    async def lift(self, key: str, who: str) -> Ban | None:
        """End the ban with this key; returns it, or None if there is none."""
        ban = await self.get(key)
        if ban is not None:
            await self.put(ban.lifted(who, await self.now() + _LIFTED_FOR))
        return ban


class BanFollower:
    """Makes `bans` what is in Redis, again and again.

    It is the `BanStore` of a service: what it writes holds here when it is read again, within a second as elsewhere.
    """

    noun = "bans"

    def __init__(self, bans: Bans, table: BanTable) -> None:
        self._bans = bans
        self._table = table
        self._follower = TableFollower(table.table, self)
        self._read_once = False
        self.start, self.close = self._follower.start, self._follower.close

    async def now(self) -> int:
        """The time of Redis."""
        return await within(REPLY_SECONDS, self._table.now())

    async def put(self, ban: Ban) -> None:
        """Write the ban. BanError when there are too many."""
        await within(REPLY_SECONDS, self._table.put(ban))
        self._follower.read_soon()

    async def lift(self, key: str, who: str) -> Ban | None:
        """End the ban with this key; returns it, or None if there is none."""
        ban = await within(REPLY_SECONDS, self._table.lift(key, who))
        self._follower.read_soon()
        return ban

    def use(self, entry: bytes) -> None:
        """Enforce or lift the ban of this JSON."""
        bans = self._bans
        try:
            ban = read_ban(entry)
        except BanError as error:
            log.debug("what is in Redis as a ban cannot be read: %s", error)
            return
        if ban.lifted_by:
            bans.drop(ban.key, f"lifted by {ban.lifted_by}")
        elif ban.until > bans.clock() and (len(bans) < 2 * MAX_BANS or bans.get(ban.key) is not None):
            bans.put(ban, quietly=not self._read_once)

    def drop(self, key: str) -> None:
        """End the ban with this key, which is gone."""
        self._bans.drop(key, "it is no longer in Redis")

    def complete(self) -> None:
        """Log the bans that were there at the start, of many the last ones."""
        if not self._read_once and len(self._bans):
            log.info("%s in force, as Redis has them; the last ones made are:", plural(len(self._bans), "ban"))
            for ban in self._bans.summary().newest:
                log_ban(ban)
        self._read_once = True
