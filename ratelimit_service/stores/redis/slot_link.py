"""A connection for keys of one slot that is no part of counting: for the process that has no store, such as a parent.

It is opened when it is needed, to the server that has the slot then, and again after any fault. Commands are not
repeated: the caller knows whether it may.
"""

import asyncio
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from ratelimit_service.settings.fields import RedisType
from ratelimit_service.stores.redis.faults import Fault
from ratelimit_service.stores.redis.keys import slot_of
from ratelimit_service.stores.redis.link import Link, within
from ratelimit_service.stores.redis.target import Target
from ratelimit_service.stores.redis.topology import Sentinels, read_slot_map
from ratelimit_service.system.address import Address

_REPLY_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.5
"""Seconds after a failed attempt to connect in which there is no other."""
_FOLLOW_SECONDS: Final = 1.0
"""Seconds between two questions to the sentinels whether the primary is still the same."""


class SlotLink:
    """The connection."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._sentinels = Sentinels(target) if target.kind is RedisType.SENTINEL else None
        self._link: Link | None = None
        self._address: Address | None = None
        self._lock = asyncio.Lock()
        self._fault = Fault("unreachable")
        self._failed = self._followed = -_PAUSE_SECONDS
        """When the last attempt failed, and when the sentinels were asked."""

    async def execute(self, key: str, *command: str | bytes | int) -> Any:
        """The reply of the server that has the key. Raises Fault; whether the command was done is then not known."""
        async with self._lock:
            link = await self._opened(key)
        try:
            return await within(_REPLY_SECONDS, link.execute(*command))
        except (Fault, asyncio.CancelledError):
            if link is self._link:
                self.close()
            raise

    def close(self) -> None:
        """Close it; the next command opens it again."""
        if self._link is not None:
            self._link.abort()
            self._link = None

    async def _opened(self, key: str) -> Link:
        if self._sentinels is not None and self._link is not None and monotonic() - self._followed > _FOLLOW_SECONDS:
            self._followed = monotonic()
            with suppress(Fault):
                if await self._sentinels.primary() != self._address:
                    self.close()
        if self._link is None:
            if monotonic() - self._failed < _PAUSE_SECONDS:
                raise Fault(self._fault.cause, self._fault.detail)
            try:
                self._address = await self._server_of(key)
                link = await Link.open(self._target.at(self._address))
            except Fault as fault:
                self._fault, self._failed = fault, monotonic()
                raise
            link.on_lost = lambda _: self._forget(link)
            self._link = link
        return self._link

    def _forget(self, link: Link) -> None:
        if link is self._link:
            self._link = None

    async def _server_of(self, key: str) -> Address:
        if self._sentinels is not None:
            return await self._sentinels.primary()
        configured = self._target.servers.addresses
        if self._target.kind is not RedisType.CLUSTER:
            return configured[0]
        slot, fault = slot_of(key), Fault("unreachable")
        for address in configured if self._address is None else (self._address, *configured):
            try:
                slots = await read_slot_map(self._target.at(address))
            except Fault as error:
                fault = error
                continue
            for first, last, node in slots:
                if first <= slot <= last:
                    return node
            fault = Fault("clusterdown", "a slot has no node")
        raise fault
