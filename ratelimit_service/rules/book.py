"""The rulebook: all rules, compiled so that a match costs one dictionary look-up per entry.

A book is immutable; a reload makes a new one. Matching is envoyproxy's. At each level the entry's `key_value` is tried,
then the wildcards in the order of the file, then the key alone. There is no backtracking. The rule is that of the node
which the last entry reaches. A level with options that envoyproxy does not have is searched by `Matchers`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from types import MappingProxyType
from typing import Final

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.errors import Problem
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.data_files import DataFile
from ratelimit_service.rules.lookup import Lookup, looked_up
from ratelimit_service.rules.matching import Fit, Matchers, Wildcards
from ratelimit_service.rules.pattern_work import DEFAULT_BOUNDS, PatternBounds, PatternWork
from ratelimit_service.rules.problems import LintWarning, Place
from ratelimit_service.rules.response import ResponseOptions
from ratelimit_service.rules.rule import (
    ALONE,
    FIRST,
    MAX_KEY_LENGTH,
    REQUEST,
    Entries,
    Level,
    Rule,
    counted_in,
    gauge_names,
    may_refuse,
    with_limit,
)
from ratelimit_service.rules.secret import NO_SECRETS, Secrets
from ratelimit_service.settings.fields import SourceKind
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.tally import Path, Tally

DEFAULT: Final = "default"
"""The name in metrics of the default of a domain."""

ANY_DOMAIN: Final = "*"
"""The name of the domain whose rules are for all domains that have none."""

_MAX_COUNTED_IN: Final = 10_000
"""Rules of `*` that are kept for domains that clients choose: 15 MB at most."""

_MAX_OVERRIDING: Final = 1000
"""Rules that are kept, as patterns of those of limits that come with requests."""

_MAX_ORDERED: Final = 6
"""Entries without an order that are put into one: their rules decide how many orders are tried, 720 at most."""

_MAX_ORDERS: Final = 10


class Node:
    """A node of the tree of descriptors: its children, and the rule of requests whose last entry ends here."""

    __slots__ = (
        *("children", "fit", "key", "key_only", "matchers", "place"),
        *("priority", "refuses", "rule", "tries", "wildcards"),
    )

    def __init__(  # noqa: PLR0913 - the last four are of few nodes
        self,
        children: "Mapping[str, Node]",
        rule: Rule | None = None,
        place: Place | None = None,
        *,
        key: str = "",
        key_only: bool = False,
        fit: Fit | None = None,
        priority: int = 0,
    ) -> None:
        self.fit = fit
        """What it compares values with, other than by its name."""
        self.priority = priority
        self.children = children
        """By the names of their levels, `key`, `key_value` or `key_label`, in the order of the file."""
        below = any(child.refuses for child in children.values())
        self.refuses: bool = below or (rule is not None and may_refuse(rule))
        """Whether a request may be refused for its rule, or one below it."""
        patterns = [(name, child) for name, child in children.items() if child.is_wildcard(name)]
        refuses = any(child.refuses for _, child in patterns)
        self.wildcards = Wildcards(patterns, refuses=refuses) if patterns else None
        special = any(child.fit is not None or child.priority for child in children.values())
        self.matchers: Matchers[Node] | None = Matchers(children) if special else None
        """Finds children, if envoyproxy's order of names and wildcards does not."""
        own = any(found is not None and found.tries for found in (self.wildcards, self.matchers))
        self.tries: bool = own or any(child.tries for child in children.values())
        """Whether values are tried with patterns, there or below."""
        self.rule = rule
        self.place = place
        self.key = key
        """Of its descriptor; empty for a domain."""
        self.key_only = key_only
        """Whether its descriptor has a key, but nothing that is compared with values."""

    def is_wildcard(self, name: str) -> bool:
        """Whether its descriptor, which has this name, matches by the `*` in it."""
        return "*" in name and self.fit is None

    def has_one_value(self, name: str) -> bool:
        """Whether its descriptor, which has this name, matches a single value."""
        return self.fit is None and not self.key_only and "*" not in name

    def asks(self, key: str) -> bool:
        """Whether values of this key are compared with more than the names of descriptors. It looks at all patterns."""
        if self.matchers is not None:
            return self.matchers.asks(key)
        return self.wildcards is not None and self.wildcards.may_match(f"{key}_")

    def child(self, key: str, value: str, secrets: Secrets, work: PatternWork | None = None) -> "Node | None":
        """The child that an entry matches. A secret value's own child has its digest's name."""
        if self.matchers is not None:
            return self.matchers.find(key, value, secrets.exact_name(key, value), work)
        composite = f"{key}_{value}"
        found = self.children.get(secrets.exact_name(key, value) if secrets.keys else composite)
        if found is None and self.wildcards is not None:
            found = self.wildcards.find(composite, work)
        return self.children.get(key) if found is None else found


