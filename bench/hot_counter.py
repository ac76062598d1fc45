"""A hot counter in real services with leases off and on: `python bench/hot_counter.py [--instances 2] [--load 1.2]`.

Each instance has a load of its own, together so many times the limit, from the start of a window on. *Hits in Redis*
are those that were sent; *calls* are script calls, those of leases included.
"""

import argparse
import io
import json
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.processes import Service, start_service
from tests.redis import Redis, start_redis

ALGORITHMS = ("fixed_window", "sub_windows", "token_bucket")


class Shown(NamedTuple):
    """What one run has shown."""

    requests: int
    admitted: int
    sent: int
    calls: int
    p50_ms: float
    p99_ms: float


def metric(service: Service, name: str) -> int:
    """A metric of a service; 0 if it has none of that name."""
    with urlopen(f"http://127.0.0.1:{service.debug_port}/metrics") as response:
        found = re.search(rf"^{re.escape(name)} (\d+)", response.read().decode(), re.MULTILINE)
    return int(found[1]) if found else 0


def script_calls(redis: Redis) -> int:
    """Until now."""
    return sum(int(calls) for calls in re.findall(r"cmdstat_eval\w*:calls=(\d+)", redis.cli("INFO", "commandstats")))


def run(algorithm: str, leases: str, chosen: argparse.Namespace) -> Shown:
    """A limit from an empty Redis on, beginning with a window."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        limit = f"{{unit: {chosen.window} seconds, requests_per_unit: {chosen.requests}, algorithm: {algorithm}}}"
        rules = f"domain: bench\ndescriptors:\n  - {{key: tenant, rate_limit: {limit}}}\n"
        redis = stack.enter_context(start_redis(folder / "redis"))
        environ = {"REDIS_URL": f"127.0.0.1:{redis.port}", "LEASES": leases}
        services = [
            stack.enter_context(start_service(folder / str(number), rules, environ))
            for number in range(chosen.instances)
        ]
        rate = chosen.load * chosen.requests / chosen.window / chosen.instances
        calls = int(rate * chosen.seconds)
        before = script_calls(redis)
        time.sleep(chosen.window - time.time() % chosen.window)
        loads = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "ratelimit_service", "load", f"127.0.0.1:{service.grpc_port}", "bench"),
                    *("tenant=one", "--json", f"--rate={rate:.0f}", f"--calls={calls}", "--connections=2"),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            for service in services
        ]
        found = [json.loads(load.communicate()[0]) for load in loads]
        requests = sum(each["calls"] for each in found)
        decided = [
            metric(service, f'ratelimit_lease_hits_total{{decided_by="{by}"}}')
            for service in services
            for by in ("lease", "denied")
        ]
        return Shown(
            requests,
            requests - sum(each["refused"] + each["failed"] for each in found),
            requests - sum(decided),
            script_calls(redis) - before,
            max(each["latency_ms"]["p50"] for each in found),
            max(each["latency_ms"]["p99"] for each in found),
        )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--requests", type=int, default=16_667)
    parser.add_argument("--window", type=int, default=10)
    parser.add_argument("--load", type=float, default=1.2)
    parser.add_argument("--algorithms", nargs="+", default=ALGORITHMS)
    parser.add_argument("--seconds", type=float, default=18)
    chosen = parser.parse_args()
    print("| algorithm | leases | requests | admitted | hits in Redis a request | calls a request | p50 ms | p99 ms |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for algorithm in chosen.algorithms:
        for leases in ("off", "auto"):
            with redirect_stdout(io.StringIO()):
                shown = run(algorithm, leases, chosen)
            print(
                f"| `{algorithm}` | {leases} | {shown.requests:,} | {shown.admitted:,} "
                f"| {shown.sent / shown.requests:.4f} | {shown.calls / shown.requests:.4f} "
                f"| {shown.p50_ms:.2f} | {shown.p99_ms:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
