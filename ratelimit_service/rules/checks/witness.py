"""Entries that show between them all that two levels of descriptors, an old and a new one, do with an entry.

For each descriptor of either level there is an entry that reaches it, if there is any. Where wildcards come, go or
change places, there are also entries that two of them match: which one is first may have changed there. Of lists and
networks, each value and each address where a network begins or has ended is tried.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, takewhile
from operator import itemgetter
from typing import Final, NamedTuple

from ratelimit_service.errors import ComparisonError
from ratelimit_service.rules.address import address_text
from ratelimit_service.rules.book import Domain, Node
from ratelimit_service.rules.checks.regex_examples import examples
from ratelimit_service.rules.matching import Fit

MAX_OVERLAPS: Final = 100_000
"""Pairs of wildcards of one level that are compared: a few seconds."""

_TEXTS: Final = ("other", "1", "x_1", "", "-", "zz", "\u2026")
"""The texts that stand for a `*`, or for any value: the first with which the entry reaches its descriptor and nothing
else."""


_Entry = tuple[str, str]
"""Key and value."""


class Witness(NamedTuple):
    """An entry, and the name of the descriptor that it is to show."""

    name: str
    key: str
    value: str
    listed: bool = False
    """The value is of a list."""


class ChildNodes(NamedTuple):
    """The descriptors below a node of a domain; none where one of the books has no such node."""

    root: Domain | None
    node: Node | None

    @property
    def children(self) -> Mapping[str, Node]:
        """The children by name."""
        return {} if self.node is None else self.node.children

    def child(self, key: str, value: str) -> Node | None:
        """The descriptor that an entry of a request matches."""
        if self.root is None or self.node is None:
            return None
        lookup = self.root.lookups.get(key)
        if lookup is not None:
            key, value = lookup.entry(value) or (key, value)
        return self.node.child(key, value, self.root.secrets)


def witnesses(old: ChildNodes, new: ChildNodes) -> Iterator[Witness]:
    """The entries; one of the levels may be missing."""
    shown: set[int] = set()
    for level, other in ((old, new), (new, old)):
        for name, child in level.children.items():
            if id(child) in shown:
                continue
            if child.fit is not None:
                in_list = child.fit.values is not None and not child.fit.negated
                for value in _samples(child.fit):
                    yield Witness(name, child.key, value, listed=in_list and child.fit.fits(value))
            elif (entry := _reaching(level, other, name, child)) is not None:
                yield Witness(name, *entry)
                twin = other.children.get(name)
                if twin is not None and other.child(*entry) is twin:
                    shown.add(id(twin))
    if old.node is not None and new.node is not None:
        for first, second in _overlaps(_wildcards(old), _wildcards(new)):
            if (entry := _in_both(old, new, first, second)) is not None:
                yield Witness(f"{first} and {second}", *entry)


def _samples(fit: Fit) -> Iterator[str]:
    """The values of a list; where networks begin, and where they have ended; what patterns match; a few others."""
    if fit.values is not None:
        yield from (entry if isinstance(entry, str) else address_text(entry) for entry in fit.values)
    for network in fit.networks:
        yield from (address_text(network.low), address_text(network.end))
    if fit.kind == "regex":
        yield from examples(fit.pattern)
    elif fit.pattern:
        yield from (fit.pattern.replace("*", text) for text in _OTHERS)
    yield from _OTHERS


_OTHERS: Final = ("other", "1", "", "192.0.2.1", "2001:db8::1")


def lookup_witnesses(old: Domain | None, new: Domain | None) -> list[Witness]:
    """Entries that are looked up: one for each two results that any value has in the old and in the new domain."""
    found = []
    roots = [root for root in (old, new) if root is not None]
    for key in dict.fromkeys(key for root in roots for key in root.lookups):
        lookups = [root.lookups.get(key) for root in roots]
        values = dict.fromkeys(value for lookup in lookups if lookup is not None for value in lookup.names)
        groups: dict[tuple[_Entry | None, ...], list[str]] = {}
        for value in (*values, *_TEXTS):
            results = tuple(None if lookup is None else lookup.entry(value) for lookup in lookups)
            groups.setdefault(results, []).append(value)
        for results, group in groups.items():
            number = len([value for value in group if value in values])
            several = f" ({number:,} values)" if len({*results}) > 1 and number > 1 else ""
            found.append(Witness(f"{key}{several}", key, group[0]))
    return found


def _reaching(level: ChildNodes, other: ChildNodes, name: str, child: Node) -> _Entry | None:
    """An entry that reaches the child: of those with any text, one that the other level has nothing special for."""
    best: _Entry | None = None
    least = _SPECIFIC
    for text in _TEXTS if child.key_only or "*" in name else _TEXTS[:1]:
        entry = (child.key, text) if child.key == name else _cut(name.replace("*", text), child.key)
        if entry is not None and level.child(*entry) is child and (rank := _specific(other, name, entry)) < least:
            best, least = entry, rank
            if not rank:
                break
    return best


_SPECIFIC: Final = 3


def _specific(other: ChildNodes, name: str, entry: _Entry) -> int:
    """0: in the other level the entry reaches the descriptor of the same name, or nothing; else it is less suitable."""
    found = other.child(*entry)
    if found is other.children.get(name):
        return 0
    return 1 if found is None or found.key_only else 2


def _cut(text: str, *keys: str) -> _Entry | None:
    """The entry that is compared as this text, if possible with one of the keys."""
    key = next((key for key in keys if text.startswith(f"{key}_")), text.partition("_")[0])
    return (key, text[len(key) + 1 :]) if 0 < len(key) < len(text) else None


def _in_both(old: ChildNodes, new: ChildNodes, first: str, second: str) -> _Entry | None:
    """An entry that both patterns match: if possible, one for which either level takes one of the two."""
    found: _Entry | None = None
    own = [child for level in (old, new) for name in (first, second) if (child := level.children.get(name)) is not None]
    for text in _common(first, second):
        if (entry := _cut(text, *(child.key for child in own))) is not None:
            if all(level.child(*entry) in own for level in (old, new)):
                return entry
            found = found or entry
    return found


def _wildcards(level: ChildNodes) -> Sequence[str]:
    patterns = [(-child.priority, name) for name, child in level.children.items() if child.is_wildcard(name)]
    return [name for _, name in sorted(patterns, key=itemgetter(0))]  # stable: those of one priority as in the file


def _overlaps(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pairs of patterns of which the order may have changed."""
    if old == new:
        return
    stay = _in_same_order(old, new)
    every = dict.fromkeys([*old, *new])
    by_start: dict[str, list[str]] = {}
    for pattern in every:
        by_start.setdefault(pattern.partition("*")[0], []).append(pattern)
    starts = sorted(by_start)
    compared = 0
    for pattern in every:
        if pattern in stay:
            continue
        for other in _compatible(pattern.partition("*")[0], by_start, starts):
            compared += 1
            if compared > MAX_OVERLAPS:
                raise ComparisonError(
                    f"more than {MAX_OVERLAPS:,} pairs of wildcards at one level may have changed places"
                )
            if other != pattern:
                yield pattern, other


