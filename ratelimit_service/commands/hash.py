"""`ratelimit hash`: the digests that stand in place of secret values."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from ratelimit_service.commands.sources import env_file_option, read_settings
from ratelimit_service.commands.terminal import echo
from ratelimit_service.errors import SettingsError
from ratelimit_service.rules.secret import HashValue
from ratelimit_service.settings import Section


@click.command(
    epilog="""\b
Examples:
  ratelimit hash                                (asks for a value, and does not show it)
  ratelimit hash < keys.txt > digests.txt
  printf %s "$API_KEY" | ratelimit hash"""
)
@env_file_option
def command(*, env_file: Path | None) -> None:
    """Print the digest that stands in place of a secret value.

    Reads values from standard input, one a line, and prints a digest for each, in their order. The key is that of the
    service, HASH_KEY or HASH_KEY_FILE. A digest may stand as a value in rules with hash_values, and in the arguments of
    explain, counters and ban. There is no argument for the value: other users of the machine could read it.
    """
    settings, _ = read_settings({}, env_file, Section.RULES)
    key = settings.hash_key.get_secret_value()
    if not key:
        raise SettingsError(["HASH_KEY: is not set: set it, or HASH_KEY_FILE, as for the service"])
    hash_value = HashValue(key)
    for value in _values():
        echo(hash_value(value))


def _values() -> Iterator[str]:
    if sys.stdin.isatty():
        yield click.prompt("Value", hide_input=True, err=True)
        return
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise click.ClickException(f"line {number} is not UTF-8, and values of requests always are") from error
