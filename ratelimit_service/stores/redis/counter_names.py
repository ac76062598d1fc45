"""Reads the names of counters in Redis: descriptor, rule and limit. Pure.

A key in our own format tells domain, descriptor and rule without doubt. Only where the key would be too long a digest
stands in place of the descriptor. Keys of `KEY_FORMAT=envoyproxy` are ambiguous, because they have no escapes and no
prefix: `a_b_c_d_1700000000` may belong to domain `a` or domain `a_b`. Such a key is given to the rule that matches it
with the most literal text. A key that matches no rule is left alone, because it may be another program's.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote

from ratelimit_service.algorithms import NAMES, open_algorithm
from ratelimit_service.algorithms.kinds import places
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.book import Domain, Node, RuleBook, rule_at
from ratelimit_service.rules.rule import POOL, Address, Rule, counter_key
from ratelimit_service.stores.redis.keys import VERSION, cluster_counter, plain_counter
from ratelimit_service.stores.redis.region_asks import HOME
from ratelimit_service.system.clock import SECOND


class Counter(NamedTuple):
    """The descriptor, rule and limit that the key of a counter tells."""

    key: bytes
    domain: str
    descriptor: str
    """`user=ada path=/cart`; from an envoyproxy key the text after the domain, `user_ada`; empty for a digest."""
    rule: Rule | None
    """The present rule that charges the counter."""
    algorithm: str
    """Empty if this release does not know it."""
    limit: Limit
    """The rule's. Without a rule it has the window, which stands in the key, and 0 requests."""
    end: int = 0
    """The end of the window; only of envoyproxy's counters."""
    ambiguous: bool = False
    """Several present rules may charge it: the digest of a secret value does not tell which pattern the value fits."""

    @property
    def capacity(self) -> int:
        """The most that may be used of a counter with a rule, but for what exceeds the limit."""
        debt = self.limit.requests if self.rule is not None and self.rule.pool else 0
        return self.limit.capacity - debt

    @property
    def may_be_sent(self) -> bool:
        """No present rule charges the counter, and a limit sent with requests would have this key."""
        return (
            self.rule is None
            and not self.ambiguous
            and self.algorithm == "fixed_window"
            and not self.limit.first_request
        )


def at_home(counter: Counter) -> Counter | None:
    """The counter at home of a limit that it grants to this counter of a region; None of other limits."""
    regions = counter.limit.regions
    if regions is None or regions.home is None:
        return None
    return counter._replace(
        key=counter.key + HOME.encode(), descriptor=f"{counter.descriptor} (home)", limit=regions.home
    )


