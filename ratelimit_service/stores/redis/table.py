"""A small table in Redis: texts by key, each until its end. All instances follow it; any of them writes, or a command.

It is two keys of one slot, which all instances read each second. A read costs one small command as long as nothing was
written. After that the entries are read a page at a time, so that neither Redis nor this process stops for all of them.
When Redis cannot be read, what is known stays.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import files
from math import inf
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol

from ratelimit_service.errors import StoreError
from ratelimit_service.stores.redis.link import within
from ratelimit_service.stores.redis.replies import fitting, read_time, text

log = logging.getLogger(__name__)

Execute = Callable[..., Awaitable[Any]]
"""Sends a command to the server that has the key, its first argument; returns its reply, or raises StoreError."""

REPLY_SECONDS: Final = 2.0

_POLL_SECONDS: Final = 0.7
"""Seconds between two reads: all instances know of an entry within a second."""

_FIRST_POLL_SECONDS: Final = 0.05
"""Before the first read has succeeded."""

_READ_SECONDS: Final = 20.0
"""Seconds for all that is read at once."""
_SILENT_SECONDS: Final = 3.0
"""Reads that fail for less than this are not logged: a connection was lost and made again."""

_PAGE_BYTES: Final = 125_000
"""Bytes that one command reads at most, where entries are no larger: of bans 2 ms for this process."""


class Kept(NamedTuple):
    """A replaced text, and the past that its key has."""

    before: str
    """What the present text begins with; empty if there must be none."""
    past: str
    """The name of the hash, in the slot of the table."""
    number: int
    """Of the new text in the past."""
    numbers: int
    """The most texts in the past."""
    bytes: int
    """The most bytes of them; the newest is kept in any case."""


class RedisTable:
    """The table with these keys, reached by `execute`: of so many entries, and so many bytes each, at most."""

    def __init__(self, execute: Execute, keys: tuple[str, str], max_entries: int, max_bytes: int) -> None:
        self.max_entries = max_entries
        self._max_bytes = max_bytes
        self._keys = keys
        self._execute = partial(execute, keys[0])
        self._script = files(__package__).joinpath("table.lua").read_text("utf-8")

    async def now(self) -> int:
        """The time of Redis, in microseconds."""
        return read_time(await self._execute("TIME"))

    async def version(self) -> bytes | None:
        """Changes with each write; None when there is nothing."""
        return await self.get("")

    async def pages(self) -> AsyncIterator[Sequence[tuple[bytes, bytes]]]:
        """All keys with their texts, a page at a time; one may come twice, and after its end until the next write."""
        cursor, count = None, max(1, _PAGE_BYTES // self._max_bytes)
        while cursor != 0:  # HSCAN returns 0 when all were returned
            reply = await self._execute("HSCAN", self._keys[0], cursor or 0, "COUNT", count)
            with fitting("HSCAN"):
                cursor, page = int(reply[0]), [(text(key), text(entry)) for key, entry in _pairs(reply[1])]
            yield [(key, entry) for key, entry in page if key]

    async def get(self, key: str) -> bytes | None:
        """The text with this key, also after its end until the next write."""
        found = await self._execute("HGET", self._keys[0], key)
        with fitting("HGET"):
            return None if found is None else text(found)

    async def put(self, key: str, entry: str, until: float = inf) -> bool:
        """Write a text, in place of one with the same key; False when it is too large, or there are too many."""
        if len(entry.encode()) > self._max_bytes:
            return False
        command = ("EVAL", self._script, 2, *self._keys, key, entry, until, self.max_entries)
        return bool(await self._execute(*command))

    async def delete(self, key: str) -> None:
        """Remove the text with this key."""
        await self.put(key, "", 0)

    async def replace(self, key: str, entry: str, kept: "Kept", until: float = inf) -> bool | None:
        """Write a text in place of the one that begins with `kept.before`, and into the past of the key.

        False when there are too many entries, None when the present one is another. The caller bounds its bytes.
        """
        keys = (*self._keys, kept.past)
        arguments = (key, entry, until, self.max_entries, kept.before, kept.number, kept.numbers, kept.bytes)
        reply = await self._execute("EVAL", self._script, len(keys), *keys, *arguments)
        with fitting("EVAL"):
            return {1: True, 0: False, -1: None}[reply]

    async def past(self, past: str) -> Mapping[int, bytes]:
        """The texts that the past with this name has, by their numbers."""
        reply = await self._execute("HGETALL", past)
        with fitting("HGETALL"):
            return {int(number): text(entry) for number, entry in _pairs(reply)}


class TableUser(Protocol):
    """The user that a table is read for."""

    noun: str
    """What log lines call its entries."""

    def use(self, entry: bytes) -> None:
        """Take a text that is new, or another one than before."""

    def drop(self, key: str) -> None:
        """Take notice that there is no text with this key any more."""

    def complete(self) -> None:
        """Take notice that the whole table was read."""


class TableFollower:
    """Has `user` read a table in a task of its own, again and again: what has changed, within a second."""

    def __init__(self, table: RedisTable, user: TableUser) -> None:
        self._table = table
        self._user = user
        # Until a read is complete, the entries of before are known beside those that took their place.
        self._max_known = 2 * table.max_entries
        self._version: bytes | None = None
        self._texts: dict[bytes, int] = {}
        """Hashes of what was read by key: what has not changed is not read again."""
        self._read_once = False
        self._failing_since: float | None = None
        self._logged = False
        self._trouble = ""
        self._task: asyncio.Task[None] | None = None
        self._written = asyncio.Event()

    @property
    def trouble(self) -> str:
        """Why the table cannot be read now; empty if it can."""
        return self._trouble

    def start(self) -> None:
        """Begin to read."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def read_soon(self) -> None:
        """Read now: something was written here."""
        self._written.set()

    async def close(self) -> None:
        """Stop reading; what is known stays."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await within(_READ_SECONDS, self._follow())
            except StoreError as error:
                self._on_failure(error)
            except Exception as error:
                log.exception("reading the %s failed", self._user.noun)
                self._on_failure(error)
            else:
                self._on_success()
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS if self._read_once else _FIRST_POLL_SECONDS):
                    await self._written.wait()
            self._written.clear()

    async def _follow(self) -> None:
        """Read the table if it has changed."""
        version = await within(REPLY_SECONDS, self._table.version())
        if version == self._version and self._read_once:
            return
        left = set(self._texts)
        if version is not None:
            async for page in self._table.pages():
                for key, entry in page:
                    left.discard(key)
                    if self._texts.get(key) != hash(entry) and len(self._texts) < self._max_known:
                        self._texts[key] = hash(entry)
                        self._user.use(entry)
        for key in left:
            del self._texts[key]
            self._user.drop(key.decode(errors="replace"))
        self._user.complete()
        # A write during the read has made another version, so that the next time all is read again.
        self._version = version
        self._read_once = True

    def _on_failure(self, error: Exception) -> None:
        now, self._trouble = monotonic(), str(error)
        if self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since > _SILENT_SECONDS and not self._logged:
            self._logged = True
            log.warning("%s cannot be read: %s; those known stay", self._user.noun, error)

    def _on_success(self) -> None:
        if self._logged:
            log.warning("%s are read again", self._user.noun)
        self._failing_since, self._logged, self._trouble = None, False, ""


def _pairs(page: Any) -> Iterable[tuple[bytes, bytes]]:
    """The fields and values of a reply to HSCAN, which redis-py has made a dictionary of."""
    return page.items() if isinstance(page, dict) else zip(page[::2], page[1::2], strict=True)
