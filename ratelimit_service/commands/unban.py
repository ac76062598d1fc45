"""`ratelimit unban`: lift a ban."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ratelimit_service.commands.ban_client import open_client, service_option
from ratelimit_service.commands.operator_port import AccessFiles, access_options
from ratelimit_service.commands.request import ENTRY, Entry, one_descriptor
from ratelimit_service.commands.sources import env_file_option, rules_option
from ratelimit_service.commands.terminal import echo
from ratelimit_service.rules.bans import domain_in_words


@click.command(
    epilog="""\b
Examples:
  ratelimit ban shop user=ada --for 1h --why "a mistake"
  ratelimit unban shop user=ada"""
)
@click.argument("domain")
@click.argument("entries", metavar="KEY=VALUE...", nargs=-1, required=True, type=ENTRY)
@service_option
@rules_option
@env_file_option
@access_options
def command(
    *,
    domain: str,
    entries: Sequence[Entry | None],
    at: str | None,
    rules: Path | None,
    env_file: Path | None,
    access_files: AccessFiles,
) -> None:
    """Lift the ban of exactly these entries, in any order.

    Settings are found as by `ratelimit ban`. Exits with 1 when there is no such ban; `ratelimit bans` lists them.
    """
    named = one_descriptor(entries, "unban")
    lifted = open_client(at, rules, env_file, access_files).unban(domain, named)
    if lifted is None:
        # The entries are not repeated: only the rules, perhaps those of another machine, tell which are secret.
        what = f"there is no ban of exactly these entries in {domain_in_words(domain)}"
        echo(f"ratelimit: {what}; `ratelimit bans` lists those in force", err=True)
        sys.exit(1)
    echo(f"no longer banned: {lifted}")
