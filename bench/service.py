"""The whole service under load, alone on a core: `python bench/service.py [--envoyproxy] [--vary keys=1000,1000000]`.

Counters in memory, in Redis, and with --leases in Redis with leases; beside them, with --beside FOLDER, another build
of ours that `pip install --target FOLDER` put there; the real envoyproxy/ratelimit, or any
service that listens already, as `--peer NAME=HOST:PORT` says (--show-rules tells what rules it needs). All take turns,
round after round, and the median of the rounds counts: compare rows of one table only. The services have one core and
Redis and the load another, where there are two: workers too, so that a call of theirs can be compared with one of a
single process; --cores gives more.
--vary tells how the cost grows: a table for each value, and with --picture FILE.svg a chart of them.
"""

import argparse
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ratelimit_service.commands.picture import draw
from tests import peers
from tests.envoyproxy import start_envoyproxy
from tests.fetching import Missing
from tests.ports import free_port
from tests.processes import start_service
from tests.redis import start_redis

T = TypeVar("T")

WARM_UP = 5000
"""Calls before any that count: connections, plans, counters."""

TICK = 1 / os.sysconf("SC_CLK_TCK")

PAGE_SECONDS = 2
"""Between two looks of an operator's page."""


@dataclass(frozen=True)
class Load:
    """What is asked, and how much of it."""

    calls: int = 100_000
    connections: int = 4
    in_flight: int = 25
    keys: int = 1000
    descriptors: int = 1
    entries: int = 1
    rate: int = 0

    @property
    def request(self) -> list[str]:
        """As `ratelimit load` takes it."""
        words: list[str] = []
        for descriptor in range(self.descriptors):
            words += [*(["+"] if words else []), f"user{descriptor}=0000{{key}}"]
            words += [f"also{number}=so" for number in range(1, self.entries)]
        return words


@dataclass(frozen=True)
class Scenario:
    """What the services are like, beside what is asked of them."""

    rules: int = 1
    limit: int = 4_000_000_000
    workers: int = 1
    pages: int = 0
    """Browsers that show the page of each of our services."""
    settings: Sequence[tuple[str, str]] = ()
    """Of our service, beside those of the benchmark."""


class Running(NamedTuple):
    """A service at work; the process ids of a peer are not known."""

    name: str
    address: str
    pid: int = 0
    redis_pid: int = 0


class Cores(NamedTuple):
    """Who runs where."""

    services: set[int]
    load: set[int]


class Round(NamedTuple):
    """What one service has shown in one round; microseconds of processor time a call."""

    calls_a_second: float
    p50_ms: float
    p99_ms: float
    service_us: float
    redis_us: float
    refused: float
    failed: float


Shown = dict[str, dict[str, list[Round]]]
"""By the value of what is varied, and by the service."""


def rules_of(scenario: Scenario, load: Load) -> str:
    """The file: what is asked for, after so many others."""
    limit = f"rate_limit: {{unit: hour, requests_per_unit: {scenario.limit}}}"
    lines = ["domain: bench", "descriptors:"]
    lines += [f"  - {{key: other, value: v{number}, {limit}}}" for number in range(scenario.rules - 1)]
    for descriptor in range(load.descriptors):
        lines.append(f"  - key: user{descriptor}")
        indent = "    "
        for entry in range(1, load.entries):
            lines += [f"{indent}descriptors:", f"{indent}  - key: also{entry}", f"{indent}    value: so"]
            indent += "    "
        lines.append(f"{indent}{limit}")
    return "\n".join(lines) + "\n"


def pin(pid: int, cores: set[int]) -> None:
    """A process with its threads and children, where there is more than one core."""
    if (os.cpu_count() or 1) > 1:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
                os.sched_setaffinity(int(task.name), cores)
                for child in (task / "children").read_text().split():
                    pin(int(child), cores)


def processor_seconds(pid: int) -> float:
    """Of a process and its children, until now."""
    if not pid:
        return 0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (int(fields[11]) + int(fields[12])) * TICK + sum(processor_seconds(int(child)) for child in children)


@contextmanager
def watched(port: int) -> Iterator[None]:
    """A page that asks for what it shows, as a browser does, until this ends."""
    ended = threading.Event()

    def get(path: str) -> None:
        with urlopen(Request(f"http://127.0.0.1:{port}{path}", headers={"Accept-Encoding": "gzip"})) as response:
            response.read()

    def look() -> None:
        get("/status/rules")
        get("/status/now")
        while not ended.wait(PAGE_SECONDS):
            get("/status/recent")

    page = threading.Thread(target=look)
    page.start()
    try:
        yield
    finally:
        ended.set()
        page.join()


