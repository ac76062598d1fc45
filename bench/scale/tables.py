"""The tables of RESULTS.md, of what was found and what the model makes of it."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import linear_regression
from typing import Final, NamedTuple

from leases import Shown, arrivals_of, rule_of, simulate

from scale.model import Costs, Deployment, Limit, Load, burst, cells, redis_us, sent, service_us, smallest, touches
from scale.runs import CALIBRATION, CHECK, Found, Run, costs_of, measure

FOUND: Final = Path(__file__).with_name("found.json")
PAGE: Final = Path(__file__).with_name("RESULTS.md")

HEADERS: Final = 66
"""Bytes of Ethernet, IP and TCP around what a packet carries."""

INSTANCES: Final = (4, 16, 64, 250, 1000)


class Case(NamedTuple):
    """One counter, leased."""

    limit: Limit
    load: float
    """Of the limit."""
    seconds: float
    call_us: int = 0
    """Of Redis."""

    @property
    def name(self) -> str:
        """Of its row."""
        limit = self.limit
        busy = f", {self.call_us} µs" if self.call_us else ""
        return f"{limit.requests:,} in {limit.window:.0f} s, `{limit.algorithm}`, × {self.load:g}{busy}"

    @property
    def demand(self) -> float:
        """A second."""
        return self.load * self.limit.requests / self.limit.window


CASES: Final = (
    Case(Limit(1000, 1), 1.2, 10),
    Case(Limit(16_667, 10), 0.5, 20),
    Case(Limit(16_667, 10), 1.2, 20),
    Case(Limit(16_667, 10, "sub_windows"), 1.2, 20),
    Case(Limit(16_667, 10, "token_bucket"), 3, 40),
    Case(Limit(100_000, 60), 0.9, 60),
    Case(Limit(100_000, 1), 0.5, 2),
    Case(Limit(100_000, 1), 1.2, 2),
    Case(Limit(100_000, 1, "sliding_window"), 1.2, 2),
    Case(Limit(10_000_000, 10), 1, 4),
)

HERDS: Final = tuple(
    Case(limit, 0.9, 3, call_us) for limit in (Limit(1_000_000, 10), Limit(100_000, 1)) for call_us in (20, 40)
)
"""The same with a Redis that takes its time."""

TRAFFIC: Final[Mapping[str, tuple[int, float, bool]]] = {
    "a million keys alike, no leases": (1_000_000, 0, False),
    "100,000 keys by Zipf 1.1, `LEASES=auto`": (100_000, 1.1, True),
    "1,000 keys alike, `LEASES=auto`": (1000, 0, True),
}
"""How many keys, the exponent of Zipf's law, and whether they are leased."""

MINUTE: Final = Limit(1_000_000_000, 60)
"""A limit a minute that is not reached."""


class Finds(NamedTuple):
    """What `found.json` has."""

    runs: Mapping[str, Found]
    simulated: Mapping[str, Sequence[Shown]]
    """By the case; one for each number of instances."""

    @property
    def costs(self) -> Costs:
        """What single steps cost."""
        return costs_of({name: self.runs[name] for name in CALIBRATION})


def rows(head: str, lines: Iterator[str]) -> str:
    """A table."""
    return "\n".join((f"| {head} |", "| " + " | ".join("---" for _ in head.split(" | ")) + " |", *lines))


def costs(finds: Finds) -> str:
    """What single steps cost."""
    of = finds.costs
    steps = {
        "a call with many others on its connection, counters in memory": (of.call, None),
        "more for a call that is alone on its connection": (of.alone, None),
        "more for a hit that goes to Redis": (of.sent, of.redis_hit),
        "more for each pipeline to Redis": (of.pipeline, of.redis_pipeline),
        "more for each further script call in a pipeline: in a Cluster, each further hit": (
            of.script_call,
            of.redis_script_call,
        ),
    }
    return rows(
        "step | µs of the service | µs of Redis",
        (f"| {step} | {us:.1f} | {'' if redis is None else f'{redis:.1f}'} |" for step, (us, redis) in steps.items()),
    )


