"""Envoy's half of limits of places, and of costs known at the end: the items of `rate_limits` for each request."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ratelimit_service.model import Limit
from ratelimit_service.rules.book import Domain, Node, RuleBook
from ratelimit_service.rules.problems import LintWarning, warning_at
from ratelimit_service.rules.rule import Rule

Item = Mapping[str, Any]


MAX_NOTES: Final = 3
"""Halves of one kind that are printed, each for all limits that need the same."""


def envoy_notes(book: RuleBook) -> Iterator[LintWarning]:
    """Notes with Envoy's half of limits, in the order of the files."""
    found: dict[str, dict[str, Rule]] = {}
    for root in book.domains.values():
        for rules, entries in _noted(root):
            items = [*_items(rules, entries, root.settle)]
            halves = found.setdefault(_where(rules, len(items)), {})
            halves.setdefault("\n".join(_lines(items)), rules[0])
    for where, halves in found.items():
        for half, rule in list(halves.items())[:MAX_NOTES]:
            yield warning_at(rule.place, "envoy", f"{where}:\nrate_limits:\n{half}")
        for rule in list(halves.values())[MAX_NOTES:]:
            yield warning_at(rule.place, "envoy", "as above, by the entries of this limit")


def _where(rules: Sequence[Rule], count: int) -> str:
    places, reserves = _holds(rules), _reserves(rules)
    does = ["takes these places, and gives them back"] if places else []
    if reserves:
        does.append("reserves what a request may cost, and settles what it has cost")
    elif not places:
        does.append("looks, and settles what a request has cost")
    lost = ", and gives nothing back" if places else ""
    where = (
        f"Envoy {', and '.join(does)}, by {_NUMBERS[count]} items of rate_limits in its ratelimit filter, or in the "
        "filter's configuration of a route (typed_per_filter_config); in a route's own rate_limits it ignores "
        f"hits_addend{lost}"
    )
    if places or reserves:
        where += "; x-request-id must be Envoy's own, by use_remote_address: true"
    if reserves or not places:
        where += "; the last format says where the cost is, here what a gateway for models writes"
    return where


_USAGE: Final = "%DYNAMIC_METADATA(io.envoy.ai_gateway:llm_total_token)%"
_FROM_HEADER: Final = (
    "%CEL('x-max-tokens' in request.headers && request.headers['x-max-tokens'].matches('^[1-9][0-9]{{0,6}}$') "
    "? int(request.headers['x-max-tokens']) : {})%"
)
"""A mere %REQ(x-max-tokens)% would let a request pass unasked whose header is missing or is not a number."""

_NUMBERS: Final = {2: "two", 3: "three"}


def _noted(root: Domain) -> Iterator[tuple[Sequence[Rule], Sequence[tuple[str, str]]]]:
    """The limits about which there is a note, those of a list together, with their entries.

    Where nothing reserves, `settle` has one for the first limit that it can charge: which of them it is meant for is
    not known.
    """
    found = [*_below(root, ())]
    reserving = any(_reserves(rules) for rules, _ in found)
    for rules, entries in found:
        if _holds(rules) or _reserves(rules):
            yield rules, entries
        elif root.settle and not reserving:
            yield rules, entries
            reserving = True


def _below(
    node: Node, above: tuple[tuple[str, str], ...]
) -> Iterator[tuple[Sequence[Rule], Sequence[tuple[str, str]]]]:
    """The limits below a node, each with its entries; the value is empty where it is not one text."""
    for name, child in node.children.items():
        entries = (*above, (child.key, name[len(child.key) + 1 :] if child.has_one_value(name) else ""))
        rules = () if child.rule is None else (child.rule, *child.rule.beside)
        limited = [rule for rule in rules if rule.limit is not None]
        if limited:
            yield limited, entries
        yield from _below(child, entries)


def _holds(rules: Sequence[Rule]) -> bool:
    return any(rule.limit is not None and rule.limit.kind.holds for rule in rules)


def _reserves(rules: Sequence[Rule]) -> bool:
    return any(rule.limit is not None and rule.limit.kind.reserves for rule in rules)


def _is_untold(limit: Limit) -> bool:
    """It reserves, and has no estimate for a request that does not tell its cost."""
    return limit.kind.reserves and not limit.kind.taken(0, told=False)


def _items(rules: Sequence[Rule], entries: Sequence[tuple[str, str]], settle: str) -> Iterator[Item]:
    holder = max(rule.holder for rule in rules)
    actions = [_action(key, value, holder=index == holder) for index, (key, value) in enumerate(entries)]
    places, reserves = _holds(rules), _reserves(rules)
    untold = [rule.limit.requests for rule in rules if rule.limit and _is_untold(rule.limit)]
    if not reserves:
        yield {"actions": actions, "hits_addend": {"number": int(places)}}
    elif untold:
        yield {"actions": actions, "hits_addend": {"format": _FROM_HEADER.format(max(1, min(untold) // 100))}}
    else:
        yield {"actions": actions}
    if reserves or not places:
        mark = {"generic_key": {"descriptor_key": settle, "descriptor_value": "1"}}
        yield {"actions": [*actions, mark], "hits_addend": {"format": _USAGE}, "apply_on_stream_done": True}
    if places:
        given_back = {"number": 1, "is_negative_hits": True}
        yield {"actions": actions, "hits_addend": given_back, "apply_on_stream_done": True}


_HEADERS: Final = {"path": ":path", "method": ":method", "host": ":authority", "authority": ":authority"}


def _action(key: str, value: str, *, holder: bool) -> Item:
    """An action that makes this entry; another one may make it too."""
    if key == "remote_address":
        return {"remote_address": {}}
    if value and key not in _HEADERS:
        return {"generic_key": {"descriptor_key": key, "descriptor_value": value}}
    header = "x-request-id" if holder else _HEADERS.get(key, f"x-{key.replace('_', '-')}")
    return {"request_headers": {"header_name": header, "descriptor_key": key}}


def _lines(items: Sequence[Item]) -> Iterator[str]:
    for item in items:
        yield "  - actions:"
        for action in item["actions"]:
            [(kind, options)] = action.items()
            yield f"      - {kind}: {_flow(options)}"
        if "hits_addend" in item:
            yield f"    hits_addend: {_flow(item['hits_addend'])}"
        if "apply_on_stream_done" in item:
            yield "    apply_on_stream_done: true"


def _flow(options: Mapping[str, Any]) -> str:
    return f"{{{', '.join(f'{key}: {json.dumps(value, ensure_ascii=False)}' for key, value in options.items())}}}"
