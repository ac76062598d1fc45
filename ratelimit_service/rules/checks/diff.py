"""The descriptors that get another limit from one book than from another, whatever the text of the files.

Both trees are walked together. At each pair of nodes, the entries of `witnesses` lead to all pairs of nodes below that
any entry leads to; the limits of a pair are compared. So a rule that was moved to another line or file is no
difference, and a descriptor that was removed is one only if requests get another limit from what matches them now.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from ratelimit_service.errors import ComparisonError
from ratelimit_service.rules.book import DEFAULT, Domain, Node, RuleBook, rule_at
from ratelimit_service.rules.checks.witness import ChildNodes, Witness, lookup_witnesses, witnesses
from ratelimit_service.rules.response import SILENT, response_in_words
from ratelimit_service.rules.rule import (
    ALONE,
    FIRST,
    LIST,
    REQUEST,
    Entries,
    Rule,
    counted_entries,
    counter_key,
    rule_in_full,
)
from ratelimit_service.rules.syntax.options import OPTIONS

MAX_PAIRS: Final = 1_000_000
"""Pairs of descriptors that are compared, about 10 µs each."""

KEPT, AFRESH = "kept", "afresh"
"""The fate of the counts when the new rules take over."""


class Difference(NamedTuple):
    """A part of a limit that differs."""

    what: str
    old: str
    new: str


class RuleChange(NamedTuple):
    """Requests that get another limit."""

    domain: str
    names: Sequence[str]
    """The names of the descriptors, of all levels; empty: an option of the domain."""
    entries: Entries
    """Of such a request."""
    old: Rule | None
    new: Rule | None
    differences: Sequence[Difference]
    counters: str = ""
    """`kept`, or `afresh` when counts start again from nothing; empty when one of the rules has no counter."""

    @property
    def kind(self) -> str:
        """`added`, `removed` or `changed`: the limit of these requests."""
        if self.names and self.old is None:
            return "added"
        return "removed" if self.names and self.new is None else "changed"


def diff(old: RuleBook, new: RuleBook) -> list[RuleChange]:
    """All changes, in the order of the old book, then of the new one. Raises ComparisonError if there are too many."""
    return [
        change
        for domain in dict.fromkeys([*old.domains, *new.domains])
        for change in _Domains(domain, old, new).changes()
    ]


def limits_in_words(rule: Rule | None) -> str:
    """`5 requests per minute (token bucket)`, of several limits with `and` between them; or `no limit`."""
    if rule is None:
        return "no limit"
    return " and ".join(map(rule_in_full, (rule, *rule.beside)))


class _Domains:
    """The rules of the old and the new book for a domain: its own rules, those of domain `*`, or none."""

    def __init__(self, name: str, old: RuleBook, new: RuleBook) -> None:
        self._name = name
        self._books = old, new
        self._old = old.root(name)
        self._new = new.root(name)
        self._seen: set[tuple[int, int]] = set()
        self._looked_up = lookup_witnesses(self._old, self._new)

    def changes(self) -> Iterator[RuleChange]:
        """The changes of the domain."""
        if self._old is not None and self._new is not None:
            differences = [
                Difference(what, value(self._old), value(self._new))
                for what, value in _OF_DOMAIN.items()
                if value(self._old) != value(self._new)
            ]
            if differences:
                yield RuleChange(self._name, (), (), None, None, differences)
        default = self._compared((DEFAULT,), _UNKNOWN, None, None)
        if default is not None:
            yield default
        yield from self._below(ChildNodes(self._old, self._old), ChildNodes(self._new, self._new), (), ())

    def _below(
        self, old: ChildNodes, new: ChildNodes, names: tuple[str, ...], entries: Entries
    ) -> Iterator[RuleChange]:
        pairs: dict[tuple[int, int], tuple[Witness, Node | None, Node | None]] = {}
        listed: dict[tuple[int, int], set[str]] = {}
        for witness in chain(witnesses(old, new), self._looked_up):
            old_child = old.child(witness.key, witness.value)
            new_child = new.child(witness.key, witness.value)
            if old_child is None and new_child is None:
                continue
            pair = (id(old_child), id(new_child))
            pairs.setdefault(pair, (witness, old_child, new_child))
            if witness.listed:
                listed.setdefault(pair, set()).add(witness.value)
        for pair, (witness, old_child, new_child) in pairs.items():
            if pair in self._seen:
                continue
            self._seen.add(pair)
            if len(self._seen) > MAX_PAIRS:
                raise ComparisonError(
                    f"domain {self._name} has more than {MAX_PAIRS:,} pairs of descriptors to compare"
                )
            values = len(listed.get(pair, ()))
            path = (*names, f"{witness.name} ({values:,} values)" if values > 1 else witness.name)
            walked = (*entries, (witness.key, witness.value))
            # Elsewhere both have what the change of the default says.
            if _fits(old_child) or _fits(new_child):
                change = self._compared(path, walked, old_child, new_child)
                if change is not None:
                    yield change
            yield from self._below(ChildNodes(self._old, old_child), ChildNodes(self._new, new_child), path, walked)

    def _compared(
        self, names: Sequence[str], entries: Entries, old: Node | None, new: Node | None
    ) -> RuleChange | None:
        """The differences of the limits at these nodes; None is where no descriptor fits."""
        rules = []
        for book, root, node in zip(self._books, (self._old, self._new), (old, new), strict=True):
            rule = None if root is None else root.default if node is None else rule_at(root, node)
            rules.append(None if rule is None else book.counted_in(rule, self._name))
        return compared(self._name, names, entries, *rules)


def _fits(node: Node | None) -> bool:
    """Whether the node has a rule, or is an exemption: if not, the default of the domain applies."""
    return node is not None and (node.rule is not None or not node.children)


_UNKNOWN: Final = (("other", "\u2026"),)
"""Entries that most likely no descriptor fits."""


def compared(
    domain: str, names: Sequence[str], entries: Entries, old: Rule | None, new: Rule | None
) -> RuleChange | None:
    """The differences of the limits of these requests, or None if they do not."""
    if old is None or new is None:
        if old is new:
            return None
        return RuleChange(
            domain, names, entries, old, new, [Difference("limit", limits_in_words(old), limits_in_words(new))]
        )
    differences = list(_differences(old, new))
    old_keys, new_keys = (
        [key for each in _and_addresses(old, new, entries) for key in _counters(rule, each)] for rule in (old, new)
    )
    counters = ""
    if old_keys and new_keys:
        counters = KEPT if set(new_keys) <= set(old_keys) else AFRESH
        if counters == AFRESH and not differences:
            both = zip(old_keys, new_keys, strict=False)
            differences.append(Difference("counter", *next((one, two) for one, two in both if one != two)))
    return RuleChange(domain, names, entries, old, new, differences, counters) if differences else None


def _differences(old: Rule, new: Rule) -> Iterator[Difference]:
    olds, news = (old, *old.beside), (new, *new.beside)
    words = limits_in_words(old), limits_in_words(new)
    if words[0] != words[1] or [each.limit for each in olds] != [each.limit for each in news]:
        yield Difference("limit", *words)
    for what, field in _FIELDS.items():
        before, after = _values(olds, field), _values(news, field)
        if before != after and (what not in _IN_WORDS or words[0] == words[1]):
            yield Difference(what, before, after)


_FIELDS: Final[Mapping[str, str]] = {
    **{
        option.key: option.rule_field
        for option in OPTIONS
        if option.rule_field and option.key not in {"detailed_metric", "for"}
    },
    "replaces": "replaces",
    "regions": "regions",
    "charge": "together",
}
"""The options that make a difference to requests, besides the limit in words; the field of Rule by the option."""

_IN_WORDS: Final = frozenset({"deny", "charge", "on_store_failure", "quota_unit", "regions"})
"""Those that the limit in words contains."""

_CHARGED: Final = {ALONE: "each", LIST: "together in the list", REQUEST: "together", FIRST: "first"}

_OF_DOMAIN: Final[Mapping[str, Callable[[Domain], str]]] = {
    "charge of limits that come with requests": lambda domain: "together" if domain.together else "each",
    "responses": lambda domain: ", ".join(response_in_words(domain.response or SILENT)) or "the decision alone",
}
"""The options of a domain that do not show in its rules."""


def _values(rules: Sequence[Rule], field: str) -> str:
    return " and ".join(dict.fromkeys(_value(getattr(rule, field)) for rule in rules))


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return _CHARGED[value]
        case frozenset():
            return ", ".join(sorted(value)) or "nothing"
        case None | "":
            return "none"
    return f"{value}"


def _counters(rule: Rule, entries: Entries) -> list[str]:
    """The keys of the rule's counters for these entries."""
    counted = counted_entries(rule, entries)
    return [counter_key(each, counted) for each in (rule, *rule.beside) if each.limit is not None]


def _and_addresses(old: Rule, new: Rule, entries: Entries) -> Iterator[Entries]:
    """The entries, and some with addresses where one of the rules counts by prefix."""
    yield entries
    counting = {index for rule in (old, new) for index, level in enumerate(rule.levels) if level.counts_prefixes}
    for address in _ADDRESSES if counting else ():
        yield tuple((key, address if index in counting else value) for index, (key, value) in enumerate(entries))


_ADDRESSES: Final = ("198.51.100.77", "2001:db8:1:2:3:4:5:6")
"""Whose counters show by which prefix addresses are counted."""
