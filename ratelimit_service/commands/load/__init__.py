"""`ratelimit load`: ask a running service as often as it can, or so often per second, and say what came of it."""

import asyncio
import signal
import ssl
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NoReturn

import click
import uvloop

from ratelimit_service.commands.duration import DURATION
from ratelimit_service.commands.load.requests import MAX_KEYS, PLACE, Requests, read_requests
from ratelimit_service.commands.load.run import Load, Result, Run
from ratelimit_service.commands.picture import draw
from ratelimit_service.commands.probe import why_no_answer
from ratelimit_service.commands.request import ENTRY, Entry, descriptors
from ratelimit_service.commands.table import share
from ratelimit_service.commands.target import Trust, check_target, tls_options
from ratelimit_service.commands.terminal import echo, echo_again, echo_json
from ratelimit_service.model import MAX_REQUESTS
from ratelimit_service.system.clock import SECOND

FAILED, UNREACHABLE = 1, 3
"""Exit codes: some calls had no answer; there is no connection at all."""

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9, 99.99)

_DEFAULT_SECONDS: Final = 10.0
_PROBE_SECONDS: Final = 5.0
_BUSY: Final = 0.95
"""The share of a core that the load may use; above it, the load measures itself."""


@click.command(
    short_help="Put a service under load, and print the result.",
    epilog="""\b
Examples:
  ratelimit load localhost:8081 shop login=u{key} --for 2s                (1,000 users, as fast as it can)
  ratelimit load localhost:8081 shop login=u{key} --for 2s --rate 500
  ratelimit load localhost:8081 shop plan=free user=u{key} + path=/cart --for 2s --keys 100000 --zipf 1.1
  ratelimit load unix:/run/ratelimit.sock shop login=ada --calls 1000 --json

\b
With --requests FILE, a line of the file:
  shop plan=free user=u{key} + path=/cart""",
)
@click.argument("target", metavar="HOST:PORT")
@click.argument("domain", required=False)
@click.argument("entries", metavar="[KEY=VALUE...]", nargs=-1, type=ENTRY)
@click.option(
    "--requests",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of requests, a line each: DOMAIN KEY=VALUE... [+ KEY=VALUE...]. Each call sends a random one.",
)
@click.option(
    "--keys",
    type=click.IntRange(1, MAX_KEYS),
    default=1000,
    show_default=True,
    help=f"Numbers that {PLACE} stands for.",
)
@click.option(
    "--zipf",
    type=click.FloatRange(0, 10),
    default=0.0,
    metavar="S",
    help="Zipf exponent: the nth key, or line of a file, has a chance of 1 / n^S; the web has about 1.  [default: 0]",
)
@click.option("--hits", type=click.IntRange(0, MAX_REQUESTS), help="Cost of each descriptor.  [default: 1]")
@click.option("--calls", type=click.IntRange(1), help="End after so many calls.")
@click.option("--for", "duration", type=DURATION, help="End after this time.  [default: 10s, unless --calls]")
@click.option(
    "--rate",
    type=click.IntRange(1, 10_000_000),
    help="Calls per second, begun on time whether or not others are answered.  [default: as many as are answered]",
)
@click.option("--connections", type=click.IntRange(1, 10_000), default=4, show_default=True)
@click.option(
    "--in-flight",
    type=click.IntRange(1, 100_000),
    help="Concurrent calls on each connection.  [default: 25; with --rate 1000]",
)
@click.option("--timeout", type=DURATION, help="Deadline that each call carries.  [default: none]")
@tls_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option(
    "--picture", type=click.Path(path_type=Path, dir_okay=False), help="Draw the latencies to this file, as SVG."
)
def command(
    *,
    target: str,
    domain: str | None,
    entries: Sequence[Entry | None],
    file: Path | None,
    keys: int,
    zipf: float,
    hits: int | None,
    calls: int | None,
    duration: int | None,
    rate: int | None,
    connections: int,
    in_flight: int | None,
    timeout: int | None,
    trust: Trust | None,
    as_json: bool,
    picture: Path | None,
) -> None:
    """Put a service under load, and print its rate, its answers and its latencies.

    Every call charges the counters of the service. In a value, {key} stands for a random one of --keys numbers.

    Without --rate each call waits for one before it: that shows how much the service can do. A stall then delays few
    calls, so for latencies as steady traffic sees them, give a --rate: calls begin on time and count from then, also
    while none is answered. A connection that is lost is made again.

    Exits with 0, or 1 when a call had no answer, or 3 when there is no connection.
    """
    check_target(target)
    if file is not None and domain is not None:
        raise click.UsageError("the requests are in --requests: leave DOMAIN and KEY=VALUE out")
    if file is None and (domain is None or not entries):
        raise click.UsageError("nothing to ask: write DOMAIN KEY=VALUE..., or --requests FILE")
    asked = read_requests(file) if file is not None else [(domain or "", descriptors(entries))]
    requests = Requests(asked, keys=keys, zipf=zipf, hits=hits)
    load = Load(
        target,
        connections,
        in_flight or (25 if rate is None else 1000),
        calls,
        duration / SECOND if duration else (None if calls else _DEFAULT_SECONDS),
        rate,
        timeout,
        _tls(trust),
    )
    show = sys.stderr.isatty() and not as_json
    run = Run(load, requests, _show_second if show else None)
    try:
        result = uvloop.run(_run(run))
    except OSError as error:
        _exit_unreachable(target, why_no_answer(target, trust, _PROBE_SECONDS) or str(error))
    if show:
        echo("", err=True)
    if result.failed == result.calls and (reason := why_no_answer(target, trust, _PROBE_SECONDS)):
        _exit_unreachable(target, reason)
    if picture is not None:
        _write(picture, result)
    if as_json:
        echo_json(_as_json(result))
    else:
        echo(*_readable(result, load).splitlines())
    sys.exit(FAILED if result.failed else 0)


