"""The primaries of one Redis, for whoever asks about counters and can wait; hits go by lanes.

Replies come in the order of the commands. A key that has moved to another node of a Cluster is asked for there.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import hiredis

from ratelimit_service.errors import StoreError
from ratelimit_service.settings.fields import RedisType
from ratelimit_service.stores.redis.faults import Fault, code_of
from ratelimit_service.stores.redis.keys import slot_of
from ratelimit_service.stores.redis.link import Command, Link
from ratelimit_service.stores.redis.target import Target
from ratelimit_service.stores.redis.topology import Map, Sentinels, read_map, read_redirection
from ratelimit_service.system.address import Address

_SECONDS: Final = 10.0
"""For all answers to one batch."""

_AT_ONCE: Final = 1000
"""Keys that one SCAN looks at: it keeps a server from others for less than a millisecond."""

_TRIES: Final = 5
"""Nodes that a command may be sent on to."""

ALLOWED: Final = (
    "~<CACHE_KEY_PREFIX>* +scan +get +pttl +time, to reset +unlink +set, in a Cluster +cluster|slots +asking"
)
"""What an ACL user needs."""


class Primaries:
    """Its primaries are found by `find`, and connected to when they are asked something."""

    def __init__(self, target: Target, sentinels: Sentinels | None) -> None:
        self._target = target
        self._sentinels = sentinels
        self._links: dict[Address, Link] = {}
        self._map: Map = ()

    async def find(self) -> list[Address]:
        """Where they are now."""
        target = self._target
        try:
            match target.kind:
                case RedisType.CLUSTER:
                    self._map = sorted(await read_map(target))
                case RedisType.SENTINEL:
                    assert self._sentinels is not None
                    self._map = [(0, 0, await self._sentinels.primary())]
                case RedisType.SINGLE:
                    self._map = [(0, 0, target.servers.addresses[0])]
        except Fault as fault:
            raise _told(target.servers.addresses[0], fault) from fault
        return list(dict.fromkeys(address for _, _, address in self._map))

    @property
    def layout(self) -> Map:
        """Who has which slots, as `find` saw it."""
        return tuple(self._map)

    async def owner(self, key: bytes) -> Address:
        """Who has this key."""
        if not self._map:
            await self.find()
        if self._target.kind is RedisType.CLUSTER:
            slot = slot_of(key)
            return next((address for first, last, address in self._map if first <= slot <= last), self._map[0][2])
        return self._map[0][2]

    async def scan(self, address: Address, pattern: str) -> AsyncIterator[list[bytes]]:
        """All keys there that fit, some at a time; one may come more than once."""
        cursor = b"0"
        while True:
            command = ("SCAN", cursor, "MATCH", pattern, "COUNT", _AT_ONCE, "TYPE", "string")
            [(cursor, keys)] = await self.ask(address, [command])
            if keys:
                yield keys
            if cursor == b"0":
                break

    async def ask(self, address: Address, commands: Sequence[Command]) -> list[Any]:
        """What it answers to these commands, sent in one go. Raises StoreError, which says who failed and how."""
        try:
            async with asyncio.timeout(_SECONDS):
                link = await self._link(address)
                answers = await asyncio.gather(*(link.ask(*command) for command in commands), return_exceptions=True)
                return [
                    await self._follow(address, command, answer) if isinstance(answer, Fault) else answer
                    for command, answer in zip(commands, answers, strict=True)
                ]
        except Fault as fault:
            raise _told(address, fault) from fault
        except TimeoutError as error:
            raise _told(address, Fault("timeout")) from error

    def close(self) -> None:
        """Close all connections."""
        for link in self._links.values():
            link.abort()
        self._links.clear()
        if self._sentinels is not None:
            self._sentinels.close()

    async def _link(self, address: Address) -> Link:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = await Link.open(self._target.at(address))
        return link

    async def _follow(self, asked: Address, command: Command, fault: Fault) -> Any:
        """The answer of the node to which the one that was asked points."""
        for _ in range(_TRIES):
            reply = fault.__cause__
            code = code_of(reply) if isinstance(reply, hiredis.ReplyError) else ""
            if code == "WRONGTYPE":
                return None
            if code not in {"MOVED", "ASK"}:
                raise fault
            try:
                _, asked = read_redirection(str(reply), asked)
            except ValueError as error:
                raise fault from error
            link = await self._link(asked)
            asking = [link.ask("ASKING")] if code == "ASK" else []
            *_, answer = await asyncio.gather(*asking, link.ask(*command), return_exceptions=True)
            if not isinstance(answer, Fault):
                return answer
            fault = answer
        raise fault


def _told(address: Address, fault: Fault) -> StoreError:
    if fault.cause == "noperm":
        return StoreError(f"Redis at {address}: the ACL user must be allowed: {ALLOWED} ({fault.detail})")
    return StoreError(f"Redis at {address}: {fault}")
