"""What each algorithm costs: `python bench/algorithms.py [--counters 100000] [--limit 100]`.

Bytes a counter, its name included, after one request and with the limit used up evenly through a minute: in the memory
store by tracemalloc, in Redis by `INFO memory`. Then the time of a hit on counters that let about half of them through:
in Python the function alone, in Redis what the server says that it spent on calls of 16 hits each. Of several rounds
the fastest counts, the one that other work on the machine has disturbed least.

Then what open reservations take, as many on one counter: bytes of each, and what Redis says of the key of one.
"""

import argparse
import math
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from uuid import UUID

import redis

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ratelimit_service.algorithms import NAMES, State, open_algorithm
from ratelimit_service.algorithms.kinds.reserved import Reserved
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis.script import BatchScript
from ratelimit_service.system.clock import MINUTE
from ratelimit_service.telemetry.tally import Tally
from tests.clocks import Clock
from tests.parts import parts_of
from tests.redis import start_redis

START = 1_790_000_040_000_000
"""The start of a minute of the clock."""

RESERVING = ("fixed_window", "token_bucket")
TALLY = Tally()
STEPS = 10
BATCH = 16
TIMED = 160_000
ROUNDS = 5


def rule_of(name: str, limit: int) -> Rule:
    """A limit per minute."""
    return Rule("shop", (), Limit(limit, Unit.MINUTE, MINUTE, count_refused=False), open_algorithm(name))


def key_of(rule: Rule, number: int) -> str:
    """A name as rules give it: 40 to 50 characters."""
    return f"shop|user=customer{number:06}{rule.key_suffix}"


def hit(rule: Rule, number: int, cost: int) -> Hit:
    """One hit on that counter; where requests reserve by that id, on the first one."""
    assert rule.limit is not None
    kind = rule.limit.kind
    made = Hit(rule, key_of(rule, 0 if kind.reserves else number), cost, tally=TALLY, quota=False)
    made.limit = kind.held_by(rule.limit, str(UUID(int=number)))
    return made


