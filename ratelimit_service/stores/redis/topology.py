"""The servers that hits go to: one, the primary that the sentinels name, or the node of a Cluster with their slot.

A Cluster's map of slots is read from any node, when a node has turned a script call away (MOVED) or is lost, and again
as long as a node, or the node of a slot, is missing. No hit waits for the map, except those that come before the first.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any, Final, Protocol

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.settings.fields import RedisType
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.breaker import MAX_PAUSE, Backoff
from ratelimit_service.stores.redis.checks import Checks
from ratelimit_service.stores.redis.faults import Fault
from ratelimit_service.stores.redis.keys import SLOTS, name_in_slot, slot_of
from ratelimit_service.stores.redis.lane import COMMAND, MAX_WAITING, Lane, LaneContext
from ratelimit_service.stores.redis.leases import Ask
from ratelimit_service.stores.redis.link import Link, call_script, noop, within
from ratelimit_service.stores.redis.replies import fitting, text
from ratelimit_service.stores.redis.requests import DeadlineQueue, PendingRequest
from ratelimit_service.stores.redis.script import MAX_IN_PART, Group, Part, Script, ScriptCall, cut
from ratelimit_service.stores.redis.target import Login, Target
from ratelimit_service.stores.store import LostServer
from ratelimit_service.system.address import Address, Tcp
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.tally import Tally

log = logging.getLogger(__name__)

PROBE_SECONDS: Final = 1.0
"""Seconds for a server to decide the probe on a new connection; callers do not wait longer for it than they granted."""

MAX_SENTINEL_SECONDS: Final = 0.5
"""Seconds for one sentinel to reply, before the next one is asked."""

_FOLLOW_SECONDS: Final = 1.0
"""Seconds between two questions to the sentinels whether the primary is still the same."""

_MAP_SECONDS: Final = 1.0
"""Seconds for a node to reply with the map."""

SlotMap = Sequence[tuple[int, int, Address]]
"""First slot, last slot, and the primary that has them."""


Put = Callable[[PendingRequest, Sequence[Hit]], None]
"""Sends these hits of a request to where their counters are."""


class Topology(Protocol):
    """The servers of one Redis."""

    @property
    def lanes(self) -> Iterable[Lane]:
        """The ways to all servers."""

    @property
    def healthy(self) -> bool:
        """All counters can be reached."""

    @property
    def lost(self) -> Sequence[LostServer]:
        """The servers that cannot decide hits now."""

    def start(self) -> None:
        """Begin to connect."""

    def putter(self, script: Script) -> Put:
        """What sends hits by this script."""

    def put_ask(self, ask: Ask, script: Script) -> None:
        """Send what is asked of a lease to where its counter is."""

    async def execute(self, key: str, *command: str | bytes | int) -> Any:
        """The reply to a command, other than a script call, of the server that has this key. Raises Fault."""

    def lane_of(self, key: str) -> Lane | None:
        """The way to the server that has this key, if there is one."""

    def check_servers(self, now: float) -> None:
        """Judge each server, several times a second."""

    async def close(self) -> None:
        """Close all connections."""


def open_topology(target: Target, script: Script, context: LaneContext, reset_key: str) -> Topology:
    """The servers of this Redis; `reset_key` says when counters were reset, on a Cluster's nodes with a suffix."""
    opener = Opener(target, script, context.checks)
    if target.kind is RedisType.CLUSTER:
        return Cluster(target, opener, context, reset_key)
    return OneServer(target, opener, context, reset_key)