class Domain(Node):
    """The root of a domain's tree, with the options of the domain."""

    __slots__ = ("address_keys", "default", "lookups", "pools", "response", "secrets", "settle", "source", "together")

    def __init__(  # noqa: PLR0913 - what its files say
        self,
        children: Mapping[str, Node],
        place: Place | None = None,
        *,
        response: ResponseOptions | None = None,
        together: bool = False,
        lookups: Mapping[str, Lookup] = MappingProxyType({}),
        secrets: Secrets = NO_SECRETS,
        address_keys: frozenset[str] = frozenset(),
        default: Rule | None = None,
        settle: str = "",
        pools: Mapping[str, Rule] = MappingProxyType({}),
        source: SourceKind = SourceKind.FILES,
    ) -> None:
        super().__init__(children, place=place)
        self.source = source
        """The source of its documents."""
        self.response = response
        """What responses have beside the decision; None: nothing."""
        self.lookups = lookups
        """By the key of the entries that are looked up before they are matched."""
        self.secrets = secrets
        self.address_keys = address_keys
        """The keys whose values some descriptor compares or counts as addresses."""
        self.default = default
        """The rule for what no descriptor fits."""
        self.settle = settle
        """The key of a last entry which says that the cost has come about; empty: there is none."""
        self.pools = pools
        """By name, the rules that stand for them."""
        self.together = together
        """A limit that comes with a request joins the request's bundle, unless it overrides one that does not."""


