"""Why nothing limits a descriptor that was meant to be limited: the classical mistakes."""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from ratelimit_service.rules.book import Node
from ratelimit_service.rules.report import nearest, quoted
from ratelimit_service.rules.rule import Entries, Rule

_MOST_TRIED = 1000
"""Entries that are tried in another order, and nodes that are looked at below the last: a book may have a million."""
_MOST_NAMED = 5


def hints_of(walk: Sequence[Node], entries: Entries) -> tuple[str, ...]:
    """What may have been meant. `walk` is the domain's node and those that the first entries reached."""
    return tuple(_hints(walk, entries))


def _hints(walk: Sequence[Node], entries: Entries) -> Iterator[str]:
    last, met = walk[-1], len(walk) - 1
    other = in_another_order(walk[0], entries, _MOST_TRIED)
    if other is not None:
        order, rule = other
        yield f"In the order {words(order)} the rule at {rule.place} applies: entries are met in the order of the file."
    if met == len(entries):
        if below := _rules_below(last):
            more = ", ".join(f"{path} ({rule.place})" for path, rule in below)
            yield f"There are rules with more entries: after {words(entries)} come {more}."
    elif last.rule is not None:
        alone = f"it applies to {words(entries[:met])} alone, in a descriptor of its own"
        yield f"The rule at {last.rule.place} ends with entry {met}: {alone}."
    if met < len(entries) and other is None:
        yield from _names(last, *entries[met])


def words(entries: Entries) -> str:
    """`plan=free user=ada`."""
    return " ".join(f"{key}={value}" for key, value in entries)


def in_another_order(root: Node, entries: Entries, most: int) -> tuple[Entries, Rule] | None:
    """All of the entries in an order that ends at a rule; at most so many entries are tried."""
    tried = 0
    waiting: list[tuple[Node, Entries, Entries]] = [(root, (), entries)]
    while waiting and tried < most:
        node, before, left = waiting.pop()
        if not left and node.rule is not None:
            return before, node.rule
        for index, (key, value) in enumerate(left):
            tried += 1
            if (child := node.child(key, value)) is not None:
                waiting.append((child, (*before, left[index]), (*left[:index], *left[index + 1 :])))
    return None


def _names(node: Node, key: str, value: str) -> Iterator[str]:
    """What there is at the level where an entry fits nothing."""
    if not node.children:
        return
    some = list(islice(node.children, _MOST_TRIED))
    near = nearest(f"{key}_{value}", some) or nearest(key, some)
    if near:
        yield f"Did you mean {quoted(near)} ({node.children[near].place})?"
    else:
        names = ", ".join(map(quoted, islice(node.children, _MOST_NAMED)))
        more = len(node.children) - _MOST_NAMED
        yield f"At this level there are {names}{f' and {more:,} more' if more > 0 else ''}."


def _rules_below(node: Node) -> list[tuple[str, Rule]]:
    """The nearest rules below, each with the names that lead to it."""
    found: list[tuple[str, Rule]] = []
    waiting = deque([("", node)])
    looked = 0
    while waiting and len(found) < _MOST_NAMED and looked < _MOST_TRIED:
        path, parent = waiting.popleft()
        for name, child in islice(parent.children.items(), _MOST_TRIED):
            looked += 1
            if child.rule is not None:
                found.append((f"{path}{name}", child.rule))
            else:
                waiting.append((f"{path}{name} ", child))
    return found[:_MOST_NAMED]