class OneServer:
    """All counters on one server: always the same one, or the primary that the sentinels name."""

    def __init__(self, target: Target, opener: "Opener", context: LaneContext, reset_key: str) -> None:
        self._address = target.servers.addresses[0]
        self._opener = opener
        self._sentinels = Sentinels(target) if target.kind is RedisType.SENTINEL else None
        name = str(self._address) if self._sentinels is None else f"{target.servers.master} (by sentinels)"
        self._lane = Lane(name, self._open, context, reset_keys=lambda: (reset_key,))
        self.lanes = (self._lane,)
        self._follower: asyncio.Task[None] | None = None
        self._groups: dict[Script, Group] = {}

    @property
    def healthy(self) -> bool:
        """The server can decide hits now."""
        return self._lane.healthy

    @property
    def lost(self) -> Sequence[LostServer]:
        """The server, if it cannot decide hits now."""
        return () if self._lane.lost is None else (self._lane.lost,)

    def start(self) -> None:
        """Begin to connect, and to follow the sentinels."""
        self._lane.start()
        if self._sentinels is not None and self._follower is None:
            self._follower = asyncio.get_running_loop().create_task(self._follow(self._sentinels))

    def putter(self, script: Script) -> Put:
        """The lane to the one server."""
        return partial(self._lane.put_hits, self._group(script))

    def put_ask(self, ask: Ask, script: Script) -> None:
        """Send it to the one server."""
        self._lane.put_ask(self._group(script), ask)

    async def execute(self, key: str, *command: str | bytes | int) -> Any:
        """The server's reply to a command. Raises Fault."""
        return await self._lane.execute(*command)

    def lane_of(self, key: str) -> Lane:
        """The way to the one server."""
        return self._lane

    def check_servers(self, now: float) -> None:
        """Judge the server."""
        self._lane.check_server(now)

    async def close(self) -> None:
        """Close the connections."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
        await self._lane.close()
        if self._sentinels is not None:
            self._sentinels.close()

    def _group(self, script: Script) -> Group:
        return self._groups.get(script) or self._groups.setdefault(script, Group(script))

    async def _open(self) -> Link:
        """A link to the server, or to the primary of now. Raises Fault."""
        address = self._address if self._sentinels is None else await self._sentinels.primary()
        link = await self._opener.open(address, self._opener.probe_key)
        self._address = address
        return link

    async def _follow(self, sentinels: "Sentinels") -> None:
        """Disconnect from a primary when the sentinels name another one."""
        # For ten seconds no sentinel makes the old primary a replica, and it goes on counting.
        while True:
            await asyncio.sleep(random.uniform(1, 1.5) * _FOLLOW_SECONDS)  # noqa: S311 - so that not all ask at once
            with suppress(Fault):
                if self._lane.healthy and await sentinels.primary() != self._address:
                    self._lane.disconnect()


class Sentinels:
    """The sentinels that know where the primary is.

    The one that replied last is asked again on the same connection; the others follow in random order, since a sentinel
    decides on failovers in its only thread, and hundreds of workers ask each second.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._sentinels: list[Address] = list(target.servers.addresses)
        random.shuffle(self._sentinels)
        self._link: Link | None = None
        """To the one that replied last."""
        self._lock = asyncio.Lock()

    async def primary(self) -> Address:
        """The address of the primary. Raises Fault."""
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
                    self._link = await within(MAX_SENTINEL_SECONDS, Link.open(self._target.at_sentinel(sentinel)))
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
        reply = link.execute("SENTINEL", "get-master-addr-by-name", self._target.servers.master)
        found = await within(MAX_SENTINEL_SECONDS, reply)
        with fitting("SENTINEL"):
            return None if found is None else Tcp(text(found[0]).decode(), int(found[1]))


