"""The limits that a descriptor is expected to have, as the files of `ratelimit rules test` say it.

In words, `5 per minute`, `50 at once`, or of a list of limits `10 per second, 1000 per day`; `none`, `unlimited`,
`denied`; or as a map of the options that a rule must have, as in `rate_limit`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ratelimit_service.model import MAX_REQUESTS, Limit
from ratelimit_service.rules.problems import Report, quoted
from ratelimit_service.rules.reading.calendar import read_calendar
from ratelimit_service.rules.reading.limit import read_queue
from ratelimit_service.rules.rule import Rule, rule_in_full
from ratelimit_service.rules.syntax.document import Scalar, YamlMap, YamlNode
from ratelimit_service.rules.syntax.maps import read_options
from ratelimit_service.rules.syntax.options import BY_MAP, MapType
from ratelimit_service.rules.syntax.values import NAME, Excess
from ratelimit_service.rules.window import Window, read_window


class ExpectedLimit(NamedTuple):
    """The limits of a descriptor: none, unlimited, or these."""

    text: str
    """As the file says it."""
    counts: Sequence[tuple[int, int]] | None = None
    """The requests and the windows of the limits, in any order."""
    options: Mapping[str, Any] | None = None
    """The options of the only limit."""

    def fits(self, rules: Sequence[Rule]) -> bool:
        """Whether these are the rules of the descriptor; no rules: nothing limits it."""
        if self.options is not None:
            return len(rules) == 1 and all(_agrees(rules[0], *each) for each in self.options.items())
        if self.counts is not None:
            limits = [rule.limit for rule in rules]
            return sorted(self.counts) == sorted((limit.requests, _aligned(limit)) for limit in limits if limit)
        return self.text == _kind(rules)


def _aligned(limit: Limit) -> int:
    """The length of the windows; 0 for those of a calendar, which have none such as `month`."""
    return limit.window if limit.equal_windows else 0 if limit.kind.in_windows else _AT_ONCE


def limits_in_words(rules: Sequence[Rule]) -> str:
    """The limits of a descriptor, as an explanation says them: `none`, or `5 requests per minute (token bucket)`."""
    return ", ".join(map(rule_in_full, rules)) or _NONE


def read_limits(node: YamlNode, key: str, report: Report) -> ExpectedLimit | None:
    """The limits that a file expects."""
    if isinstance(node, YamlMap):
        return _read_options(node, key, report)
    text = NAME.read(node, key, report)
    if text is None:
        return None
    if text in _KINDS:
        return ExpectedLimit(text)
    counts = []
    for part in _COMMA.split(text):
        match = _LIMIT.fullmatch(part.strip())
        length = None if match is None else _length(match[2])
        if match is None or length is None or (requests := int(match[1].replace(",", ""))) > MAX_REQUESTS:
            what = f"not a limit such as 5 per minute, 100 per 5 minutes or 50 at once, nor one of {', '.join(_KINDS)}"
            report.add(node, f"{key} {quoted(part.strip())} is {what}")
            return None
        counts.append((requests, length))
    return ExpectedLimit(text, counts)


def _length(window: str | None) -> int | None:
    """The length of the window that has this name; None if none has. Places have no window."""
    if window is None:
        return _AT_ONCE
    found = read_window(window)
    return None if found is None or found.problem else found.microseconds


def _read_options(node: YamlMap, key: str, report: Report) -> ExpectedLimit:
    options = read_options(node, MapType.RATE_LIMIT, report)
    for name in options.keys() & _NOT_COMPARED:
        report.add(node.fields[name].key, f"{key} cannot be compared by {name}")
    multiplier = options.pop("unit_multiplier", None)
    window: Window | None = options.get("unit")
    if window is not None:
        options["unit"] = Window(window.unit, multiplier or window.times).microseconds
    elif multiplier is not None:
        report.add(node.fields["unit_multiplier"].key, f"{key} has a unit_multiplier without a unit")
    if "calendar" in options:
        options["calendar"] = read_calendar(node, options["calendar"], report)
    if "queue" in options:
        options["queue"] = read_queue(node, options["queue"], report)
    if "elastic" in options:
        options["elastic"] = read_options(options["elastic"], MapType.ELASTIC, report)
    values = {name: field.value for name, field in node.fields.items()}
    text = ", ".join(f"{name}: {each.text if isinstance(each, Scalar) else '…'}" for name, each in values.items())
    return ExpectedLimit(text, options=options)


_NONE: Final = "none"
_KINDS: Final = (_NONE, "unlimited", "denied")
_COMMA: Final = re.compile(r",(?!(?<=[0-9],)[0-9]{3})")
"""The comma between two limits, and not the one of `1,000`."""
_LIMIT: Final = re.compile(r"([0-9]{1,16}(?:[_,][0-9]{3}){0,5}) *(?:requests? *)?(?:(?:per|/) *(\S.*)|at once)")
_AT_ONCE: Final = -1
"""The number in place of the window of places."""
_NOT_COMPARED: Final = frozenset({"replaces"})


def _kind(rules: Sequence[Rule]) -> str:
    if not rules:
        return _NONE
    if rules[0].limit is not None:
        return ""
    return "denied" if rules[0].deny else "unlimited"


def _agrees(rule: Rule, key: str, value: Any) -> bool:
    """Whether the rule is as if its option `key` had this value."""
    option = BY_MAP[MapType.RATE_LIMIT][key]
    limit = rule.limit
    if option.rule_field:
        return bool(getattr(rule, option.rule_field) == value)
    if key in {"unlimited", "allow"}:
        return (limit is None and not rule.deny) is value
    return limit is not None and _limit_agrees(rule, limit, key, value)


def _limit_agrees(rule: Rule, limit: Limit, key: str, value: Any) -> bool:
    found: object
    own = limit.kind.options(limit, rule.levels[rule.holder].name if rule.holder >= 0 else "")
    match key:
        case "unit":
            found = _aligned(limit)
        case "calendar":
            found = limit.calendar
        case "requests_per_unit":
            found = own.get(key, limit.requests)
        case "algorithm":
            found = rule.algorithm.name
        case "burst":
            found = limit.capacity
        case "anchor":
            found = "first_request" if limit.first_request else "calendar"
        case "count_refused":
            found = limit.count_refused
        case "exceed":
            found = limit.exceed
        case _:
            field = BY_MAP[MapType.RATE_LIMIT][key].limit_field
            found = getattr(limit, field) if field else own.get(key)
    if isinstance(found, Mapping) and isinstance(value, Mapping):
        amounts = {name: _amount(each, limit) for name, each in value.items()}
        return found == {**dict.fromkeys(found, False), **amounts}
    return bool(found == _amount(value, limit))


def _amount(value: Any, limit: Limit) -> Any:
    """The value, where it may be written as a share of the limit."""
    return value.of(limit.requests) if isinstance(value, Excess) else value