def _exit_unreachable(target: str, reason: str) -> NoReturn:
    echo(f"ratelimit: {target}: {reason}", err=True)
    sys.exit(UNREACHABLE)


def _tls(trust: Trust | None) -> ssl.SSLContext | None:
    try:
        return None if trust is None else trust.context()
    except OSError as error:
        raise click.UsageError(f"the certificates cannot be used: {error}") from error


async def _run(run: Run) -> Result:
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, run.stop)
    return await run.run()


def _show_second(second: Result) -> None:
    p50, p99 = (second.latencies.percentile(percent) / 1e6 for percent in (50, 99))
    failed = f", {second.failed:,} failed" if second.failed else ""
    rate = second.calls / second.seconds
    text = (
        f"{rate:,.0f} a second, {share(second.refused, second.calls)} refused{failed}, p50 {p50:.2f} ms, p99 {p99:.2f}"
    )
    echo_again(text)


def _readable(result: Result, load: Load) -> str:
    latencies = "  ".join(f"p{percent:g} {ms:.2f}" for percent, ms in _percentiles(result).items())
    cores = result.cpu_seconds / result.seconds
    how = f"{load.rate:,} a second wanted" if load.rate else f"{load.connections * load.in_flight:,} at a time"
    lines = [
        f"{result.calls:,} calls in {result.seconds:.1f} s, {result.calls / result.seconds:,.0f} a second ({how})",
        f"  allowed  {result.allowed:13,}  {share(result.allowed, result.calls):>7}",
        f"  refused  {result.refused:13,}  {share(result.refused, result.calls):>7}",
        f"  failed   {result.failed:13,}  {share(result.failed, result.calls):>7}",
        *(f"           {count:13,}  {reason}" for reason, count in sorted(result.failures.items())),
        *(
            [f"  latency  {latencies}  longest {result.latencies.longest / 1e6:.2f} ms"]
            if result.latencies.calls
            else []
        ),
        f"  the load itself used {cores:.2f} cores, {result.cpu_seconds / (result.calls or 1) * 1e6:.1f} µs a call",
    ]
    if cores > _BUSY:
        lines.append("  that is all it can do: the service may do more, and latencies are partly the load's own")
    return "\n".join(lines)


def _percentiles(result: Result) -> dict[float, float]:
    """Milliseconds."""
    return {percent: result.latencies.percentile(percent) / 1e6 for percent in PERCENTILES}


def _as_json(result: Result) -> dict[str, Any]:
    return {
        "calls": result.calls,
        "allowed": result.allowed,
        "refused": result.refused,
        "failed": result.failed,
        "failures": dict(result.failures),
        "seconds": result.seconds,
        "calls_per_second": result.calls / result.seconds,
        "latency_ms": {
            **{f"p{percent:g}": ms for percent, ms in _percentiles(result).items()},
            "longest": result.latencies.longest / 1e6,
        },
        "load_cpu_seconds": result.cpu_seconds,
    }


def _write(picture: Path, result: Result) -> None:
    """The latency over the share of calls that take longer, each tick a tenth of the one before."""
    points = [(1 / (1 - before), ns / 1e6) for before, ns in result.latencies.curve()] if result.latencies.calls else []
    steps = [point for one, other in pairwise(points) for point in (one, (other[0], one[1]))] + points[-1:]
    ticks = [10.0**power for power in range(max(2, len(str(result.latencies.calls))))]

    def tick_text(x: float) -> str:
        return f"{100 - 100 / x:.10g} %"

    title = f"{result.calls / result.seconds:,.0f}/s"
    try:
        picture.write_text(
            draw({title: steps or [(1.0, 0.0)]}, "calls answered within", "milliseconds", ticks, tick_text)
        )
    except OSError as error:
        raise click.UsageError(f"{picture} cannot be written: {error.strerror}") from error
