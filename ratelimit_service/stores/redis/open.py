"""How a RedisStore is put together from the settings."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import KeyFormat, RedisType
from ratelimit_service.stores.redis.checks import Checks
from ratelimit_service.stores.redis.cluster import Cluster
from ratelimit_service.stores.redis.grants import Grants
from ratelimit_service.stores.redis.keys import cluster_key, plain_key, resets_key
from ratelimit_service.stores.redis.lane import Lane
from ratelimit_service.stores.redis.link import Link
from ratelimit_service.stores.redis.policy import Policy
from ratelimit_service.stores.redis.refusals import BYTES, Refusals
from ratelimit_service.stores.redis.script import BatchScript
from ratelimit_service.stores.redis.servers import OneServer, Opener, Probe, Sentinels, Servers
from ratelimit_service.stores.redis.store import RedisStore
from ratelimit_service.stores.redis.target import Target, is_clustered, main_target, per_second_target
from ratelimit_service.stores.redis.upstream import UpstreamScript
from ratelimit_service.stores.redis.waiting import WaitingRoom
from ratelimit_service.system.address import Address
from ratelimit_service.system.clock import Clock, system_clock


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
