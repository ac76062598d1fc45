"""What the value of an option may be: how it is read from a node, and how JSON Schema says the same.

`read` gives the value, or None after it has told the report what is wrong. It is never asked about null: null is the
same as absent.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ratelimit_service.model import MAX_REQUESTS, Unit
from ratelimit_service.rules.nodes import Fields, Items, Node, Scalar, kind_of
from ratelimit_service.rules.report import Report, quoted

UNITS = {unit.name.lower(): unit for unit in sorted(Unit, key=lambda unit: unit.window)}


class Kind(NamedTuple):
    """A type of value."""

    read: Callable[[Node, str, Report], Any]
    schema: Mapping[str, Any]


def _read_text(node: Node, key: str, report: Report) -> str | None:
    if not isinstance(node, Scalar):
        report.add(node, f"{key} must be text, not {kind_of(node)}")
    elif isinstance(node.value, float) or (isinstance(node.value, int) and not -(2**63) <= node.value < 2**63):
        report.add(node, f"{key} must be text, and {quoted(node.text)[1:-1]} is a number; write it in quotes")
    else:
        return node.text
    return None


def _read_name(node: Node, key: str, report: Report) -> str | None:
    text = _read_text(node, key, report)
    if text == "":
        report.add(node, f"{key} must not be empty")
    return text or None


def _read_count(node: Node, key: str, report: Report) -> int | None:
    value = node.value if isinstance(node, Scalar) else None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_REQUESTS:
        return value
    advice = ""
    if isinstance(node, Scalar) and isinstance(value, str) and value.isdecimal():
        advice = "; take the quotes away"
    report.add(node, f"{key} must be a whole number from 0 to {MAX_REQUESTS}, not {kind_of(node)}{advice}")
    return None


def _read_flag(node: Node, key: str, report: Report) -> bool | None:
    if isinstance(node, Scalar) and isinstance(node.value, bool):
        return node.value
    report.add(node, f"{key} must be true or false, not {kind_of(node)}")
    return None


def _read_unit(node: Node, key: str, report: Report) -> Unit | None:
    text = _read_text(node, key, report)
    if text is None:
        return None
    unit = UNITS.get(text.lower())
    if unit is None:
        report.add(node, f"{key} {quoted(text)} is not one of {', '.join(UNITS)}")
    return unit


def _read_map(node: Node, key: str, report: Report) -> Fields | None:
    if isinstance(node, Fields):
        return node
    report.add(node, f"{key} must be a map, not {kind_of(node)}")
    return None


def _read_maps(node: Node, key: str, report: Report) -> list[Fields] | None:
    if not isinstance(node, Items):
        report.add(node, f"{key} must be a list, not {kind_of(node)}")
        return None
    for item in node.items:
        if not isinstance(item, Fields):
            report.add(item, f"each of {key} must be a map, not {kind_of(item)}")
    return [item for item in node.items if isinstance(item, Fields)]


def _read_json(node: Node, key: str, report: Report) -> dict[str, Any] | None:
    fields = _read_map(node, key, report)
    return None if fields is None else {name: _plain(field.value, key, report) for name, field in fields.fields.items()}


def _plain(node: Node, key: str, report: Report) -> Any:
    match node:
        case Items():
            return [_plain(item, key, report) for item in node.items]
        case Fields():
            return {name: _plain(field.value, key, report) for name, field in node.fields.items()}
    if isinstance(node.value, float) and not math.isfinite(node.value):
        report.add(node, f"{key} must be what JSON can say, and {node.text} is not; write it in quotes")
    return node.value


def _any_case(word: str) -> str:
    return "".join(f"[{letter.upper()}{letter}]" for letter in word)


TEXT = Kind(_read_text, {"type": ["string", "integer", "boolean", "null"]})
NAME = Kind(_read_name, {"type": ["string", "integer", "boolean"], "minLength": 1})
COUNT = Kind(_read_count, {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_REQUESTS})
FLAG = Kind(_read_flag, {"type": ["boolean", "null"]})
UNIT = Kind(
    _read_unit,
    {"anyOf": [{"enum": [*UNITS, None]}, {"type": "string", "pattern": f"^({'|'.join(map(_any_case, UNITS))})$"}]},
)
JSON = Kind(_read_json, {"type": ["object", "null"]})


def map_of(definition: str) -> Kind:
    """A map that has its own options."""
    return Kind(_read_map, {"anyOf": [{"$ref": f"#/$defs/{definition}"}, {"type": "null"}]})


def maps_of(definition: str) -> Kind:
    """A list of such maps."""
    return Kind(_read_maps, {"type": ["array", "null"], "items": {"$ref": f"#/$defs/{definition}"}})
