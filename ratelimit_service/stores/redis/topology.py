"""Where hits go: to one server, to the primary that sentinels know, or to the node of a Cluster that has their slot.

The map of a Cluster is asked of any node when an order was turned away (MOVED) or a node is lost, and again as long as
a node, or the node of a slot, is missing. No hit waits for it, but for those that come before the first one.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any, Final, Protocol

import hiredis

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.breaker import LONGEST_PAUSE, Pauses
from ratelimit_service.stores.redis.checks import Checks
from ratelimit_service.stores.redis.faults import Fault, Outage, code_of
from ratelimit_service.stores.redis.keys import SLOTS, name_in_slot, slot_of
from ratelimit_service.stores.redis.lane import COMMAND, MOST_WAITING, Lane
from ratelimit_service.stores.redis.link import Link
from ratelimit_service.stores.redis.requests import Waiting, WaitingRoom
from ratelimit_service.stores.redis.script import MOST_IN_PART, Group, Order, Part, Script, cut
from ratelimit_service.stores.redis.target import Target
from ratelimit_service.stores.store import Lost
from ratelimit_service.system.address import Address, Tcp
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.tally import Tally

log = logging.getLogger(__name__)


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


Map = Sequence[tuple[int, int, Address]]
"""First slot, last slot, and the primary that has them."""

_MAP_SECONDS: Final = 1.0
"""For a node to tell the map."""


class Cluster:
    """All counters on the nodes of a cluster, each on the one that has its slot."""

    def __init__(
        self,
        target: Target,
        make_lane: Callable[[Address, "Cluster"], Lane],
        room: WaitingRoom,
        policy: str,
    ) -> None:
        self._target = target
        self._make_lane = make_lane
        self._room = room
        self._nodes: dict[Address, Lane] = {}
        self._slots: list[Lane | None] = [None] * SLOTS
        self._groups: dict[tuple[Script, int], Group] = {}
        self._early: list[Part] | None = []
        self._fault = Fault("unreachable")
        self._outage = Outage(f"{target.servers.addresses[0]} and its cluster", policy)
        self._pauses = Pauses()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._known = False
        self._unserved = 0
        """Slots that the map gives to no node."""

    @property
    def lanes(self) -> Sequence[Lane]:
        """The ways to all nodes."""
        return tuple(self._nodes.values())

    @property
    def healthy(self) -> bool:
        """All slots can be reached."""
        return self._known and not self._unserved and all(lane.healthy for lane in self._nodes.values())

    @property
    def lost(self) -> Sequence[Lost]:
        """Nodes that cannot decide hits now, or the cluster as long as it tells no map."""
        found = (self._outage.lost, *(lane.lost for lane in self._nodes.values()))
        return [lost for lost in found if lost is not None]

    def start(self) -> None:
        """Begin to look for the nodes."""
        if self._task is None:
            self._wanted.set()
            self._task = asyncio.get_running_loop().create_task(self._watch())

    def put(self, waiting: Waiting, hits: Sequence[Hit], script: Script) -> None:
        """A part for each slot, to the node that has it."""
        by_slot: dict[int, tuple[list[Hit], list[str]]] = {}
        for hit in hits:
            name = script.key(hit)
            slot = slot_of(name)
            found = by_slot.get(slot)
            if found is None:
                by_slot[slot] = [hit], [name]
            else:
                found[0].append(hit)
                found[1].append(name)
        if len(hits) + COMMAND * len(by_slot) > MOST_IN_PART:
            self._put_many(waiting, by_slot, script)
            return
        waiting.left += len(by_slot)
        for slot, (some, names) in by_slot.items():
            self._put(Part(waiting, some, self._group(script, slot), names))

    def _put_many(
        self, waiting: Waiting, by_slot: Mapping[int, tuple[Sequence[Hit], Sequence[str]]], script: Script
    ) -> None:
        """The same, bit by bit to each node."""
        parts = []
        for slot, (some, names) in by_slot.items():
            rest = iter(names)
            for piece in cut(some):
                of_piece = list(islice(rest, len(piece)))
                parts.append(Part(waiting, piece, self._group(script, slot), of_piece))
        waiting.left += len(parts)
        by_lane: dict[Lane, list[Part]] = {}
        for part in parts:
            lane = self._slots[part.group.slot]
            if lane is None:
                self._put(part)
            else:
                by_lane.setdefault(lane, []).append(part)
        for lane, of_lane in by_lane.items():
            lane.put_all(iter(of_lane))

    def _put(self, part: Part) -> None:
        """To its node; what comes before the map, or for a slot that nobody has, is kept."""
        lane = self._slots[part.group.slot]
        if lane is not None:
            lane.put(part)
        elif self._early is None or len(self._early) >= MOST_WAITING:
            self._room.fail(part.waiting, part.hits, self._fault)
            self.want()
        else:
            self._early.append(part)
            self.start()

    def want(self) -> None:
        """Ask for the map, soon."""
        self._wanted.set()

    def name_on(self, lane: Lane, start: str) -> str | None:
        """This name if its key is on that node, or else one that begins so and is; None when it has no slot for one."""
        if lane not in self._slots:
            return None
        if self._slots[slot_of(start)] is lane:
            return start
        return name_in_slot(start, self._slots.index(lane))

    def redirect(self, asked: Address, order: Order, error: str) -> bool:
        """Hand an order that `asked` has turned away to the node that has its slot; says whether it could be."""
        asking = error.startswith("ASK ")
        if not asking:
            self.want()
        try:
            slot, address = read_redirection(error, asked)
        except ValueError:
            return False
        lane = self._node(address)
        if not asking:
            self._slots[slot] = lane
        if lane.adopt(order, asking=asking):
            return True
        if asking:
            # A new node, that is not in the map before it has a whole slot: by the next look there is a way to it.
            lane.start()
            source = self._slots[slot]
            return source is not None and source.try_again(order)
        for part in order.parts:
            lane.put(part)
        return True

    def look(self, now: float) -> None:
        """See that all nodes answer."""
        for lane in self._nodes.values():
            lane.look(now)

    async def close(self) -> None:
        """Close all connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for lane in self._nodes.values():
            await lane.close()
        self._nodes.clear()
        self._answer_early(Fault("stopping"))

    def _group(self, script: Script, slot: int) -> Group:
        group = self._groups.get((script, slot))
        if group is None:
            group = self._groups[script, slot] = Group(script, slot)
        return group

    def _node(self, address: Address) -> Lane:
        lane = self._nodes.get(address)
        if lane is None:
            lane = self._nodes[address] = self._make_lane(address, self)
            lane.redirect = partial(self.redirect, address)
            lane.on_lost = self.want
        return lane

    async def _watch(self) -> None:
        """Ask for the map when it is wanted, ever more rarely while it is wanted again and again."""
        while True:
            asked = monotonic()
            await self._wanted.wait()
            if monotonic() - asked > LONGEST_PAUSE:
                self._pauses.reset()
            self._wanted.clear()
            try:
                await self._take(await self._read())
            except Fault as fault:
                self._open(fault)
            except Exception:
                log.exception("asking for the map of the cluster")
                self._open(Fault("error"))
            await asyncio.sleep(self._pauses.next())
            if not self.healthy:
                self._wanted.set()

    async def _read(self) -> Map:
        """Ask any node for the map: over a connection that there is, or else over one of its own. Raises Fault."""
        nodes = list(self._nodes.items())
        random.shuffle(nodes)
        for address, lane in nodes:
            if lane.healthy:
                with suppress(Fault, TimeoutError):
                    async with asyncio.timeout(_MAP_SECONDS):
                        return _map(await lane.ask("CLUSTER", "SLOTS"), address)
        return await read_map(self._target, [address for address, _ in nodes])

    async def _take(self, slots: Map) -> None:
        """Use this map from now on."""
        fresh: list[Lane | None] = [None] * SLOTS
        for first, last, address in slots:
            fresh[first : last + 1] = [self._node(address)] * (last + 1 - first)
        self._slots = fresh
        self._known = True
        self._unserved = fresh.count(None)
        if self._unserved:
            self._fault = Fault("clusterdown", f"{self._unserved} of {SLOTS} slots have no node")
            self._outage.begin(self._fault)
        else:
            self._outage.end()
        used = {address for _, _, address in slots}
        for address in [address for address in self._nodes if address not in used]:
            await self._nodes.pop(address).close()
        for address in used:
            self._nodes[address].start()
        early, self._early = self._early, None
        for part in early or ():
            self._put(part)

    def _open(self, fault: Fault) -> None:
        if not self._known:
            self._outage.begin(fault)
        self._fault = fault
        self._answer_early(fault)

    def _answer_early(self, fault: Fault) -> None:
        early, self._early = self._early, None
        for part in early or ():
            self._room.fail(part.waiting, part.hits, fault)


