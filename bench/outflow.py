"""How even the outflow of a queue is over several processes: `python bench/outflow.py [--rates 50,500,2000]`.

Each process has a limiter, counters in one Redis, and requests that come at random (Poisson), more than the limit lets
out. When each answer is given is written down by the clock that all processes share; the gaps between the answers of
all, one after the other, are compared with the limit's. Once by the timer of the event loop, once by timerfd.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import pstdev
from typing import NamedTuple

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ratelimit_service.errors import RpcError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.turns import Timer, TurnQueues
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Descriptor, Request
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.sources.yaml_text import YamlText
from ratelimit_service.settings import load_settings
from ratelimit_service.stores import open_store
from ratelimit_service.system.clock import SECOND, steady_clock
from ratelimit_service.system.timer import LoopTimer, TimerFile
from tests.redis import start_redis

TIMERS: dict[str, Callable[[Callable[[], None]], Timer]] = {"event loop": LoopTimer, "timerfd": TimerFile}


class Load(NamedTuple):
    """What one process is told."""

    redis: str
    timer: str
    rate: int
    """Of the limit, a second."""
    load: float
    """Of this process, in limits."""
    delay: int
    """Milliseconds."""
    seconds: float


class Answers(NamedTuple):
    """What came of it."""

    moments: list[int]
    """When each allowed request was answered, in microseconds."""
    requests: int


async def instance(load: Load) -> Answers:
    """Ask, and write the answers down."""
    store = open_store(load_settings({"BACKEND_TYPE": "redis", "REDIS_URL": load.redis})[0])
    limiter = Limiter(store, turns=TurnQueues(TIMERS[load.timer]))
    limit = (
        f"algorithm: leaky_bucket, unit: second, requests_per_unit: {load.rate}, queue: {{max_delay: {load.delay}ms}}"
    )
    limiter.book = parse([YamlText("a", f"domain: a\ndescriptors: [{{key: a, rate_limit: {{{limit}}}}}]\n".encode())])
    plan = limiter.plan(Request("a", [Descriptor((("a", "a"),))]))
    store.sweep()
    moments: list[int] = []

    def on_verdict(verdict: Verdict | RpcError) -> None:
        if isinstance(verdict, Verdict) and verdict.allowed:
            moments.append(steady_clock())

    print("ready", flush=True)
    begin = int(await asyncio.to_thread(input))
    await asyncio.sleep((begin - steady_clock()) / SECOND)
    chance = random.Random()
    requests, next_one, end = 0, float(begin), begin + load.seconds * SECOND
    while (now := steady_clock()) < end:
        while next_one <= now:
            limiter.decide_later(plan, on_verdict)
            requests += 1
            next_one += chance.expovariate(load.rate * load.load) * SECOND
        store.sweep()
        await asyncio.sleep(max(0, next_one - steady_clock()) / SECOND)
    await asyncio.sleep(load.delay / 1000 + 0.1)
    await store.close()
    return Answers(moments, requests)


def run(redis: str, timer: str, rate: int, options: argparse.Namespace) -> list[str]:
    """One row."""
    load, delay, processes = options.load, options.delay, options.processes
    told = Load(redis, timer, rate, load / processes, delay, options.seconds)
    command = [sys.executable, __file__, "--instance", json.dumps(told)]
    pipe = subprocess.PIPE
    started = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(processes)]
    pipes = [(process.stdin, process.stdout) for process in started if process.stdin and process.stdout]
    for _, said in pipes:
        said.readline()  # it is ready
    begin = steady_clock() + SECOND // 5
    for told_to, _ in pipes:
        print(begin, file=told_to, flush=True)
    found = [Answers(*json.loads(process.communicate()[0])) for process in started]
    moments = sorted(moment for answers in found for moment in answers.moments)
    moments = [moment for moment in moments if moment > moments[0] + SECOND // 2]  # the queue is full
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    exact = SECOND / rate
    off = sorted(abs(gap - exact) for gap in gaps)
    above = most = 0.0
    for gap in gaps:
        above = max(0.0, above + 1 - gap / exact)
        most = max(most, above)
    shares = " ".join(f"{len(answers.moments) / max(1, answers.requests):.3f}" for answers in found)
    return [
        *(
            f"{rate}/s, {load:g}",
            f"{delay} ms",
            timer,
            f"{(len(moments) - 1) * SECOND / (moments[-1] - moments[0]):.1f}/s",
        ),
        *(f"{pstdev(gaps) / 1000:.3f}", f"{off[len(off) // 2] / 1000:.3f} / {off[len(off) * 99 // 100] / 1000:.3f}"),
        *(f"{most:.2f}", shares),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instance", help=argparse.SUPPRESS)
    parser.add_argument("--rates", default="50,300,500,2000", help="limits, a second")
    parser.add_argument("--load", type=float, default=1.3, help="of all processes, in limits")
    parser.add_argument("--delay", type=int, default=250, help="max_delay, in milliseconds")
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--processes", type=int, default=3)
    options = parser.parse_args()
    if options.instance:
        print(json.dumps(uvloop.run(instance(Load(*json.loads(options.instance))))))
        return
    print("| L, load | `max_delay` | timer | outflow | sd of gaps | gap - T, p50 / p99 | above the line | allowed |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder, start_redis(Path(folder)) as redis:
        for rate in map(int, options.rates.split(",")):
            for timer in TIMERS:
                url = f"127.0.0.1:{redis.port}"
                row = run(url, timer, rate, options)
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