def predicted(run: Run, found: Found, of: Costs) -> tuple[float, float]:
    """Microseconds of the service and of Redis, for a call of a run with so many calls a second."""
    servers = 3 if run.store == "cluster" else 1
    deployment = Deployment(run.processes, servers, run.leases)
    load = Load(found.calls_a_second, run.keys, alone=1 / run.in_flight)
    of_call = sent(load, Limit(4_000_000_000, 3600), deployment) / load.calls
    # All calls are under way all the time: those that are sent wait in two pipelines of each lane.
    size = max(1, of_call * run.connections * run.in_flight / deployment.lanes / 2)
    return (
        service_us(load, deployment, of, size, of_call),
        of_call * redis_us(deployment, of, size),
    )


def checked(finds: Finds) -> str:
    """What the model says of runs that it was not made from."""
    of = finds.costs

    def row(name: str) -> str:
        found = finds.runs[name]
        service, redis = predicted(CHECK[name], found, of)
        return (
            f"| {name} | {found.calls_a_second:,.0f} "
            f"| {service:.1f} / {found.service_us:.1f} | {service / found.service_us:.2f} "
            f"| {redis:.1f} / {found.redis_us:.1f} | {redis / found.redis_us if found.redis_us else 1:.2f} |"
        )

    head = "run | calls/s | service: model / measured µs | ratio | Redis: model / measured µs | ratio"
    return rows(head, (row(name) for name in CHECK))


