"""What is allowed in a rules file and hardly meant.

What the text of a file tells, `notations.py` and `calendars.py` find when it is read. Here is what the tree tells:
descriptors that nothing reaches or that do nothing, and huge logs, which another algorithm keeps as well for much less.
"""

from collections.abc import Iterator
from typing import Final

from ratelimit_service.rules.book import Node, RuleBook
from ratelimit_service.rules.report import Advice, quoted
from ratelimit_service.rules.rule import Place, Rule

KINDS: Final = (
    "address",
    "any-key",
    "calendar",
    "cidr",
    "glob",
    "large-log",
    "list",
    "no-effect",
    "regex",
    "unreached",
)
"""All kinds of warnings."""

_ANY_TEXT = "\0"
"""Stands for a text that no literal of a pattern contains: YAML has no NUL. Only a `*` fits it. So one pattern fits all
that another fits exactly when it fits the other with this in place of each `*`."""

LONGEST_LOG = 5000
"""Moments in one counter; 8 bytes each."""


def advise(book: RuleBook) -> list[Advice]:
    """Warnings about the book, in the order of the files' names and lines."""
    found = [*book.warnings]
    found += [warning for node in book.domains.values() for warning in _level(node)]
    found += [warning for rule in book.rules for warning in _logs(rule)]
    return sorted(found, key=lambda warning: warning[:3])


def _logs(rule: Rule) -> Iterator[Advice]:
    limit = rule.limit
    if rule.algorithm.name == "sliding_log" and limit is not None and limit.requests > LONGEST_LOG:
        message = (
            f"sliding_log remembers up to {limit.requests:,} moments in each counter; sub_windows lets no more through "
            "either, and remembers a few numbers"
        )
        yield _warning(rule.place, "large-log", message)


def _level(parent: Node) -> Iterator[Advice]:
    bare = any(node.bare for node in parent.children.values())
    wildcards_left = sum("*" in name for name in parent.children)
    for name, node in parent.children.items():
        wildcards_left -= "*" in name
        if cover := _cover(parent, name, node):
            message = f"{quoted(name)} is never reached: {cover} fits first, whatever would fit this"
            yield _warning(node.place, "unreached", message)
        elif node.rule is None and not node.children:
            exempts = bare or wildcards_left > 0 if "*" in name else _falls_back(parent, name)
            if node.bare or not exempts:
                message = (
                    f"{quoted(name)} does nothing: it has no rate_limit, no descriptors, and exempts from no limit"
                )
                yield _warning(node.place, "no-effect", message)
        yield from _level(node)


def _cover(parent: Node, name: str, node: Node) -> str | None:
    """The wildcard that takes all requests away from a descriptor; none can from an exact value."""
    if parent.wildcards is None or not (node.bare or "*" in name):
        return None
    found = parent.wildcards.find(name.replace("*", _ANY_TEXT) if "*" in name else f"{name}_{_ANY_TEXT}")
    if found is None or found is node:
        return None
    cover = next(pattern for pattern, child in parent.children.items() if child is found)
    return f"{quoted(cover)} at {found.place}"


def _falls_back(parent: Node, name: str) -> bool:
    """Whether something else would fit if there were no descriptor with this exact value."""
    if parent.wildcards is not None and parent.wildcards.find(name) is not None:
        return True
    parts = name.split("_")
    keys = ("_".join(parts[:end]) for end in range(1, len(parts)))
    return any((other := parent.children.get(key)) is not None and other.bare for key in keys)


def _warning(place: Place | None, kind: str, message: str) -> Advice:
    return Advice("", 0, 0, kind, message) if place is None else Advice(*place, kind, message)
