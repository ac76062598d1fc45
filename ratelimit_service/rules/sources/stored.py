"""The source of rules that the API keeps, as `versions.py` describes them."""

import asyncio
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from ratelimit_service.errors import Problem
from ratelimit_service.rules.sources.json_text import JsonText
from ratelimit_service.rules.sources.source import Documents, Given
from ratelimit_service.rules.sources.yaml_text import YamlText
from ratelimit_service.rules.versions import RuleStore
from ratelimit_service.settings.fields import SourceKind

_FIRST_READ_SECONDS: Final = 2.0
"""Seconds for the first read of all documents."""


class StoredRules:
    """The rules that `store` keeps."""

    kind = SourceKind.API
    noun = "stored document"
    connection = None

    def __init__(self, store: RuleStore) -> None:
        self.name = store.name
        self._store = store
        self._started = False
        self._changed = asyncio.Event()
        self._given = ""

    async def read(self, *, required: bool = False) -> Given:
        """As RuleSource says; with or without `required`: what is not reached now may be within a second."""
        if not self._started:
            self._started = True
            self._store.start(self._changed.set)
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_READ_SECONDS):
                    while self._store.known is None:
                        await self._changed.wait()
                        self._changed.clear()
        return await self._give()

    async def changed(self) -> Given:
        """As RuleSource says."""
        await self._changed.wait()
        self._changed.clear()
        return await self._give()

    def loaded(self, version: str, problems: tuple[Problem, ...]) -> None:
        """As RuleSource says: what is in force is for others to say."""

    def refresh(self) -> None:
        """As RuleSource says."""
        self._changed.set()

    def close(self) -> None:
        """As RuleSource says; the store is closed by what opened it."""

    async def _give(self) -> Given:
        known = self._store.known
        if known is None:
            why = self._store.trouble or f"no answer within {_FIRST_READ_SECONDS:g} s"
            return (Problem(self.name, 0, 0, f"cannot be read: {why}"),)
        present = [made for _, made in sorted(known.items()) if not made.deleted]
        digest = blake2b(digest_size=8)
        for made in present:
            digest.update(f"{made.domain}\0{made.version}\0".encode())
        documents = [_KINDS[made.kind](made.place, made.text.encode(), SourceKind.API) for made in present]
        return Documents(documents, digest.hexdigest())


_KINDS: Final = {kind.kind: kind for kind in (YamlText, JsonText)}
