"""The bans as `ban`, `unban` and `bans` find them: in Redis, or at the `/bans` of a running service."""

import http.client
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

import uvloop

from ratelimit_service.commands.operator_port import (
    AccessFiles,
    OperatorPort,
    PortAccess,
    at_option,
    default_url,
    entries_as_json,
    read_access,
    who,
    with_rules,
)
from ratelimit_service.commands.sources import read_book, read_settings
from ratelimit_service.errors import BanError, StoreError, UnreachableError
from ratelimit_service.rules.bans import Ban, check_fits, hidden, key_of, make_ban, read_ban, read_length
from ratelimit_service.rules.problems import printable
from ratelimit_service.rules.rule import Entries
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import Backend
from ratelimit_service.stores.redis.bans import ALLOWED, BanTable
from ratelimit_service.stores.redis.counters import Primaries
from ratelimit_service.stores.redis.target import main_target

_T = TypeVar("_T")

_PATH: Final = "/bans"

service_option = at_option(
    "Debug port of a service, which is asked then: one on this machine, or one whose ADMIN_TOKEN is given. "
    "Without it, the settings' Redis; without one, localhost:6070, with the port of DEBUG_PORT.",
    "--url",
)


class Listed(NamedTuple):
    """The bans in force, the last ones made first, and how many there are."""

    bans: Sequence[Ban]
    total: int


class BanClient(Protocol):
    """Bans, wherever they are. Every method raises StoreError when that cannot be reached."""

    note: str
    """What is to be said of the ban that was made last; mostly nothing."""

    @property
    def outlasts(self) -> str:
        """A sentence on when a new ban begins to hold, and what it outlasts."""

    def list(self, domain: str | None) -> Listed:
        """The bans in force, or those of a domain."""

    def ban(self, domain: str, entries: Entries, length: str, why: str) -> Ban:
        """Make a ban. BanError if it cannot be."""

    def unban(self, domain: str, entries: Entries) -> Ban | None:
        """Lift the ban of exactly these entries; returns it, or None if there is none."""


def open_client(at: str | None, rules: Path | None, env_file: Path | None, access_files: AccessFiles) -> BanClient:
    """The bans of the service with the settings, or of that at this debug port."""
    access = read_access(access_files, env_file)
    if at is not None:
        return HttpBanClient(at, access)
    settings, _ = read_settings({"rules_path": rules}, env_file)
    if settings.backend_type is Backend.REDIS:
        return RedisBanClient(with_rules(settings, access))
    hint = (
        "BACKEND_TYPE is memory: the service itself has the bans. Name it by --at, or set REDIS_URL as for the service"
    )
    return HttpBanClient(default_url(settings), access, hint)


class RedisBanClient:
    """The bans in the Redis of the settings; the rules tell which values are secret."""

    outlasts = "Every instance enforces it within a second; it outlasts reloads and restarts."

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.note = ""

    def list(self, domain: str | None) -> Listed:
        """As BanClient says."""
        bans = [ban for ban in self._run(BanTable.read) if domain is None or ban.domain == domain]
        return Listed(sorted(bans, key=lambda ban: ban.made, reverse=True), len(bans))

    def ban(self, domain: str, entries: Entries, length: str, why: str) -> Ban:
        """As BanClient says."""
        microseconds, book = read_length(length), read_book(self._settings)
        self.note = check_fits(book, domain, entries)
        named = hidden(book, domain, entries)

        async def put(table: BanTable) -> Ban:
            ban = make_ban(domain, named, length=microseconds, why=why, who=who(), now=await table.now())
            await table.put(ban)
            return ban

        return self._run(put)

    def unban(self, domain: str, entries: Entries) -> Ban | None:
        """As BanClient says."""
        key = key_of(domain, hidden(read_book(self._settings), domain, entries))
        return self._run(lambda table: table.lift(key, who()))

    def _run(self, use: Callable[[BanTable], Awaitable[_T]]) -> _T:
        async def run() -> _T:
            async with aclosing(Primaries(self._settings, main_target(self._settings), ALLOWED)) as redis:

                async def execute(key: str, *command: str | bytes | int) -> Any:
                    [reply] = await redis.execute(await redis.primary_of(key.encode()), [command])
                    return reply

                return await use(BanTable(execute, self._settings.cache_key_prefix))

        return uvloop.run(run())


class HttpBanClient:
    """The bans of the service whose debug port is at this URL; `hint` is added where nothing answers."""

    def __init__(self, url: str, access: PortAccess, hint: str = "") -> None:
        self._port = OperatorPort(url, access)
        self._hint = hint
        self._in_memory = False
        self.note = ""

    @property
    def outlasts(self) -> str:
        """As BanClient says, of the ban that was made last."""
        if self._in_memory:
            where = self._port.url
            return f"It is in the memory of the service at {where}: it outlasts a reload, and ends with the service."
        return RedisBanClient.outlasts

    def list(self, domain: str | None) -> Listed:
        """As BanClient says; of very many only the last ones made."""
        found = self._ask("GET", f"{_PATH}?domain={quote(domain, safe='')}" if domain is not None else _PATH)
        return Listed([_read(ban) for ban in found["bans"]], found["total"])

    def ban(self, domain: str, entries: Entries, length: str, why: str) -> Ban:
        """As BanClient says."""
        found = self._ask("POST", _PATH, entries_as_json(domain, entries) | {"for": length, "why": why})
        self._in_memory = found.pop("store", "") == Backend.MEMORY
        self.note = found.pop("note", "")
        return _read(found)

    def unban(self, domain: str, entries: Entries) -> Ban | None:
        """As BanClient says."""
        found = self._ask("DELETE", _PATH, entries_as_json(domain, entries))
        found.pop("store", "")
        return _read(found) if found else None

    def _ask(self, verb: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON of the response; empty where there is no such ban."""
        try:
            reply = self._port.ask(verb, path, None if body is None else json.dumps(body))
        except StoreError as error:
            raise type(error)(f"{self._port.url}: {error}{f'. {self._hint}' if self._hint else ''}") from error
        found = reply.json()
        if found is not None:
            return found
        if reply.status == http.client.NOT_FOUND and "no ban" in reply.text:
            return {}
        if reply.status == http.client.BAD_REQUEST:
            raise BanError(printable(reply.text.strip()))
        if reply.status in {http.client.FORBIDDEN, http.client.SERVICE_UNAVAILABLE}:
            raise StoreError(f"{self._port.url}: {printable(reply.text.strip())}")
        raise UnreachableError(
            f"{self._port.url}: it answers {reply.status} to {_PATH}: is that the debug port of a service?"
        )


def _read(found: Any) -> Ban:
    try:
        return read_ban(json.dumps(found))
    except BanError as error:
        raise StoreError(f"the service sent an invalid ban: {error}") from error