class OwnKeyParser:
    """Parses keys in our own format, of one domain's counters.

    `is_charged` says whether a rule charges such keys on this Redis. Only keys with this `ending` match the pattern.
    """

    def __init__(
        self,
        book: RuleBook,
        domain: str,
        prefix: str,
        is_charged: Callable[[Rule], bool],
        *,
        clustered: bool = False,
        ending: str = "",
    ) -> None:
        self._book = book
        self._domain = domain
        # Each rule of the domain begins its keys like this.
        self._start = Rule(domain, (), None, open_algorithm("fixed_window")).key_prefix
        self._read = (cluster_counter if clustered else plain_counter)(prefix)
        self._is_charged = is_charged
        self._by_text: dict[tuple[int, str], Sequence[Node]] = {}
        self._by_fit: dict[tuple[int, str], Sequence[Node]] = {}
        # Where a hash tag may stand before the domain, keys of other domains match too: `parse` leaves them out.
        tag = "*" if clustered else ""
        self.pattern = f"{escaped(prefix + VERSION)}{tag}{escaped(self._start)}|*{escaped(ending)}*"
        """A pattern for SCAN that all of the keys match, and those of the counters' blocks."""

    def parse(self, key: bytes, _now: int) -> Counter | None:
        """The counter; None for a key that is not of this domain."""
        try:
            name = self._read(key.decode())
        except UnicodeDecodeError:
            return None
        if name is None or not name.startswith(self._start + "|"):
            return None
        if f"{HOME}/" in name:
            return None  # what regions have counted of a window: no counter
        if name.endswith(HOME):
            counter = self._counter(key.removesuffix(HOME.encode()), name.removesuffix(HOME))
            return at_home(counter) or counter._replace(key=key)
        return self._counter(key, name)

    def _counter(self, key: bytes, name: str) -> Counter:
        *parts, ending = name[len(self._start) + 1 :].split("|")
        if len(parts) == 1 and ending.startswith(f"{POOL}/"):
            return self._pool(key, unquote(parts[0]), ending)
        algorithm, limit = _parse_ending(ending)
        if parts == [_SHARED_DEFAULT]:
            rule = self._default(ending)
            return Counter(key, self._domain, ALL_OTHERS, rule, algorithm, rule.limit if rule and rule.limit else limit)
        parsed = [_parse_entry(part) for part in parts]
        entries = [part for part in parsed if part is not None]
        if len(entries) < len(parsed):
            return Counter(key, self._domain, "", None, algorithm, limit)
        words = " ".join(f"{entry.key}={entry.value}" for entry in entries) or "(no entries)"
        rules = self._rules(entries, name)
        if len(rules) != 1 or (rule := rules[0]).limit is None:
            return Counter(key, self._domain, words, None, algorithm, limit, ambiguous=len(rules) > 1)
        return Counter(key, self._domain, words, rule, rule.algorithm.name, rule.limit)

    def _pool(self, key: bytes, name: str, ending: str) -> Counter:
        """The counter of a pool, with the rule that stands for it if there is such a pool now."""
        root = self._book.root(self._domain)
        found = None if root is None else root.pools.get(name)
        _, limit = _parse_ending(ending.replace(POOL, "token_bucket", 1))
        rule = None if found is None else self._book.counted_in(found, self._domain)
        if rule is None or rule.limit is None or rule.limit.window != limit.window or not self._is_charged(rule):
            return Counter(key, self._domain, pool_in_words(name), None, "token_bucket", limit)
        return Counter(key, self._domain, pool_in_words(name), rule, "token_bucket", rule.limit)

    def _rules(self, entries: "Sequence[_Entry]", name: str) -> list[Rule]:
        """The rules that give these entries this counter's key: several only where values are secret."""
        root = self._book.root(self._domain)
        if root is None:
            return []
        nodes: list[Node] = [root]
        for entry in entries:
            nodes = [child for node in nodes for child in self._children(root, node, entry)]
        counted = tuple((entry.key, entry.value if entry.mark is None else Address(entry.value)) for entry in entries)
        return [
            rule
            for found in ([rule_at(root, node) for node in nodes] or [root.default])
            for rule in self._with_beside(found)
            if rule.limit is not None and counter_key(rule, counted) == name and self._is_charged(rule)
        ]

    def _default(self, ending: str) -> Rule | None:
        """The default of the domain, if its one counter's key ends like this."""
        root = self._book.root(self._domain)
        for rule in self._with_beside(None if root is None else root.default):
            if rule.names_levels and rule.key_suffix == f"|{ending}" and self._is_charged(rule):
                return rule
        return None

    def _with_beside(self, found: Rule | None) -> Sequence[Rule]:
        """All limits of a descriptor, by its first one."""
        if found is None:
            return ()
        first = self._book.counted_in(found, self._domain)
        return (first, *first.beside)

    def _children(self, root: Domain, node: Node, entry: "_Entry") -> Iterator[Node]:
        """The nodes that the entry may match; several only if a digest stands in place of its value."""
        if entry.level is not None:
            if (child := node.children.get(entry.level)) is not None:
                yield child
            return
        if entry.mark is not None:
            yield from self._counting_addresses(root, node, entry)
            return
        lookup = root.lookups.get(entry.key)
        key, value = (lookup.entry(entry.value) if lookup is not None else None) or (entry.key, entry.value)
        found = node.child(key, value, root.secrets)
        if found is not None:
            yield found
            if found is node.children.get(root.secrets.exact_name(key, value)) or _has_digests(found):
                return
        if key in root.secrets.keys:
            yield from (child for child in self._comparing_text(node, key) if child is not found)

    def _counting_addresses(self, root: Domain, node: Node, entry: "_Entry") -> Iterator[Node]:
        """The nodes that may count the entry as an address: with a mark and for a digest several."""
        found = None if node.matchers is None else node.matchers.fitting(entry.key, entry.value)
        if entry.mark:
            found = node.children.get(entry.mark)
        if found is not None:
            yield found
            return
        lookup = root.lookups.get(entry.key)
        for key in (entry.key,) if lookup is None else (entry.key, lookup.becomes):
            if entry.mark or key in root.secrets.keys:
                yield from self._with_fits(node, key)
            if (alone := node.children.get(key)) is not None:
                yield alone

    def _with_fits(self, node: Node, key: str) -> Sequence[Node]:
        """The children that compare the values of the key other than by their names."""
        found = self._by_fit.get((id(node), key))
        if found is None:
            found = [child for child in node.children.values() if child.fit is not None and child.key == key]
            self._by_fit[id(node), key] = found
        return found

    def _comparing_text(self, node: Node, key: str) -> Sequence[Node]:
        """The children that compare the values of the key as text, and so match no digest."""
        found = self._by_text.get((id(node), key))
        if found is None:
            children = (child for name, child in node.children.items() if child.fit or child.is_wildcard(name))
            found = [child for child in children if child.key == key and not _has_digests(child)]
            self._by_text[id(node), key] = found
        return found


