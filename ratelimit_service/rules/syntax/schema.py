"""The JSON Schema of a rules file, made from the table of options."""

from typing import Any

from ratelimit_service.model import RegionMode
from ratelimit_service.rules.syntax.options import BY_MAP, COMPARED, LIMITING, OF_PLACES, WITHOUT_LIMIT, MapType, Option

_WINDOWED = tuple(key for key in LIMITING if key not in OF_PLACES)

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a rules file, made from the table of options and the conditions between options."""
    definitions = {where.name.lower(): _object(where) for where in MapType if where is not MapType.FILE}
    definitions["rate_limit"] |= {
        "if": {"anyOf": [{"properties": {key: {"const": True}}, "required": [key]} for key in WITHOUT_LIMIT]},
        "then": {"properties": {key: {"type": "null"} for key in LIMITING}},
        "else": {
            "if": {"properties": {"concurrency": {"type": "integer"}}, "required": ["concurrency"]},
            "then": {"required": ["hold", "place"], "properties": {key: {"type": "null"} for key in _WINDOWED}},
            "else": {
                "required": ["requests_per_unit"],
                "oneOf": [{"required": ["unit"]}, {"required": ["calendar"]}],
                "properties": {key: {"type": "null"} for key in ("hold", "place")},
            },
        },
    }
    definitions["rate_limit"]["allOf"] = [
        {
            "if": {"properties": {"floor": {"type": "string"}}, "required": ["floor"]},
            "then": {"properties": {"regions": {"const": RegionMode.LEASED}}, "required": ["regions"]},
        }
    ]
    absent = {"enum": [None, ""]}
    definitions["descriptor"]["allOf"] = [
        {
            "if": {"properties": {key: {"not": absent}}, "required": [key]},
            "then": {"properties": dict.fromkeys(COMPARED[index:], absent)},
        }
        for index, key in enumerate(COMPARED[:-1], 1)
    ]
    return {"$schema": DIALECT, "title": "Rate-limit rules", **_object(MapType.FILE), "$defs": definitions}


def _object(where: MapType) -> dict[str, Any]:
    options = BY_MAP[where].values()
    found: dict[str, Any] = {
        "type": "object",
        "properties": {option.key: _property(option) for option in options}
        | {option.former: _former(option) for option in options if option.former},
        "additionalProperties": False,
    }
    if required := [option.key for option in options if option.missing]:
        found["required"] = required
    return found


def _former(option: Option) -> dict[str, Any]:
    return {"description": f"An earlier word for {option.key}.", "deprecated": True, **option.type.schema}


def _property(option: Option) -> dict[str, Any]:
    found = {"description": option.help, **option.type.schema}
    return found if option.default is None else {**found, "default": option.default}
