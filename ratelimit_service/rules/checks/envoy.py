"""Envoy's half of limits of places: the two items of `rate_limits` that take a place and give it back."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ratelimit_service.rules.book import Node, RuleBook
from ratelimit_service.rules.problems import LintWarning, warning_at
from ratelimit_service.rules.rule import Rule

Item = Mapping[str, Any]


MAX_NOTES: Final = 3
"""Halves that are printed, each for all limits that need the same."""


def places_notes(book: RuleBook) -> Iterator[LintWarning]:
    """Notes with Envoy's half of limits of places, in the order of the files."""
    found: dict[str, Rule] = {}
    for root in book.domains.values():
        for rule, entries in _below(root, ()):
            found.setdefault("\n".join(_lines(_items(rule, entries))), rule)
    for half, rule in list(found.items())[:MAX_NOTES]:
        yield warning_at(rule.place, "places", f"{_WHERE}\nrate_limits:\n{half}")
    for rule in list(found.values())[MAX_NOTES:]:
        yield warning_at(rule.place, "places", "as above, by the entries of this limit")


_WHERE: Final = (
    "Envoy takes these places, and gives them back, by two items of rate_limits in its ratelimit filter, or in the "
    "filter's configuration of a route (typed_per_filter_config); in a route's own rate_limits it ignores hits_addend, "
    "and gives nothing back:"
)


def _below(node: Node, above: tuple[tuple[str, str], ...]) -> Iterator[tuple[Rule, Sequence[tuple[str, str]]]]:
    """The limits of places below a node, each with its entries; the value is empty where it is not one text."""
    for name, child in node.children.items():
        entries = (*above, (child.key, name[len(child.key) + 1 :] if child.has_one_value(name) else ""))
        for rule in () if child.rule is None else (child.rule, *child.rule.beside):
            if rule.limit is not None and rule.limit.kind.holds:
                yield rule, entries
        yield from _below(child, entries)


def _items(rule: Rule, entries: Sequence[tuple[str, str]]) -> Sequence[Item]:
    actions = [_action(key, value, holder=index == rule.holder) for index, (key, value) in enumerate(entries)]
    return (
        {"actions": actions, "hits_addend": {"number": 1}},
        {"actions": actions, "hits_addend": {"number": 1, "is_negative_hits": True}, "apply_on_stream_done": True},
    )


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
        yield f"    hits_addend: {_flow(item['hits_addend'])}"
        if "apply_on_stream_done" in item:
            yield "    apply_on_stream_done: true"


def _flow(options: Mapping[str, Any]) -> str:
    return f"{{{', '.join(f'{key}: {json.dumps(value, ensure_ascii=False)}' for key, value in options.items())}}}"
