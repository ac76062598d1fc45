"""The descriptors of a level with which an entry is compared, each with the reason why it is chosen or not."""

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Final, NamedTuple

from ratelimit_service.rules.address import Network, parse_address
from ratelimit_service.rules.book import Node
from ratelimit_service.rules.matching import EXACT, FILE_ORDER, KEY_ALONE, Fit, Rank, standing
from ratelimit_service.rules.pattern_work import PatternWork
from ratelimit_service.rules.problems import Place
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


def candidates_step(node: Node, key: str, value: str, secrets: Secrets, work: PatternWork) -> tuple[Node | None, Step]:
    """The child of the node that an entry matches, and the step there, with the digest in place of a secret value."""
    found = node.child(key, value, secrets, work)
    [(_, shown)] = secrets.hide(((key, value),))
    candidates: list[Candidate] = []
    hidden = 0
    earlier = False
    compared = sorted(_ranked(node, key, secrets.exact_name(key, value)), key=itemgetter(0))
    for _, name, kind, child in compared:
        if child is None:
            name_shown = f"{key}_{shown}" if kind == "exact" else key
            candidates.append(Candidate(name_shown, kind, None, False, "there is none"))
            continue
        is_chosen = child is found
        if not is_chosen and kind not in ("exact", "key") and len(candidates) > MAX_LISTED:
            hidden += 1
            continue
        if is_chosen:
            reason = _why(child, value)
        else:
            reason = "not tried: an earlier one fits" if earlier else _why_not(child, value)
        if child.priority:
            reason += f" (priority {child.priority})"
        candidates.append(Candidate(name, kind, child.place, is_chosen, reason))
        earlier = earlier or is_chosen
    return found, Step(key, shown, tuple(candidates), hidden)


def _is_of_key(name: str, key: str) -> bool:
    """Whether the name is a wildcard that matches some value of this key."""
    start, star, _ = name.partition("*")
    return bool(star) and (start.startswith(f"{key}_") or f"{key}_".startswith(start))


def _ranked(node: Node, key: str, text: str) -> Iterator[tuple[Rank, str, str, Node | None]]:
    """The names and tests that the entry is compared with at the level, each with its rank, name and kind."""
    by_name = ((text, EXACT, "exact"), (key, KEY_ALONE, "key"))
    for name, match, kind in by_name:
        if name not in node.children or node.children[name].fit is not None:
            yield (0, match, 0), name, kind, None
    names: Iterable[str] = node.children
    if node.matchers is None and node.wildcards is None:  # there may be a million, and two at most are looked up
        names = [name for name, _, _ in by_name if name in node.children]
    first: dict[tuple[str, int], int] = {}
    for order, name in enumerate(names):
        child = node.children[name]
        if child.fit is not None:
            if child.fit.key == key:
                rank = (-child.priority, FILE_ORDER, standing(child, order, first))
                yield rank, name, "not" if child.fit.negated else child.fit.kind, child
        elif name == text:
            yield (-child.priority, EXACT, order), name, "exact", child
        elif child.is_wildcard(name):
            if _is_of_key(name, key):
                yield (-child.priority, FILE_ORDER, order), name, "wildcard", child
        elif name == key:
            yield (-child.priority, KEY_ALONE, order), name, "key", child


def _why(node: Node, value: str) -> str:
    fit = node.fit
    if fit is None:
        return "fits"
    if fit.kind == "range" and not fit.negated:
        return f"fits: {_network_of(fit, value)} contains it"
    return f"fits: {_said(fit, not fit.negated)}"


def _why_not(node: Node, value: str) -> str:
    fit = node.fit
    if fit is None:
        return "does not fit"
    network = _network_of(fit, value)
    if network is not None:
        contains = f"{network} contains it"
        return f"does not fit: {contains}" if fit.negated else f"not taken: {contains}, and so does a longer prefix"
    if fit.kind == "range" and parse_address(value) is None:
        return "does not fit: is not an address"
    return f"does not fit: {_said(fit, fit.negated)}"


def _network_of(fit: Fit, value: str) -> Network | None:
    """The longest of its networks that contains the value."""
    address = parse_address(value)
    if address is None:
        return None
    found = [network for network in fit.networks if network.low <= address < network.end]
    return max(found, key=lambda network: network.bits, default=None)


def _said(fit: Fit, matches: bool) -> str:
    """The words for a value that matches what it is compared with, or does not."""
    if fit.kind in ("pattern", "regex"):
        return f"{'matches' if matches else 'does not match'} {fit.words}"
    return f"is {'one' if matches else 'none'} of {fit.words}" if fit.kind == "list" else f"is in none of {fit.words}"