class Cluster:
    """All counters on the nodes of a cluster, each on the node that has its slot."""

    def __init__(self, target: Target, opener: "Opener", context: LaneContext, reset_key: str) -> None:
        self._target = target
        self._opener = opener
        self._context = context
        self._pending = context.pending
        self._reset_key = reset_key
        self._nodes: dict[Address, Lane] = {}
        self._slots: list[Lane | None] = [None] * SLOTS
        self._groups: dict[tuple[Script, int], Group] = {}
        self._early: list[Part] | None = []
        """Parts that came before the first map, or the first error in place of it."""
        self._fault = Fault("unreachable")
        self._outage = context.outage(f"{target.servers.addresses[0]} and its cluster")
        self._backoff = Backoff()
        self._map_wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._has_map = False
        self._unserved = 0
        """Slots that the map gives to no node."""

    @property
    def lanes(self) -> Sequence[Lane]:
        """The ways to all nodes."""
        return tuple(self._nodes.values())

    @property
    def healthy(self) -> bool:
        """All slots can be reached."""
        return self._has_map and not self._unserved and all(lane.healthy for lane in self._nodes.values())

    @property
    def lost(self) -> Sequence[LostServer]:
        """The nodes that cannot decide hits now; the cluster, as long as no node replies with the map."""
        found = (self._outage.lost, *(lane.lost for lane in self._nodes.values()))
        return [lost for lost in found if lost is not None]

    def start(self) -> None:
        """Begin to read the map."""
        if self._task is None:
            self._map_wanted.set()
            self._task = asyncio.get_running_loop().create_task(self._keep_map())

    def putter(self, script: Script) -> Put:
        """The nodes that have the slots of the hits."""
        return partial(self._put_hits, script)

    def _put_hits(self, script: Script, request: PendingRequest, hits: Sequence[Hit]) -> None:
        """Send a part for each slot to the node that has it."""
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
        if len(hits) + COMMAND * len(by_slot) > MAX_IN_PART:
            self._put_many(request, by_slot, script)
            return
        request.parts_left += len(by_slot)
        for slot, (of_slot, names) in by_slot.items():
            self._put(Part(request, of_slot, self._group(script, slot), names))

    def put_ask(self, ask: Ask, script: Script) -> None:
        """Send it to the node that has the slot of its counter, if there is one."""
        slot = slot_of(script.key(ask.counter))
        lane = self._slots[slot]
        if lane is None:
            self._context.leases.unsent(ask)
        else:
            lane.put_ask(self._group(script, slot), ask)

    async def execute(self, key: str, *command: str | bytes | int) -> Any:
        """The reply of the node that has the key's slot. Raises Fault; if the slot has moved, the map is read again."""
        lane = self._slots[slot_of(key)]
        try:
            if lane is None:
                raise self._fault
            return await lane.execute(*command)
        except Fault as fault:
            if lane is None or fault.cause == "moved":
                self._request_map()
            raise

    def lane_of(self, key: str) -> Lane | None:
        """The way to the node that has the key's slot."""
        return self._slots[slot_of(key)]

    def check_servers(self, now: float) -> None:
        """Judge each node."""
        for lane in self._nodes.values():
            lane.check_server(now)

    async def close(self) -> None:
        """Close all connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for lane in self._nodes.values():
            await lane.close()
        self._nodes.clear()
        self._fail_early(Fault("stopping"))

    def _put_many(
        self, request: PendingRequest, by_slot: Mapping[int, tuple[Sequence[Hit], Sequence[str]]], script: Script
    ) -> None:
        """Send the parts bit by bit to each node."""
        parts = []
        for slot, (of_slot, names) in by_slot.items():
            rest = iter(names)
            for piece in cut(of_slot):
                of_piece = list(islice(rest, len(piece)))
                parts.append(Part(request, piece, self._group(script, slot), of_piece))
        request.parts_left += len(parts)
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
        """Send the part to its node; before the first map it is kept, afterwards a slot without a node is a failure."""
        lane = self._slots[part.group.slot]
        if lane is not None:
            lane.put(part)
        elif self._early is None or len(self._early) >= MAX_WAITING:
            self._fail(part, self._fault)
            self._request_map()
        else:
            self._early.append(part)
            self.start()

    def _fail(self, part: Part, fault: Fault) -> None:
        self._pending.fail(part.request, part.hits, fault)

    def _request_map(self) -> None:
        """Read the map again, soon."""
        self._map_wanted.set()

    def _redirect(self, asked: Address, call: ScriptCall, error: str) -> bool:
        """Hand a script call that the node `asked` has turned away to the node that has its slot; False: impossible."""
        # MOVED: the slot has another node now. ASK: the slot is on its way, and this call alone goes to the other node,
        # after ASKING; the map stays as it is (Redis Cluster specification, "ASK redirection").
        asking = error.startswith("ASK ")
        if not asking:
            self._request_map()
        try:
            slot, address = read_redirection(error, asked)
        except ValueError:
            return False
        lane = self._node(address)
        if not asking:
            self._slots[slot] = lane
        if lane.resend(call, asking=asking):
            return True
        if asking:
            # A new node, which is in the map only when it has a whole slot: at the next try it is connected.
            lane.start()
            source = self._slots[slot]
            return source is not None and source.retry(call)
        # That node is not connected: they wait for it as others do, or are answered by policy.
        for part in call.parts:
            lane.put(part)
        for ask in call.asks:
            lane.put_ask(call.group, ask)
        return True

    def _group(self, script: Script, slot: int) -> Group:
        group = self._groups.get((script, slot))
        if group is None:
            group = self._groups[script, slot] = Group(script, slot)
        return group

    def _node(self, address: Address) -> Lane:
        """The lane to that node, a new one if there is none."""
        lane = self._nodes.get(address)
        if lane is None:
            lane = self._nodes[address] = Lane(
                str(address),
                partial(self._open_node, address),
                self._context,
                reset_keys=partial(self._reset_keys, address),
                redirect=partial(self._redirect, address),
                on_lost=self._request_map,
            )
        return lane

    async def _open_node(self, address: Address) -> Link:
        """A link to that node, tried out if it has a slot. Raises Fault."""
        return await self._opener.open(address, self._key_on(address, self._opener.probe_key))

    def _reset_keys(self, address: Address) -> Sequence[str]:
        key = self._key_on(address, self._reset_key)
        return () if key is None else (key,)

    def _key_on(self, address: Address, start: str) -> str | None:
        """A key on that node: `start`, or one that begins with it; None when the node has no slot for one."""
        lane = self._nodes.get(address)
        if lane is None or lane not in self._slots:
            return None
        if self._slots[slot_of(start)] is lane:
            return start
        return name_in_slot(start, self._slots.index(lane))

    async def _keep_map(self) -> None:
        """Read the map whenever it is requested, with backoff while it is requested again and again."""
        while True:
            waited_from = monotonic()
            await self._map_wanted.wait()
            if monotonic() - waited_from > MAX_PAUSE:
                self._backoff.reset()
            self._map_wanted.clear()
            try:
                await self._use_map(await self._read_map())
            except Fault as fault:
                self._on_no_map(fault)
            except Exception:
                log.exception("reading CLUSTER SLOTS failed")
                self._on_no_map(Fault("error"))
            await asyncio.sleep(self._backoff.next())
            if not self.healthy:
                self._map_wanted.set()

    async def _read_map(self) -> SlotMap:
        """The map of any node: over a lane's connection if one is healthy, else over a new connection. Raises Fault."""
        nodes, configured = list(self._nodes.items()), list(self._target.servers.addresses)
        random.shuffle(nodes)  # so that after a failover not all instances ask the same node
        random.shuffle(configured)
        for address, lane in nodes:
            if lane.healthy:
                with suppress(Fault):
                    return slot_map(await within(_MAP_SECONDS, lane.execute("CLUSTER", "SLOTS")), address)
        fault = Fault("unreachable")
        for address in dict.fromkeys((*(address for address, _ in nodes), *configured)):
            try:
                return await read_slot_map(self._target.at(address))
            except Fault as error:
                fault = error
        raise fault

    async def _use_map(self, slots: SlotMap) -> None:
        """Send hits by this map from now on."""
        fresh: list[Lane | None] = [None] * SLOTS
        for first, last, address in slots:
            fresh[first : last + 1] = [self._node(address)] * (last + 1 - first)
        self._slots = fresh
        self._has_map = True
        self._unserved = fresh.count(None)
        if self._unserved:
            self._fault = Fault("clusterdown", f"{self._unserved} of {SLOTS} slots have no node")
            self._outage.begin(self._fault)
        else:
            self._outage.end()
        used = {address for _, _, address in slots}
        for address in [address for address in self._nodes if address not in used]:
            await self._nodes.pop(address).retire()
        for address in used:
            self._nodes[address].start()
        early, self._early = self._early, None
        for part in early or ():
            self._put(part)

    def _on_no_map(self, fault: Fault) -> None:
        if not self._has_map:
            self._outage.begin(fault)
        self._fault = fault
        self._fail_early(fault)

    def _fail_early(self, fault: Fault) -> None:
        early, self._early = self._early, None
        for part in early or ():
            self._fail(part, fault)


