"""`ratelimit serve`: run the service until a signal ends it."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import uvloop

from ratelimit_service import __version__
from ratelimit_service.commands.sources import env_file_option, read_settings
from ratelimit_service.commands.terminal import echo
from ratelimit_service.errors import ListenError, StartError
from ratelimit_service.server.app import App, grpc_addresses
from ratelimit_service.server.engine import SWITCH_SECONDS
from ratelimit_service.server.tracing import check_tracing
from ratelimit_service.settings import AUTO, FLAGS, Settings
from ratelimit_service.system.address import Address, Tcp, Unix, from_here
from ratelimit_service.system.background import EXIT_SECONDS, exit_within
from ratelimit_service.system.clock import SECOND
from ratelimit_service.system.cpus import usable_cpus
from ratelimit_service.system.open_files import raise_file_limit
from ratelimit_service.telemetry.logs import start_logging

log = logging.getLogger(__name__)

STOP_SECONDS: Final = 20.0
"""Seconds that a stop may take beyond DRAIN_SECONDS and DRAIN_TIMEOUT; workers that do not end are killed within it.

What ends the process from outside gives it more: deploy/ and docs/deploy.md have this and 5 seconds.
"""

_AS_ENVOYPROXY = "--as-envoyproxy"
"""The image's /bin/ratelimit begins with it: manifests give envoyproxy's program arguments, of which it reads none."""

_CALL = """
  {ratelimit} call {grpc} shop login=ada

or over HTTP:
"""
"""The hint of a call, without TLS only: a client needs the name in the certificate, a CA, perhaps a certificate, all
unknown here."""

_HINTS = """
Try, in another terminal, six times:
{call}
  curl -i {http}/json \\
    -d '{{"domain": "shop", "descriptors": [{{"entries": [{{"key": "login", "value": "ada"}}]}}]}}'

The page is {page}
The rules are in {rules}: change one while the service runs.
"""


class _Serve(click.Command):
    """The verb. Behind `--as-envoyproxy`, arguments that it does not know are left over in place of an error."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does."""
        ctx.ignore_unknown_options = ctx.allow_extra_args = _AS_ENVOYPROXY in args
        return super().parse_args(ctx, args)


@click.command(
    cls=_Serve,
    epilog="""\b
Examples:
  ratelimit serve --rules config
  GRPC_PORT=9081 ratelimit serve --rules config --log-level debug
Every other setting is a variable of the environment, or a line in an .env file: see docs/settings.md.""",
)
@env_file_option
@click.option("--hints", is_flag=True, help="Say what to try once it runs.")
@click.option(_AS_ENVOYPROXY, is_flag=True, hidden=True, expose_value=False)
@click.pass_context
def command(ctx: click.Context, /, env_file: Path | None, hints: bool, **flags: Any) -> None:
    """Run the service.

    It loads the rules, listens for gRPC and HTTP, and loads the rules again whenever a file changes. SIGHUP loads them
    at once, SIGTERM or SIGINT drains and exits, a second one exits without draining.
    """
    settings, warnings = read_settings(flags, env_file)
    start_logging(settings.log_level, settings.log_format)
    for warning in warnings:
        log.warning("%s", warning)
    if ctx.args:
        log.warning("ignored, as envoyproxy/ratelimit ignores all arguments: %s", " ".join(ctx.args))
    grpc, http = settings.grpc_max_connections, settings.http_max_connections
    if problem := raise_file_limit(grpc, http):
        log.warning("GRPC_MAX_CONNECTIONS: %s", problem)
    sys.setswitchinterval(SWITCH_SECONDS)
    uvloop.run(_serve(settings, hints=hints))


for _setting in FLAGS:
    command = click.option(_setting.flag, _setting.field, help=_setting.help)(command)


async def _serve(settings: Settings, *, hints: bool) -> None:
    count = usable_cpus() if settings.workers == AUTO else settings.workers
    workers = "" if count == 1 else f", {count} workers"
    log.info("starting %s, counters in %s%s", __version__, settings.backend_type, workers)
    check_tracing(settings)
    app = App(settings, count)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    seconds = settings.drain_seconds + settings.drain_timeout / SECOND + STOP_SECONDS
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, app, stop, number, seconds)
    loop.add_signal_handler(signal.SIGHUP, app.reload)
    starting = asyncio.create_task(app.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # it may wait for rules, for ever
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        app.abandon()
        log.info("stopped before the start was complete")
        exit_within(EXIT_SECONDS, 0)
        return
    try:
        await starting
    except ListenError as error:
        raise StartError(f"{error} ({_variables_of(error.address, settings)})") from error
    for address in app.addresses:
        log.info("listening for gRPC on %s", address)
    if hints:
        _print_hints(app, settings)
    await stop.wait()
    await app.stop()
    exit_within(EXIT_SECONDS, 0)


def _print_hints(app: App, settings: Settings) -> None:
    call = _CALL.format(ratelimit=sys.argv[0], grpc=from_here(app.addresses[0]))
    hints = _HINTS.format(
        call="" if settings.grpc_server_use_tls else call,
        http=from_here(app.http.http[0]),
        page=_page(app, settings),
        rules=settings.rules_path,
    )
    echo(*hints.splitlines())


def _page(app: App, settings: Settings) -> str:
    if not app.http.debug:
        return f"unix:{settings.debug_uds}"
    link = f"{'https' if settings.admin_tls_cert else 'http'}://{from_here(app.http.debug[0])}/"
    return f"{link}#token={app.made_token} (who has this link may also ban and reset there)" if app.made_token else link


def _variables_of(address: object, settings: Settings) -> str:
    """The variables that contain this address; several, when two ports have the same one."""
    variables: dict[str, Sequence[Address]] = {
        "HOST, PORT": [Tcp(host, settings.port) for host in settings.host],
        "DEBUG_HOST, DEBUG_PORT": [Tcp(host, settings.debug_port) for host in settings.debug_host],
        "DEBUG_UDS": [Unix(settings.debug_uds)],
        "GRPC_UDS" if settings.grpc_uds else "GRPC_HOST, GRPC_PORT": grpc_addresses(settings),
        "PROMETHEUS_ADDR": [settings.prometheus_addr] if settings.use_prometheus else [],
    }
    return ", ".join(names for names, addresses in variables.items() if address in addresses)


def _on_signal(app: App, stop: asyncio.Event, number: signal.Signals, seconds: float) -> None:
    """Stop at the first signal; exit at the second, or when the stop takes longer than `seconds`."""
    if stop.is_set():
        log.warning("second signal: exiting immediately")
        app.abandon()
        os._exit(128 + number)
    exit_within(seconds, 1, partial(_abandon, app, seconds))
    stop.set()


def _abandon(app: App, seconds: float) -> None:
    log.error("shutdown timed out after %g s: exiting", seconds)
    app.abandon()