def ladder(finds: Finds) -> str:
    """What calls a second take, of each kind of traffic."""
    of = finds.costs
    single = [each for name, each in finds.runs.items() if name.startswith("one Redis") and name in CALIBRATION]
    to_redis = linear_regression([each.pipelines for each in single], [each.redis_bytes for each in single])
    of_call = single[0].grpc_bytes + 2 * HEADERS

    def row(traffic: str, calls: float) -> str:
        keys, zipf, leases = TRAFFIC[traffic]
        number, deployment, found = cells(Load(calls, keys, zipf), MINUTE, of, leases=leases)
        together = burst(Load(calls / number, keys // number, zipf), MINUTE, deployment, of)
        redis_bytes = found.sent * (to_redis.intercept + (to_redis.slope + 2 * HEADERS) / found.pipeline_hits)
        cluster = smallest(Load(calls, keys, zipf), MINUTE, of, leases=leases, most=1000)
        instead = ""
        if number > 1:
            instead = f"{cluster[0].servers:,}, {cluster[0].processes:,}" if cluster else "more than 1,000"
        return (
            f"| {calls:,.0f} | {traffic} | {found.service_us:.0f} | {number * deployment.processes:,} | {number} "
            f"| {found.sent:.3f} | {found.pipeline_hits:.1f} | {found.round_trip / 1000:.1f} "
            f"| {together / 1000:,.0f} "
            f"| {calls * of_call * 8 / 1e9:.2g} | {calls * redis_bytes * 8 / 1e9:.2g} | {instead} |"
        )

    head = (
        "calls/s | traffic | µs of the service | processes | Redis servers, each with its own share of them "
        "| sent, of a call | hits in a pipeline | to Redis and back, ms | asks when a term ends, ms "
        "| Gbit/s to clients | to Redis | one Cluster instead: nodes, processes"
    )
    return rows(head, (row(traffic, calls) for traffic in TRAFFIC for calls in (1e4, 1e5, 1e6, 1e7)))


def hot(finds: Finds) -> str:
    """One counter with leases, by instances."""
    of = finds.costs

    def row(window: float, instances: int) -> str:
        rate = touches(Limit(int(1_100_000 * window), window), 1e6, instances)
        alone = rate * redis_us(Deployment(instances), of, 1) / 1e6
        return f"| {window:.0f} s | {instances:,} | {rate:,.0f} | {rate / 1e6:.4f} | {alone:.2f} |"

    head = "window | instances | touches a second | of a request | cores of Redis, if each travels alone"
    return rows(head, (row(window, number) for window in (60.0, 10.0, 1.0) for number in (64, 250, 1000)))


def by_instances(finds: Finds, cell: Callable[[Case, int, Shown], str], cases: Sequence[Case] = CASES) -> str:
    """A row for each case, a column for each number of instances."""
    head = "limit, algorithm, load | " + " | ".join(f"{number:,}" for number in INSTANCES)
    return rows(
        head,
        (
            f"| {case.name} | "
            + " | ".join(
                cell(case, number, shown) for number, shown in zip(INSTANCES, finds.simulated[case.name], strict=True)
            )
            + " |"
            for case in cases
        ),
    )


def touched(finds: Finds) -> str:
    """Touches a request: of the simulation, and of the model."""
    return by_instances(
        finds,
        lambda case, number, shown: f"{shown.calls:.3g} ({touches(case.limit, case.demand, number) / case.demand:.3g})",
    )


def admitted(finds: Finds) -> str:
    """Of what one counter admits."""
    return by_instances(finds, lambda _case, _number, shown: f"{shown.admitted:.3f}")


def waited(finds: Finds) -> str:
    """The share of requests that waited for Redis."""
    return by_instances(finds, lambda _case, _number, shown: f"{shown.sent:.2%}")


def herd(finds: Finds) -> str:
    """The 99th percentile of the waits of requests that are sent, and the share of those."""
    return by_instances(finds, lambda _case, _number, shown: f"{shown.wait_p99_ms:.1f} ms ({shown.sent:.1%})", HERDS)


TABLES: Final = (costs, checked, ladder, hot, touched, admitted, waited, herd)


def filled(text: str, finds: Finds) -> str:
    """The page with all tables between their markers."""
    for table in TABLES:
        begin, end = f"<!-- {table.__name__}:begin -->\n", f"<!-- {table.__name__}:end -->\n"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            sys.exit(f"{PAGE} has no place for {table.__name__}")
        text = f"{before}{begin}\n{table(finds)}\n\n{end}{after}"
    return text


def simulated() -> Iterator[tuple[str, Sequence[Shown]]]:
    """All cases."""
    for case in (*CASES, *HERDS):
        arrivals = arrivals_of(case.demand, case.seconds, Random(1))
        rule = rule_of(case.limit.algorithm, case.limit.requests, int(case.limit.window))
        found = []
        for instances in INSTANCES:
            found.append(simulate(rule, instances, arrivals, call_us=case.call_us))
            print(case.name, instances, found[-1], file=sys.stderr)
        yield case.name, found


def keep(name: str, what: Mapping[str, object]) -> None:
    """Write what was found, a line for each row."""
    found = json.loads(FOUND.read_text()) | {name: what}
    sections = (
        f"{json.dumps(section)}: {{\n"
        + ",\n".join(f"{json.dumps(row, ensure_ascii=False)}: {json.dumps(value)}" for row, value in rows.items())
        + "\n}"
        for section, rows in found.items()
    )
    FOUND.write_text("{\n" + ",\n".join(sections) + "\n}\n")


def main() -> None:
    """Prints the tables, or writes them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="run the service first: ten minutes, on two cores")
    parser.add_argument("--rounds", type=int, default=5, help="of each run; default: %(default)s")
    parser.add_argument("--simulate", action="store_true", help="run the simulations first: some minutes")
    parser.add_argument("--write", action="store_true", help="write the tables into RESULTS.md")
    chosen = parser.parse_args()
    if chosen.measure:
        keep("runs", {name: measure(name, run, chosen.rounds) for name, run in {**CALIBRATION, **CHECK}.items()})
    if chosen.simulate:
        keep("simulated", dict(simulated()))
    found = json.loads(FOUND.read_text())
    finds = Finds(
        {name: Found(*each) for name, each in found["runs"].items()},
        {name: [Shown(*each) for each in of_case] for name, of_case in found["simulated"].items()},
    )
    if chosen.write:
        PAGE.write_text(filled(PAGE.read_text(), finds))
    else:
        print(*(table(finds) for table in TABLES), sep="\n\n")


if __name__ == "__main__":
    main()
