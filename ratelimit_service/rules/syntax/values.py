"""Types of values in a rules file: how each is read from a node, and its JSON Schema.

A `ValueType` has `read`, which returns the value of a node, or reports what is wrong and returns None. Null is the
same as absent, and never reaches a reader.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from ratelimit_service.model import MAX_REQUESTS, MAX_WINDOW
from ratelimit_service.rules.problems import Report, nearest, quoted, shortened
from ratelimit_service.rules.response import MAX_JITTER, Jitter
from ratelimit_service.rules.syntax.document import Scalar, YamlList, YamlMap, YamlNode, kind_of, printed
from ratelimit_service.rules.window import UNITS, Window, read_window
from ratelimit_service.system import calendar
from ratelimit_service.system.clock import MINUTE, SECOND
from ratelimit_service.system.duration import PATTERN, read_duration


class ValueType(NamedTuple):
    """A type of value: how it is read from a node, and its JSON Schema."""

    read: Callable[[YamlNode, str, Report], Any]
    schema: Mapping[str, Any]


class Excess(NamedTuple):
    """The amount by which a limit may be exceeded, or to which: a number, or a percentage of the limit."""

    number: int
    percent: bool

    def of(self, requests: int) -> int:
        """The amount for a limit of `requests`; a percentage is rounded down."""
        return requests * self.number // 100 if self.percent else self.number


def _read_text(node: YamlNode, key: str, report: Report) -> str | None:
    if not isinstance(node, Scalar):
        report.add(node, f"{key} must be text, not {kind_of(node)}")
    elif isinstance(node.value, float) or (isinstance(node.value, int) and not -(2**63) <= node.value < 2**63):
        report.add(node, f"{key} must be text, and {shortened(node.text)} is a number; write it in quotes")
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
        advice = "; remove the quotes"
    report.add(node, f"{key} must be a whole number from {least} to {most}{other}, not {kind_of(node)}{advice}")
    return None


def _read_flag(node: YamlNode, key: str, report: Report) -> bool | None:
    if isinstance(node, Scalar) and isinstance(node.value, bool):
        return node.value
    report.add(node, f"{key} must be true or false, not {kind_of(node)}")
    return None


def _read_excess(node: YamlNode, key: str, report: Report, example: str = "10%") -> Excess | None:
    if isinstance(node, Scalar) and isinstance(node.value, str) and (match := _PERCENT.fullmatch(node.value)):
        return Excess(int(match[1]), True)
    number = _read_count(node, key, report, least=0, most=MAX_REQUESTS, other=f" or a share such as {example}")
    return None if number is None else Excess(number, False)


def _read_unit(node: YamlNode, key: str, report: Report) -> Window | None:
    text = _read_text(node, key, report)
    if text is None:
        return None
    window = read_window(text)
    if window is None:
        if text[:1].isdecimal():
            units = ", ".join(UNITS)
            report.add(node, f'{key} {quoted(text)} is not a multiple of {units}, such as 10m or "5 minutes"')
        else:
            report.add(node, f"{key} {quoted(text)} is not one of {', '.join(UNITS)}{did_you_mean(text, UNITS)}")
        return None
    if window.problem:
        report.add(node, f"{key} {quoted(text)} {window.problem}")
        return None
    return window


def _read_jitter(node: YamlNode, key: str, report: Report) -> Jitter | None:
    text = _read_text(node, key, report)
    if text is None:
        return None
    if (match := _PERCENT.fullmatch(text)) is not None:
        if int(match[1]) <= 100:
            return Jitter(percent=int(match[1]))
    elif 0 < (length := _length(text)) <= MAX_JITTER:
        return Jitter(most=length)
    report.add(node, f"{key} must be a share up to 100% or a time up to 1 day, such as 10% or 5s")
    return None


def _read_floor(node: YamlNode, key: str, report: Report) -> int | None:
    text = _read_text(node, key, report)
    if text is None:
        return None
    if (match := _PERCENT.fullmatch(text)) is not None and 0 < int(match[1]) < 50:
        return int(match[1])
    report.add(node, f"{key} must be a share from 1% to 49%, such as 10%, not {quoted(text)}")
    return None


def _read_quota_unit(node: YamlNode, key: str, report: Report) -> str | None:
    text = node.value if isinstance(node, Scalar) else None
    if not isinstance(text, str) or not re.fullmatch(_QUOTA_UNIT, text):
        such = "such as tokens or content-bytes"
        report.add(
            node, f"{key} must be a word of a-z, 0-9 and -, of 32 characters at most, {such}, not {kind_of(node)}"
        )
        return None
    if f"{text}s" in _REGISTERED:
        report.warn(node, "quota-unit", f"clients know {text}s: write {key}: {text}s")
    elif text == _OF_PLACES:
        report.warn(node, "quota-unit", f"limits with concurrency count {text}, and say so by themselves")
    return text


def _read_start(node: YamlNode, key: str, report: Report) -> str | None:
    # As it is written: without quotes YAML takes 06:00 and 08 for numbers.
    return node.text if isinstance(node, Scalar) else _read_text(node, key, report)


def _read_zone(node: YamlNode, key: str, report: Report) -> str | None:
    text = _read_text(node, key, report)
    if text is not None:
        try:
            calendar.open_zone(text)
        except ValueError:
            names = calendar.zone_names()
            near = nearest(text, names)
            hint = f"did you mean {names[near]}?" if near else "names are such as Europe/Berlin"
            report.add(node, f"{key} {quoted(text)} is not a time zone; {hint}")
            return None
    return text


def _length(text: str) -> int:
    """Microseconds; 0 for what is not a time."""
    try:
        return read_duration(text)
    except ValueError:
        return 0


def _time(most: int, words: str, least: int = 1) -> ValueType:
    """A time from `least` to `most`, as `words` say, with an example."""

    def read(node: YamlNode, key: str, report: Report) -> int | None:
        text = _read_text(node, key, report)
        if text is None:
            return None
        if least <= (found := _length(text)) <= most:
            return found
        report.add(node, f"{key} {quoted(text)} must be a time {words}")
        return None

    return ValueType(read, {"type": ["string", "null"], **_TIME_SCHEMA})


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the known one that is most similar, if one is."""
    near = nearest(text, known)
    return f"; did you mean {near}?" if near else ""


