"""Lists, makes and lifts bans for `/bans`, in an engine, of one worker if there are several.

Requests and answers are JSON in bytes, as those of `/explain`.
"""

import asyncio
import json
from collections.abc import Iterable
from typing import Any, Final

from ratelimit_service.errors import BanError, RpcError, Status, StoreError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.rules.bans import Ban, check_fits, hidden, key_of, make_ban, read_length
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.rule import Entries
from ratelimit_service.server.admin.answers import TaskMethod
from ratelimit_service.server.admin.changes import read_change

MAX_LISTED: Final = 1000
"""Bans in one answer: the last ones made."""
_PIECE: Final = 50
"""Bans that are made text in an iteration of the event loop."""
_MAX_WAITING: Final = 64
"""Requests that wait for the store."""

_BAN: Final = "a ban"


def ban_method(limiter: Limiter) -> TaskMethod:
    """The method that lists and changes the bans of a limiter and its store, as `listing` and so on ask for."""
    return TaskMethod(
        _BanMethod(limiter).answer,
        _MAX_WAITING,
        busy="too many requests for bans at once",
        failed="bans could not be listed or changed",
    )


class _BanMethod:
    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._bans = limiter.bans
        self._store = limiter.store.keep_bans(limiter.bans)
        self._store_name = limiter.store.name
        """Tells in each answer what the bans outlast."""

    async def answer(self, body: bytes) -> bytes:
        """The response to the request in `body`."""
        try:
            return await self._do(json.loads(body))
        except BanError as error:
            raise RpcError(Status.INVALID_ARGUMENT, str(error)) from error
        except StoreError as error:
            raise RpcError(Status.UNAVAILABLE, f"bans cannot be written: {error}") from error

    async def _do(self, asked: Any) -> bytes:
        match asked:
            case ["list", domain]:
                bans, newest = self._bans.all(domain), list[str]()
                for ban in bans[:MAX_LISTED]:
                    newest.append(ban.text)
                    if not len(newest) % _PIECE:
                        await asyncio.sleep(0)  # calls go on
                found = f'"total": {len(bans)}, "bans": [{", ".join(newest)}]'
                return f'{{"store": {json.dumps(self._store_name)}, {found}}}'.encode()
            case ["ban", domain, entries, length, why, who]:
                microseconds, now = read_length(length), await self._store.now()
                book, entries = self._book(), _pairs(entries)
                note = check_fits(book, domain, entries)
                named = hidden(book, domain, entries)
                ban = make_ban(domain, named, length=microseconds, why=why, who=who, now=now)
                await self._store.put(ban)
                return self._described(ban, note)
            case ["unban", domain, entries, who]:
                lifted = await self._store.lift(key_of(domain, hidden(self._book(), domain, _pairs(entries))), who)
                if lifted is None:
                    raise RpcError(Status.NOT_FOUND, "there is no ban of exactly these entries in this domain")
                return self._described(lifted)
        raise RpcError(Status.INTERNAL, "unknown ban request")

    def _book(self) -> RuleBook:
        """The rules: they alone tell which values are secret, and what values share a counter."""
        if self._limiter.book is None:
            raise RpcError(Status.UNAVAILABLE, "no rate limit configuration loaded")
        return self._limiter.book

    def _described(self, ban: Ban, note: str = "") -> bytes:
        found = ban.as_json() | {"store": self._store_name} | ({"note": note} if note else {})
        return json.dumps(found, ensure_ascii=False).encode()


def listing(domain: str | None) -> bytes:
    """A request for the bans in force, or those of a domain."""
    return _request("list", domain)


def banning(body: bytes, remote: str) -> bytes:
    """A request to make the ban of a JSON body. RpcError if the body is wrong."""
    found = read_change(_BAN, body, {"domain", "entries", "for", "why"}, remote)
    return _request("ban", found["domain"], found["entries"], found["for"], found["why"], found["who"])


def unbanning(body: bytes, remote: str) -> bytes:
    """A request to lift the ban of a JSON body. RpcError if the body is wrong."""
    found = read_change(_BAN, body, {"domain", "entries"}, remote)
    return _request("unban", found["domain"], found["entries"], found["who"])


def _pairs(entries: Iterable[Iterable[str]]) -> Entries:
    return tuple((key, value) for key, value in entries)


def _request(*words: object) -> bytes:
    return json.dumps(words, ensure_ascii=True).encode()
