"""What regions allow together, and how long callers wait: `python bench/regions.py [--limit 1000] [--window 10]`.

Three regions in network namespaces, at 0, 70 and 140 ms there and back from home (tests/network.py), which needs root.
Calls come evenly, 60, 30 and 10 % of them in the regions, for nine tenths of a window of the clock. *Allowed* is the
worst window, beside the limit; *of possible* is what all windows allow, beside the lesser of limit and demand; waits
are those of callers in the farthest region, who have a deadline of 5 s; *to home* are the script calls there per call.
"""

import argparse
import io
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitResponse
from tests.stories.regions import Region, open_regions

MODES = {
    "leased": "regions: leased",
    "leased, floor: 10%": "regions: leased, floor: 10%",
    "central": "regions: central",
    "split": "regions: split",
    "synced": "regions: synced",
}
SHARES = (6, 9, 10)
"""Of each ten calls the first six are in the first region, the next three in the second one."""

SETTINGS = {"REDIS_URL": "{own}", "HOME_REDIS_URL": "{home}", "REGIONS": "eu,us,ap", "REGION": "{region}"}
DEADLINE = 5
"""Seconds."""


class Call(NamedTuple):
    """One of them, that was answered."""

    region: int
    seconds: float
    allowed: bool


class Window(NamedTuple):
    """What has come of the calls of one window."""

    calls: Sequence[Call]
    to_home: int


def arrivals(number: int) -> Iterator[int]:
    """The region of each call."""
    for index in range(number):
        yield next(region for region, edge in enumerate(SHARES) if index * 7 % 10 < edge)


def run(regions: Sequence[Region], key: str, number: int, window: int) -> Window:
    """So many calls, evenly within one window."""
    calls: list[Call] = []
    time.sleep(window - time.time() % window + 0.05)
    begun, before = time.monotonic(), regions[0].home.script_calls()
    for index, region in enumerate(arrivals(number)):
        due = begun + index * 0.9 * window / number
        time.sleep(max(0.0, due - time.monotonic()))
        (call,) = regions[region].start(key, 1, DEADLINE)
        call.add_done_callback(_noting(calls, region, due))
    while len(calls) < number:
        time.sleep(0.01)
    return Window(calls, regions[0].home.script_calls() - before)


def _noting(calls: list[Call], region: int, due: float) -> Any:
    def note(call: Any) -> None:
        ended = time.monotonic()
        allowed = call.exception() is None and call.result().overall_code == RateLimitResponse.OK
        calls.append(Call(region, ended - due, allowed))

    return note


def shown(mode: str, load: float, limit: int, windows: Sequence[Window]) -> str:
    """A row of the table."""
    calls = [call for window in windows for call in window.calls]
    allowed = [sum(call.allowed for call in window.calls) for window in windows]
    waits = quantiles([call.seconds * 1000 for call in calls if call.region == 2], n=100)
    possible = min(limit, round(limit * load)) * len(windows)
    cells = (
        f"`{mode}`",
        f"{load:g}",
        f"{max(allowed) / limit:.3f}",
        f"{sum(allowed) / possible:.3f}",
        f"{waits[49]:.1f} / {waits[98]:.0f} ms",
        f"{sum(window.to_home for window in windows) / len(calls):.3f}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Runs all, and prints a row of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=1000, help="of all regions together, in a window")
    parser.add_argument("--window", type=int, default=10, help="seconds")
    parser.add_argument("--windows", type=int, default=2, help="how many of each kind")
    parser.add_argument("--loads", default="1.2,3", help="demand, beside the limit")
    parser.add_argument("--modes", default=";".join(MODES), help="such as 'synced;split'")
    options = parser.parse_args()
    out = sys.stdout
    lines = ["domain: shop", "descriptors:"]
    limit = f"unit: {options.window} seconds, requests_per_unit: {options.limit}"
    lines += [f"- {{key: k{number}, rate_limit: {{{limit}, {mode}}}}}" for number, mode in enumerate(MODES.values())]
    with (
        tempfile.TemporaryDirectory() as folder,
        redirect_stdout(io.StringIO()),  # what processes have logged
        open_regions(Path(folder), "\n".join(lines) + "\n", SETTINGS) as found,
    ):
        table(found, options, out)


def table(found: Mapping[str, Region], options: argparse.Namespace, out: TextIO) -> None:
    """Prints it."""
    regions = list(found.values())
    print("| `regions` | demand | allowed | of possible | far waits, p50 / p99 | to home |", file=out)
    print("| --- | --- | --- | --- | --- | --- |", file=out)
    for load in map(float, options.loads.split(",")):
        for mode in options.modes.split(";"):
            key = f"k{list(MODES).index(mode)}"
            calls = round(options.limit * load)
            windows = [run(regions, key, calls, options.window) for _ in range(options.windows)]
            print(shown(mode, load, options.limit, windows), file=out, flush=True)


if __name__ == "__main__":
    main()
