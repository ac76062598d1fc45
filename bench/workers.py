"""What a call costs with workers and without: `python bench/workers.py [--workers 2] [--calls 200000] [--rounds 5]`.

One process, and as many workers with their parent, answer the same number of calls by turns, on so many connections of
h2load for each that answers, with a Redis of their own; of several rounds the median. What counts is the processor time
of all processes of the service for each call. So that both have the same conditions, either has one core, and Redis and
the load the other one, where there are two: several workers are to do on one core what one process does there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ratelimit_service.api.ratelimit import ShouldRateLimit
from tests import peers
from tests.processes import ask
from tests.workers.crew import QUESTION, Crew, start_crew

CONNECTIONS = 4
"""For each process that answers: how much it does at once depends on them."""

IN_FLIGHT = 25
"""On each connection."""

ALLOWED = 'ratelimit_service_rate_limit_within_limit{domain="shop",key1="user"}'
RULES = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1000000000}}]\n"


class Round(NamedTuple):
    """What was measured once."""

    service: float
    """Microseconds of processor time for each call, of all processes together."""
    uneven: float
    """The time of the worker that had most, by that of the one that had least."""
    redis: float
    rate: float
    """Calls a second."""


def spent(pid: int) -> float:
    """Seconds of processor time of a process until now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def answering(crew: Crew) -> list[int]:
    """The processes that answer calls: the workers, or the only one."""
    workers = json.loads(ask(crew.service.debug_port, "/status").body)["workers"]
    return [worker["pid"] for worker in workers] or [crew.service.pid]


def pin(crew: Crew) -> None:
    """All of the service on one core, the rest on another."""
    if (os.cpu_count() or 1) > 1:
        for pid in (crew.service.pid, *answering(crew)):
            os.sched_setaffinity(pid, {0})
        for pid in (crew.redis.pid, 0):
            os.sched_setaffinity(pid, {1})


def measure(crew: Crew, calls: int, body: Path) -> Round:
    """Have so many calls answered, all of them."""
    pids = answering(crew)
    every = {crew.service.pid, *pids}
    command = [str(peers.h2load()), f"-n{calls}", f"-c{CONNECTIONS * len(pids)}", f"-m{IN_FLIGHT}", "-d", str(body)]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    allowed = crew.metric(ALLOWED)
    before = {pid: spent(pid) for pid in (*every, crew.redis.pid)}
    started = time.perf_counter()
    subprocess.run(
        [*command, f"http://127.0.0.1:{crew.service.grpc_port}{ShouldRateLimit.path}"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    took = time.perf_counter() - started
    used = {pid: spent(pid) - before[pid] for pid in before}
    crew.service.wait_until(lambda: crew.metric(ALLOWED) - allowed == calls, "all calls have been allowed")
    each = sorted(used[pid] for pid in pids)
    service = sum(used[pid] for pid in every)
    return Round(service / calls * 1e6, each[-1] / each[0], used[crew.redis.pid] / calls * 1e6, calls / took)


def line(name: str, rounds: Sequence[Round]) -> str:
    """A row of the table."""
    service, uneven, redis, rate = (median(values) for values in zip(*rounds, strict=True))
    return f"{name:12} {service:10.1f} {redis:10.1f} {uneven:10.2f} {rate:10.0f}"


def main() -> None:
    """Prints the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--calls", type=int, default=200_000)
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    message = QUESTION.SerializeToString()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        body = folder / "question"
        body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
        with (
            start_crew(folder / "one", 1, rules=RULES) as one,
            start_crew(folder / "several", chosen.workers, rules=RULES) as several,
        ):
            for crew in (one, several):
                pin(crew)
                measure(crew, chosen.calls // 10, body)
            rounds = [
                (measure(one, chosen.calls, body), measure(several, chosen.calls, body)) for _ in range(chosen.rounds)
            ]
            alone, shared = zip(*rounds, strict=True)

        print(f"\n{chosen.calls} calls, {CONNECTIONS} connections for each process; µs of processor time for each call")
        print(f"{'':12} {'service':>10} {'Redis':>10} {'uneven':>10} {'calls/s':>10}")
        print(line("one process", alone))
        print(line(f"{chosen.workers} workers", shared))
        ratio = median(one.service for one in alone) / median(each.service for each in shared)
        print(f"calls for each second of processor time, workers by one process: {ratio:.2f}")


if __name__ == "__main__":
    main()