class RuleBook:
    """All domains. `warnings` are those about the text of the files; `lint` adds those about the tree."""

    def __init__(
        self,
        domains: Mapping[str, Domain],
        warnings: Sequence[LintWarning] = (),
        data: Mapping[str, DataFile] = MappingProxyType({}),
        response: ResponseOptions | None = None,
        passed_over: Sequence[Problem] = (),
    ) -> None:
        self.domains = domains
        self.passed_over = passed_over
        """The places of domains whose rules come from another source, which has precedence."""
        self.response = response
        """What responses of domains without rules have beside the decision: a ban may refuse there."""
        self.warnings = warnings
        self.data = data
        """The data files that the rules name, by path."""
        found = [root.secrets for root in domains.values() if root.secrets.keys]
        keys = {key for secrets in found for key in secrets.keys}
        self._all_secrets = Secrets(found[0].hash_value, keys) if found else NO_SECRETS
        first = [found for root in domains.values() for found in _first_rules(root)]
        self.rules = tuple(rule for found in first for rule in (found, *found.beside))
        self.gauges = tuple(chain.from_iterable(dict.fromkeys(map(gauge_names, self.rules))))
        """The names of those that some rules have."""
        self.measured = tuple(rule for rule in self.rules if gauge_names(rule) and not rule.lease)
        """The rules that have some, other than by leases."""
        self.reserving = tuple(rule for rule in self.rules if rule.limit is not None and rule.limit.kind.reserves)
        by_policy: dict[str, list[Rule]] = {}
        for rule in self.rules:
            if rule.limit is not None:
                by_policy.setdefault(rule.on_store_failure, []).append(rule)
        self.by_policy: Mapping[str, Sequence[Rule]] = by_policy
        """The rules that have counters by what answers without these; under the empty name those that leave it to the
        settings."""
        # Each plan keeps its rules: those for one domain share them.
        self._counted_in = lru_cache(_MAX_COUNTED_IN)(counted_in)
        self._overriding = lru_cache(_MAX_OVERRIDING)(_overriding)

    def match(self, domain: str, entries: Entries, work: PatternWork | None = None) -> Rule | None:
        """The rule that applies to these entries, or None when nothing limits them.

        The default of the domain applies unless they match a rule, or are exempt: see `exempts`. Raises TooLongError if
        a value is too long for the patterns that it must be compared with; without `work` none is.
        """
        root = self.domains.get(domain)
        if root is None:
            return self._match_in_any(domain, entries, work)
        if root.lookups:
            entries = looked_up(root.lookups, entries)
        node: Node = root
        for key, value in entries:
            child = node.child(key, value, root.secrets, work)
            if child is None:
                return root.default
            node = child
        return rule_at(root, node)

    def ordered(self, domain: str, values: Mapping[str, str], bounds: PatternBounds = DEFAULT_BOUNDS) -> Entries:
        """The entries in an order in which descriptors match all of them; by their keys if there is none.

        Raises TooLongError as `match` does.
        """
        entries = tuple(sorted(values.items()))
        root = self.root(domain)
        if root is None or len(entries) > _MAX_ORDERED:
            return entries
        work = PatternWork(bounds)
        matched = dict(zip(entries, looked_up(root.lookups, entries), strict=True)) if root.lookups else {}

        def orders(node: Node, left: Entries) -> Iterator[tuple[Entries, Node]]:
            if not left:
                yield (), node
            for entry in left:
                child = node.child(*matched.get(entry, entry), root.secrets, work)
                if child is not None:
                    for rest, last in orders(child, tuple(each for each in left if each is not entry)):
                        yield (entry, *rest), last

        found = list(islice(orders(root, entries), _MAX_ORDERS))
        return next((order for order, last in found if last.rule is not None), found[0][0] if found else entries)

    def _match_in_any(self, domain: str, entries: Entries, work: PatternWork | None) -> Rule | None:
        rule = self.match(ANY_DOMAIN, entries, work) if ANY_DOMAIN in self.domains else None
        return None if rule is None else self.counted_in(rule, domain)

    def counted_in(self, rule: Rule, domain: str) -> Rule:
        """The rule as it is for requests for `domain`: itself, or of domain `*` one that counts by `domain`.

        The same object for the same rule and domain, as long as it is kept.
        """
        if rule.domain == domain:
            return rule
        return self._counted_in(rule, domain) if len(domain) <= MAX_KEY_LENGTH else counted_in(rule, domain)

    def name_of(self, domain: str) -> str | None:
        """The name of the domain whose rules apply to requests for `domain`: itself, `*`, or none."""
        if domain in self.domains:
            return domain
        return ANY_DOMAIN if ANY_DOMAIN in self.domains else None

    def root(self, domain: str) -> Domain | None:
        """The domain whose rules apply to requests for `domain`."""
        return self.domains.get(domain) or self.domains.get(ANY_DOMAIN)

    def rules_in(self, domain: str) -> Sequence[Rule]:
        """All rules of requests for `domain`, as `match` returns them."""
        root = self.root(domain)
        first = [] if root is None else [self.counted_in(rule, domain) for rule in _first_rules(root)]
        return [rule for found in first for rule in (found, *found.beside)]

    def matched_entries(self, domain: str, entries: Entries) -> Entries:
        """The entries as the domain's lookups make them; the same object if it has none."""
        root = self.root(domain)
        return looked_up(root.lookups, entries) if root is not None and root.lookups else entries

    def walk(self, domain: str, entries: Entries, work: PatternWork | None = None) -> Sequence[Node]:
        """The domain's node and the nodes that the entries match, up to the first entry that matches none."""
        root = self.root(domain)
        assert root is not None, "the domain has rules"
        return _walk(root, self.matched_entries(domain, entries), work)

    def shown(self, domain: str, entries: Entries) -> Entries:
        """The entries as pages, logs and responses may show them: with digests in place of secret values.

        In a domain without rules, values of keys that are secret in any other domain are secret too.
        """
        root = self.root(domain)
        return (self._all_secrets if root is None else root.secrets).hide(entries)

    def shown_anywhere(self, entries: Entries) -> Entries:
        """The entries with digests in place of values that are secret in some domain."""
        return self._all_secrets.hide(entries)

    def exempts(self, domain: str, entries: Entries, work: PatternWork | None = None) -> bool:
        """Whether the entries match a descriptor that has neither a limit nor descriptors below it."""
        nodes = self.walk(domain, entries, work)
        last = nodes[-1]
        return len(nodes) == len(entries) + 1 > 1 and last.rule is None and not last.children

    def overriding(
        self,
        domain: str,
        entries: Entries,
        limit: Limit,
        near: int,
        tally: Tally,
        work: PatternWork | None = None,
    ) -> Rule:
        """The rule of a limit that comes with the request; it overrides the rule that these entries match.

        It is in the same bundle as the overridden rule, and counts values as that does. So its counter is in the same
        Redis, and it is the same counter if algorithm and window are the same.
        """
        overridden = self.match(domain, entries, work)
        found = self.root(domain)
        levels: tuple[Level, ...] = ()
        if overridden is not None:
            together, path_suffix = overridden.together, overridden.path_suffix
            if together == FIRST:  # its counters have their names
                together, path_suffix = ALONE, ()
            if overridden.changes_values and not overridden.default:
                # Or a client that rotates in its network would have a counter for each of its addresses.
                levels = tuple(level._replace(shared=None) for level in overridden.levels)
        else:
            together, path_suffix = REQUEST if found is not None and found.together else ALONE, ()
        make = self._overriding if len(domain) <= MAX_KEY_LENGTH else _overriding
        secrets = NO_SECRETS if found is None else found.secrets
        return with_limit(make(domain, levels, together, path_suffix, secrets), limit, near, tally)


