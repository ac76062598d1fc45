"""What leases save and what they lose, by simulation: `python bench/leases.py [--seconds 8] [--instances 4 1000]`.

Instances share one counter; requests come at random to any of them. They run the lease code of the service, the store
is the Python of the algorithms, and no time is real: each way of a call takes another time, and a call takes the store
--call-us, one after the other. A seed gives the same table anywhere. *Admitted* is beside what one counter
without any delay admits of the same requests; *calls* are those per request that touch the counter, with the
prefetches and the returns, and *model* what `bench/scale` expects of them; *sent* are the requests that waited for a
call, and *wait* is how long; *lost* are units; *worst* is how far any window was above the limit, in units, and must
never be above 0.
"""

import argparse
import heapq
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scale import model

from ratelimit_service.algorithms import NAMES, open_algorithm
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.leasing import most_leased
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.lane import MAX_IN_FLIGHT
from ratelimit_service.stores.redis.leases import Leases
from ratelimit_service.system.clock import SECOND
from tests.leases.fleet import Call, Fleet, InPython, Instance, excess

SWEEP = SECOND // 10
START = 1_790_000_000_000_000
ALGORITHMS = [name for name in NAMES if name not in {"sliding_log", "leaky_bucket"}]


class Shown(NamedTuple):
    """What one run has shown."""

    requests: int
    admitted: float
    """Of what one counter admits."""
    calls: float
    """A request."""
    sent: float
    """Share of the requests that waited for a call."""
    wait_p50_ms: float
    """Of those that waited."""
    wait_p99_ms: float
    lost: int
    worst: float


