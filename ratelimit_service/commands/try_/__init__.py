"""`ratelimit try`: something of this service at work, with all that it needs."""

import asyncio
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click

from ratelimit_service.commands.picture import draw
from ratelimit_service.commands.terminal import GREEN, RED, echo
from ratelimit_service.commands.try_.envoy import http_filters
from ratelimit_service.commands.try_.run import Callers, Outcome, Used, rate_limits, run

_WIDTH: Final = 40
"""Of a bar, in characters."""
_LIMIT: Final = 100_000
_WINDOW_SECONDS: Final = 60


class _Way(NamedTuple):
    """A way to keep a budget."""

    title: str
    does: str
    rules: str


_WAYS: Final = (
    _Way(
        "look and settle",
        "a request asks whether anything is left, and is charged when its answer has been sent",
        """\
domain: chat
settle: settled
defaults: {quota_unit: tokens}
descriptors:
  - key: user
    rate_limits:
      - {unit: minute, requests_per_unit: 100000, algorithm: token_bucket}
      - {calendar: {unit: month, zone: Europe/Berlin}, requests_per_unit: 20000000}
""",
    ),
    _Way(
        "reserve and settle",
        "a request takes what it may cost, and gives the rest back when its answer has been sent",
        """\
domain: chat
settle: settled
defaults: {quota_unit: tokens, reserve: {id: request_id, hold: 5 minutes, estimate: 4000}}
descriptors:
  - key: user
    descriptors:
      - key: request_id
        rate_limits:
          - {unit: minute, requests_per_unit: 100000, algorithm: token_bucket}
          - {calendar: {unit: month, zone: Europe/Berlin}, requests_per_unit: 20000000}
""",
    ),
)


@click.group(
    short_help="Show a limit at work, with all that it needs.",
    epilog="""\b
Examples:
  ratelimit try llm --seconds 2 --callers 8 --no-envoy""",
)
def command() -> None:
    """Show a limit at work, with all that it needs, on this machine alone."""


@command.command(
    epilog="""\b
Examples:
  ratelimit try llm
  ratelimit try llm --callers 512 --seconds 30 --svg tokens.svg
  ratelimit try llm --seconds 2 --callers 8 --no-envoy"""
)
@click.option("--callers", type=click.IntRange(1, 1000), default=64, show_default=True, help="Callers at once.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.5, 3600),
    default=15.0,
    show_default=True,
    help="Seconds for which they ask, each of the two ways.",
)
@click.option("--envoy", type=click.Path(dir_okay=False), help="Envoy's program.  [default: envoy, if it is on PATH]")
@click.option("--no-envoy", is_flag=True, help="Play Envoy's calls, although there is one.")
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Draw both ways to this file.")
def llm(*, callers: int, seconds: float, envoy: str | None, no_envoy: bool, svg: Path | None) -> None:
    """Limit the tokens that callers of a model use: first looked at and settled, then reserved and settled.

    Starts a stub of a model, whose answers use 1,000 to 4,000 tokens and take up to a second, this service with
    counters in memory, and Envoy between them; or plays the calls that Envoy makes for each request. A user has 100,000
    tokens a minute, by a token bucket. Draws what the callers use, prints what to write to rules and into Envoy's
    configuration, and ends all that it has started.
    """
    if envoy and no_envoy:
        raise click.UsageError("use --envoy or --no-envoy, not both")
    program = "" if no_envoy else envoy or shutil.which("envoy") or ""
    how = f"through {program}" if program else "without Envoy, whose two calls for each request are played here"
    for way in _WAYS:
        echo(f"# {way.title}: a rules file", *way.rules.splitlines(), "")
        echo(f"# {way.title}: of Envoy's HttpConnectionManager", *http_filters(rate_limits(way.rules)).splitlines(), "")
    echo(f"{callers:,} callers of a model, {how}; a user has {_LIMIT:,} tokens a minute", "")
    try:
        outcomes = asyncio.run(_run_all(Callers(callers, seconds), program))
    except asyncio.CancelledError:
        raise click.Abort from None
    if svg is not None:
        _write(svg, outcomes, seconds)
    echo(_conclusion(callers, seconds, outcomes))


async def _run_all(callers: Callers, program: str) -> list[Outcome]:
    """The outcome of each way; SIGINT, SIGTERM and SIGHUP end it, also where a shell has it ignore Ctrl-C."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    scale = _allowed(callers.seconds) + callers.at_once * sum(callers.tokens) // 2
    outcomes = []
    for way in _WAYS:
        echo(f"{way.title}: {way.does}")
        outcome = await run(way.rules, callers, program, lambda used: echo(_bar(used, scale)))
        outcomes.append(outcome)
        others = outcome.statuses.total() - outcome.statuses[200] - outcome.statuses[429]
        failed = f", {others:,} failed" if others else ""
        echo(f"  {outcome.statuses[200]:,} answers, {outcome.statuses[429]:,} refusals{failed}", "")
    return outcomes


def _allowed(second: float) -> int:
    """What the limit allows until then: a whole bucket, and what flows into it."""
    return _LIMIT + int(_LIMIT * second / _WINDOW_SECONDS)


def _bar(used: Used, scale: int) -> str:
    """What was used, beside a mark at what is allowed; what is above it is red."""
    allowed = _allowed(used.second)
    filled, mark = (min(_WIDTH, round(_WIDTH * tokens / scale)) for tokens in (used.tokens, allowed))
    within, above = min(filled, mark), max(0, filled - mark)
    bar = f"{GREEN('█' * within)}{' ' * (mark - within)}│{RED('█' * above)}{' ' * (_WIDTH - mark - above)}"
    return f"{used.second:7.1f} s  {bar}  {used.tokens:9,} of {allowed:,}"


def _conclusion(callers: int, seconds: float, outcomes: list[Outcome]) -> str:
    allowed = _allowed(seconds)

    def words() -> Iterator[str]:
        for way, outcome in zip(_WAYS, outcomes, strict=True):
            tokens = outcome.used[-1].tokens
            style = RED if tokens > allowed else GREEN
            yield style(f"{way.title} used {tokens:,} ({100 * tokens / allowed:.0f} %)")

    return f"{callers:,} callers, {allowed:,} tokens allowed in {seconds:g} s: {', '.join(words())}"


def _write(svg: Path, outcomes: list[Outcome], seconds: float) -> None:
    lines = {way.title: [*outcome.used] for way, outcome in zip(_WAYS, outcomes, strict=True)}
    lines["the limit"] = [Used(second, _allowed(second)) for second in (0, seconds)]
    ticks = [seconds * step / 5 for step in range(6)]
    try:
        svg.write_text(draw(lines, "seconds", "tokens used", ticks, "{:g}".format, linear=True), encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"{svg} cannot be written: {error.strerror}") from error
