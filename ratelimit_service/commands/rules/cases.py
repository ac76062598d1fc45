"""Reads the files of `ratelimit rules test`: cases, each a request or several, and what they must get.

A file is YAML, read as a rules file is: `domain`, and `cases`. Every mistake in it is reported with its place.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import click

from ratelimit_service.commands.request import ENTRY, LIMIT, descriptors
from ratelimit_service.commands.rules.expected import ExpectedLimit, read_limits
from ratelimit_service.errors import RulesError
from ratelimit_service.model import Descriptor, Limit
from ratelimit_service.rules.problems import Report, nearest, quoted
from ratelimit_service.rules.rule import Entries
from ratelimit_service.rules.sources.yaml_text import YamlText
from ratelimit_service.rules.syntax.document import (
    Field,
    Scalar,
    YamlList,
    YamlMap,
    YamlNode,
    kind_of,
)
from ratelimit_service.rules.syntax.maps import given
from ratelimit_service.rules.syntax.values import COUNT, FLAG, JSON, NAME, TEXT, choice, count
from ratelimit_service.system.clock import SECOND
from ratelimit_service.system.duration import read_duration

MAX_TIMES: Final = 100_000
"""Requests of one step: a second or two."""


class Expected(NamedTuple):
    """The answer that the request of a step must get; None where the file does not say it."""

    answer: str | None
    """`allowed` or `refused`, for each of the requests of the step; the others are of the last one."""
    limit: Sequence[ExpectedLimit | None] | None
    """For each descriptor, as the next four; None in a list: not said of this one."""
    rule: Sequence[str | None] | None
    denied: Sequence[bool | None] | None
    remaining: Sequence[int | None] | None
    until_reset: Sequence[int | None] | None
    """Whole seconds."""
    headers: Mapping[str, str | None] | None
    """By lower-case name; None: the response must not have it."""
    metadata: Mapping[str, Any] | None

    def __bool__(self) -> bool:
        return any(value is not None for value in self)


class CaseStep(NamedTuple):
    """A request of a case: after how long, how often, and what it must get."""

    line: int
    domain: str
    descriptors: Sequence[Descriptor]
    after: int
    """Microseconds that pass before it."""
    times: int
    expected: Expected


class Case(NamedTuple):
    """One test: steps on the same counters, which are untouched before the first."""

    path: str
    line: int
    column: int
    name: str
    """Empty for one without a name, which its request stands for."""
    domain: str
    request: Sequence[Entries]
    """Empty where the steps have their own."""
    at: int
    """The simulated time of its begin, in microseconds since 1970."""
    steps: Sequence[CaseStep]


def read_cases(source: YamlText) -> list[Case]:
    """The cases of a file, in its order; RulesError with all that is wrong with it."""
    report = Report(source.name)
    root = source.nodes(report)
    if not isinstance(root, YamlMap):
        what = "empty" if root is None else kind_of(root)
        report.stop(_START if root is None else root, f"a file of cases is a map with domain and cases, not {what}")
    values = _read(root, _FILE, "at the top of the file", report)
    if "cases" not in values:
        report.add(root, "the file has no cases")
    cases = [_read_case(item, values.get("domain"), report) for item in values.get("cases", ())]
    if report.problems:
        raise RulesError(report.problems)
    return cases


_START: Final = Scalar(1, 1, "", None)

_Reader = Callable[[YamlNode, str, Report], Any]


def _read(fields: YamlMap, known: Mapping[str, _Reader], where: str, report: Report) -> dict[str, Any]:
    """The values of a map; unknown and malformed keys are reported, and null is the same as absent."""
    found: dict[str, Any] = {}
    for key, (at, node) in fields.fields.items():
        if key not in known:
            near = nearest(key, known)
            hint = f"did you mean {near}?" if near else f"{where} there may be {', '.join(known)}"
            report.add(at, f"unknown key {quoted(key)}; {hint}")
        elif not (isinstance(node, Scalar) and node.value is None):
            value = known[key](node, key, report)
            if value is not None:
                found[key] = value
    return found


def _read_case(item: YamlMap, domain: str | None, report: Report) -> Case:
    values = _read(item, _CASE, "in a case", report)
    steps = [(step, _read(step, _STEP, "in a step", report)) for step in values.get("steps", ())]
    match item.fields.get("steps"):
        case Field(key, YamlList(items=[])):
            report.add(key, "the case has no steps; remove steps, or write one")
    read = [
        _read_step(map_, {"domain": domain, **values, **step}, {**item.fields, **map_.fields}, report)
        for map_, step in (steps if given(item, "steps") else [(item, {})])
    ]
    if not any(step.expected for step in read) and not report.problems:
        report.add(item, f"nothing is expected; write at least one of {', '.join(Expected._fields)}")
    of = values.get("name", ""), values.get("domain") or domain or "", values.get("request", ())
    return Case(report.path, item.line, item.column, *of, values.get("at", _BEGIN), read)


def _read_step(at: YamlMap, values: Mapping[str, Any], fields: Mapping[str, Field], report: Report) -> CaseStep:
    """The step that has these values: its own, and those of its case that it does not say otherwise."""
    if values["domain"] is None and "domain" not in fields:
        report.add(at, "there is no domain; write one here, in the case, or at the top of the file")
    if "request" not in fields:
        report.add(at, "there is no request, such as request: plan=free user=ada")
    sent: Sequence[Entries] = values.get("request", ())
    hits: int | None = values.get("hits")
    cost = 1 if hits is None else hits
    override: Limit | None = values.get("override")
    asked = [Descriptor(each, -cost if values.get("refund") else cost, hits, override) for each in sent]
    for key in _OF_EACH.keys() & values.keys() if sent else ():
        if len(values[key]) != len(sent):
            has = "one descriptor" if len(sent) == 1 else f"{len(sent)} descriptors"
            message = f"{key} must have a value for each descriptor: the request has {has}, and this {len(values[key])}"
            report.add(fields[key].value, message)
    expected = Expected(*(values.get(key) for key in Expected._fields))
    return CaseStep(at.line, values["domain"] or "", asked, values.get("after", 0), values.get("times", 1), expected)


def _read_request(node: YamlNode, key: str, report: Report) -> list[Entries] | None:
    text = NAME.read(node, key, report)
    try:
        return None if text is None else descriptors([ENTRY.convert(word, None, None) for word in shlex.split(text)])
    except (click.UsageError, ValueError) as error:
        message = error.message if isinstance(error, click.UsageError) else f"{error}".lower()
        report.add(node, f"{key} {quoted(text or '')}: {message}")
        return None


def _read_override(node: YamlNode, key: str, report: Report) -> Limit | None:
    text = NAME.read(node, key, report)
    try:
        return None if text is None else LIMIT.convert(text, None, None)
    except click.UsageError as error:
        report.add(node, f"{key}: {error.message}")
        return None


def _read_duration(node: YamlNode, key: str, report: Report) -> int | None:
    text = TEXT.read(node, key, report)
    if text is None:
        return None
    try:
        duration = read_duration(text)
    except ValueError as error:
        report.add(node, f"{key} {quoted(text)} {error}")
        return None
    if duration < 0:
        report.add(node, f"{key} {quoted(text)} is below zero")
        return None
    return duration


def _read_seconds(node: YamlNode, key: str, report: Report) -> int | None:
    duration = _read_duration(node, key, report)
    return None if duration is None else -(-duration // SECOND)


def _read_moment(node: YamlNode, key: str, report: Report) -> int | None:
    text = TEXT.read(node, key, report)
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        report.add(node, f"{key} {quoted(text)} is not a moment such as 2026-03-29T00:59:30Z, with its offset from UTC")
        return None
    return round(moment.timestamp() * SECOND)


_FIRST_YEAR, _LAST_YEAR = 1971, 2200
_BEGIN: Final = round(datetime.fromisoformat("2026-01-05T00:00:00Z").timestamp()) * SECOND
"""The moment when a case begins that does not say it: a Monday. Windows of a second, minute, hour and day begin
then."""


def _read_headers(node: YamlNode, key: str, report: Report) -> dict[str, str | None] | None:
    if not isinstance(node, YamlMap):
        report.add(node, f"{key} must be a map from names to values, not {kind_of(node)}")
        return None
    found: dict[str, str | None] = {}
    for name, (_, value) in node.fields.items():
        if isinstance(value, Scalar):
            found[name.lower()] = None if value.value is None else value.text
        else:
            report.add(value, f"{key}: {quoted(name)} must be text, or ~ where there must be none")
    return found


def _each(read: _Reader) -> _Reader:
    """A value, or a list of one for each descriptor."""

    def read_each(node: YamlNode, key: str, report: Report) -> tuple[Any, ...]:
        items = node.items if isinstance(node, YamlList) else [node]
        return tuple(
            None if isinstance(item, Scalar) and item.value is None else read(item, key, report) for item in items
        )

    return read_each


def _read_maps(node: YamlNode, key: str, report: Report) -> list[YamlMap] | None:
    items = node.items if isinstance(node, YamlList) else [node]
    maps = [item for item in items if isinstance(item, YamlMap)]
    for item in items:
        if not isinstance(item, YamlMap):
            report.add(item, f"{key} must be a list of maps, not {kind_of(item)}")
    return maps


_OF_EACH: Final[Mapping[str, _Reader]] = {
    "limit": _each(read_limits),
    "rule": _each(NAME.read),
    "denied": _each(FLAG.read),
    "remaining": _each(COUNT.read),
    "until_reset": _each(_read_seconds),
}
_STEP: Final[Mapping[str, _Reader]] = {
    "domain": NAME.read,
    "request": _read_request,
    "override": _read_override,
    "hits": COUNT.read,
    "refund": FLAG.read,
    "after": _read_duration,
    "times": count(1, MAX_TIMES).read,
    "answer": choice(("allowed", "refused")).read,
    **_OF_EACH,
    "headers": _read_headers,
    "metadata": JSON.read,
}
_CASE: Final[Mapping[str, _Reader]] = {"name": NAME.read, "at": _read_moment, **_STEP, "steps": _read_maps}
_FILE: Final[Mapping[str, _Reader]] = {"domain": NAME.read, "cases": _read_maps}