class Opener:
    """Opens links to servers that can decide hits.

    A server is tried out with a hit: only that shows that it is not a replica, has memory left, and lets our user in.
    """

    def __init__(self, target: Target, script: Script, checks: Checks) -> None:
        self._target = target
        self._script = script
        self._checks = checks
        rule = Rule("", (), Limit(2**31, Unit.SECOND, SECOND), open_algorithm("fixed_window"))
        self._probe = Hit(rule, "probe", 1, tally=Tally(), quota=False)
        self.probe_key = script.key(self._probe)

    async def open(self, address: Address, probe_key: str | None) -> Link:
        """A link to that server, tried out on the counter of that name; with None it is not tried out. Raises Fault."""
        link = await Link.open(self._target.at(address))
        try:
            if probe_key is not None:
                await self._try_out(link, probe_key)
        except BaseException:
            link.abort()
            raise
        self._checks.check_once(link, str(address))
        return link

    async def _try_out(self, link: Link, key: str) -> None:
        """Charge the counter of that name. Raises Fault, also when it takes longer than `PROBE_SECONDS`."""
        hits = (self._probe,)
        script = self._script
        request = PendingRequest(hits, noop, DeadlineQueue(0.0), 0.0)
        keys, arguments, runs = script.encode([Part(request, hits, Group(script), [key])])
        script.decode(await within(PROBE_SECONDS, call_script(link.execute, script, keys, arguments)), runs)