def _overriding(domain: str, levels: tuple[Level, ...], together: int, path_suffix: Path, secrets: Secrets) -> Rule:
    """A rule of a limit that comes with a request, whatever that is."""
    return Rule(
        domain,
        levels,
        Limit(0, Unit.SECOND, SECOND),
        open_algorithm("fixed_window"),
        together=together,
        path_suffix=path_suffix,
        override=True,
        secrets=secrets,
    )


def rule_at(root: Domain, node: Node) -> Rule | None:
    """The rule of entries that end at this node: an exemption has none, and other nodes without a rule the default."""
    return node.rule or (root.default if node.children or node is root else None)


def _first_rules(root: Domain) -> Iterator[Rule]:
    """The rule of each node, without those beside it, and the default."""
    for node in all_nodes(root):
        if node.rule is not None:
            yield node.rule
    if root.default is not None:
        yield root.default


def _walk(root: Domain, entries: Entries, work: PatternWork | None) -> Sequence[Node]:
    nodes: list[Node] = [root]
    for key, value in entries:
        node = nodes[-1].child(key, value, root.secrets, work)
        if node is None:
            break
        nodes.append(node)
    return nodes


def free_books(books: list[RuleBook]) -> None:
    """Free the books piece by piece, and empty the list.

    Freed at once, a book of ten thousand rules would stop all threads for 5 ms.
    """
    while books:
        book = books.pop()
        nodes = [node for root in book.domains.values() for node in all_nodes(root)]
        # From the end, so that a node goes before what it holds.
        pieces = [piece for node in nodes for piece in _pieces(node)]
        pieces += [*book.data.values(), *book.rules, *reversed(nodes)]
        del book, nodes
        while pieces:
            pieces.pop()


def _pieces(node: Node) -> Iterator[object]:
    if node.matchers is not None:
        yield from node.matchers.pieces()
    if node.fit is not None:
        yield from node.fit.pieces()


def all_nodes(node: Node) -> Iterator[Node]:
    """The node, and all below it."""
    yield node
    for child in node.children.values():
        yield from all_nodes(child)
