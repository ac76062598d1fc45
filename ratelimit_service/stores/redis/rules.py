"""The rules of the API in Redis: a table of the main Redis, with the past of each document beside it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Final

from ratelimit_service.errors import RuleConflictError, StoreError
from ratelimit_service.rules.versions import (
    DELETED_FOR,
    MAX_DOCUMENT_BYTES,
    MAX_DOCUMENTS,
    MAX_PAST_BYTES,
    MAX_VERSIONS,
    RuleVersion,
    begin_of,
    read_version,
)
from ratelimit_service.settings import Settings
from ratelimit_service.stores.redis.keys import rules_keys, rules_past_key
from ratelimit_service.stores.redis.slot_link import SlotLink
from ratelimit_service.stores.redis.table import Kept, RedisTable, TableFollower
from ratelimit_service.stores.redis.target import main_target

log = logging.getLogger(__name__)

_MAX_ENTRY: Final = MAX_DOCUMENT_BYTES + 16 * 1024
"""Bytes of a version as it is written."""


class RedisRules:
    """As RuleStore says, in the main Redis of the settings."""

    name = "the rules API (Redis)"
    noun = "rules of the API"

    def __init__(self, settings: Settings) -> None:
        self._prefix = settings.cache_key_prefix
        self._link = SlotLink(main_target(settings))
        self._table = RedisTable(self._link.execute, rules_keys(self._prefix), MAX_DOCUMENTS, _MAX_ENTRY)
        self._follower = TableFollower(self._table, self)
        self._on_change: Callable[[], object] = lambda: None
        self._read: dict[str, RuleVersion] = {}
        self.known: Mapping[str, RuleVersion] | None = None

    @property
    def trouble(self) -> str:
        """As RuleStore says."""
        return self._follower.trouble

    def start(self, on_change: Callable[[], object]) -> None:
        """As RuleStore says."""
        self._on_change = on_change
        self._follower.start()

    async def present(self, domain: str) -> RuleVersion | None:
        """As RuleStore says."""
        written = await self._table.get(domain)
        return None if written is None else _read(written)

    async def put(self, made: RuleVersion) -> None:
        """As RuleStore says."""
        past = rules_past_key(self._prefix, made.domain)
        kept = Kept(begin_of(made.replaces), past, made.number, MAX_VERSIONS, MAX_PAST_BYTES)
        until = await self._table.now() + DELETED_FOR if made.deleted else inf
        done = await self._table.replace(made.domain, made.written(), kept, until)
        if done is None:
            raise RuleConflictError(f"{made.replaces or 'no document'} is not the present version")
        if not done:
            raise StoreError(f"there are {MAX_DOCUMENTS:,} documents, those deleted lately included, which is the most")
        self._follower.read_soon()

    async def past(self, domain: str) -> Sequence[RuleVersion]:
        """As RuleStore says."""
        found = await self._table.past(rules_past_key(self._prefix, domain))
        return [_read(written) for _, written in sorted(found.items(), reverse=True)]

    async def close(self) -> None:
        """As RuleStore says."""
        await self._follower.close()
        self._link.close()

    def use(self, entry: bytes) -> None:
        """Take a version that is new."""
        try:
            made = read_version(entry)
        except ValueError as error:
            log.warning("a document of the rules API in Redis cannot be read: %s; the one before stays", error)
            return
        self._read[made.domain] = made

    def drop(self, key: str) -> None:
        """Take notice that a document is gone, also its deletion."""
        self._read.pop(key, None)

    def complete(self) -> None:
        """Take notice that all were read."""
        self.known = dict(self._read)
        self._on_change()


def _read(written: bytes) -> RuleVersion:
    try:
        return read_version(written)
    except ValueError as error:
        raise StoreError(f"the document in Redis cannot be read: {error}") from error