def _has_digests(node: Node) -> bool:
    """Whether its descriptor compares digests, if values are secret."""
    return node.fit is not None and node.fit.kind == "list"


def pool_in_words(name: str) -> str:
    """The words in place of the descriptor, for the counter of a pool."""
    return f"(pool {name})"


_SHARED_DEFAULT: Final = "~default"
ALL_OTHERS: Final = "(what no descriptor fits)"
"""The text in place of the descriptor, for the one counter of a default with share_threshold."""


class _Entry(NamedTuple):
    """An entry, as a key has it."""

    key: str
    value: str
    """Where values share a counter, the pattern of the values."""
    level: str | None = None
    """The name of the rule's level, where values share a counter."""
    mark: str | None = None
    """Where the value is an address, the mark of the rule's level."""


def _parse_entry(part: str) -> _Entry | None:
    """One entry of a key; None for a digest of all entries."""
    name, equals, value = part.partition("=")
    name, tilde, level = map(unquote, name.partition("~"))
    if equals:
        return _Entry(name, unquote(value), mark=level if tilde else None)
    if not tilde:
        return None
    if level == name:  # it names the holders of places
        return _Entry(name, "*", level)
    # A key with a * in it is not the one of the request.
    return _Entry(name, level[len(name) + 1 :] if level.startswith(f"{name}_") else level.partition("_")[2], level)


def _parse_ending(ending: str) -> tuple[str, Limit]:
    """The algorithm that charges the counter, empty if unknown, and a limit that has its window."""
    if ending == places.name:
        return ending, Limit(0, Unit.SECOND, SECOND, kind=places.Places())
    algorithm, window, option = [*ending.split("/"), "", ""][:3]
    known = algorithm in NAMES and _NUMBER.fullmatch(window) is not None
    limit = Limit(
        0,
        Unit.SECOND,
        int(window) if known else SECOND,
        parts=int(option) if _NUMBER.fullmatch(option) else 10,
        # Nor does a window of a calendar, whose option names that, begin like that of a limit sent with a request.
        first_request=algorithm == "fixed_window" and option != "",
    )
    return algorithm if known else "", limit


_NUMBER: Final = re.compile("[1-9][0-9]{0,17}")


class _Shape(NamedTuple):
    """The shape of a rule's keys in envoyproxy's form, without prefix and window."""

    rule: Rule
    limit: Limit
    regex: re.Pattern[str]
    literal: int
    """Characters of literal text in the regex."""


