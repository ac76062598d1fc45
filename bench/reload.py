"""How long a reload of many rules holds up calls: `python bench/reload.py [--rules 10000] [--reloads 10]`.

With `--lines 100000` the rules stay as they are, and a data file with so many lines changes, in which every call looks
its key up. With `--values 100000` the rules are few, and have a list of so many addresses and a tenth as many networks.
One of each changes; the call's own address is in the list.

A client asks one call after the other while the rules change again and again, and beside it the same time long without
a change; the difference is the reload's doing. Pinned to a core each where there are two, so that the client's own
pauses are few.
"""

import argparse
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ratelimit_service.api.generated.envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from ratelimit_service.api.ratelimit import ShouldRateLimit
from tests.processes import Service, start_service

DOMAINS = 100
LOOKUP = "lookup: {from: keys.csv, key: key1, as: key1, else: value1}\n"


def rules(count: int, requests: int) -> dict[str, str]:
    """Files with `count` rules in all, a domain in each."""
    of_each = count // DOMAINS
    files = {}
    for domain in range(DOMAINS):
        lines = [f"domain: d{domain}", "descriptors:"]
        for number in range(of_each):
            lines += [
                f"  - key: key{number}",
                f"    value: value{number}",
                f"    rate_limit: {{unit: minute, requests_per_unit: {requests}}}",
            ]
        files[f"d{domain}.yaml"] = "\n".join(lines)
    return files


def lists(count: int, changed: int) -> dict[str, str]:
    """Rules with a list of `count` addresses and a tenth as many networks, one of each changed."""
    numbers = [number * 7919 % 2**24 for number in range(1, count)]
    addresses = [f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}" for number in numbers]
    networks = [f"2001:db8:{number:x}::/48" for number in range(1, count // 10)]
    limit = "rate_limit: {unit: minute, requests_per_unit: 4000000000}"
    lines = [
        "domain: d1",
        "descriptors:",
        f"- {{key: key1, values_from: addresses.txt, {limit}}}",
        f"- {{key: key1, cidr: [{', '.join([*networks, f'192.0.2.{changed}'])}], label: networks, {limit}}}",
    ]
    return {"addresses.txt": "\n".join([*addresses, f"192.0.3.{changed}", "192.0.2.77"]), "d1.yaml": "\n".join(lines)}


def calls(ask: Callable[[bytes], bytes], body: bytes, until: Callable[[], bool]) -> list[float]:
    """Milliseconds of one call after the other."""
    took = []
    while not until():
        started = time.perf_counter()
        ask(body)
        took.append((time.perf_counter() - started) * 1e3)
    return sorted(took)


def line(name: str, took: list[float]) -> str:
    """A row of the table."""
    at = [took[min(len(took) - 1, int(part * len(took)))] for part in (0.5, 0.99, 0.999)]
    return f"{name:16} {len(took):8} " + " ".join(f"{value:8.2f}" for value in (*at, took[-1]))


def write(service: Service, files: dict[str, str]) -> None:
    """Write these files."""
    for name, text in files.items():
        service.write_rules(text, name)


def data_file(lines: int, seed: int) -> str:
    """So many keys, each with one of three tiers."""
    return "".join(f"k-{seed}-{number:020},tier{number % 3}\n" for number in range(lines))


def has_loaded(service: Service, times: int) -> bool:
    """Its rules, so often."""
    return service.log.count("rules loaded") >= times


def main() -> None:
    """Prints the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rules", type=int, default=10_000)
    options.add_argument("--reloads", type=int, default=10)
    options.add_argument("--lines", type=int, default=0, help="of a data file, which changes in place of the rules")
    options.add_argument("--values", type=int, default=0, help="of a list, in place of rules")
    chosen = options.parse_args()
    entry = RateLimitDescriptor.Entry(key="key1", value="192.0.2.77" if chosen.values else "value1")
    files = partial(lists, chosen.values) if chosen.values else partial(rules, chosen.rules)

    def changed(number: int) -> dict[str, str]:
        return {"keys.csv": data_file(chosen.lines, number)} if chosen.lines else files(number)

    body = RateLimitRequest(domain="d1", descriptors=[RateLimitDescriptor(entries=[entry])]).SerializeToString()

    # The service's log, which the end of the process prints, is not what is wanted here.
    with redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        first = Path(folder, "rules")
        first.mkdir()
        for name, text in files(1).items():
            looks_up = chosen.lines and name == "d1.yaml"
            (first / name).write_text(f"{LOOKUP}{text}" if looks_up else text)
        (first / "keys.csv").write_text(data_file(chosen.lines, 1))
        with start_service(Path(folder), first) as service:
            if (os.cpu_count() or 1) > 1:
                os.sched_setaffinity(service.pid, {0})
                os.sched_setaffinity(0, {1})
            with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}") as channel:
                ask = channel.unary_unary(ShouldRateLimit.path, bytes, bytes)
                write(service, changed(2))
                service.wait_until(partial(has_loaded, service, 2), "the rules are loaded")

                changing: list[float] = []
                spent = 0.0
                for reload in range(chosen.reloads):
                    loaded = partial(has_loaded, service, service.log.count("rules loaded") + 1)
                    write(service, changed(10 + reload))
                    started = time.perf_counter()
                    changing += calls(ask, body, loaded)
                    spent += time.perf_counter() - started
                end = time.perf_counter() + spent
                quiet = calls(ask, body, lambda: time.perf_counter() > end)

    what = f"{chosen.rules} rules in {DOMAINS} domains"
    if chosen.values:
        what = f"a list of {chosen.values}"
    elif chosen.lines:
        what += f", a data file of {chosen.lines} lines"
    print(f"{what}, {chosen.reloads} reloads, {spent:.1f} s; ms per call")
    print(f"{'':16} {'calls':>8} {'p50':>8} {'p99':>8} {'p99.9':>8} {'max':>8}")
    print(line("no reload", quiet))
    print(line("while reloading", sorted(changing)))


if __name__ == "__main__":
    main()
