"""Why a descriptor meets the rule that it meets: the walk through the book, retold step by step."""

from collections.abc import Iterator
from typing import NamedTuple

from ratelimit_service.rules.book import Node, RuleBook, Wildcards
from ratelimit_service.rules.report import quoted
from ratelimit_service.rules.rule import Entries, Place, Rule, counter_key, metric_path
from ratelimit_service.rules.words import counting_in_words, limit_in_words
from ratelimit_service.tally import Path


class Candidate(NamedTuple):
    """A descriptor of one level that an entry might have met, in the order in which they are tried."""

    name: str
    kind: str
    """`exact`, `wildcard` or `key`."""
    place: Place | None
    """None when the book has none of that name."""
    chosen: bool
    reason: str


class Step(NamedTuple):
    """What one entry met."""

    key: str
    value: str
    candidates: tuple[Candidate, ...]

    @property
    def chosen(self) -> Candidate | None:
        """The descriptor that the walk went on to, or None when it stopped here."""
        return next((candidate for candidate in self.candidates if candidate.chosen), None)


class Met(NamedTuple):
    """A rule that applies."""

    rule: Rule
    limit: str
    """In words."""
    counter: str
    """The counter's key; empty for an unlimited rule, which has none."""
    metric: Path


class Explanation(NamedTuple):
    """The walk, and what is at its end."""

    domain: str
    entries: Entries
    steps: tuple[Step, ...]
    outcome: str
    """One sentence."""
    met: tuple[Met, ...] = ()
    """The rule that applies, or those of a list; empty when nothing limits the entries."""


def explain(book: RuleBook, domain: str, entries: Entries) -> Explanation:
    """What the book makes of these entries, as `RuleBook.match` does, with reasons."""
    node = book.domains.get(domain)
    if node is None:
        known = ", ".join(map(quoted, book.domains)) or "none"
        return Explanation(domain, entries, (), f"No limit: there is no such domain. There are: {known}.")
    steps: list[Step] = []
    for key, value in entries:
        found, candidates = _try(node, key, value)
        steps.append(Step(key, value, tuple(candidates)))
        if found is None:
            outcome = f"No limit: no descriptor fits entry {len(steps)} of {len(entries)}."
            return Explanation(domain, entries, tuple(steps), outcome)
        node = found

    rule = node.rule
    if rule is None:
        outcome = "No limit: the descriptor that the last entry met has no rate_limit."
        return Explanation(domain, entries, tuple(steps), outcome)
    met = tuple(_met(each, entries) for each in (rule, *rule.beside))
    if len(met) == 1:
        outcome = f"The rule at {rule.place} applies: {met[0].limit}."
    else:
        outcome = f"The {len(met)} limits at {rule.place} apply: {'; '.join(each.limit for each in met)}."
    return Explanation(domain, entries, tuple(steps), outcome, met)


def _met(rule: Rule, entries: Entries) -> Met:
    counting = counting_in_words(rule)
    limit = limit_in_words(rule.limit) + (f" ({', '.join(counting)})" if counting else "")
    return Met(rule, limit, "" if rule.limit is None else counter_key(rule, entries), metric_path(rule, entries))


def _try(node: Node, key: str, value: str) -> tuple[Node | None, list[Candidate]]:
    text = f"{key}_{value}"
    found: Node | None = None
    candidates: list[Candidate] = []
    for name, kind, child in _in_order(node, key, text):
        if child is None:
            chosen, reason = False, "there is none"
        elif found is not None:
            chosen, reason = False, "not tried: an earlier one fits"
        elif kind == "wildcard" and Wildcards([(name, child)]).find(text) is None:
            chosen, reason = False, "does not fit"
        else:
            chosen, reason = True, "fits"
            found = child
        candidates.append(Candidate(name, kind, None if child is None else child.place, chosen, reason))
    return found, candidates


def _in_order(node: Node, key: str, text: str) -> Iterator[tuple[str, str, Node | None]]:
    yield text, "exact", node.children.get(text)
    for name, child in node.children.items():
        if "*" in name and name != text:
            yield name, "wildcard", child
    yield key, "key", node.children.get(key)