class EnvoyproxyKeyParser:
    """Parses keys in the format of envoyproxy/ratelimit, of one domain's counters.

    `is_charged` says whether a rule with a limit charges such keys on this Redis.
    """

    def __init__(self, book: RuleBook, domain: str, prefix: str, is_charged: Callable[[Rule], bool]) -> None:
        self._domain = domain
        self._prefix = prefix
        self.pattern = f"{escaped(prefix + domain)}_*"
        """A pattern for SCAN that all of the keys match."""
        self._shapes: dict[int, dict[str, list[_Shape]]] = {}
        """By length and text of the literal start, as `Wildcards` keeps patterns."""
        roots = dict(book.domains)
        if (any_domain := book.root(domain)) is not None:
            roots.setdefault(domain, any_domain)
        for name, root in roots.items():
            if name == domain or name.startswith(f"{domain}_") or domain.startswith(f"{name}_"):
                for found, levels in _walk(root, (), root.secrets.keys):
                    rule = book.counted_in(found, name)
                    if is_charged(rule) and rule.limit is not None:
                        self._add(rule, rule.limit, levels)

    def parse(self, key: bytes, now: int) -> Counter | None:
        """The counter; None for a key that no rule of this domain charges now."""
        try:
            name = key.decode()
        except UnicodeDecodeError:
            return None
        stem, _, second = name[len(self._prefix) :].rpartition("_")
        if not name.startswith(self._prefix) or not second.isdecimal() or len(second) > _MAX_DIGITS:
            return None
        start = int(second) * SECOND
        shape = max(self._matching(stem, start, now), key=lambda shape: shape.literal, default=None)
        if shape is None or shape.rule.counter_domain != self._domain:
            return None
        descriptor = stem[len(self._domain) + 1 :]
        end = start + shape.limit.window
        return Counter(key, self._domain, descriptor, shape.rule, "fixed_window", shape.limit, end)

    def _add(self, rule: Rule, limit: Limit, levels: "tuple[_Texts, ...]") -> None:
        texts = [rule.counter_domain]
        for level in levels:
            texts[-1] += f"_{level[0]}"
            texts += level[1:]
        regex = re.compile(".*".join(map(re.escape, texts)), re.DOTALL)
        start = texts[0]
        shape = _Shape(rule, limit, regex, sum(map(len, texts)))
        self._shapes.setdefault(len(start), {}).setdefault(start, []).append(shape)

    def _matching(self, stem: str, start: int, now: int) -> Iterator[_Shape]:
        for length, shapes in self._shapes.items():
            for shape in shapes.get(stem[:length], ()):
                window = shape.limit.window
                # Up to one window ahead: a service's clock may be ahead of Redis's.
                if start % window == 0 and now - window < start <= now + window and shape.regex.fullmatch(stem):
                    yield shape


_MAX_DIGITS: Final = 12
_Texts = tuple[str, ...]
"""The literal texts of one level of a rule, between which any text may stand."""


def _walk(node: Node, above: tuple[_Texts, ...], keys: Collection[str]) -> Iterator[tuple[Rule, tuple[_Texts, ...]]]:
    """All rules below the node, each with the levels that lead to it; values of these keys are secret."""
    for name, child in node.children.items():
        shared = _shared_at(child, len(above))
        if shared is not None:
            key = name if name == shared else name[: -len(shared) - 1]
            texts = (*key.split("*")[:-1], f"{key.split('*')[-1]}_{shared}")
        elif child.fit is not None:
            texts = (f"{child.fit.key}_", "")
        elif "*" in name and (secret := next((key for key in keys if name.startswith(f"{key}_")), None)):
            texts = (f"{secret}_", "")
        elif child.key_only and "*" not in name:
            texts = (f"{name}_", "")
        else:
            texts = tuple(name.split("*"))
        levels = (*above, texts)
        if child.rule is not None:
            for rule in (child.rule, *child.rule.beside):
                yield rule, levels
        yield from _walk(child, levels, keys)


def _shared_at(node: Node, level: int) -> str | None:
    """The pattern whose values share one counter at that level, which leads to the node; None if they do not."""
    if node.rule is not None:
        return node.rule.levels[level].shared
    patterns = (_shared_at(child, level) for child in node.children.values())
    return next((pattern for pattern in patterns if pattern is not None), None)


_SPECIAL: Final = re.compile(r"([*?\[\]\\])")


def escaped(text: str) -> str:
    """A pattern of Redis that matches this text alone."""
    return _SPECIAL.sub(r"\\\1", text)
