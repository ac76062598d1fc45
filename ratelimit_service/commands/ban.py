"""`ratelimit ban`: refuse what has some entries for a while, whatever the rules say."""

from collections.abc import Sequence
from pathlib import Path

import click

from ratelimit_service.commands.ban_client import open_client, service_option
from ratelimit_service.commands.operator_port import AccessFiles, access_options
from ratelimit_service.commands.request import ENTRY, Entry, one_descriptor
from ratelimit_service.commands.sources import env_file_option, rules_option
from ratelimit_service.commands.terminal import echo
from ratelimit_service.rules.bans import moment_in_words


@click.command(
    epilog="""\b
Examples:
  ratelimit ban shop user=ada --for 1h --why "scrapes the catalogue, ticket 4711"
  ratelimit ban shop user=ada path=/search --for '15 minutes' --why "floods the search"
  ratelimit ban shop ip=2001:db8:1:2::/64 --for 10m --why "rotates in its network"
  ratelimit ban '*' remote_address=203.0.113.7 --for forever --why "asked to stay away"
  ratelimit ban shop user=ada --for 1h --why test --at localhost:6070"""
)
@click.argument("domain")
@click.argument("entries", metavar="KEY=VALUE...", nargs=-1, required=True, type=ENTRY)
@click.option(
    "--for", "length", metavar="TIME", required=True, help="How long: 1h, 90m, '15 minutes', week, or forever."
)
@click.option("--why", metavar="TEXT", required=True, help="The reason, for the log and the page.")
@service_option
@rules_option
@env_file_option
@access_options
def command(
    *,
    domain: str,
    entries: Sequence[Entry | None],
    length: str,
    why: str,
    at: str | None,
    rules: Path | None,
    env_file: Path | None,
    access_files: AccessFiles,
) -> None:
    """Refuse descriptors for a while, whatever the rules say.

    The ban fits every descriptor of the domain that has all KEY=VALUE entries, in any order, with or without others;
    the domain '*' is every domain. A VALUE may be as `ratelimit top` and the page show it: a network fits all its
    addresses, and the name of a counter that values share all these values. A ban comes before all rules and before
    limits that are sent with requests, and charges nothing. A ban of the same entries replaces the one before. It is
    kept where the counters are: in the Redis of the service's settings, which must be set here as for the service, or
    in the memory of a running service.
    """
    client = open_client(at, rules, env_file, access_files)
    ban = client.ban(domain, one_descriptor(entries, "ban"), length, why)
    echo(f"banned: {ban} {moment_in_words(ban.until)}: {ban.why}")
    if client.note:
        echo(f"Note: {client.note}.")
    echo(client.outlasts)