def fills(rule: Rule) -> Iterable[tuple[int, int]]:
    """When and how much: the limit, in steps through a minute; a log is as large as the number of its hits."""
    assert rule.limit is not None
    limit = rule.limit.requests
    steps = limit if rule.algorithm.name == "sliding_log" else STEPS
    for step in range(steps):
        yield START + step * (MINUTE // steps), limit // steps


class InMemory:
    """Bytes a counter in the memory store."""

    def __init__(self, rule: Rule, counters: int) -> None:
        self.rule = rule
        self.counters = counters
        self.clock = Clock(START)
        tracemalloc.start()
        self.before = tracemalloc.get_traced_memory()[0]
        self.store = MemoryStore(2 * counters, self.clock)

    def charge(self, now: int, cost: int) -> float:
        """Charge all, and say how large one is."""
        self.clock.now = now
        for number in range(self.counters):
            self.store.hit([hit(self.rule, number, cost)], lambda _: None)
        return (tracemalloc.get_traced_memory()[0] - self.before) / self.counters


class InRedis:
    """Bytes a counter in Redis."""

    def __init__(self, rule: Rule, counters: int, client: redis.Redis) -> None:
        self.rule = rule
        self.counters = counters
        self.client = client
        self.clock = Clock(START)
        self.script = BatchScript("", self.clock)
        client.flushall()
        self.sha = client.script_load(self.script.text)
        self.before = self.used()

    def used(self) -> int:
        """What Redis has allocated."""
        self.client.memory_purge()
        used: int = self.client.info("memory")["used_memory"]
        return used

    def charge(self, now: int, cost: int) -> float:
        """Charge all, and say how large one is."""
        self.clock.now = now
        for first in range(0, self.counters, 500):
            self.call([hit(self.rule, number, cost) for number in range(first, min(first + 500, self.counters))])
        return (self.used() - self.before) / self.counters

    def call(self, hits: Sequence[Hit]) -> None:
        """One call of the script."""
        keys, arguments, _ = self.script.encode(parts_of(hits))
        self.client.evalsha(self.sha, len(keys), *keys, *arguments)


def python_nanoseconds(rule: Rule) -> float:
    """Of one hit; the moments are such that about half of them are let through."""
    assert rule.limit is not None
    function, limit = rule.algorithm.hit, rule.limit
    gap = MINUTE // limit.requests // 2
    state: State | None = None
    now = START
    for _ in range(4 * limit.requests):
        now += gap
        state, _ = function(state, limit, 1, now)
    fastest = math.inf
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(TIMED // ROUNDS):
            now += gap
            state, _ = function(state, limit, 1, now)
        fastest = min(fastest, time.perf_counter() - began)
    return fastest / (TIMED // ROUNDS) * 1e9


def redis_microseconds(rule: Rule, client: redis.Redis) -> float:
    """Of one hit, by the server's own clock, on a thousand counters in any order."""
    assert rule.limit is not None
    counters = 1000
    run = InRedis(rule, counters, client)
    random = Random(1)
    # Redis forgets by its own time, which goes on as fast as the clock given here or slower.
    gap = MINUTE // rule.limit.requests // 2 * BATCH // counters

    def drive(batches: int) -> None:
        for _ in range(batches):
            run.clock.advance(gap)
            run.call([hit(rule, random.randrange(counters), 1) for _ in range(BATCH)])

    # A round is a window long: its end is all refused by fixed windows, which spares them much.
    a_round = 2 * rule.limit.requests * counters
    drive(2 * a_round // BATCH)
    fastest = math.inf
    for _ in range(ROUNDS):
        client.config_resetstat()
        drive(a_round // BATCH)
        spent: int = client.info("commandstats")["cmdstat_evalsha"]["usec"]
        fastest = min(fastest, spent)
    return fastest / a_round


def reservations(name: str, counters: int, client: redis.Redis) -> None:
    """Prints the row of an algorithm."""
    kind = Reserved(5 * MINUTE, bucket=name == "token_bucket")
    limit = Limit(2**40, Unit.MINUTE, MINUTE, count_refused=False, kind=kind)
    rule = Rule("shop", (), limit, open_algorithm(name))
    in_memory = InMemory(rule, counters).charge(START, 4000)
    tracemalloc.stop()
    in_redis = InRedis(rule, counters, client).charge(START, 4000)
    names = [each for each in client.scan_iter(count=10_000) if b"|reserved/" in each]
    usage = client.memory_usage(names[0])
    print(f"| {name} | {in_memory:,.0f} | {in_redis:,.0f} | {usage} | {len(names[0])} |", flush=True)


def main() -> None:
    """Prints the tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--counters", type=int, default=100_000)
    options.add_argument("--limit", type=int, default=100)
    options.add_argument("--only", choices=NAMES, action="append")
    chosen = options.parse_args()

    print(f"{chosen.limit} a minute, {chosen.counters:,} counters")
    print("| algorithm | memory store, new | full | Redis, new | full | Python, ns a hit | Redis, µs a hit |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder, start_redis(Path(folder)) as server:
        client = redis.Redis(unix_socket_path=str(server.socket))
        for name in chosen.only or NAMES:
            rule = rule_of(name, chosen.limit)
            sizes = []
            for kind in (InMemory, InRedis):
                if kind is InMemory:
                    run: InMemory | InRedis = InMemory(rule, chosen.counters)
                else:
                    run = InRedis(rule, chosen.counters, client)
                sizes.append(run.charge(START, 1))
                run.charge(START, -1)
                full = 0.0
                for now, cost in fills(rule):
                    full = run.charge(now, cost)
                sizes.append(full)
                tracemalloc.stop()
            row = " | ".join(f"{size:,.0f}" for size in sizes)
            took = f"{python_nanoseconds(rule):,.0f} | {redis_microseconds(rule, client):.2f}"
            print(f"| {name} | {row} | {took} |", flush=True)
        print(f"\n{chosen.counters:,} open reservations of one counter")
        print("| algorithm | memory store | Redis | MEMORY USAGE of a key | characters of its name |")
        print("| --- | --- | --- | --- | --- |")
        for name in RESERVING:
            reservations(name, chosen.counters, client)


if __name__ == "__main__":
    main()