def _read_map(node: YamlNode, key: str, report: Report) -> YamlMap | None:
    if isinstance(node, YamlMap):
        return node
    report.add(node, f"{key} must be a map, not {kind_of(node)}")
    return None


def _read_maps(node: YamlNode, key: str, report: Report) -> list[YamlMap] | None:
    if not isinstance(node, YamlList):
        report.add(node, f"{key} must be a list, not {kind_of(node)}")
        return None
    for item in node.items:
        if not isinstance(item, YamlMap):
            report.add(item, f"each of {key} must be a map, not {kind_of(item)}")
    return [item for item in node.items if isinstance(item, YamlMap)]


def _read_texts(node: YamlNode, key: str, report: Report) -> list[Scalar] | None:
    """The values of a list, or one alone."""
    if isinstance(node, Scalar):
        return None if _read_name(node, key, report) is None else [node]
    if not isinstance(node, YamlList):
        report.add(node, f"{key} must be a list, not {kind_of(node)}")
        return None
    if not node.items:
        report.add(node, f"{key} is an empty list, which fits nothing; remove it, or write what fits")
        return None
    if len(node.items) > MAX_VALUES:
        report.add(node, f"{key} has more than {MAX_VALUES:,} values; make two descriptors of them")
        return None
    texts = []
    for item in node.items:
        if isinstance(item, Scalar) and item.value is None:
            report.add(item, f"each of {key} must be text, not null; write it in quotes")
        elif _read_text(item, f"each of {key}", report) is not None and isinstance(item, Scalar):
            texts.append(item)
    return texts


def _read_json(node: YamlNode, key: str, report: Report) -> dict[str, Any] | None:
    fields = _read_map(node, key, report)
    # As envoyproxy's YAML library reads a key into a text: null is the empty one.
    return None if fields is None else _named(fields, lambda name: "" if name.value is None else name.text, key, report)


def _named(fields: YamlMap, name_of: Callable[[Scalar], str], key: str, report: Report) -> dict[str, Any]:
    found: dict[str, Any] = {}
    written: dict[str, Scalar] = {}
    for at, node in fields.fields.values():
        name = name_of(at)
        first = written.setdefault(name, at)
        if first is not at:
            report.add(at, f"{key}: {quoted(name)} is given twice in this map, first at {report.within(first)}")
        found[name] = _plain(node, key, report)
    return found


def _plain(node: YamlNode, key: str, report: Report) -> Any:
    match node:
        case YamlList():
            return [_plain(item, key, report) for item in node.items]
        case YamlMap():
            return _named(node, lambda name: printed(name.value), key, report)
    if isinstance(node.value, float) and not math.isfinite(node.value):
        report.add(node, f"{key} must be what JSON can say, and {node.text} is not; write it in quotes")
    return node.value


MAX_DELAY = MINUTE
"""The longest delay in a queue. Callers and proxies give up a request that takes longer."""

MAX_VALUES = 200_000
"""The most values in a list. A file has 16 MiB, and data files have more."""

_PERCENT = re.compile(r"([0-9]{1,4}) *%")
_QUOTA_UNIT = "[a-z0-9-]{1,32}"
_OF_PLACES = "concurrent-requests"
_REGISTERED = ("requests", "content-bytes", _OF_PLACES)
"""Units of the IETF's draft; its registry may get others."""
_TIME_SCHEMA: Mapping[str, Any] = {"pattern": f"^{PATTERN}$"}


