"""`ratelimit status`: is a running service well?"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import click

from ratelimit_service.commands.operator_port import (
    EXIT_UNREACHABLE,
    AccessFiles,
    OperatorPort,
    access_options,
    at_option,
    default_url,
    read_access,
)
from ratelimit_service.commands.sources import env_file_option, read_settings
from ratelimit_service.commands.terminal import GREEN, RED, YELLOW, echo, echo_json
from ratelimit_service.errors import StoreError
from ratelimit_service.rules.rule import plural
from ratelimit_service.settings.fields import Backend
from ratelimit_service.system.clock import SECOND, delay_in_words, duration_in_words
from ratelimit_service.telemetry.gauges import NO_GAUGES, Gauges

_WRONG: Final = 1
_MAX_DETAILS: Final = 5
"""Lines of one trouble, such as errors in rules files."""
_MAX_NAMED: Final = 3
"""Domains, or lists of keys, that no rule is about."""

Json = Mapping[str, Any]


@click.command(
    short_help="Show whether a running service is well.",
    epilog="""\b
Examples:
  ratelimit status
  ratelimit status --at localhost:6070
  ratelimit status localhost:6070 --json""",
)
@click.argument("named", metavar="[HOST:PORT]", required=False)
@at_option("Debug port of the service; the argument says the same.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; times are seconds since the epoch.")
@env_file_option
@access_options
def command(
    *, named: str | None, at: str | None, as_json: bool, env_file: Path | None, access_files: AccessFiles
) -> None:
    """Show whether a running service is well: its health, store, workers, rules, calls and bans.

    Without --at, the service is at http://localhost:6070, with DEBUG_HOST and DEBUG_PORT of the settings. Exits with 0
    when the service is healthy, with 1 when something is wrong (it does not serve, Redis is lost, the newest rules
    could not be loaded, workers ended unexpectedly), with 3 when it cannot be reached.
    """
    if named and at:
        raise click.UsageError("one service at a time: either HOST:PORT or --at HOST:PORT")
    access = read_access(access_files, env_file)
    port = OperatorPort(named or at or default_url(read_settings({}, env_file)[0]), access)
    try:
        status = port.status()
    except StoreError as error:
        echo(f"ratelimit: {port.url}: {error}", err=True)
        sys.exit(EXIT_UNREACHABLE)
    healthy = status["serving"] and not status["troubles"]
    if as_json:
        shown = {"url": port.url, "healthy": healthy} | status
        shown |= {"rules": len(status["rules"]), "rules_version": _rules_version(status)}
        shown |= {"gauges": _gauges(status["rules"])._asdict()}
        echo_json(shown)
    else:
        echo(*_render(port.url, status, healthy=healthy))
    if not healthy:
        sys.exit(_WRONG)


def _render(url: str, status: Json, *, healthy: bool) -> Iterator[str]:
    now, calls = status["now"], status["calls"]
    state = "draining" if status["draining"] else "serving" if status["serving"] else "not serving"
    yield f"{url}: version {status['version']}, up {_span(now - status['started'])}"
    yield f"health   {GREEN(state) if healthy else RED(state)}{'' if healthy else ', something is wrong'}"
    yield f"store    {_store(status['store'])}"
    if status["workers"]:
        yield f"workers  {_workers(status['workers'])}"
    yield f"rules    {_rules(status)}"
    yield from _sources(status["reload"].get("sources", []), now)
    yield f"loaded   {_loaded(status['reload'], now)}"
    yield (
        f"calls    {calls['total']:,}, {_by_policy(calls['outcomes'])}; "
        f"errors: {calls['store_errors']:,} of the store, {calls['service_errors']:,} of the service"
    )
    if unlimited := ", ".join(_unlimited(status)):
        yield YELLOW(f"no rule  {unlimited}")
    yield f"bans     {status['bans']['total']:,}"
    gauges = _gauges(status["rules"])
    if gauges.held:
        yield f"leases   {gauges.held:,} units held of {plural(gauges.leased, 'counter')}"
    if gauges.waiting or gauges.longest_wait_seconds:
        longest = delay_in_words(round(gauges.longest_wait_seconds * SECOND))
        yield f"queues   {plural(gauges.waiting, 'request')} waiting; turns were up to {longest} away lately"
    if gauges.places_taken:
        yield f"places   up to {gauges.places_taken:,} of one counter taken lately"
    if gauges.on_loan:
        yield f"loans    up to {gauges.on_loan:,} to one counter lately"
    for trouble in status["troubles"]:
        yield from _trouble(trouble, now)


def _store(store: Json) -> str:
    text = f"{store['name']}, {'healthy' if store['healthy'] else RED('not healthy')}"
    if store["counters"]:
        # Redis tells how many keys it has, which are not all counters, nor all ours.
        in_memory = store["name"] == Backend.MEMORY
        text += f", {plural(store['counters'], 'counter' if in_memory else 'key')}"
        text += "" if in_memory else " in its database"
    return text + (f", {store['evicted']:,} evicted" if store["evicted"] else "")


def _by_policy(outcomes: Json) -> str:
    refused = outcomes["policy_refused"]
    return f"{outcomes['policy_allowed'] + refused:,} answered by policy" + (
        f", {refused:,} of them refused" if refused else ""
    )


def _unlimited(status: Json) -> Iterator[str]:
    """Lines about what the rules do not limit, with what is asked most by name."""
    if requests := status["calls"]["outcomes"]["unlimited"]:
        yield f"{plural(requests, 'request')} since the start"
    for words, asked in (
        ("domains without rules", status["unknown_domains"]),
        ("descriptors that match no rule", status["unmatched"]),
    ):
        if asked:
            named = [f"{' › '.join(one['path'])} ({one['total']:,})" for one in asked[:_MAX_NAMED]]
            yield f"{words}: {', '.join(named)}{' …' if len(asked) > _MAX_NAMED else ''}"


def _workers(workers: Sequence[Json]) -> str:
    ready = sum(worker["ready"] for worker in workers)
    pids = ", ".join(str(worker["pid"]) for worker in workers)
    connections = sum(worker["connections"] for worker in workers)
    return f"{ready:,} of {len(workers):,} ready (pid {pids}), {plural(connections, 'connection')}"


def _rules(status: Json) -> str:
    domains = len({rule["domain"] for rule in status["rules"]})
    text = f"{plural(len(status['rules']), 'rule')} in {plural(domains, 'domain')}, version {_rules_version(status)}"
    return f"{text}, from {status['reload']['path']}"


def _sources(sources: Sequence[Json], now: float) -> Iterator[str]:
    """A line for each source of rules with the version of its documents; none for files alone."""
    for source in sources if any(source["kind"] != "files" for source in sources) else ():
        state = "" if source["current"] else RED("; what it has now is refused")
        when = f"of {_span(now - source['last_success'])} ago" if source["last_success"] else RED("none yet")
        version = f"version {source['version']} {when}" if source["version"] else when
        yield f"source   {source['kind']}, {source['name']}: {version}{state}"
        if source.get("connection"):
            yield f"plane    {_plane(source['connection'], now)}"


def _gauges(rules: Sequence[Json]) -> Gauges:
    """The gauges of all rules together; of an older service there are none."""
    found = NO_GAUGES
    for rule in rules:
        found = found.merge(Gauges(**{name: rule[name] for name in Gauges._fields if name in rule}))
    return found


def _rules_version(status: Json) -> str:
    """A digest of what the rules limit, the same on every instance that has the same rules in force."""
    said = [[rule[name] for name in ("domain", "path", "limit", "options")] for rule in status["rules"]]
    return sha256(json.dumps(said).encode()).hexdigest()[:12]


def _loaded(reload: Json, now: float) -> str:
    last = f"{_span(now - reload['last_success'])} ago" if reload["last_success"] else RED("never")
    refused = f", last {_span(now - reload['last_failure'])} ago" if reload["last_failure"] else ""
    return f"{last}; {plural(reload['successes'], 'load')}, {reload['failures']:,} refused{refused}"


def _plane(plane: Json, now: float) -> str:
    state = "connected" if plane["connected"] else RED("lost")
    version = f", version {plane['version']}" if plane["version"] else ""
    kept = YELLOW(f", rules of its last snapshot, from {plane['kept']}") if plane["kept"] else ""
    counts = f"{plural(plane['accepted'], 'snapshot')} accepted, {plane['rejected']:,} refused"
    return f"{plane['address']}, {state} for {_span(now - plane['since'])}{version}{kept}; {counts}"


def _trouble(trouble: Json, now: float) -> Iterator[str]:
    since = f", for {_span(now - trouble['since'])}" if trouble["since"] else ""
    yield RED(f"{trouble['what']}{since}")
    yield f"  why        {trouble['why']}"
    yield f"  meanwhile  {trouble['meanwhile']}"
    details = trouble["details"]
    for detail in details[:_MAX_DETAILS]:
        yield f"  {detail}"
    if len(details) > _MAX_DETAILS:
        yield f"  and {len(details) - _MAX_DETAILS:,} more"


def _span(seconds: float) -> str:
    return duration_in_words(round(seconds * SECOND))
