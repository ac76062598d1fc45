"""`ratelimit schema`: the JSON Schema of the rules file."""

import click

from ratelimit_service.commands.terminal import echo_json
from ratelimit_service.rules.syntax.schema import json_schema


@click.command(
    short_help="Print the JSON Schema of rules files.",
    epilog="""\b
Examples:
  ratelimit schema > rules.schema.json

\b
Then, in the first line of a rules file, for editors with the YAML language server:
  # yaml-language-server: $schema=rules.schema.json""",
)
def command() -> None:
    """Print the JSON Schema of rules files, with which editors complete and check them."""
    echo_json(json_schema())
