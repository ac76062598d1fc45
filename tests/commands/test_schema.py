"""`ratelimit schema` prints the JSON Schema."""

import json

from click.testing import CliRunner

from ratelimit_service.commands.schema import command
from ratelimit_service.rules.syntax.schema import json_schema


def test_the_schema_is_printed_as_json() -> None:
    result = CliRunner().invoke(command, [])

    assert json.loads(result.stdout) == json_schema()
