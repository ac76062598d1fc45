"""The descriptors of a level with which an entry is compared, each with the reason why it is chosen or not."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from ratelimit_service.rules.address import parse_address
from ratelimit_service.rules.book import Node
from ratelimit_service.rules.matching import EXACT, FILE_ORDER, KEY_ALONE, Fit, Matchers, Rank
from ratelimit_service.rules.rule import Place
from ratelimit_service.rules.secret import Secrets

MAX_LISTED: Final = 10
"""Descriptors of one step that are listed although they were not chosen, and domains; a level may have thousands."""


class Candidate(NamedTuple):
    """A descriptor of one level that an entry was compared with."""

    name: str
    kind: str
    """`exact`, `wildcard` or `key`; or what values are compared with, `list`, `range`, `regex`; or `not`."""
    place: Place | None
    """None when the book has no such descriptor."""
    chosen: bool
    reason: str


class Step(NamedTuple):
    """One step of the walk: an entry, and the candidates in the order in which they were tried."""

    key: str
    value: str
    candidates: tuple[Candidate, ...]
    hidden: int = 0
    """The number of further descriptors of this key that were not chosen: wildcards, lists and the like."""
    lookup: str = ""
    """What a lookup made of the entry that came, if one did: a sentence."""


def candidates_step(node: Node, key: str, value: str, secrets: Secrets) -> tuple[Node | None, Step]:
    """The child of the node that an entry matches, and the step there, with the digest in place of a secret value."""
    if node.matchers is not None:
        return _ranked_step(node, node.matchers, key, value, secrets)
    text = f"{key}_{value}"
    exact = node.children.get(secrets.exact_name(key, value))
    wild = node.wildcards.find(text) if node.wildcards is not None and exact is None else None
    key_only = node.children.get(key)
    found = exact or wild or key_only
    [(_, shown)] = secrets.hide(((key, value),))
    candidates = [_candidate(f"{key}_{shown}", "exact", exact, found, fits=exact is not None)]
    hidden = 0
    passed = exact is not None
    for name, child in node.children.items() if node.wildcards is not None else ():
        if not _is_of_key(name, key) or child is exact:
            continue
        if child is not wild and len(candidates) > MAX_LISTED:
            hidden += 1
            continue
        candidates.append(_candidate(name, "wildcard", child, wild, fits=passed or child is wild))
        passed = passed or child is wild
    candidates.append(_candidate(key, "key", key_only, found, fits=key_only is not None))
    return found, Step(key, shown, tuple(candidates), hidden)


def _candidate(name: str, kind: str, child: Node | None, found: Node | None, *, fits: bool) -> Candidate:
    if child is None:
        return Candidate(name, kind, None, False, "there is none")
    if child is found:
        return Candidate(name, kind, child.place, True, "fits")
    reason = "not tried: an earlier one fits" if fits else "does not fit"
    return Candidate(name, kind, child.place, False, reason)


def _is_of_key(name: str, key: str) -> bool:
    """Whether the name is a wildcard that matches some value of this key."""
    start, star, _ = name.partition("*")
    return bool(star) and (start.startswith(f"{key}_") or f"{key}_".startswith(start))


def _ranked_step(
    node: Node, matchers: Matchers[Node], key: str, value: str, secrets: Secrets
) -> tuple[Node | None, Step]:
    """The step at a level that has priorities, lists and the like."""
    exact_name = secrets.exact_name(key, value)
    chosen = matchers.ranked(key, value, exact_name)
    [(_, shown)] = secrets.hide(((key, value),))
    candidates: list[Candidate] = []
    hidden = 0
    for rank, name, kind, child in sorted(_ranked(node, key, exact_name), key=lambda each: each[0]):
        if child is None:
            name_shown = f"{key}_{shown}" if kind == "exact" else key
            candidates.append(Candidate(name_shown, kind, None, False, "there is none"))
            continue
        is_chosen = chosen is not None and child is chosen.node
        if not is_chosen and kind not in ("exact", "key") and len(candidates) > MAX_LISTED:
            hidden += 1
            continue
        if is_chosen:
            reason = _why(child, value)
        else:
            earlier = chosen is not None and chosen.rank < rank
            reason = "not tried: an earlier one fits" if earlier else _why_not(child, value)
        if child.priority:
            reason += f" (priority {child.priority})"
        candidates.append(Candidate(name, kind, child.place, is_chosen, reason))
    return None if chosen is None else chosen.node, Step(key, shown, tuple(candidates), hidden)


def _ranked(node: Node, key: str, text: str) -> Iterator[tuple[Rank, str, str, Node | None]]:
    """What the entry is compared with at the level, each with its rank, name and kind."""
    of_upstream = set()
    for order, (name, child) in enumerate(node.children.items()):
        if child.fit is not None:
            if child.fit.key == key:
                yield (-child.priority, FILE_ORDER, order), name, "not" if child.fit.negated else child.fit.kind, child
        elif name in (text, key):
            of_upstream.add(name)
            rank, kind = (EXACT, "exact") if name == text else (KEY_ALONE, "key")
            yield (-child.priority, rank, order), name, kind, child
        elif child.is_wildcard(name) and _is_of_key(name, key):
            yield (-child.priority, FILE_ORDER, order), name, "wildcard", child
    for name, rank, kind in ((text, EXACT, "exact"), (key, KEY_ALONE, "key")):
        if name not in of_upstream:
            yield (0, rank, 0), name, kind, None


def _why(node: Node, value: str) -> str:
    fit = node.fit
    if fit is None:
        return "fits"
    if fit.kind == "range" and not fit.negated:
        return f"fits: {fit.network_of(value)} contains it"
    return f"fits: {_said(fit, not fit.negated)}"


def _why_not(node: Node, value: str) -> str:
    fit = node.fit
    if fit is None:
        return "does not fit"
    network = fit.network_of(value)
    if network is not None:
        contains = f"{network} contains it"
        return f"does not fit: {contains}" if fit.negated else f"not taken: {contains}, and so does a longer prefix"
    if fit.kind == "range" and parse_address(value) is None:
        return "does not fit: is no address"
    return f"does not fit: {_said(fit, fit.negated)}"


def _said(fit: Fit, matches: bool) -> str:
    """That a value matches what it is compared with, or does not."""
    if fit.kind in ("pattern", "regex"):
        return f"{'matches' if matches else 'does not match'} {fit.words}"
    return f"is {'one' if matches else 'none'} of {fit.words}" if fit.kind == "list" else f"is in none of {fit.words}"
