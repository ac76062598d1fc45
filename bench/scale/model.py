"""What a load takes: cores, Redis servers, bytes. From what single steps cost, which `runs.py` measures.

A process has one lane to each server of Redis, with at most two pipelines under way; hits that come meanwhile travel
together in the next one. So a hit costs less the more its lane has to do, and more the more lanes share the same hits.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ratelimit_service.algorithms import lease
from ratelimit_service.rules.leasing import LEAST, LeaseOptions
from ratelimit_service.stores.redis.lane import MAX_ASKS, MAX_IN_FLIGHT
from ratelimit_service.system.clock import SECOND

BUSY: Final = 0.6
"""Of a core of the service, the most that a deployment is planned for."""

REDIS_BUSY: Final = 0.6
"""Of Redis's core, by the hits alone: what else it does, once for a pipeline, is less when there are more hits."""

SLOWEST: Final = 2000.0
"""Microseconds of a round trip to Redis, the most that a deployment is planned for."""

REFILLED: Final = ("sliding_window", "token_bucket")
"""Algorithms by which room comes back all the time; a counter of the others stays full until a part or window ends."""


@dataclass(frozen=True)
class Costs:
    """Microseconds of a core."""

    call: float
    """Of the service: one of many calls that are read together and answered together, counters in memory."""
    alone: float
    """More, for a call that is read and answered alone."""
    sent: float
    """More, for a hit that goes to Redis."""
    pipeline: float
    """Of the service, for a pipeline to Redis, its script call included."""
    script_call: float
    """Of the service, for each further script call of a pipeline."""
    redis_hit: float
    redis_pipeline: float
    redis_script_call: float


@dataclass(frozen=True)
class Limit:
    """Of each counter."""

    requests: int
    window: float
    """In seconds."""
    algorithm: str = "fixed_window"

    @property
    def term(self) -> float:
        """Of a lease, in seconds."""
        window = int(self.window * SECOND)
        return lease.length_of_term(window, window) / SECOND


@dataclass(frozen=True)
class Load:
    """What is asked; each call has one descriptor with a limit."""

    calls: float
    """A second."""
    keys: int
    zipf: float = 0.0
    """The n-th key has a share of n to the power of minus this; with 0 all have the same."""
    alone: float = 1.0
    """The share of calls that are read alone: all, unless a connection has many calls at once."""


@dataclass(frozen=True)
class Deployment:
    """Processes, and where their counters are."""

    processes: int
    servers: int = 1
    """Of Redis; more than one are a Cluster."""
    leases: bool = False
    round_trip: float = 300.0
    """Microseconds to an idle Redis and back."""

    @property
    def lanes(self) -> int:
        """Connections to Redis."""
        return self.processes * self.servers


class Needs(NamedTuple):
    """What a load takes of a deployment."""

    sent: float
    """Hits and asks that reach Redis, of a call."""
    pipeline_hits: float
    round_trip: float
    """To Redis under this load, in microseconds."""
    service_us: float
    """Of a call."""
    cores: float
    """Of the service."""


def touches(limit: Limit, demand: float, instances: int, round_trip: float = 300.0) -> float:
    """How many times a second one counter is touched in Redis, of so many requests a second, with leases.

    An instance that leases touches it twice in a term, and a little: it sends the hit that finds the term before ended,
    with an ask, and asks again when more come than it had asked for; or when a lease of a bucket ends, a little before
    its term. More often if many of them come within a round trip. Where room comes back all the time, a counter that is
    full is asked again and again: how often is an empirical law of the simulation (`bench/leases.py`), as the other
    numbers are.
    """
    of_one = demand / instances
    if of_one * limit.term < LEAST / 2 or limit.requests * LeaseOptions().share < LEAST:
        return demand
    least = 3 if limit.algorithm == "token_bucket" else 1.8
    rate = instances / limit.term * (least + 2.2 * math.log(1 + 1.5 * of_one * round_trip / SECOND))
    if limit.algorithm in REFILLED and demand * limit.window > limit.requests:
        rate += (4 if limit.algorithm == "token_bucket" else 2.4) * demand**0.6 * instances**0.35
    return min(demand, rate)


