"""What leases save and what they lose, by simulation: `python bench/leases.py [--seconds 8] [--requests 1000]`.

Instances share one counter; requests come at random to any of them. A call takes 0.3 ms, one at a time for each
instance; the store is the Python of the algorithms, and no time is real. *Admitted* is beside what one counter without
any delay admits of the same requests; *calls* are those per request that touch the counter, with the prefetches and the
returns; *worst* is how far any window was above the limit, in units, and must never be above 0.
"""

import argparse
import heapq
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ratelimit_service.algorithms import NAMES, open_algorithm
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.leasing import most_leased
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.leases import Leases
from ratelimit_service.system.clock import SECOND
from tests.leases.fleet import Fleet, InPython, Instance, excess

ROUND_TRIP = 300
SWEEP = SECOND // 10
START = 1_790_000_000_000_000


class Simulation:
    """A fleet at work."""

    def __init__(self, rule: Rule, instances: int) -> None:
        self.fleet = Fleet(
            rule,
            InPython(),
            instances=instances,
            start=START,
            round_trip=ROUND_TRIP,
            open_leases=lambda: Leases(deny=5000),
        )
        self.calls = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = count()

    def run(self, arrivals: list[int], random: Random) -> None:
        """Requests at these moments."""
        fleet = self.fleet
        for now in arrivals:
            self._at(now, lambda: self._request(random.choice(fleet.instances)))
        for now in range(START + SWEEP, arrivals[-1] + 2 * SWEEP, SWEEP):
            for instance in fleet.instances:
                self._at(now + random.randrange(SWEEP), partial(self._sweep, instance))
        while self._events:
            fleet.now, _, event = heapq.heappop(self._events)
            event()

    def _at(self, now: int, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (now, next(self._number), event))

    def _request(self, instance: Instance) -> None:
        self.fleet.hit(instance, 1)
        self._send(instance)

    def _sweep(self, instance: Instance) -> None:
        instance.leases.sweep(self.fleet.now + instance.ahead)
        self._send(instance)

    def _send(self, instance: Instance) -> None:
        call = None if instance.calls else self.fleet.send(instance)
        if call is not None:
            self.calls += max(1, len(call.costs) if not call.asks else 1)
            self._at(self.fleet.now + ROUND_TRIP // 2, lambda: self.fleet.execute(call))
            self._at(self.fleet.now + ROUND_TRIP, lambda: self._deliver(instance, call))

    def _deliver(self, instance: Instance, call: Any) -> None:
        self.fleet.deliver(instance, call)
        self._send(instance)


def exact(rule: Rule, arrivals: list[int]) -> int:
    """What one counter admits."""
    state, admitted = None, 0
    assert rule.limit is not None
    for now in arrivals:
        state, decision = rule.algorithm.hit(state, rule.limit, 1, now)
        admitted += decision.allowed
    return admitted


def main() -> None:
    """Prints the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=8)
    options.add_argument("--requests", type=int, default=1000)
    options.add_argument("--window", type=int, default=1)
    options.add_argument("--instances", type=int, nargs="+", default=[4, 16])
    options.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.9, 1.2, 3])
    chosen = options.parse_args()

    print("| algorithm | load | instances | admitted / exact | calls a request | by leases | burnt | worst |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in NAMES:
        if name in {"sliding_log", "leaky_bucket"}:
            continue
        limit = Limit(chosen.requests, Unit.SECOND, chosen.window * SECOND, count_refused=name == "fixed_window")
        rule = Rule("shop", (), limit, open_algorithm(name), lease=most_leased(limit, 0.05))
        for load in chosen.loads:
            random = Random(1)
            rate = load * limit.requests / limit.window
            arrivals, now = [], float(START)
            while now < START + chosen.seconds * SECOND:
                now += random.expovariate(rate)
                arrivals.append(int(now))
            for instances in chosen.instances:
                simulation = Simulation(rule, instances)
                simulation.run(arrivals, random)
                fleet = simulation.fleet
                spent = sum(instance.leases.spent for instance in fleet.instances)
                burnt = sum(instance.leases.burnt for instance in fleet.instances)
                admitted = sum(cost for _, cost in fleet.allowed)
                print(
                    f"| {name} | {load} | {instances} | {admitted / exact(rule, arrivals):.3f} "
                    f"| {simulation.calls / len(arrivals):.3f} | {spent / max(1, admitted):.2f} | {burnt} "
                    f"| {excess(rule, fleet.allowed):.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
