"""What the value of an option may be: how it is read from a node, and how JSON Schema says the same.

`read` gives the value, or None after it has told the report what is wrong. It is never asked about null: null is the
same as absent.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ratelimit_service.model import LONGEST_WINDOW, MAX_REQUESTS, Unit
from ratelimit_service.rules.nodes import Fields, Items, Scalar, YamlNode, kind_of
from ratelimit_service.rules.report import Report, nearest, quoted
from ratelimit_service.rules.scalar import printed

UNITS = {unit.name.lower(): unit for unit in sorted(Unit, key=lambda unit: unit.window)}


class Kind(NamedTuple):
    """A type of value."""

    read: Callable[[YamlNode, str, Report], Any]
    schema: Mapping[str, Any]


class Span(NamedTuple):
    """A length of time as it is written."""

    unit: Unit
    times: int | None
    """How many of the unit; None when no number is written, which is one."""

    @property
    def window(self) -> int:
        """Microseconds."""
        return self.unit.window * (1 if self.times is None else self.times)


class Excess(NamedTuple):
    """How much there may be above a limit: a number, or a percentage of the limit."""

    number: int
    percent: bool

    def of(self, requests: int) -> int:
        """How many above a limit of `requests`; a percentage is rounded down."""
        return requests * self.number // 100 if self.percent else self.number


def _read_text(node: YamlNode, key: str, report: Report) -> str | None:
    if not isinstance(node, Scalar):
        report.add(node, f"{key} must be text, not {kind_of(node)}")
    elif isinstance(node.value, float) or (isinstance(node.value, int) and not -(2**63) <= node.value < 2**63):
        report.add(node, f"{key} must be text, and {quoted(node.text)[1:-1]} is a number; write it in quotes")
    else:
        return node.text
    return None


def _read_name(node: YamlNode, key: str, report: Report) -> str | None:
    text = _read_text(node, key, report)
    if text == "":
        report.add(node, f"{key} must not be empty")
    return text or None


def _read_count(node: YamlNode, key: str, report: Report, *, least: int, most: int, other: str) -> int | None:
    value = node.value if isinstance(node, Scalar) else None
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    advice = ""
    if isinstance(node, Scalar) and isinstance(value, str) and value.isdecimal():
        advice = "; take the quotes away"
    report.add(node, f"{key} must be a whole number from {least} to {most}{other}, not {kind_of(node)}{advice}")
    return None


def _read_flag(node: YamlNode, key: str, report: Report) -> bool | None:
    if isinstance(node, Scalar) and isinstance(node.value, bool):
        return node.value
    report.add(node, f"{key} must be true or false, not {kind_of(node)}")
    return None


def _read_excess(node: YamlNode, key: str, report: Report) -> Excess | None:
    if isinstance(node, Scalar) and isinstance(node.value, str) and (match := _PERCENT.fullmatch(node.value)):
        return Excess(int(match[1]), True)
    number = _read_count(node, key, report, least=0, most=MAX_REQUESTS, other=" or a share such as 10%")
    return None if number is None else Excess(number, False)


def _read_unit(node: YamlNode, key: str, report: Report) -> Span | None:
    text = _read_text(node, key, report)
    if text is None:
        return None
    span = read_span(text)
    if span is None:
        if text[:1].isdecimal():
            report.add(node, f'{key} {quoted(text)} is no multiple of {", ".join(UNITS)}, such as "5 minutes"')
        else:
            report.add(node, f"{key} {quoted(text)} is not one of {', '.join(UNITS)}{_hint(text, UNITS)}")
        return None
    if span.times is not None and (problem := window_problem(span.unit, span.times)):
        report.add(node, f"{key} {quoted(text)} {problem}")
        return None
    return span


def read_span(text: str) -> Span | None:
    """The length of time that a text such as `minute` or `5 minutes` says; None when it says none."""
    if unit := UNITS.get(text.lower()):
        return Span(unit, None)
    match = _SPAN.fullmatch(text)
    return None if match is None else Span(UNITS[match[2].lower()], int(match[1]))


def window_problem(unit: Unit, times: int) -> str:
    """What is wrong with a window of that many units; empty when nothing is."""
    if times < 1:
        return "is no length of time"
    return f"is longer than {LONGEST_WINDOW // Unit.YEAR.window} years" if times * unit.window > LONGEST_WINDOW else ""


def _hint(text: str, known: Iterable[str]) -> str:
    near = nearest(text, known)
    return f"; did you mean {near}?" if near else ""


def _read_map(node: YamlNode, key: str, report: Report) -> Fields | None:
    if isinstance(node, Fields):
        return node
    report.add(node, f"{key} must be a map, not {kind_of(node)}")
    return None


def _read_maps(node: YamlNode, key: str, report: Report) -> list[Fields] | None:
    if not isinstance(node, Items):
        report.add(node, f"{key} must be a list, not {kind_of(node)}")
        return None
    for item in node.items:
        if not isinstance(item, Fields):
            report.add(item, f"each of {key} must be a map, not {kind_of(item)}")
    return [item for item in node.items if isinstance(item, Fields)]


def _read_json(node: YamlNode, key: str, report: Report) -> dict[str, Any] | None:
    fields = _read_map(node, key, report)
    # As upstream's YAML library reads a key into a text: null is the empty one.
    return None if fields is None else _named(fields, lambda name: "" if name.value is None else name.text, key, report)


def _named(fields: Fields, name_of: Callable[[Scalar], str], key: str, report: Report) -> dict[str, Any]:
    found: dict[str, Any] = {}
    written: dict[str, Scalar] = {}
    for at, node in fields.fields.values():
        name = name_of(at)
        first = written.setdefault(name, at)
        if first is not at:
            report.add(at, f"{key}: {quoted(name)} is given twice in this map, first at {first.line}:{first.column}")
        found[name] = _plain(node, key, report)
    return found


def _plain(node: YamlNode, key: str, report: Report) -> Any:
    match node:
        case Items():
            return [_plain(item, key, report) for item in node.items]
        case Fields():
            return _named(node, lambda name: printed(name.value), key, report)
    if isinstance(node.value, float) and not math.isfinite(node.value):
        report.add(node, f"{key} must be what JSON can say, and {node.text} is not; write it in quotes")
    return node.value


def _any_case(word: str) -> str:
    return "".join(f"[{letter.upper()}{letter}]" for letter in word)


_PERCENT = re.compile(r"([0-9]{1,4}) *%")
_SPAN = re.compile(rf"([0-9]{{1,10}}) *({'|'.join(UNITS)})s?", re.IGNORECASE)
_UNIT_PATTERN = "|".join(map(_any_case, UNITS))


def count(least: int, most: int = MAX_REQUESTS) -> Kind:
    """A whole number between these two."""

    def read(node: YamlNode, key: str, report: Report) -> int | None:
        return _read_count(node, key, report, least=least, most=most, other="")

    return Kind(read, {"type": ["integer", "null"], "minimum": least, "maximum": most})


def choice(names: Iterable[str]) -> Kind:
    """One of these words."""
    known = tuple(names)

    def read(node: YamlNode, key: str, report: Report) -> str | None:
        text = _read_text(node, key, report)
        if text is None or text in known:
            return text
        report.add(node, f"{key} {quoted(text)} is not one of {', '.join(known)}{_hint(text, known)}")
        return None

    return Kind(read, {"enum": [*known, None]})


TEXT = Kind(_read_text, {"type": ["string", "integer", "boolean", "null"]})
NAME = Kind(_read_name, {"type": ["string", "integer", "boolean"], "minLength": 1})
COUNT = count(0)
EXCESS = Kind(
    _read_excess,
    {
        "anyOf": [
            {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_REQUESTS},
            {"type": "string", "pattern": "^[0-9]{1,4} *%$"},
        ]
    },
)
FLAG = Kind(_read_flag, {"type": ["boolean", "null"]})
UNIT = Kind(
    _read_unit,
    {
        "anyOf": [
            {"enum": [*UNITS, None]},
            {"type": "string", "pattern": f"^([0-9]{{1,10}} *({_UNIT_PATTERN})[sS]?|{_UNIT_PATTERN})$"},
        ]
    },
)
JSON = Kind(_read_json, {"type": ["object", "null"]})


def map_of(definition: str) -> Kind:
    """A map that has its own options."""
    return Kind(_read_map, {"anyOf": [{"$ref": f"#/$defs/{definition}"}, {"type": "null"}]})


def maps_of(definition: str) -> Kind:
    """A list of such maps."""
    return Kind(_read_maps, {"type": ["array", "null"], "items": {"$ref": f"#/$defs/{definition}"}})
