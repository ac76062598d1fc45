"""`ratelimit top`: the busiest rules of running services, and the descriptors that they refuse, live."""

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from ratelimit_service.commands.duration import DurationType
from ratelimit_service.commands.operator_port import (
    EXIT_UNREACHABLE,
    AccessFiles,
    OperatorPort,
    access_options,
    at_option,
    default_url,
    read_access,
)
from ratelimit_service.commands.screen import Screen
from ratelimit_service.commands.sources import env_file_option, read_settings
from ratelimit_service.commands.terminal import echo, echo_json
from ratelimit_service.commands.top_table import ORDERS, Sample, View, as_json, rates_between, read_sample, render
from ratelimit_service.errors import StoreError
from ratelimit_service.system.clock import HOUR, SECOND

_MAX_INSTANCES: Final = 64
_MAX_ROWS: Final = 10_000
_MAX_POLLS: Final = 50
"""Polls until a second sample is another one; the shortest interval makes 5 s of it."""
_MAX_RELOADS: Final = 5
"""Loads of the rules until they are those of the counts."""
_TALL: Final = 12
"""Lines of a terminal that has room for refused descriptors; they get a third of it."""
_KEYS: Final = {"r": "refused", "h": "hits", "n": "name"}
_QUIT: Final = frozenset("qQ\x03\x04")
"""Also Ctrl-C and Ctrl-D."""
_HELP: Final = "q quit, by: r refused, h hits, n name"
_PLAIN_COLUMNS: Final = 120
"""The columns of the table that --once prints."""


class _IntervalType(DurationType):
    """A duration, or a number of seconds."""

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str) and value.replace(".", "", 1).isdecimal():
            value += "s"
        duration = super().convert(value, param, ctx)
        if not _SHORTEST <= duration <= HOUR:
            self.fail(f"{value!r} is not from 100ms to 1h", param, ctx)
        return duration


_SHORTEST: Final = SECOND // 10
_INTERVAL: Final = _IntervalType()


@click.command(
    short_help="Show the busiest rules of running services, and who is refused, live.",
    epilog="""\b
Live, and of several instances together:
  ratelimit top
  ratelimit top one.internal:6070 two.internal:6070

\b
Examples:
  ratelimit top --once
  ratelimit top --at localhost:6070 --once --sort hits --rows 5
  ratelimit top http://localhost:6070 --json --interval 500ms""",
)
@click.argument("named", metavar="[HOST:PORT...]", nargs=-1)
@at_option("Debug port of a service, once for each; the arguments say the same.", multiple=True)
@click.option(
    "--interval", type=_INTERVAL, default="2s", show_default=True, help="Time between two samples; 2 is 2 seconds."
)
@click.option("--sort", "order", type=click.Choice(ORDERS), default="refused", show_default=True, help="The order.")
@click.option(
    "--rows",
    type=click.IntRange(1, _MAX_ROWS),
    default=20,
    show_default=True,
    help="Rules, and descriptors, that --once and --json print.",
)
@click.option("--once", is_flag=True, help="Print one table, after two samples, and end.")
@click.option("--json", "json_wanted", is_flag=True, help="As --once, as JSON.")
@env_file_option
@access_options
def command(
    *,
    named: Sequence[str],
    at: Sequence[str],
    interval: int,
    order: str,
    rows: int,
    once: bool,
    json_wanted: bool,
    env_file: Path | None,
    access_files: AccessFiles,
) -> None:
    """Show the busiest rules of a running service, and who is refused: per second, and in the last minutes.

    Without --at, the service is at http://localhost:6070, with DEBUG_HOST and DEBUG_PORT of the settings. Rates are
    sums of cost, of all instances together. Below the rules stand those that reserve, with the units that are open, the
    share that was never settled, the share that cost more than was reserved, and what they cost beside the estimate
    (p50 and p95 of the last hours, the highest of an instance); then the descriptors that were refused most in the last
    five to ten minutes. The table is redrawn at each sample; q ends it, r, h and n sort the rules by refusals, hits and
    name. With --once or --json it exits with 3 when an instance cannot be reached.
    """
    urls = dict.fromkeys((*named, *at))
    if len(urls) > _MAX_INSTANCES:
        raise click.UsageError(f"at most {_MAX_INSTANCES} instances are shown together")
    access = read_access(access_files, env_file)
    ports = [OperatorPort(url, access) for url in urls or [default_url(read_settings({}, env_file)[0])]]
    view = View({}, {}, [port.url for port in ports], order)
    if not (once or json_wanted):
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise click.UsageError("output is not a terminal: add --once or --json")
        _show(ports, view, interval)
        return
    _measure(ports, view, interval)
    if json_wanted:
        echo_json(as_json(view, rows))
    else:
        lines = 2 * rows + 3 + len(view.unreachable)
        echo(*render(view, _PLAIN_COLUMNS, lines, rules=rows, keys=rows))
    if view.unreachable:
        sys.exit(EXIT_UNREACHABLE)


class Poller:
    """Takes samples of one instance into the view."""

    def __init__(self, port: OperatorPort, view: View, lock: threading.Lock) -> None:
        self._port = port
        self._view = view
        self._lock = lock
        self._last: Sample | None = None
        self._described: Mapping[str, Any] = {}
        """The rules of the service."""

    @property
    def done(self) -> bool:
        """There are rates, or the instance cannot be reached."""
        return self._port.url in self._view.rates or self._port.url in self._view.unreachable

    def poll(self) -> None:
        """Take a sample; with the one before it, it becomes rates."""
        url, last, self._last = self._port.url, self._last, None
        try:
            self._last = sample = self._sample()
        except StoreError as error:
            with self._lock:
                self._view.rates.pop(url, None)
                self._view.unreachable[url] = str(error)
            return
        with self._lock:
            self._view.unreachable.pop(url, None)
            # The service renders /status/now once a second for all clients: the same one again has no news.
            if last is not None and sample.at > last.at:
                self._view.rates[url] = rates_between(last, sample)

    def _sample(self) -> Sample:
        """A sample of now. The rules are loaded when they have changed."""
        for _ in range(_MAX_RELOADS):
            now = self._port.status_now()
            if now["edition"] == self._described.get("edition"):
                return read_sample(now, self._described)
            self._described = self._port.status_rules()
        raise StoreError("its rules kept changing; try again")


def _measure(ports: Sequence[OperatorPort], view: View, interval: int) -> None:
    """Take two samples of each that differ, of all at once."""
    lock = threading.Lock()

    def measure(poller: Poller) -> None:
        poller.poll()
        for _ in range(_MAX_POLLS):
            time.sleep(interval / SECOND)
            poller.poll()
            if poller.done:
                return

    threads = [threading.Thread(target=measure, args=[Poller(port, view, lock)], daemon=True) for port in ports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _show(ports: Sequence[OperatorPort], view: View, interval: int) -> None:
    """Draw until a key ends it. The threads are daemons: a sample under way does not keep the user waiting."""
    lock = threading.Lock()
    with Screen() as screen:

        def poll_on(poller: Poller) -> None:
            while True:
                poller.poll()
                screen.wake()
                time.sleep(interval / SECOND)

        for port in ports:
            threading.Thread(target=poll_on, args=[Poller(port, view, lock)], daemon=True).start()
        while True:
            columns, lines = screen.size
            with lock:
                table = render(view, columns, max(1, lines - 1), keys=lines // 3 if lines >= _TALL else 0)
            screen.draw([*table, _HELP[:columns]][:lines])
            for key in screen.wait():
                if key in _QUIT:
                    return
                view.order = _KEYS.get(key.lower(), view.order)
