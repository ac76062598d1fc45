"""The JSON Schema says of every option what the parser does."""

from ratelimit_service.rules.options import OPTIONS, Block
from ratelimit_service.rules.schema import json_schema


def test_the_schema_has_every_option_where_it_belongs_with_its_help() -> None:
    schema = json_schema()
    blocks = {
        Block.FILE: schema,
        Block.DESCRIPTOR: schema["$defs"]["descriptor"],
        Block.RATE_LIMIT: schema["$defs"]["rate_limit"],
        Block.REPLACES: schema["$defs"]["replaces"],
    }

    for option in OPTIONS:
        for block in option.blocks:
            assert blocks[block]["properties"][option.key]["description"] == option.help
    assert all(block["additionalProperties"] is False for block in blocks.values())


def test_the_schema_says_what_must_be_there() -> None:
    schema = json_schema()

    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["required"] == ["domain"]
    assert schema["$defs"]["descriptor"]["required"] == ["key"]
    assert schema["$defs"]["rate_limit"]["else"] == {"required": ["unit", "requests_per_unit"]}
    assert schema["$defs"]["replaces"]["required"] == ["name"]


def test_the_schema_bounds_what_the_parser_bounds() -> None:
    properties = json_schema()["$defs"]["rate_limit"]["properties"]

    assert properties["requests_per_unit"]["maximum"] == 4294967295
    assert properties["unit"]["anyOf"][0]["enum"] == [
        "second", "minute", "hour", "day", "week", "month", "year", None,
    ]  # fmt: skip
