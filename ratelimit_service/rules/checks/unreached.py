"""Warnings about descriptors that no request reaches, or that do nothing: others before them fit all that they fit."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from ratelimit_service.rules.address import address_text
from ratelimit_service.rules.book import Domain, Node
from ratelimit_service.rules.matching import EXACT, FILE_ORDER, KEY_ALONE, Fit, Matchers, Rank, standing
from ratelimit_service.rules.problems import LintWarning, quoted, warning_at

_ANY_TEXT = "\0"
"""A character that no literal of a pattern contains, because YAML has no NUL; only a `*` matches it. So a pattern
covers another one if and only if it matches the text of the other one with this in place of each `*`."""


def review_levels(root: Domain, parent: Node) -> Iterator[LintWarning]:
    """All such warnings about the levels below a node of the domain."""
    key_only = any(node.key_only for node in parent.children.values())
    wildcards_left = sum(node.is_wildcard(name) for name, node in parent.children.items())
    first_networks: dict[tuple[str, int], int] = {}
    ordered = parent.children.values() if parent.wildcards is not None or parent.matchers is not None else ()
    order = {id(node): standing(node, number, first_networks) for number, node in enumerate(ordered)}
    fits = Counter(node.fit.key for node in parent.children.values() if node.fit is not None)
    for node, first, value in () if parent.matchers is None else parent.matchers.hidden:
        text = value if isinstance(value, str) else address_text(value)
        message = f"{quoted(text)} is in the list at {first.place} too, which is tried first"
        yield warning_at(node.place, "duplicate", message)
    covers = {} if parent.matchers is None else _covers(parent, order)
    for name, node in parent.children.items():
        if node.is_wildcard(name):
            wildcards_left -= 1
        if node.fit is not None:
            yield from _all_or_nothing(name, node, node.fit)
        elif parent.matchers is not None and node.has_one_value(name):
            yield from _listed(parent.matchers, name, node)
        found = _cover(parent, name, node, order)
        if found is None and node.key in covers and covers[node.key].rank < _rank(name, node, order):
            found = covers[node.key].words
        if found is not None:
            message = f"{quoted(name)} is never reached: {found}, or remove it"
            yield warning_at(node.place, "unreached", message)
        elif node.rule is None and not node.children:
            if node.fit is not None:
                exempts = key_only or wildcards_left > 0 or fits[node.fit.key] > 1
            elif node.is_wildcard(name):
                exempts = key_only or wildcards_left > 0 or bool(fits)
            else:
                exempts = _falls_back(parent, name)
            if root.default is None and (node.key_only or not exempts):
                nothing = (
                    f"{quoted(name)} does nothing: it has no rate_limit, no descriptors, and exempts from no limit"
                )
                message = f"{nothing}; give it a rate_limit, or remove it"
                yield warning_at(node.place, "no-effect", message)
        yield from review_levels(root, node)


def _cover(parent: Node, name: str, node: Node, order: Mapping[int, int]) -> str | None:
    """The descriptor that matches every request before this one can, and the remedy; None if there is none.

    It is a wildcard of the same priority or of a higher one, or the key alone with a higher one. `order` has by the
    identity of each node where it stands in the file.
    """
    found = parent.children.get(node.key)
    if found is None or not found.key_only or found.priority <= node.priority:
        found = _covering_wildcard(parent, name, node, order)
    if found is None:
        return None
    cover = next(pattern for pattern, child in parent.children.items() if child is found)
    in_order = found.priority == node.priority and not node.key_only
    remedy = "move it before that one" if in_order else "give it a higher priority"
    return f"{quoted(cover)} at {found.place} fits first, whatever would fit this; {remedy}"


def _covering_wildcard(parent: Node, name: str, node: Node, order: Mapping[int, int]) -> Node | None:
    if parent.wildcards is None:
        return None
    first_of = parent.wildcards.find if parent.matchers is None else parent.matchers.wildcard
    any_value = node.fit is not None or (node.key_only and "*" not in name)
    found = first_of(f"{node.key}_{_ANY_TEXT}" if any_value else name.replace("*", _ANY_TEXT))
    if found is None or found is node or found.priority < node.priority:
        return None
    if found.priority == node.priority:
        if node.fit is not None:
            return found if order[id(found)] < order[id(node)] else None
        if not node.key_only and "*" not in name:
            return None  # an exact value comes first
    return found


class _Cover(NamedTuple):
    """The descriptors that fit every value of a key."""

    rank: Rank
    words: str


def _covers(parent: Node, order: Mapping[int, int]) -> dict[str, _Cover]:
    """The first descriptors, by key, that fit every value: a regex that does, or one and what is its opposite."""
    found: dict[str, _Cover] = {}
    for name, node in parent.children.items():
        fit = node.fit
        if fit is None:
            continue
        if _fits_all(fit):
            cover = _Cover(
                _rank(name, node, order), f"{quoted(name)} at {node.place} fits first, whatever would fit this"
            )
        elif fit.negated and (opposite := _opposite(parent, node.key, fit)) is not None:
            other = parent.children[opposite]
            rank = max(_rank(name, node, order), _rank(opposite, other, order))
            both = f"{quoted(opposite)} at {other.place} and {quoted(name)} at {node.place} fit all values between them"
            cover = _Cover(rank, both)
        else:
            continue
        found[node.key] = min(found.get(node.key, cover), cover)
    return {key: cover._replace(words=f"{cover.words}; give it a higher priority") for key, cover in found.items()}


def _rank(name: str, node: Node, order: Mapping[int, int]) -> Rank:
    match = FILE_ORDER if node.fit is not None or "*" in name else KEY_ALONE if node.key_only else EXACT
    return -node.priority, match, order[id(node)]


def _fits_all(fit: Fit) -> bool:
    return fit.kind == "regex" and not fit.negated and all(map(fit.fits, _TEXTS))


_TEXTS: Final = ("", _ANY_TEXT, "".join(map(chr, range(32, 127))), "x" * 2000, "\u00fc\u20ac")
"""A pattern that matches all of these matches any text."""


def _opposite(parent: Node, key: str, negated: Fit) -> str | None:
    """The name of the descriptor that fits what this one does not."""
    name = f"{key}_{negated.pattern}"
    if negated.kind == "pattern":
        return name if name in parent.children and parent.children[name].fit is None else None
    fits = ((name, node.fit) for name, node in parent.children.items() if node.fit is not None and node.key == key)
    return next((name for name, fit in fits if not fit.negated and _compare_alike(fit, negated)), None)


def _compare_alike(fit: Fit, other: Fit) -> bool:
    if fit.kind != other.kind or fit.pattern != other.pattern or {*fit.networks} != {*other.networks}:
        return False
    values, others = fit.values or (), other.values or ()
    return len(values) == len(others) and {*values} == {*others}


def _all_or_nothing(name: str, node: Node, fit: Fit) -> Iterator[LintWarning]:
    """Warnings about a descriptor that fits every value, or none."""
    if _fits_all(fit):
        yield warning_at(node.place, "regex", f"regex {fit.words} fits every value; remove it, or write what is meant")
    if fit.negated and (fit.pattern == "*" or _fits_all(replace(fit, negated=False))):
        message = f"{quoted(name)} is never reached: it fits what does not match {fit.words}, and every value does"
        yield warning_at(node.place, "unreached", message)


def _listed(matchers: Matchers[Node], name: str, node: Node) -> Iterator[LintWarning]:
    """The warning about a descriptor with one value that a list of the level has too: one of them is tried first."""
    value = name[len(node.key) + 1 :]
    found = matchers.listing(node.key, value)
    if found is not None:
        first, second = (node, found) if node.priority >= found.priority else (found, node)
        message = f"{quoted(value)} is in the descriptor at {first.place} too, which is tried first"
        yield warning_at(second.place, "duplicate", message)


def _falls_back(parent: Node, name: str) -> bool:
    """Whether another descriptor would match if the one with this exact value did not exist."""
    if parent.wildcards is not None and parent.wildcards.find(name) is not None:
        return True
    parts = name.split("_")
    keys = ["_".join(parts[:end]) for end in range(1, len(parts))]
    if parent.matchers is not None and any(map(parent.matchers.has_fits, keys)):
        return True
    return any((other := parent.children.get(key)) is not None and other.key_only for key in keys)
