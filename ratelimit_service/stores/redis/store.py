"""Counters in Redis, shared by all instances: the parts of the store, and the timer of its deadlines. Hot path.

A request's hits go to the lanes of the servers that have their counters; each lane sends what has come in one pipeline.
`hit` never waits, and makes no task, no future and no timer: one timer answers all requests whose deadline has passed.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from random import getrandbits
from time import monotonic
from typing import Any, Final, NamedTuple

from ratelimit_service.algorithms.lease import Wanted, leasing
from ratelimit_service.errors import TooHeavyError
from ratelimit_service.model import Cancel
from ratelimit_service.rules.bans import Bans
from ratelimit_service.rules.rule import Rule
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import KeyFormat
from ratelimit_service.stores.hit import Hit, OnCounter
from ratelimit_service.stores.redis.bans import BanFollower, BanTable
from ratelimit_service.stores.redis.checks import Checks
from ratelimit_service.stores.redis.denied import ENTRY_BYTES, DeniedCache
from ratelimit_service.stores.redis.envoyproxy import EnvoyproxyScript, counts_as_envoyproxy
from ratelimit_service.stores.redis.faults import Fault
from ratelimit_service.stores.redis.floors import Floors
from ratelimit_service.stores.redis.home import Home
from ratelimit_service.stores.redis.kept import GRANTED
from ratelimit_service.stores.redis.keys import resets_key
from ratelimit_service.stores.redis.lane import Lane, LaneContext, home_context
from ratelimit_service.stores.redis.leases import Ask, LeasedCounter, Leases
from ratelimit_service.stores.redis.link import within
from ratelimit_service.stores.redis.policy import Policy
from ratelimit_service.stores.redis.register import Registrar
from ratelimit_service.stores.redis.replies import read_time
from ratelimit_service.stores.redis.requests import PendingRequest, PendingRequests
from ratelimit_service.stores.redis.script import MAX_IN_PIPELINE, BatchScript, Script, largest_bundle
from ratelimit_service.stores.redis.target import (
    has_cluster_names,
    home_target,
    is_clustered,
    main_target,
    per_second_target,
    redis_of,
)
from ratelimit_service.stores.redis.topology import Topology, open_topology
from ratelimit_service.stores.store import Done, LostServer, OnTaken
from ratelimit_service.system.clock import DAY, SECOND, Clock, system_clock
from ratelimit_service.telemetry.gauges import Gauges
from ratelimit_service.telemetry.metric import Metric
from ratelimit_service.telemetry.tally import Tally

_MIN_PAUSE: Final = 0.001
"""Seconds between two looks for passed deadlines."""

_ONE_POLL: Final = 0.001
"""Seconds after which the event loop has read its sockets at least once. Nothing is judged by the clock before: if this
process did not run (throttled, stopped, starved), the replies that look late lie there unread."""

_STALLED: Final = 0.005
"""If that comes later than this, the process did not run meanwhile either, and waits for another poll."""

_MAX_POLLS: Final = 4
"""Before it judges all the same."""

_GIVE_BACK_SECONDS: Final = 0.5
"""Seconds to give back leases, when the process stops."""

_RESET_SECONDS: Final = 5.0
"""Seconds for all commands of a reset."""


def open_redis(settings: Settings, clock: Clock | None = None) -> "RedisStore":
    """The store that the settings describe. It connects to its servers from its first `sweep` on.

    Tests pass a clock, which then replaces that of Redis.
    """
    policy = Policy(
        settings.on_store_failure,
        settings.instances,
        settings.memory_max_counters,
        max_bytes=settings.memory_max_bytes,
    )
    pending = PendingRequests(policy, settings.store_deadline)
    cache_bytes = max(settings.refused_max_counters * ENTRY_BYTES, settings.local_cache_size_in_bytes)
    denied = DeniedCache(cache_bytes, windows=settings.local_cache_size_in_bytes > 0) if cache_bytes else None
    context = LaneContext(
        pending, denied, Checks(), policy, Leases(deny=settings.lease_deny_ms * 1000, seed=getrandbits(32))
    )
    prefix, jitter = settings.cache_key_prefix, settings.expiration_jitter_max_seconds
    main, per_second, home = main_target(settings), per_second_target(settings), home_target(settings)
    floors = None if home is None else Floors(settings.region, settings.regions)
    script = BatchScript(
        prefix,
        clock,
        clustered=has_cluster_names(main, per_second, home),
        jitter_seconds=jitter,
        sync_seconds=settings.region_sync_seconds,
        floors=floors,
    )
    with_envoyproxy = settings.key_format is KeyFormat.ENVOYPROXY
    at_home = None
    if home is not None and floors is not None:

        async def own(key: str, *command: str | bytes | int) -> Any:
            return await topologies.main.execute(key, *command)

        topology = open_topology(home, script, home_context(context), resets_key(prefix))
        registrar = Registrar(floors, topology.execute, own, prefix, on_change=script.forget_limits, clock=clock)
        at_home = Home(topology, script, pending, registrar, clustered=is_clustered(home))
        context = context._replace(wait_for_home=at_home.wait_for_home)
    topologies = Topologies(
        open_topology(main, script, context, resets_key(prefix)),
        open_topology(per_second, script, context, resets_key(prefix)) if per_second else None,
        None if at_home is None else at_home.topology,
    )
    return RedisStore(
        context,
        script,
        topologies,
        home=at_home,
        envoyproxy=EnvoyproxyScript(prefix, jitter, clock or system_clock) if with_envoyproxy else None,
        prefix=prefix,
    )


class Topologies(NamedTuple):
    """The topologies that have counters; `redis_of` says which of these has those of a rule."""

    main: Topology
    per_second: Topology | None
    home: Topology | None
    """What all regions share. It may be far away, and lost while this region goes on."""


class RedisStore:
    """Counters in the servers of these topologies.

    `envoyproxy` is the script for the rules that count under envoyproxy's names, if there are any.
    """

    name = "redis"
    evicted = 0
    """Redis never evicts a live counter, if its maxmemory-policy is as it should be."""

    def __init__(
        self,
        context: LaneContext,
        script: Script,
        topologies: Topologies,
        *,
        home: Home | None = None,
        envoyproxy: Script | None = None,
        prefix: str = "",
    ) -> None:
        self._pending = context.pending
        self._queue_of = context.pending.by_timeout.get  # no call of ours for a timeout that was seen before
        self._denied = context.denied
        self._leases = context.leases
        self._held_keys = context.leases.by_key
        self._checks = context.checks
        self._policy = context.policy
        self._script = script
        self._main = topologies.main
        self._by_rule = topologies
        self._home = home
        self._envoyproxy = envoyproxy
        self._topologies = [topology for topology in topologies if topology is not None]
        scripts = [each for each in (script, envoyproxy) if each is not None]
        self._putters = {(topology, each): topology.putter(each) for topology in self._topologies for each in scripts}
        # Where all hits go to the same servers by the same script, nothing chooses.
        self._put = self._put_by_kind if len(self._putters) > 1 else self._putters[self._main, script]
        self._prefix = prefix
        self._bans: BanFollower | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf
        """When the timer is about to look for passed deadlines."""
        self._started = False
        self._closed = False

    @property
    def healthy(self) -> bool:
        """Every server of this region can decide hits. Were the home needed too, its loss would stop all regions."""
        return all(topology.healthy for topology in self._topologies if topology is not self._by_rule.home)

    @property
    def counters(self) -> int:
        """The number of keys on the servers, of all their users, as they replied a few seconds ago."""
        return sum(lane.counters for lane in self.lanes)

    @property
    def errors(self) -> Mapping[str, int]:
        """Requests answered by policy, by cause."""
        return self._pending.errors

    @property
    def lost(self) -> Sequence[LostServer]:
        """The servers that cannot decide hits now."""
        return [lost for topology in self._topologies for lost in topology.lost]

    @property
    def warnings(self) -> Sequence[str]:
        """As Store says."""
        return () if self._home is None else [*self._home.registrar.warnings.values()]

    def metrics(self) -> Sequence[Metric]:
        """As Store says."""
        of_home = () if self._home is None else self._home.metrics()
        return (*self._pending.metrics(), *self._pending.kept.metrics(), *self._leases.metrics(), *of_home)

    def held(self, key: str) -> int:
        """As Store says."""
        leased = self._leases.by_key.get(key)
        return 0 if leased is None else leased.lease.held

    def leased(self) -> Mapping[Tally, Gauges]:
        """As Store says."""
        return self._leases.by_rule()

    def use(self, rules: Iterable[Rule]) -> None:
        """As Store says."""
        if self._home is not None:
            self._home.registrar.use(rules)

    def keep_bans(self, bans: Bans) -> BanFollower:
        """As Store says; they are in the main Redis."""
        self._bans = BanFollower(bans, BanTable(self._main.execute, self._prefix))
        return self._bans

    async def reset(self, hits: Sequence[Hit]) -> int:
        """As Store says. Other processes forget what they hold and what was denied within seconds, by the reset key."""
        reset = await within(_RESET_SECONDS, self._reset(hits))
        self._leases.drop_all()
        if self._denied is not None:
            self._denied.clear()
        return reset

    async def _reset(self, hits: Sequence[Hit]) -> int:
        reset = 0
        for hit in hits:
            topology, script = self._kind(hit.rule)
            names = script.kept(hit)
            reset += bool(await topology.execute(names[0], "UNLINK", *names))
            if self._home is not None:
                await self._home.reset(hit)
        key = resets_key(self._prefix)
        for topology in dict.fromkeys(self._kind(hit.rule)[0] for hit in hits):
            moment = read_time(await topology.execute(key, "TIME"))
            await topology.execute(key, "SET", key, moment, "PX", DAY // 1000)
        return reset

    @property
    def lanes(self) -> list[Lane]:
        """The ways to all servers."""
        return [lane for topology in self._topologies for lane in topology.lanes]

    def hit(self, hits: Sequence[Hit], done: Done, timeout: int | None = None) -> Cancel | None:
        """Send the hits; `done` is called when the last one is decided, or when the deadline has passed."""
        now = monotonic()
        left = hits
        for hit in hits:
            if hit.rule.lease or (hit.rule.override and hit.key in self._held_keys):
                left = self._spend(hits, now)
                break
        charged = len(left) < len(hits)
        denied = self._denied
        if left and denied is not None and denied.known:
            left = denied.answer(left, now)
        too_heavy = len(left) > MAX_IN_PIPELINE and largest_bundle(left) > MAX_IN_PIPELINE
        if not left or too_heavy:
            done(_too_heavy(left) if too_heavy else None)
            return None
        queue = self._queue_of(timeout) or self._pending.queue_for(timeout)
        queue.total += 1
        deadline = now + queue.granted
        request = PendingRequest(left, done, queue, deadline)
        queue.requests.append(request)
        if deadline < self._due:
            self._arm(deadline)
        self._put(request, left)
        # What was allowed by units that are held here has been charged.
        return None if request.answered or charged else request.cancel

    def _spend(self, hits: Sequence[Hit], now: float) -> Sequence[Hit]:
        """Decide hits by units that are held; returns the others."""
        leases = self._leases
        if hits[0].may_wait:
            return hits  # a queue gives no turn to what another limit refuses: all are decided in one step
        if len(hits) == 1 and leases.is_cold(hits[0].key):  # most counters are, and pay for no more
            leases.sent += 1
            return hits
        left = leases.answer(hits, int(now * SECOND))
        if leases.joined:
            self._ask(now)
        return left

    def take(self, counter: OnCounter, wanted: Wanted, done: OnTaken) -> None:
        """As Store says; envoyproxy's counters lend nothing."""
        rule, limit = counter.rule, counter.limit
        topology, script = self._kind(rule)
        if script is not self._script:
            done(None)
            return
        leased = LeasedCounter(rule, limit, counter.key, leasing(rule.algorithm).term(limit), 0)
        topology.put_ask(Ask(leased, *wanted, done=done), script)

    def sweep(self) -> None:
        """Judge the servers, and evict what has expired; the first call connects to the servers."""
        if not self._started:
            self._started = True
            for topology in self._topologies:
                topology.start()
            if self._bans is not None:
                self._bans.start()
        self._after_poll(self._check_servers)
        self._policy.sweep()
        now = monotonic()
        if self._denied is not None:
            self._denied.sweep(now)
        self._leases.sweep(int(now * SECOND))
        self._ask(now)
        self._pending.kept.sweep(now, self._is_up, self._send_again)
        if self._home is not None:
            self._home.sweep()

    async def close(self) -> None:
        """Give back what is held, and close all connections; the requests that wait are answered by policy."""
        await self._give_back()
        if self._home is not None:
            await self._home.close()
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._checks.close()
        if self._bans is not None:
            await self._bans.close()
        for topology in self._topologies:
            await topology.close()
        self._pending.fail_all(Fault("stopping"))
        self._pending.kept.close()

    def charge(self, hits: Sequence[Hit]) -> bool:
        """Decide hits by units that are held, or a single one that is known to be denied; nothing else is done."""
        if hits[0].key in self._held_keys:
            leases, now = self._leases, monotonic()
            if leases.charge(hits, int(now * SECOND)):
                if leases.joined:
                    self._ask(now)
                return True
        denied = self._denied
        return (
            denied is not None
            and len(hits) == 1
            and hits[0].key in denied.known
            and not denied.answer(hits, monotonic())
        )

    def _ask(self, now: float) -> None:
        leases = self._leases
        for ask in leases.asks(int(now * SECOND)):
            topology, script = self._kind(ask.counter.rule)
            topology.put_ask(ask, script)

    def _is_up(self, counter: OnCounter) -> bool:
        topology, script = self._kind(counter.rule)
        lane = topology.lane_of(script.key(counter))
        return lane is not None and lane.healthy

    def _send_again(self, hits: Sequence[Hit], done: Done) -> None:
        self.hit(hits, done, GRANTED)

    async def _give_back(self) -> None:
        """Give back all leases. Units that do not arrive in time are lost until their window ends."""
        leases, late = self._leases, monotonic() + _GIVE_BACK_SECONDS
        while (leases.held or leases.asking) and self.healthy and monotonic() < late:
            leases.give_all()
            self._ask(monotonic())
            await asyncio.sleep(_ONE_POLL)

    def _put_by_kind(self, request: PendingRequest, hits: Sequence[Hit]) -> None:
        """Send hits to their servers by their script; their order stays within each of these."""
        if len(hits) == 1:  # most requests: 0.5 µs instead of 0.9
            self._putters[self._kind(hits[0].rule)](request, hits)
            return
        kinds: dict[tuple[Topology, Script], list[Hit]] = {}
        for hit in hits:
            kinds.setdefault(self._kind(hit.rule), []).append(hit)
        request.parts_left += 1  # until all are sent, whatever is answered at once
        for kind, of_kind in kinds.items():
            self._putters[kind](request, of_kind)
        request.complete()

    def _kind(self, rule: Rule) -> tuple[Topology, Script]:
        topology = redis_of(rule, *self._by_rule)
        script = self._envoyproxy if self._envoyproxy is not None and counts_as_envoyproxy(rule) else self._script
        return topology, script

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = deadline
        loop = asyncio.get_running_loop()
        pause = max(_MIN_PAUSE, deadline - monotonic() - _ONE_POLL)
        self._timer = loop.call_later(pause, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._due = None, -inf
        self._after_poll(self._expire)

    def _after_poll(self, judge: Callable[[], None], polls: int = _MAX_POLLS) -> None:
        """Call it when all replies are read that have come until now."""
        asyncio.get_running_loop().call_later(_ONE_POLL, self._on_poll, monotonic() + _ONE_POLL, judge, polls - 1)

    def _on_poll(self, due: float, judge: Callable[[], None], polls: int) -> None:
        if self._closed:
            return
        if polls and monotonic() - due > _STALLED:
            self._after_poll(judge, polls)
        else:
            judge()

    def _expire(self) -> None:
        self._due = inf
        deadline = self._pending.expire(monotonic())
        self._check_servers()
        if deadline is not None and deadline < self._due:
            self._arm(deadline)

    def _check_servers(self) -> None:
        now = monotonic()
        for topology in self._topologies:
            topology.check_servers(now)


def _too_heavy(hits: Sequence[Hit]) -> TooHeavyError:
    return TooHeavyError(f"{largest_bundle(hits)} limits cannot be charged together, the maximum is {MAX_IN_PIPELINE}")
