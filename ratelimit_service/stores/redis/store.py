"""Counters in Redis, shared by all instances: the shell that joins the parts. Hot path.

A request's hits are handed to the lanes of the servers that have their counters; each lane sends what has come in one
call. `hit` never waits, and makes no task, no future and no timer: one timer answers whoever has waited too long.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from math import inf
from time import monotonic
from typing import Final

from ratelimit_service.errors import TooHeavyError
from ratelimit_service.model import Cancel
from ratelimit_service.rules.rule import Rule
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import KeyFormat, RedisType
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.checks import Checks
from ratelimit_service.stores.redis.denied import BYTES, Refusals
from ratelimit_service.stores.redis.faults import Fault
from ratelimit_service.stores.redis.keys import cluster_key, plain_key, resets_key
from ratelimit_service.stores.redis.lane import Lane
from ratelimit_service.stores.redis.link import Link
from ratelimit_service.stores.redis.policy import Policy
from ratelimit_service.stores.redis.requests import Grants, Waiting, WaitingRoom
from ratelimit_service.stores.redis.script import MOST_IN_CALL, BatchScript, Script, largest_bundle
from ratelimit_service.stores.redis.target import Target, is_clustered, is_per_second, main_target, per_second_target
from ratelimit_service.stores.redis.topology import Cluster, OneServer, Opener, Probe, Sentinels, Servers
from ratelimit_service.stores.redis.upstream import UpstreamScript, is_upstreams
from ratelimit_service.stores.store import Done, Lost
from ratelimit_service.system.address import Address
from ratelimit_service.system.clock import Clock, system_clock
from ratelimit_service.telemetry.metric import Metric, MetricType

_COARSE: Final = 0.001
"""Seconds between two looks at which requests have waited too long, at the least."""

_ONE_POLL: Final = 0.001
"""Seconds after which the event loop has read its sockets at least once. Nothing is judged by the clock before: if this
process was not running (throttled, stopped, starved), then what looks late lies there unread."""

_STALLED: Final = 0.005
"""Seconds by which that may come late. If it does, the process was not running meanwhile either, and polls again."""

_MOST_POLLS: Final = 4
"""Before it is judged all the same."""


class RedisStore:
    """Counters in the servers of `main`, those of `is_per_second` rules in `per_second` if there is such a Redis.

    `upstream` is the script for the rules that count under upstream's names, if any shall.
    """

    name = "redis"
    evicted = 0
    """Redis never forgets a counter that is alive, if its maxmemory-policy is as it should be."""

    def __init__(  # noqa: PLR0913 - the parts are made by open_redis
        self,
        main: Servers,
        script: Script,
        policy: Policy,
        room: WaitingRoom,
        checks: Checks,
        refusals: Refusals | None,
        *,
        grants: Grants,
        per_second: Servers | None = None,
        upstream: Script | None = None,
    ) -> None:
        self._main = main
        self._script = script
        self._policy = policy
        self._room = room
        self._checks = checks
        self._refusals = refusals
        self.charge = None if refusals is None else self._refuse
        self._grants = grants
        self._granted = grants.known.get
        self._per_second = per_second
        self._upstream = upstream
        self._alike = per_second is None and upstream is None
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf
        """When the timer is about to look which requests have waited too long."""
        self._all = [main] if per_second is None else [main, per_second]
        self._started = False
        self._closed = False

    @property
    def healthy(self) -> bool:
        """Every server can decide hits."""
        return all(servers.healthy for servers in self._all)

    @property
    def counters(self) -> int:
        """How many keys the servers have, whoever made them, as they said a few seconds ago."""
        return sum(lane.counters for lane in self.lanes)

    @property
    def errors(self) -> Mapping[str, int]:
        """Requests answered by policy, by cause."""
        return self._room.errors

    @property
    def lost(self) -> Sequence[Lost]:
        """Each server that cannot decide hits now."""
        return [lost for servers in self._all for lost in servers.lost]

    def metrics(self) -> Sequence[Metric]:
        """As StoreStatus says."""
        meaning = "Requests that the store decided in the last fifth of the time that it was given."
        late = Metric("ratelimit_store_late_answers_total", MetricType.COUNTER, meaning, [((), self._room.close_calls)])
        return (*self._grants.metrics(), late)

    @property
    def lanes(self) -> list[Lane]:
        """The ways to all servers."""
        return [lane for servers in self._all for lane in servers.lanes]

    def hit(self, hits: Sequence[Hit], done: Done, timeout: int | None = None) -> Cancel | None:
        """Send the hits; `done` is called when the last is decided, or when the time is over that `Grants` say."""
        now = monotonic()
        refusals = self._refusals
        if refusals is not None and refusals.known:
            left = refusals.answer(hits, now)
            if not left:
                done(None)
                return None
            hits = left
        if len(hits) > MOST_IN_CALL and (together := largest_bundle(hits)) > MOST_IN_CALL:
            done(_too_heavy(together))
            return None
        grant = self._granted(timeout) or self._grants.of(timeout)
        grant.requests += 1
        granted = grant.seconds
        deadline = now + granted
        waiting = Waiting(hits, done, deadline, granted)
        grant.enter(waiting)
        if deadline < self._due:
            self._arm(deadline)
        if self._alike:
            self._main.put(waiting, hits, self._script)
        else:
            self._put_by_kind(waiting, hits)
        return None if waiting.answered else waiting.cancel

    def sweep(self) -> None:
        """Look after the servers; the first time, begin to look for them."""
        if not self._started:
            self._started = True
            for servers in self._all:
                servers.start()
        self._after_poll(self._look)
        self._policy.sweep()
        if self._refusals is not None:
            self._refusals.sweep(monotonic())

    async def close(self) -> None:
        """Close all connections; whoever waits is answered by policy."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._checks.close()
        for servers in self._all:
            await servers.close()
        self._room.clear(Fault("stopping"))

    def _refuse(self, hits: Sequence[Hit]) -> bool:
        """Decide a single hit that is known to be refused: a flood of those pays for nothing else."""
        refusals = self._refusals
        assert refusals is not None
        return len(hits) == 1 and hits[0].key in refusals.known and not refusals.answer(hits, monotonic())

    def _put_by_kind(self, waiting: Waiting, hits: Sequence[Hit]) -> None:
        """The same, when not all hits go to the same servers by the same script; their order stays within each."""
        kinds: dict[tuple[Servers, Script], list[Hit]] = {}
        for hit in hits:
            kinds.setdefault(self._kind(hit.rule), []).append(hit)
        waiting.left += 1  # for all to be on their way, whatever is answered at once
        for (servers, script), some in kinds.items():
            servers.put(waiting, some, script)
        waiting.settle()

    def _kind(self, rule: Rule) -> tuple[Servers, Script]:
        servers = self._per_second if self._per_second is not None and is_per_second(rule) else self._main
        script = self._upstream if self._upstream is not None and is_upstreams(rule) else self._script
        return servers, script

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = deadline
        loop = asyncio.get_running_loop()
        pause = max(_COARSE, deadline - monotonic() - _ONE_POLL)
        self._timer = loop.call_later(pause, self._wait_for_poll)

    def _wait_for_poll(self) -> None:
        self._timer, self._due = None, -inf
        self._after_poll(self._expire)

    def _after_poll(self, judge: Callable[[], None], polls: int = _MOST_POLLS) -> None:
        """Call it when all is read that has come until now."""
        asyncio.get_running_loop().call_later(_ONE_POLL, self._polled, monotonic() + _ONE_POLL, judge, polls - 1)

    def _polled(self, due: float, judge: Callable[[], None], polls: int) -> None:
        if self._closed:
            return
        if polls and monotonic() - due > _STALLED:
            self._after_poll(judge, polls)
        else:
            judge()

    def _expire(self) -> None:
        self._due = inf
        deadline = self._room.expire(monotonic())
        self._look()
        if deadline is not None and deadline < self._due:
            self._arm(deadline)

    def _look(self) -> None:
        now = monotonic()
        for servers in self._all:
            servers.look(now)