async def read_slot_map(login: Login) -> SlotMap:
    """The map of that node, over a new connection. Raises Fault."""
    link = await Link.open(login)
    try:
        return slot_map(await within(_MAP_SECONDS, link.execute("CLUSTER", "SLOTS")), login.address)
    finally:
        link.abort()


@fitting("CLUSTER SLOTS")
def slot_map(reply: Any, asked: Address) -> SlotMap:
    """The reply of the node `asked` as a map. Raises Fault when it knows of no slot."""
    found = [
        (_slot(first), _slot(last), node_address(text(host).decode() if host else "", int(port), asked))
        for first, last, (host, port, *_), *_ in reply
    ]
    if not found:
        raise Fault("clusterdown")
    return found


def read_redirection(error: str, asked: Address) -> tuple[int, Tcp]:
    """The slot that a MOVED or ASK is about, and the node that it names; ValueError when it cannot be read."""
    _, slot, where = error.split(" ")
    host, _, port = where.rpartition(":")
    return _slot(slot), node_address(host, int(port), asked)


def _slot(number: int | str) -> int:
    slot = int(number)
    if not 0 <= slot < SLOTS:
        raise ValueError(slot)
    return slot


def node_address(host: str, port: int, asked: Address) -> Tcp:
    """The address of a node as the node `asked` names it; ValueError for a port that there is not.

    Without a host (`cluster-preferred-endpoint-type unknown-endpoint`, or a node that does not know its own name) it is
    the host of the node `asked`.
    """
    if not 0 < port < 65536:
        raise ValueError(port)
    if host and host != "?":
        return Tcp(host, port)
    assert isinstance(asked, Tcp), "a cluster has no unix sockets"
    return Tcp(asked.host, port)