def shares(load: Load) -> Iterator[tuple[int, float]]:
    """How many keys have which share of the hits, the hottest first; far down many are taken as one."""
    groups = []
    first = 1
    while first <= load.keys:
        last = min(load.keys, max(first, first * 21 // 20))
        groups.append((last - first + 1, ((first + last) / 2) ** -load.zipf))
        first = last + 1
    whole = sum(number * weight for number, weight in groups)
    return ((number, weight / whole) for number, weight in groups)


def sent(load: Load, limit: Limit, deployment: Deployment) -> float:
    """Hits and asks a second that reach Redis."""
    if not deployment.leases:
        return load.calls
    return sum(
        number * touches(limit, load.calls * share, deployment.processes, deployment.round_trip)
        for number, share in shares(load)
    )


def burst(load: Load, limit: Limit, deployment: Deployment, costs: Costs) -> float:
    """Microseconds of a Redis for the asks that come when a term ends, of all its leased counters at once."""
    if not deployment.leases:
        return 0
    of_one = load.calls * limit.term / deployment.processes
    leased = sum(number for number, share in shares(load) if of_one * share >= LEAST)
    asks = deployment.processes * leased / deployment.servers
    return asks * (costs.redis_hit + costs.redis_pipeline / min(MAX_ASKS, max(1, leased)))


def redis_us(deployment: Deployment, costs: Costs, size: float) -> float:
    """Of a hit that travels with so many in a pipeline; in a Cluster each one is a script call of its own."""
    further = (size - 1) / size if deployment.servers > 1 else 0
    return costs.redis_hit + costs.redis_pipeline / size + costs.redis_script_call * further


def service_us(load: Load, deployment: Deployment, costs: Costs, size: float, sent_of_call: float) -> float:
    """Of a call."""
    further = (size - 1) / size if deployment.servers > 1 else 0
    of_hit = costs.sent + costs.pipeline / size + costs.script_call * further
    return costs.call + costs.alone * load.alone + sent_of_call * of_hit


def pipelines(hits: float, deployment: Deployment, costs: Costs) -> tuple[float, float]:
    """How many hits travel in one, and the round trip, when so many hits a second are sent."""
    of_lane, of_server = hits / deployment.lanes / SECOND, hits / deployment.servers / SECOND
    others = MAX_IN_FLIGHT * deployment.processes - 1
    size, round_trip = 1.0, deployment.round_trip
    for _ in range(300):  # larger pipelines take longer, but Redis is less busy: until these agree
        work = redis_us(deployment, costs, size)
        busy = of_server * work
        waits_for = min(others, busy / (1 - busy) / 2) if busy < 1 else others
        round_trip = deployment.round_trip + work * size * (1 + waits_for)
        size += (max(1.0, of_lane * round_trip / MAX_IN_FLIGHT) - size) / 8
    return size, round_trip


def needs(load: Load, limit: Limit, deployment: Deployment, costs: Costs) -> Needs:
    """What a load takes of a deployment."""
    hits = sent(load, limit, deployment)
    size, round_trip = pipelines(hits, deployment, costs)
    of_call = hits / load.calls
    service = service_us(load, deployment, costs, size, of_call)
    return Needs(of_call, size, round_trip, service, service * load.calls / SECOND)


def sized(load: Load, limit: Limit, costs: Costs, *, leases: bool, servers: int) -> tuple[Deployment, Needs]:
    """As many processes as it takes, none of them busier than planned, with so many servers of Redis."""
    deployment = Deployment(1, servers, leases)
    for _ in range(100):
        found = needs(load, limit, deployment, costs)
        processes = math.ceil(found.cores / BUSY)
        if processes <= deployment.processes:
            break
        deployment = replace(deployment, processes=processes)
    return deployment, needs(load, limit, deployment, costs)


def smallest(load: Load, limit: Limit, costs: Costs, *, leases: bool, most: int) -> tuple[Deployment, Needs] | None:
    """With as few servers of Redis as it takes, but at most so many; None if that is not enough."""
    servers = 1
    while servers <= most:
        deployment, found = sized(load, limit, costs, leases=leases, servers=servers)
        of_hit = costs.redis_hit + (costs.redis_script_call if servers > 1 else 0)
        busy = found.sent * load.calls / servers / SECOND * of_hit
        if busy <= REDIS_BUSY and found.round_trip <= SLOWEST:
            return deployment, found
        servers = max(3, servers + 1, servers * 21 // 20)  # a Cluster has three at least
    return None


def cells(load: Load, limit: Limit, costs: Costs, *, leases: bool) -> tuple[int, Deployment, Needs]:
    """How many deployments with one Redis each share the calls and the keys of a load, and what one of them is."""
    number = 1
    while True:
        part = replace(load, calls=load.calls / number, keys=max(1, load.keys // number))
        found = smallest(part, limit, costs, leases=leases, most=1)
        if found is not None:
            return number, *found
        number = max(number + 1, number * 21 // 20)
