"""Real deployments on this machine, and what a call costs in each: processor time, pipelines to Redis, bytes.

The service has one core and Redis and the load the other one, as in `bench/service.py`. Each has several rounds, and
the lowest of each figure counts, the one that other work on the machine has disturbed least.
"""

import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final, NamedTuple

from service import Cores, pin, processor_seconds

from ratelimit_service.system.clock import SECOND
from scale.model import Costs
from tests.processes import Service, start_service
from tests.redis import Redis, start_redis
from tests.stores.redis_groups import start_cluster

RULES = "domain: bench\ndescriptors:\n  - {key: user, rate_limit: {unit: hour, requests_per_unit: 4000000000}}\n"


@dataclass(frozen=True)
class Run:
    """Processes of the service, where their counters are, and who asks them."""

    store: str = "redis"
    """memory, redis or cluster, of three nodes."""
    processes: int = 1
    leases: bool = False
    keys: int = 10_000
    connections: int = 4
    in_flight: int = 25
    """Calls at once on each connection."""
    calls: int = 30_000


class Found(NamedTuple):
    """What a run has shown."""

    calls_a_second: float
    service_us: float
    """Processor time of a call."""
    redis_us: float
    pipelines: float
    """Of a call: times that Redis has read."""
    script_calls: float
    redis_bytes: float
    """To and from Redis, of a call."""
    grpc_bytes: float
    """To and from clients, of a call."""


MEMORY: Final = "memory, 4 × 25"
ALONE: Final = "memory, 100 × 1"
CLUSTER: Final = "Cluster, 4 × 25"

CALIBRATION: Final[Mapping[str, Run]] = {
    MEMORY: Run("memory"),
    ALONE: Run("memory", connections=100, in_flight=1),
    "one Redis, 4 × 25": Run(),
    "one Redis, 4 × 5": Run(in_flight=5),
    "one Redis, 8 × 1": Run(connections=8, in_flight=1, calls=15_000),
    "one Redis, 2 × 1": Run(connections=2, in_flight=1, calls=10_000),
    "one Redis, 100 × 1": Run(connections=100, in_flight=1),
    CLUSTER: Run("cluster"),
}
"""Of one process; connections × calls at once on each."""

CHECK: Final[Mapping[str, Run]] = {
    "one Redis, 2 processes, 8 × 25": Run(processes=2, connections=8),
    "one Redis, 2 processes, 16 × 1": Run(processes=2, connections=16, in_flight=1),
    "one Redis, 4 processes, 16 × 5": Run(processes=4, connections=16, in_flight=5),
    "Cluster, 8 × 1": Run("cluster", connections=8, in_flight=1, calls=15_000),
    "Cluster, 2 processes, 8 × 25": Run("cluster", processes=2, connections=8),
    "leases, 1,000 keys, 4 × 25": Run(leases=True, keys=1000, calls=300_000),
    "leases, 2 processes, 1,000 keys, 8 × 25": Run(leases=True, processes=2, keys=1000, connections=8, calls=300_000),
    "leases, 10 keys, 4 × 25": Run(leases=True, keys=10, calls=300_000),
}
"""What the model has not seen."""


def measure(name: str, run: Run, rounds: int) -> Found:
    """The lowest of each figure, but the highest rate."""
    with (
        redirect_stdout(io.StringIO()),
        tempfile.TemporaryDirectory() as folder,
        _started(run, Path(folder)) as running,
    ):
        running.round()  # connections, plans, counters
        found = [each for _ in range(rounds) if (each := running.round())]
    if not found:
        sys.exit(f"{name}: calls failed in every round; the machine is too busy")
    print(name, *(f"{each.service_us:.1f}/{each.redis_us:.1f}" for each in found), file=sys.stderr)
    return Found(max(each.calls_a_second for each in found), *map(min, list(zip(*found, strict=True))[1:]))


