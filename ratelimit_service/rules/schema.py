"""The JSON Schema of a rules file, for editors that complete and check while one types."""

from typing import Any

from ratelimit_service.rules.limits import LIMITING
from ratelimit_service.rules.options import BY_BLOCK, Block, Option

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The schema; everything in it comes from the table of options, but what two options say about each other."""
    definitions = {block.name.lower(): _object(block) for block in Block if block is not Block.FILE}
    definitions["rate_limit"] |= {
        "if": {"properties": {"unlimited": {"const": True}}, "required": ["unlimited"]},
        "then": {"properties": {key: {"type": "null"} for key in LIMITING}},
        "else": {"required": ["unit", "requests_per_unit"]},
    }
    return {"$schema": DIALECT, "title": "Rate-limit rules", **_object(Block.FILE), "$defs": definitions}


def _object(block: Block) -> dict[str, Any]:
    options = BY_BLOCK[block].values()
    found: dict[str, Any] = {
        "type": "object",
        "properties": {option.key: _property(option) for option in options},
        "additionalProperties": False,
    }
    if required := [option.key for option in options if option.missing]:
        found["required"] = required
    return found


def _property(option: Option) -> dict[str, Any]:
    found = {"description": option.help, **option.kind.schema}
    return found if option.default is None else {**found, "default": option.default}