def count(least: int, most: int = MAX_REQUESTS) -> ValueType:
    """A whole number from `least` to `most`."""

    def read(node: YamlNode, key: str, report: Report) -> int | None:
        return _read_count(node, key, report, least=least, most=most, other="")

    return ValueType(read, {"type": ["integer", "null"], "minimum": least, "maximum": most})


def choice(names: Iterable[str]) -> ValueType:
    """One of these words."""
    known = tuple(names)

    def read(node: YamlNode, key: str, report: Report) -> str | None:
        text = _read_text(node, key, report)
        if text is None or text in known:
            return text
        report.add(node, f"{key} {quoted(text)} is not one of {', '.join(known)}{did_you_mean(text, known)}")
        return None

    return ValueType(read, {"enum": [*known, None]})


def choices(names: Iterable[str]) -> ValueType:
    """A list of these words, each once at most; or one of them alone."""
    known = tuple(names)
    one = choice(known)

    def read(node: YamlNode, key: str, report: Report) -> tuple[str, ...] | None:
        if isinstance(node, YamlMap):
            report.add(node, f"{key} must be a list such as [{', '.join(known)}], not {kind_of(node)}")
            return None
        found: dict[str, None] = {}
        for item in node.items if isinstance(node, YamlList) else [node]:
            name = one.read(item, key if item is node else f"each of {key}", report)
            if name in found:
                report.add(item, f"{key} has {name} twice")
            elif name is not None:
                found[name] = None
        return tuple(found)

    several = {"type": ["array", "null"], "items": {"enum": [*known]}, "uniqueItems": True}
    return ValueType(read, {"anyOf": [{"enum": [*known]}, several]})


TEXT = ValueType(_read_text, {"type": ["string", "integer", "boolean", "null"]})
NAME = ValueType(_read_name, {"type": ["string", "integer", "boolean"], "minLength": 1})
_ONE_TEXT = {"type": ["string", "integer", "boolean"]}
TEXTS = ValueType(
    _read_texts,
    {"anyOf": [_ONE_TEXT, {"type": ["array", "null"], "items": _ONE_TEXT, "minItems": 1, "maxItems": MAX_VALUES}]},
)
COUNT = count(0)
EXCESS = ValueType(
    _read_excess,
    {
        "anyOf": [
            {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_REQUESTS},
            {"type": "string", "pattern": "^[0-9]{1,4} *%$"},
        ]
    },
)
CEILING = ValueType(partial(_read_excess, example="250%"), EXCESS.schema)
FLAG = ValueType(_read_flag, {"type": ["boolean", "null"]})
UNIT = ValueType(
    _read_unit,
    {
        "anyOf": [
            {"enum": [*UNITS, None]},
            {"type": "string", **_TIME_SCHEMA},
        ]
    },
)
FLOOR = ValueType(_read_floor, {"type": ["string", "null"], "pattern": "^0*([1-9]|[1-4][0-9]) *%$"})
QUOTA_UNIT = ValueType(
    _read_quota_unit,
    {
        "anyOf": [
            {"enum": ["requests", "content-bytes", "tokens", None]},
            {"type": "string", "pattern": f"^{_QUOTA_UNIT}$"},
        ]
    },
)
START = ValueType(_read_start, {"type": ["string", "integer", "null"]})
ZONE = ValueType(_read_zone, {"type": ["string", "null"]})
DURATION = _time(MAX_WINDOW, 'from a second to 100 years, such as 10m or "15 minutes"', SECOND)
DELAY = _time(MAX_DELAY, 'up to a minute, such as 200ms or "2 seconds"')
HOLD = _time(MAX_WINDOW, 'from 100ms to 100 years, such as 60s or "5 minutes"', SECOND // 10)
JSON = ValueType(_read_json, {"type": ["object", "null"]})
JITTER = ValueType(
    _read_jitter,
    {
        "anyOf": [
            {"type": ["string", "null"], "pattern": "^([0-9]{1,2}|0*100) *%$"},
            {"type": "string", **_TIME_SCHEMA},
        ]
    },
)


def _read_map_or_maps(node: YamlNode, key: str, report: Report) -> list[YamlMap] | None:
    if isinstance(node, YamlMap):
        return [node]
    if isinstance(node, YamlList):
        return _read_maps(node, key, report)
    report.add(node, f"{key} must be a map or a list of maps, not {kind_of(node)}")
    return None


def map_of(definition: str) -> ValueType:
    """A map with its own options."""
    return ValueType(_read_map, {"anyOf": [{"$ref": f"#/$defs/{definition}"}, {"type": "null"}]})


def maps_of(definition: str) -> ValueType:
    """A list of such maps."""
    return ValueType(_read_maps, {"type": ["array", "null"], "items": {"$ref": f"#/$defs/{definition}"}})


def map_or_maps_of(definition: str) -> ValueType:
    """A map with its own options, or a list of such maps; read as a list."""
    one = {"$ref": f"#/$defs/{definition}"}
    return ValueType(_read_map_or_maps, {"anyOf": [one, {"type": "array", "items": one}, {"type": "null"}]})
