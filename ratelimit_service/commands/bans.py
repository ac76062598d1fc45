"""`ratelimit bans`: list the bans in force."""

import re
from pathlib import Path
from typing import Final

import click

from ratelimit_service.commands.ban_client import Listed, open_client, service_option
from ratelimit_service.commands.operator_port import AccessFiles, access_options
from ratelimit_service.commands.sources import env_file_option
from ratelimit_service.commands.table import aligned
from ratelimit_service.commands.terminal import echo, echo_json
from ratelimit_service.rules.bans import Ban, domain_in_words, moment_in_words
from ratelimit_service.rules.problems import printable
from ratelimit_service.rules.rule import entries_in_words, plural

_ADDRESS: Final = re.compile(r":\d+$|://|^unix:")
_HEADER = ("domain", "entries", "banned", "made by", "why")


@click.command(
    short_help="List the bans in force.",
    epilog="""\b
Examples:
  ratelimit bans
  ratelimit bans shop --json""",
)
@click.argument("domain", required=False)
@click.option(
    "--json", "json_wanted", is_flag=True, help="Print JSON; times are seconds since the epoch, null for ever."
)
@service_option
@env_file_option
@access_options
def command(
    *,
    domain: str | None,
    json_wanted: bool,
    at: str | None,
    env_file: Path | None,
    access_files: AccessFiles,
) -> None:
    """List the bans in force, or those of a domain, the last ones made first.

    Settings are found as by `ratelimit ban`. Bans of every domain are listed with the domain '*'.
    """
    if domain is not None and at is None and _ADDRESS.search(domain):
        raise click.UsageError(f"{domain} is an address, not a domain: write --at {domain}")
    listed = open_client(at, None, env_file, access_files).list(domain)
    if json_wanted:
        found = {"total": listed.total, "bans": [ban.as_json() for ban in listed.bans]}
        echo_json(found)
    elif not listed.total:
        echo(f"there are no bans{'' if domain is None else f' of {domain_in_words(domain)}'}")
    else:
        echo(*_as_table(listed).split("\n"))


def _as_table(listed: Listed) -> str:
    rows = [_HEADER, *map(_cells, listed.bans)]
    rest = listed.total - len(listed.bans)
    return "\n".join([*aligned(rows), plural(listed.total, "ban") + (f", {rest:,} of them not shown" if rest else "")])


def _cells(ban: Ban) -> tuple[str, ...]:
    entries = entries_in_words(ban.entries)
    return tuple(map(printable, (ban.domain, entries, moment_in_words(ban.until), ban.who, ban.why)))