def _in_same_order(old: Sequence[str], new: Sequence[str]) -> set[str]:
    """The patterns of a longest common subsequence: those whose order among themselves has not changed."""
    index = {pattern: number for number, pattern in enumerate(new)}
    ends: list[int] = []
    chains: list[tuple[str, int]] = []
    """Of each pattern of both, in the old order: itself, and the length of the longest chain that ends with it."""
    for pattern in old:
        if (number := index.get(pattern)) is not None:
            length = bisect_left(ends, number)
            ends[length : length + 1] = [number]
            chains.append((pattern, length))
    left, last = len(ends) - 1, len(new)
    found = set()
    for pattern, length in reversed(chains):
        if length == left and index[pattern] < last:
            found.add(pattern)
            left, last = left - 1, index[pattern]
    return found


def _compatible(start: str, by_start: Mapping[str, Sequence[str]], starts: Sequence[str]) -> Iterator[str]:
    """The patterns whose literal start is a prefix of `start`, or has it as a prefix."""
    for end in range(len(start)):
        yield from by_start.get(start[:end], ())
    for other in takewhile(lambda other: other.startswith(start), islice(starts, bisect_left(starts, start), None)):
        yield from by_start[other]


def _common(one: str, other: str) -> Iterator[str]:
    """Texts that both patterns match; the last is the shortest."""
    start, *middles, end = one.split("*")
    other_start, *other_middles, other_end = other.split("*")
    if not (start.startswith(other_start) or other_start.startswith(start)):
        return
    if not (end.endswith(other_end) or other_end.endswith(end)):
        return
    first, last = max(start, other_start, key=len), max(end, other_end, key=len)
    between = [middle for middle in (*middles, *other_middles) if middle]
    for text in _TEXTS:
        yield text.join([first, *between, last])
    shared = 0 if between else next(size for size in range(len(last), -1, -1) if first.endswith(last[:size]))
    yield first + "".join(between) + last[shared:]