def _too_heavy(together: int) -> TooHeavyError:
    return TooHeavyError(f"{together} limits are to be charged together, the most is {MOST_IN_CALL}")


def open_redis(settings: Settings, clock: Clock | None = None) -> RedisStore:
    """The store that the settings describe. It looks for its servers from its first `sweep` on.

    Tests hand it a clock, which then stands in for that of Redis.
    """
    policy = Policy(
        settings.on_store_failure,
        settings.instances,
        settings.memory_max_counters,
        most_bytes=settings.memory_max_bytes,
    )
    room = WaitingRoom(policy)
    checks = Checks()
    main, per_second = main_target(settings), per_second_target(settings)
    name = cluster_key if is_clustered(main, per_second) else plain_key
    script = BatchScript(name(settings.cache_key_prefix), clock, jitter_seconds=settings.expiration_jitter_max_seconds)
    upstream = None
    if settings.key_format is KeyFormat.ENVOYPROXY:
        jitter = settings.expiration_jitter_max_seconds
        upstream = UpstreamScript(settings.cache_key_prefix, jitter, clock or system_clock)
    refusals = _refusals(settings)
    make_lane = partial(_lane, room, refusals, checks, settings.on_store_failure)
    make = partial(_servers, make_lane, script, room, checks, settings)
    return RedisStore(
        make(main),
        script,
        policy,
        room,
        checks,
        refusals,
        grants=Grants(room, settings.store_deadline),
        per_second=make(per_second) if per_second else None,
        upstream=upstream,
    )