async def read_map(target: Target, known: Sequence[Address] = ()) -> Map:
    """The slots of each primary, from the first node that tells; those that are known are asked first. Raises Fault."""
    fault = Fault("unreachable")
    configured = list(target.servers.addresses)
    random.shuffle(configured)
    for address in dict.fromkeys((*known, *configured)):
        try:
            link = await Link.open(target.at(address))
            try:
                async with asyncio.timeout(_MAP_SECONDS):
                    return _map(await link.ask("CLUSTER", "SLOTS"), address)
            finally:
                link.abort()
        except Fault as error:
            fault = error
        except TimeoutError:
            fault = Fault("timeout")
    raise fault


def _map(reply: Any, asked: Address) -> Map:
    """What a node has told. Raises Fault when it knows of no slot."""
    found = [(first, last, _node_address(node, asked)) for first, last, node, *_ in reply]
    if not found:
        raise Fault("clusterdown")
    return found


def _node_address(node: Sequence[Any], asked: Address) -> Address:
    """A node that does not know its own name has the one under which it was asked."""
    return Tcp(_host(node[0].decode() if node[0] else "", asked), int(node[1]))


def read_redirection(error: str, asked: Address) -> tuple[int, Tcp]:
    """The slot that a MOVED or ASK is about, and the node that it names; ValueError when it is not written as one.

    Without a host (`cluster-preferred-endpoint-type unknown-endpoint`) it is that of the node which was asked.
    """
    _, slot, where = error.split(" ")
    host, _, port = where.rpartition(":")
    return int(slot), Tcp(_host(host, asked), int(port))


def _host(told: str, asked: Address) -> str:
    if told and told != "?":
        return told
    assert isinstance(asked, Tcp), "a cluster has no unix sockets"
    return asked.host
