"""Where hits go: to one server, or to the primary that sentinels know. A Cluster's nodes are in cluster.py."""

import asyncio
import random
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import hiredis

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.checks import Checks
from ratelimit_service.stores.redis.faults import Fault, code_of
from ratelimit_service.stores.redis.lane import Lane
from ratelimit_service.stores.redis.link import Link
from ratelimit_service.stores.redis.orders import MOST_IN_PART, Group, Order, Part, Script, cut
from ratelimit_service.stores.redis.target import Target
from ratelimit_service.stores.redis.waiting import Waiting
from ratelimit_service.stores.store import Lost
from ratelimit_service.system.address import Address, Tcp
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.tally import Tally

PROBE_SECONDS: Final = 1.0
"""For a server to decide a hit on a new connection; callers do not wait for it longer than they granted."""

MOST_SENTINEL_SECONDS: Final = 0.5
"""For one sentinel to answer, before the next one is asked."""

_FOLLOW_SECONDS: Final = 1.0
"""Between two questions whether the primary is still the same."""


class Servers(Protocol):
    """The servers of one Redis."""

    @property
    def lanes(self) -> Iterable[Lane]:
        """The ways to all of them."""

    @property
    def healthy(self) -> bool:
        """All counters can be reached."""

    @property
    def lost(self) -> Sequence[Lost]:
        """Those that cannot decide hits now."""

    def start(self) -> None:
        """Begin to look for them."""

    def put(self, waiting: Waiting, hits: Sequence[Hit], script: Script) -> None:
        """Send these hits of a request to where their counters are."""

    def look(self, now: float) -> None:
        """Housekeeping, several times a second."""

    async def close(self) -> None:
        """Close all connections."""


class OneServer:
    """All counters on one server, whichever that is at the moment."""

    def __init__(self, lane: Lane, sentinels: "Sentinels | None" = None) -> None:
        self.lanes = (lane,)
        self._lane = lane
        self._sentinels = sentinels
        self._follower: asyncio.Task[None] | None = None
        self._groups: dict[Script, Group] = {}

    @property
    def healthy(self) -> bool:
        """The server is there."""
        return self._lane.healthy

    @property
    def lost(self) -> Sequence[Lost]:
        """The server, if it cannot decide hits now."""
        return () if self._lane.lost is None else (self._lane.lost,)

    def start(self) -> None:
        """Begin to look for it."""
        self._lane.start()
        if self._sentinels is not None and self._follower is None:
            self._follower = asyncio.get_running_loop().create_task(self._sentinels.follow(self._lane))

    def put(self, waiting: Waiting, hits: Sequence[Hit], script: Script) -> None:
        """All to the one."""
        group = self._groups.get(script)
        if group is None:
            group = self._groups[script] = Group(script)
        if len(hits) <= MOST_IN_PART:
            waiting.left += 1
            self._lane.put(Part(waiting, hits, group))
        else:
            parts = [Part(waiting, piece, group) for piece in cut(hits)]
            waiting.left += len(parts)
            self._lane.put_all(iter(parts))

    def look(self, now: float) -> None:
        """See that it answers."""
        self._lane.look(now)

    async def close(self) -> None:
        """Close the connection."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
        await self._lane.close()
        if self._sentinels is not None:
            self._sentinels.close()


class Probe:
    """Tries a server out as a hit would: only so it shows that it is no replica, has memory left, and lets us in."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._rule = Rule("", (), Limit(2**31, Unit.SECOND, SECOND), open_algorithm("fixed_window"))
        self.name = script.key(self._hit())
        """What the counter is called in Redis."""

    async def try_out(self, link: Link, name: str) -> None:
        """Charge the counter of that name. Raises Fault, also when it takes longer than `PROBE_SECONDS`."""
        hits = (self._hit(),)
        group = Group(self._script)
        order = Order(group, [Part(Waiting(hits, _ignore, 0.0, 0.0), hits, group, [name])])
        try:
            await _within(PROBE_SECONDS, link.ask(*order.by_name()))
        except Fault as fault:
            if not isinstance(fault.__cause__, hiredis.ReplyError) or code_of(fault.__cause__) != "NOSCRIPT":
                raise
            await _within(PROBE_SECONDS, link.ask(*order.in_full()))

    def _hit(self) -> Hit:
        return Hit(self._rule, "probe", 1, tally=Tally(), quota=False)


class Opener:
    """Opens links to servers that can decide hits."""

    def __init__(self, target: Target, probe: Probe, checks: Checks) -> None:
        self._target = target
        self._probe = probe
        self._checks = checks

    async def open(self, address: Address, name: str | None = "") -> Link:
        """A link to that server, tried out with a counter: of that name, or the usual one; or not. Raises Fault."""
        link = await Link.open(self._target.at(address))
        try:
            if name is not None:
                await self._probe.try_out(link, name or self._probe.name)
        except BaseException:
            link.abort()
            raise
        self._checks.begin(link, str(address))
        return link


class Sentinels:
    """Ask the sentinels where the primary is.

    One that has answered is asked again on the same connection; the others come in an order of chance. They decide on
    failovers with one thread each, and hundreds of workers ask each second.
    """

    def __init__(self, target: Target, opener: Opener) -> None:
        self._target = target
        self._opener = opener
        self._sentinels: list[Address] = list(target.servers.addresses)
        random.shuffle(self._sentinels)
        self._link: Link | None = None
        """To the one that answered last."""
        self._lock = asyncio.Lock()
        self._known: Address | None = None

    async def open(self) -> Link:
        """A link to the primary. Raises Fault."""
        primary = await self.primary()
        link = await self._opener.open(primary)
        self._known = primary
        return link

    async def follow(self, lane: Lane) -> None:
        """Leave a primary that another one has followed: for ten seconds nobody tells it, and it goes on counting."""
        while True:
            await asyncio.sleep(random.uniform(1, 1.5) * _FOLLOW_SECONDS)  # noqa: S311 - so that not all ask at once
            with suppress(Fault):
                if lane.healthy and await self.primary() != self._known:
                    lane.leave()

    async def primary(self) -> Address:
        """Its address. Raises Fault."""
        async with self._lock:
            if self._link is not None:
                with suppress(Fault):
                    primary = await self._ask(self._link)
                    if primary is not None:
                        return primary
                self.close()
            fault = Fault("sentinel")
            for sentinel in self._sentinels:
                try:
                    self._link = await _within(MOST_SENTINEL_SECONDS, Link.open(self._target.at_sentinel(sentinel)))
                    primary = await self._ask(self._link)
                except Fault as error:
                    fault = Fault("sentinel", str(error)) if error.cause in {"noauth", "wrongpass", "tls"} else fault
                    primary = None
                if primary is not None:
                    return primary
                self.close()
            raise fault

    def close(self) -> None:
        """Close the connection."""
        if self._link is not None:
            self._link.abort()
            self._link = None

    async def _ask(self, link: Link) -> Address | None:
        question = link.ask("SENTINEL", "get-master-addr-by-name", self._target.servers.master)
        found = await _within(MOST_SENTINEL_SECONDS, question)
        return None if found is None else Tcp(found[0].decode(), int(found[1]))


async def _within(seconds: float, answer: Awaitable[Any]) -> Any:
    try:
        async with asyncio.timeout(seconds):
            return await answer
    except TimeoutError as error:
        raise Fault("timeout") from error


def _ignore(_: object) -> None:
    """A probe is nobody's request."""