def _refusals(settings: Settings) -> Refusals | None:
    size = settings.local_cache_size_in_bytes
    most = max(settings.refused_max_counters * BYTES, size)
    return Refusals(most, windows=size > 0) if most else None


OpenLink = Callable[[], Awaitable[Link]]
Watched = Callable[[], Sequence[str]]
MakeLane = Callable[[str, OpenLink, Watched], Lane]


def _servers(
    make_lane: MakeLane, script: BatchScript, room: WaitingRoom, checks: Checks, settings: Settings, target: Target
) -> Servers:
    policy = settings.on_store_failure
    resets = resets_key(settings.cache_key_prefix)
    probe = Probe(script)
    opener = Opener(target, probe, checks)
    first = target.servers.addresses[0]
    match target.kind:
        case RedisType.CLUSTER:

            def lane_to(address: Address, cluster: Cluster) -> Lane:
                async def open_link() -> Link:
                    return await opener.open(address, cluster.name_on(lane, probe.name))

                def watched() -> Sequence[str]:
                    name = cluster.name_on(lane, resets)
                    return () if name is None else (name,)

                lane = make_lane(str(address), open_link, watched)
                return lane

            return Cluster(target, lane_to, room, policy)
        case RedisType.SENTINEL:
            sentinels = Sentinels(target, opener)
            name = f"{target.servers.master} (by sentinels)"
            return OneServer(make_lane(name, sentinels.open, lambda: (resets,)), sentinels)
        case RedisType.SINGLE:
            return OneServer(make_lane(str(first), partial(opener.open, first), lambda: (resets,)))


def _lane(  # noqa: PLR0913, PLR0917 - all but the last three are the same for all lanes
    room: WaitingRoom,
    refusals: Refusals | None,
    checks: Checks,
    policy: str,
    name: str,
    open_link: OpenLink,
    watched: Watched,
) -> Lane:
    lane = Lane(name, open_link, room, policy=policy)
    lane.compare_clocks = partial(checks.compare_clocks, name=name)
    if refusals is not None:
        lane.learn, lane.forget, lane.watched = refusals.learn, refusals.forget, watched
    return lane