def costs_of(found: Mapping[str, Found]) -> Costs:
    """What single steps cost, by the runs of the calibration."""
    memory, cluster = found[MEMORY], found[CLUSTER]
    alone = found[ALONE].service_us - memory.service_us
    of_one = [(run, found[name]) for name, run in CALIBRATION.items() if name.startswith("one Redis")]
    hit, pipeline = _line([(each.pipelines, each.redis_us) for _, each in of_one])
    call, of_service = _line([(each.pipelines, each.service_us - alone / run.in_flight) for run, each in of_one])
    further = cluster.script_calls - cluster.pipelines
    costs = Costs(
        call=memory.service_us,
        alone=alone,
        sent=call - memory.service_us,
        pipeline=of_service,
        script_call=(cluster.service_us - call - of_service * cluster.pipelines) / further,
        redis_hit=hit,
        redis_pipeline=pipeline,
        redis_script_call=(cluster.redis_us - hit - pipeline * cluster.pipelines) / further,
    )
    if min(astuple(costs)) < 0:
        sys.exit(f"the runs contradict each other, as on a machine that is busy with other work: {costs}")
    return costs


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Where a line begins, and how it rises, that passes points as closely as it can, by the ratio."""
    ones, xs = [1 / y for _, y in points], [x / y for x, y in points]
    oo, ox, xx = (sum(a * b for a, b in zip(*of, strict=True)) for of in ((ones, ones), (ones, xs), (xs, xs)))
    o, x = sum(ones), sum(xs)
    determinant = oo * xx - ox * ox
    return (o * xx - x * ox) / determinant, (x * oo - o * ox) / determinant


_CORES: Final = Cores({0}, {1})


class _Running:
    """A deployment at work."""

    def __init__(self, run: Run, service: Service, redises: Sequence[Redis]) -> None:
        self._run = run
        self._service = service
        self._redises = redises

    def round(self) -> Found | None:
        """One load; None if calls failed."""
        run = self._run
        command = [sys.executable, "-m", "ratelimit_service", "load", f"127.0.0.1:{self._service.grpc_port}", "bench"]
        command += ["user=0000{key}", "--json", f"--keys={run.keys}", f"--calls={run.calls}"]
        command += [f"--connections={run.connections}", f"--in-flight={run.in_flight}"]
        before = self._counts()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as loading:
            pin(loading.pid, _CORES.load)
            output, _ = loading.communicate()
        spent = [end - begin for begin, end in zip(before, self._counts(), strict=True)]
        result = json.loads(output)
        if result["failed"]:  # the machine was too busy with other work
            return None
        return Found(result["calls_per_second"], *(each / result["calls"] for each in spent))

    def _counts(self) -> Sequence[float]:
        """Those of `Found` behind the rate, until now."""
        told = self._service.metrics()
        stats = [redis.cli("INFO", "stats") for redis in self._redises]
        return (
            processor_seconds(self._service.pid) * SECOND,
            sum(processor_seconds(redis.pid) for redis in self._redises) * SECOND,
            sum(_number("total_reads_processed:", each) for each in stats),
            sum(redis.script_calls() for redis in self._redises),
            sum(_number("total_net_input_bytes:", each) + _number("total_net_output_bytes:", each) for each in stats),
            _number("ratelimit_grpc_received_bytes_total ", told) + _number("ratelimit_grpc_sent_bytes_total ", told),
        )


@contextmanager
def _started(run: Run, folder: Path) -> Iterator[_Running]:
    environ = {"STORE_DEADLINE": "2s", "RULES_POLL_INTERVAL": "1s", "WORKERS": str(run.processes)}
    with _redises(run.store, folder) as redises:
        for redis in redises:
            pin(redis.pid, _CORES.load)
        if redises:
            environ |= {"REDIS_URL": ",".join(f"127.0.0.1:{redis.port}" for redis in redises)}
            environ |= {"REDIS_TYPE": "cluster" if len(redises) > 1 else "single"}
            environ |= {"LEASES": "auto" if run.leases else "off"}
        with start_service(folder / "service", RULES, environ) as service:
            pin(service.pid, _CORES.services)
            yield _Running(run, service, redises)


@contextmanager
def _redises(store: str, folder: Path) -> Iterator[Sequence[Redis]]:
    match store:
        case "memory":
            yield ()
        case "cluster":
            with start_cluster(folder / "cluster") as nodes:
                yield nodes.redises
        case _:
            with start_redis(folder / "redis") as redis:
                yield [redis]


def _number(name: str, text: str) -> int:
    found = re.search(rf"^{re.escape(name)}(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0