@contextmanager
def started(
    scenario: Scenario, load: Load, cores: Cores, *, beside: str, envoyproxy: bool, leases: bool
) -> Iterator[list[Running]]:
    """Our service with each store, and envoyproxy's."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rules = folder / "root" / "config"
        rules.mkdir(parents=True)
        (rules / "rules.yaml").write_text(rules_of(scenario, load))

        def start_ours(name: str, environ: Mapping[str, str], redis_pid: int = 0) -> Running:
            settings = {"STORE_DEADLINE": "1s", "RULES_POLL_INTERVAL": "1s", "WORKERS": str(scenario.workers)}
            settings |= dict(scenario.settings)
            service = stack.enter_context(start_service(folder / name, rules, settings | dict(environ)))
            for _ in range(scenario.pages):
                stack.enter_context(watched(service.debug_port))
            return Running(name, f"127.0.0.1:{service.grpc_port}", service.pid, redis_pid)

        def start_a_redis(name: str) -> tuple[int, dict[str, str]]:
            redis = stack.enter_context(start_redis(folder / name))
            pin(redis.pid, cores.load)
            return redis.pid, {"REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": f"127.0.0.1:{redis.port}"}

        running = []
        builds: list[tuple[str, dict[str, str]]] = [("", {}), (" beside", {"PYTHONPATH": beside})]
        for name, build in builds if beside else builds[:1]:
            if scenario.workers == 1:  # the memory store has no more
                running.append(start_ours(f"memory{name}", build | {"MEMORY_MAX_COUNTERS": "5000000"}))
            redis_pid, environ = start_a_redis(f"our redis{name}")
            running.append(start_ours(f"redis{name}", build | environ, redis_pid))
        if leases:
            redis_pid, environ = start_a_redis("redis of leases")
            running.append(start_ours("leases", environ | {"LEASES": "auto"}, redis_pid))
        if envoyproxy:
            redis_pid, environ = start_a_redis("envoyproxy's redis")
            environ |= {"GOMAXPROCS": str(scenario.workers), "LOG_LEVEL": "error"}
            # Statistics as in use, and as ours has them: with no sink chosen it writes a line of its log for each call.
            environ |= {"USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": f"127.0.0.1:{free_port()}"}
            theirs = stack.enter_context(start_envoyproxy(folder / "envoyproxy", rules, environ))
            running.append(Running("envoyproxy", f"127.0.0.1:{theirs.grpc_port}", theirs.pid, redis_pid))
        for service in running:
            pin(service.pid, cores.services)
        yield running


def measure(service: Running, load: Load, cores: Cores) -> Round:
    """One round, by a load in a process of its own."""
    command = [sys.executable, "-m", "ratelimit_service", "load", service.address, "bench", *load.request, "--json"]
    command += [f"--calls={load.calls}", f"--connections={load.connections}", f"--keys={load.keys}"]
    command += [f"--in-flight={load.in_flight}", *([f"--rate={load.rate}"] if load.rate else [])]
    before = [processor_seconds(pid) for pid in (service.pid, service.redis_pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as loading:
        pin(loading.pid, cores.load)
        output, _ = loading.communicate()
    after = [processor_seconds(pid) for pid in (service.pid, service.redis_pid)]
    if not output:
        sys.exit(f"{service.name} at {service.address} does not answer")
    result = json.loads(output)
    for what, count in result["failures"].items():
        print(f"{service.name}: {count} calls failed: {what}", file=sys.stderr)
    ours, of_redis = ((end - begin) / result["calls"] * 1e6 for begin, end in zip(before, after, strict=True))
    took = result["latency_ms"]
    return Round(
        result["calls_per_second"], took["p50"], took["p99"], ours, of_redis, result["refused"], result["failed"]
    )


def compare(running: Sequence[Running], load: Load, cores: Cores, rounds: int) -> dict[str, list[Round]]:
    """All rounds of each service, after one that does not count."""
    shown: dict[str, list[Round]] = {service.name: [] for service in running}
    for service in running:
        measure(service, replace(load, calls=min(load.calls, WARM_UP)), cores)
    for _ in range(rounds):
        for service in running:
            shown[service.name].append(measure(service, load, cores))
    return shown


def medians(rounds: Sequence[Round]) -> Round:
    """Of each figure by itself."""
    return Round(*(median(figures) for figures in zip(*rounds, strict=True)))


def print_table(shown: Mapping[str, Sequence[Round]]) -> None:
    """A row for each service, with the ratio to the last one."""
    print(f"{'':12} {'calls/s':>9} {'× last':>6} {'p50 ms':>7} {'p99 ms':>7} {'µs/call':>8} {'in Redis':>8} refused")
    of_last = medians(list(shown.values())[-1]).calls_a_second
    for name, rounds in shown.items():
        row = medians(rounds)
        spent = "".join(f" {us:8.1f}" if us else f" {'':8}" for us in (row.service_us, row.redis_us))
        print(
            f"{name:12} {row.calls_a_second:9,.0f} {row.calls_a_second / of_last:6.2f} {row.p50_ms:7.2f} "
            f"{row.p99_ms:7.2f}{spent} {row.refused:7,.0f}",
            flush=True,
        )


def every_round(shown: Shown) -> list[dict[str, object]]:
    """What --json writes."""
    return [
        {"varied": value, "service": name, **one._asdict()}
        for value, services in shown.items()
        for name, rounds in services.items()
        for one in rounds
    ]


def varied(text: str, scenario: Scenario, load: Load) -> Iterator[tuple[str, Scenario, Load]]:
    """What is measured for each value of `NAME=VALUE,VALUE`; once, as it is, for an empty text."""
    name, _, values = text.partition("=")
    if not name:
        yield "", scenario, load
    field = name.replace("-", "_")
    for value in filter(None, values.split(",")):
        if hasattr(scenario, field):
            yield value, replace(scenario, **{field: int(value)}), load  # type: ignore[arg-type]
        elif hasattr(load, field):
            yield value, scenario, replace(load, **{field: int(value)})
        else:
            sys.exit(f"nothing is called {name}; see --help")


def add_options(parser: argparse.ArgumentParser, of: type) -> None:
    """An option for each number of a dataclass."""
    for field in fields(of):
        if not isinstance(field.default, int):
            continue
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=int, default=field.default, metavar="N", help="default: %(default)s")


def options_of(chosen: argparse.Namespace, of: type[T]) -> T:
    """What was chosen of them."""
    names = [field.name for field in fields(of) if hasattr(chosen, field.name)]  # type: ignore[arg-type]
    return of(**{name: getattr(chosen, name) for name in names})


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--vary", default="", metavar="NAME=VALUE,VALUE", help="any of the options below that follow")
    parser.add_argument("--envoyproxy", action="store_true", help="beside envoyproxy/ratelimit, which Go builds")
    parser.add_argument("--beside", default="", metavar="FOLDER", help="beside the package that is installed there")
    parser.add_argument("--leases", action="store_true", help="beside one with LEASES=auto, on a Redis of its own")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=HOST:PORT", help="beside one that listens")
    parser.add_argument(
        "--cores", default="0/1", metavar="A,B/C,D", help="of the services / of Redis and the load; 0/1"
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of our service")
    parser.add_argument("--show-rules", action="store_true", help="print the rules that a peer needs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round there")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw calls a second over --vary")
    add_options(parser, Scenario)
    add_options(parser, Load)
    chosen = parser.parse_args()
    settings = [tuple(setting.split("=", 1)) for setting in chosen.set]
    scenario, load = replace(options_of(chosen, Scenario), settings=settings), options_of(chosen, Load)
    if chosen.show_rules:
        print(rules_of(scenario, load), end="")
        return
    if chosen.picture and not chosen.vary:
        parser.error("--picture needs --vary")
    if chosen.envoyproxy:
        try:
            peers.envoyproxy_of_go.find()
        except Missing as reason:
            sys.exit(f"envoyproxy/ratelimit cannot be had: {reason}")
    cores = Cores(*({int(core) for core in of.split(",")} for of in chosen.cores.split("/")))
    others = [Running(*peer.split("=", 1)) for peer in chosen.peer]
    shown: Shown = {}
    for value, of_value, with_load in varied(chosen.vary, scenario, load):
        with (
            redirect_stdout(io.StringIO()),
            started(
                of_value, with_load, cores, beside=chosen.beside, envoyproxy=chosen.envoyproxy, leases=chosen.leases
            ) as running,
        ):
            shown[value] = compare([*running, *others], with_load, cores, chosen.rounds)
        if value:
            print(f"{chosen.vary.partition('=')[0]} {value}")
        print_table(shown[value])
    if chosen.json:
        of_all = {"machine": platform.platform(), "python": platform.python_version(), "vary": chosen.vary}
        whole = {**of_all, **asdict(scenario), **asdict(load), "rounds": every_round(shown)}
        chosen.json.write_text(json.dumps(whole, indent=2))
    if chosen.picture:
        lines: dict[str, list[tuple[float, float]]] = {}
        for value, services in shown.items():
            for name, rounds in services.items():
                lines.setdefault(name, []).append((float(value), medians(rounds).calls_a_second))
        places = sorted({x for points in lines.values() for x, _ in points})
        across = chosen.vary.partition("=")[0]
        chosen.picture.write_text(draw(lines, across, "calls a second", places, "{:,.0f}".format))


if __name__ == "__main__":
    main()