class Simulation:
    """A fleet at work; a script call takes the store `call_us`, and a way to it half of `round_trip` on average."""

    def __init__(self, rule: Rule, instances: int, random: Random, *, round_trip: int = 300, call_us: int = 0) -> None:
        self.fleet = Fleet(
            rule,
            InPython(),
            instances=instances,
            start=START,
            round_trip=round_trip,
            open_leases=lambda: Leases(deny=5000),
        )
        self.calls = 0
        self.waits: list[int] = []
        """Of each request that was sent."""
        self._random = random
        self._round_trip = round_trip
        self._call_us = call_us
        self._free = 0
        """When the store has done what was sent to it."""
        self._queued: dict[Instance, list[int]] = {instance: [] for instance in self.fleet.instances}
        """When the requests came that the next call takes."""
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = count()

    def run(self, arrivals: Sequence[int]) -> None:
        """Requests at these moments."""
        fleet, events = self.fleet, self._events
        for instance in fleet.instances:
            self._at(START + self._random.randrange(SWEEP), partial(self._sweep, instance, arrivals[-1] + SWEEP))
        for now in arrivals:
            while events[0][0] <= now:
                fleet.now, _, event = heapq.heappop(events)
                event()
            fleet.now = now
            instance = self._random.choice(fleet.instances)
            if fleet.hit(instance, 1) is None:
                self._queued[instance].append(now)
            self._send(instance)
        while events:
            fleet.now, _, event = heapq.heappop(events)
            event()

    def _at(self, now: int, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (now, next(self._number), event))

    def _sweep(self, instance: Instance, until: int) -> None:
        instance.leases.sweep(self.fleet.now + instance.ahead)
        self._send(instance)
        if self.fleet.now < until:
            self._at(self.fleet.now + SWEEP, partial(self._sweep, instance, until))

    def _send(self, instance: Instance) -> None:
        if (instance.queue or instance.leases.joined) and len(instance.calls) < MAX_IN_FLIGHT:
            call = self.fleet.send(instance)
            if call is not None:
                self.calls += 1
                came, self._queued[instance] = self._queued[instance], []
                self._at(self.fleet.now + self._way(), partial(self._arrive, instance, call, came))

    def _way(self) -> int:
        return self._random.randint(self._round_trip // 4, self._round_trip * 3 // 4)

    def _arrive(self, instance: Instance, call: Call, came: list[int]) -> None:
        self._free = max(self._free, self.fleet.now) + self._call_us
        self._at(self._free, partial(self._execute, instance, call, came))

    def _execute(self, instance: Instance, call: Call, came: list[int]) -> None:
        self.fleet.execute(call)
        self._at(self.fleet.now + self._way(), partial(self._deliver, instance, call, came))

    def _deliver(self, instance: Instance, call: Call, came: list[int]) -> None:
        self.fleet.deliver(instance, call)
        instance.leases.called(self.fleet.now + instance.ahead - call.sent)
        self.waits += [self.fleet.now - each for each in came]
        self._send(instance)


def exact(rule: Rule, arrivals: Sequence[int]) -> int:
    """What one counter admits."""
    state, admitted = None, 0
    assert rule.limit is not None
    for now in arrivals:
        state, decision = rule.algorithm.hit(state, rule.limit, 1, now)
        admitted += decision.allowed
    return admitted


def arrivals_of(rate: float, seconds: float, random: Random) -> list[int]:
    """Moments at which requests come, so many a second."""
    arrivals, now = [], float(START)
    while now < START + seconds * SECOND:
        now += random.expovariate(rate) * SECOND
        arrivals.append(int(now))
    return arrivals


def rule_of(algorithm: str, requests: int, window: int, share: float = 0.05) -> Rule:
    """A limit that leases; `window` in seconds."""
    fixed = algorithm == "fixed_window"
    limit = Limit(requests, Unit.SECOND, window * SECOND, count_refused=fixed, crossing_only=fixed)
    return Rule("shop", (), limit, open_algorithm(algorithm), lease=most_leased(limit, share))


def simulate(rule: Rule, instances: int, arrivals: Sequence[int], seed: int = 1, **options: int) -> Shown:
    """One run."""
    simulation = Simulation(rule, instances, Random(seed), **options)
    simulation.run(arrivals)
    fleet = simulation.fleet
    waits = sorted(simulation.waits) or [0]
    return Shown(
        len(arrivals),
        sum(cost for _, cost in fleet.allowed) / exact(rule, arrivals),
        simulation.calls / len(arrivals),
        len(simulation.waits) / len(arrivals),
        waits[len(waits) // 2] / 1000,
        waits[len(waits) * 99 // 100] / 1000,
        sum(instance.leases.lost for instance in fleet.instances),
        excess(rule, fleet.allowed),
    )


def main() -> None:
    """Prints the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=8)
    options.add_argument("--requests", type=int, default=1000)
    options.add_argument("--window", type=int, default=1)
    options.add_argument("--instances", type=int, nargs="+", default=[4, 16])
    options.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.9, 1.2, 3])
    options.add_argument("--algorithms", nargs="+", default=ALGORITHMS, choices=ALGORITHMS)
    options.add_argument("--round-trip", type=int, default=300, help="microseconds; default: %(default)s")
    options.add_argument("--call-us", type=int, default=0, help="of the store, for a call; default: %(default)s")
    options.add_argument("--seed", type=int, default=1, help="of all that is random; default: %(default)s")
    chosen = options.parse_args()

    head = "algorithm | load | instances | admitted / exact | calls a request | model | sent | wait p50 | p99 ms | lost"
    print(f"| {head} | worst |\n|{' --- |' * 11}")
    for algorithm in chosen.algorithms:
        rule = rule_of(algorithm, chosen.requests, chosen.window)
        limit = model.Limit(chosen.requests, chosen.window, algorithm)
        for load in chosen.loads:
            demand = load * chosen.requests / chosen.window
            arrivals = arrivals_of(demand, chosen.seconds, Random(chosen.seed))
            for instances in chosen.instances:
                shown = simulate(
                    rule, instances, arrivals, chosen.seed, round_trip=chosen.round_trip, call_us=chosen.call_us
                )
                expected = model.touches(limit, demand, instances, chosen.round_trip) / demand
                print(
                    f"| {algorithm} | {load} | {instances} | {shown.admitted:.3f} | {shown.calls:.4f} "
                    f"| {expected:.4f} | {shown.sent:.4f} | {shown.wait_p50_ms:.2f} | {shown.wait_p99_ms:.2f} "
                    f"| {shown.lost} | {shown.worst:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
