"""The matchers of one level's descriptors, compiled: a search costs look-ups, not a test of each.

A level that envoyproxy could have needs no more than names and `Wildcards`. As soon as one of its descriptors has a
priority, or a `Fit` of its own, `Matchers` searches the whole level. Of all descriptors that match an entry it takes
the one of the least rank: the highest priority; then the exact `key_value`, before all that stand in the order of the
file, before the key alone; then the order of the file, in which networks of one key and priority stand together.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from ratelimit_service.errors import TooLongError
from ratelimit_service.rules.address import Network, canonical, parse_address
from ratelimit_service.rules.pattern_work import PatternWork, unbounded

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

EXACT, FILE_ORDER, KEY_ALONE = range(3)

Rank = tuple[int, int, int]
"""The negated priority, the class of the match, the index at the level. The least rank wins."""


_Pattern = tuple[int, int, list[str], T]
"""Its place in the order, the number of literal characters, the literals between two `*`, and what it leads to."""


class Wildcards(Generic[T]):
    """Patterns with `*`. A search costs one look-up per shape, not one test per pattern.

    The shape of a pattern is the lengths of its literal start and end. A dictionary for each shape has the patterns by
    these two literals, so ten thousand patterns such as `user_*` or `path_/a/*/b` need a few look-ups. Those that have
    the same ends, such as `*bot*`, are found by pieces of the text between, as soon as they are many.

    `refuses`: a request may be refused for what some pattern leads to.
    """

    def __init__(self, patterns: Iterable[tuple[str, T]], *, refuses: bool = True) -> None:
        shapes: dict[tuple[int, int], dict[tuple[str, str], list[_Pattern[T]]]] = {}
        for order, (pattern, item) in enumerate(patterns):
            start, *between, end = pattern.split("*")
            alike = shapes.setdefault((len(start), len(end)), {}).setdefault((start, end), [])
            alike.append((order, len(pattern.replace("*", "")), [middle for middle in between if middle], item))
        self._shapes = [(*lengths, by_ends) for lengths, by_ends in shapes.items()]
        self._refuses = refuses
        groups = [alike for by_ends in shapes.values() for alike in by_ends.values()]
        self._pieces = {id(alike): _Pieces(alike) for alike in groups if sum(map(_has_middles, alike)) > _MANY}
        self.tries = any(map(_has_middles, chain.from_iterable(groups)))
        """Whether some must be looked for in the text."""

    def may_match(self, start: str) -> bool:
        """Whether some pattern may match a text that begins so. It looks at all of them."""
        starts = (literal for *_, by_ends in self._shapes for literal, _ in by_ends)
        return any(literal.startswith(start) or start.startswith(literal) for literal in starts)

    def find(self, text: str, work: PatternWork | None = None) -> T | None:
        """The node of the first pattern, in the order given, that matches `text`.

        Raises TooLongError if that is more work than may be done, and a request may be refused for what it finds.
        """
        if self.tries:
            return self._find_once(text, work or unbounded())
        best: T | None = None
        best_order = -1
        length = len(text)
        for start, end, by_ends in self._shapes:
            if start + end > length:
                continue
            for order, literal, _, item in by_ends.get((text[:start], text[length - end :]), ()):
                if best is not None and order > best_order:
                    break
                if literal <= length:
                    best, best_order = item, order
                    break
        return best

    def _find_once(self, text: str, work: PatternWork) -> T | None:
        name = id(self), text
        if name not in work.found:
            try:
                first = min(self._matching(text, work), key=itemgetter(0), default=None)
            except TooLongError:
                if self._refuses:
                    raise
                first = None
            work.found[name] = None if first is None else first[-1]
        found: T | None = work.found[name]  # type: ignore[assignment]  # by the identity of this
        return found

    def _matching(self, text: str, work: PatternWork) -> "Iterator[_Pattern[T]]":
        """The first that matches of the patterns with the same ends."""
        length = len(text)
        for start, end, by_ends in self._shapes:
            alike = by_ends.get((text[:start], text[length - end :])) if start + end <= length else None
            if alike is None:
                continue
            pieces = self._pieces.get(id(alike))
            for pattern in alike if pieces is None else pieces.candidates(text, start, length - end, work):
                _, literal, middles, _ = pattern
                if literal > length:
                    continue
                if middles:
                    work.spend(length)
                if _fits(text, start, length - end, middles):
                    yield pattern
                    break


class _Pieces(Generic[T]):
    """Patterns with the same ends, by a few characters of what stands between, of which the fewest have the same."""

    def __init__(self, patterns: "Sequence[_Pattern[T]]") -> None:
        self._others = [pattern for pattern in patterns if not _has_middles(pattern)][:1]
        """The first of those that match whatever stands between."""
        pieces = [(pattern, _pieces(max(pattern[2], key=len))) for pattern in patterns if _has_middles(pattern)]
        patterns_with = Counter(piece for _, found in pieces for piece in found)
        self._by_size: dict[int, dict[str, list[_Pattern[T]]]] = {}
        for pattern, found in pieces:
            piece = min(found, key=patterns_with.__getitem__)
            self._by_size.setdefault(len(piece), {}).setdefault(piece, []).append(pattern)

    def candidates(self, text: str, start: int, end: int, work: PatternWork) -> "Sequence[_Pattern[T]]":
        """The patterns of which a piece is in `text[start:end]`, and the first that has none, in their order."""
        found = [*self._others]
        for size, by_piece in self._by_size.items():
            work.spend(_MANY * (end - start))
            some = {piece for at in range(start, end - size + 1) if (piece := text[at : at + size]) in by_piece}
            for piece in some:
                found += by_piece[piece]
        return sorted(found, key=itemgetter(0))


_PIECE_LENGTH: Final = 4

_MANY: Final = 64
"""Patterns which take as long to look for as the text takes to be cut into pieces: 130 to 270 ns a character."""


def _has_middles(pattern: "_Pattern[T]") -> bool:
    return bool(pattern[2])


def _pieces(middle: str) -> dict[str, None]:
    size = min(len(middle), _PIECE_LENGTH)
    return dict.fromkeys(middle[at : at + size] for at in range(len(middle) - size + 1))


def _fits(text: str, start: int, end: int, middles: list[str]) -> bool:
    """Whether `text[start:end]` contains the middles one after the other."""
    for middle in middles:
        start = text.find(middle, start, end)
        if start < 0:
            return False
        start += len(middle)
    return True


class Table(Generic[K, T]):
    """A dictionary in small parts. One of 100,000 entries would stop all threads for 10 ms when it is freed."""

    def __init__(self, size: int) -> None:
        self._parts: list[dict[K, T]] = [{} for _ in range(size // _PART_SIZE + 1)]
        self._count = len(self._parts)

    def get(self, key: K) -> T | None:
        """The entry stored by the key, or None."""
        return self._parts[hash(key) % self._count].get(key)

    def setdefault(self, key: K, value: T) -> T:
        """The entry stored by the key; the value, if there is none yet."""
        return self._parts[hash(key) % self._count].setdefault(key, value)

    def __iter__(self) -> Iterator[K]:
        for part in self._parts:
            yield from part

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def parts(self) -> list[dict[K, T]]:
        """The parts, to be freed one by one."""
        return self._parts


_PART_SIZE: Final = 1000


class Ranges(Generic[T]):
    """Networks, of which each leads to something. A search is one bisection, however many there are.

    Prefixes are nested in each other or apart, so they are cut into ranges that do not overlap. Each range leads to
    what the longest of its prefixes leads to, unless `weaker(new, old)` says that a shorter one beats it.
    """

    def __init__(
        self, networks: Iterable[tuple[Network, T]], weaker: Callable[[T, T], bool] = lambda _new, _old: False
    ) -> None:
        self._starts: list[int] = [0]
        self._items: list[T | None] = [None]
        open_: list[tuple[int, T]] = []
        """The prefixes around the present one: where each ends, and what it leads to."""
        for network, item in _sorted(networks):
            self._close(open_, network.low)
            best = open_[-1][1] if open_ and weaker(item, open_[-1][1]) else item
            open_.append((network.end, best))
            self._begin(network.low, best)
        self._close(open_, None)

    def _close(self, open_: list[tuple[int, T]], until: int | None) -> None:
        while open_ and (until is None or open_[-1][0] <= until):
            end, _ = open_.pop()
            self._begin(end, open_[-1][1] if open_ else None)

    def _begin(self, start: int, item: T | None) -> None:
        if self._starts[-1] == start:
            self._items[-1] = item
        elif self._items[-1] is not item:
            self._starts.append(start)
            self._items.append(item)

    def find(self, address: int) -> T | None:
        """The node of the longest prefix of this address, or None."""
        return self._items[bisect_right(self._starts, address) - 1]


def _sorted(networks: Iterable[tuple[Network, T]]) -> Iterator[tuple[Network, T]]:
    """Sort by address, a prefix before those inside of it."""
    # Sorted in pieces: one call that sorts 100,000 would stop all threads for as long.
    left = iter(networks)
    pieces = []
    while piece := list(islice(left, _PART_SIZE)):
        pieces.append(sorted(piece, key=_address_order))
    return merge(*pieces, key=_address_order)


def _address_order(networked: tuple[Network, object]) -> int:
    network = networked[0]
    return network.low << 8 | network.bits


@dataclass(frozen=True, slots=True)
class Fit:
    """The test for values of a descriptor's key, other than envoyproxy's `value`."""

    key: str
    kind: str
    """`list`, `range`, `regex`, or `pattern` of one that is negated."""
    words: str
    """What the value is compared with, such as `2 networks`."""
    negated: bool = False
    """It fits the values that do not match."""
    values: Table[str | int, bool] | None = None
    """Of a list; an address is its number, a secret value its digest, that of an address in its canonical form."""
    hash_value: Callable[[str], str] | None = None
    """Makes digests of secret values, of a list that has digests."""
    networks: tuple[Network, ...] = ()
    """Of a range."""
    search: Callable[[str, PatternWork], object] = lambda _value, _work: None
    """Of a negated range, a pattern and a regex; the result is true if the value matches. It may raise TooLongError."""
    pattern: str = ""
    """Of a pattern or a regex: what the file says."""
    weight: int = 1
    """Of a regex, by which it is more work than others."""

    @property
    def is_tested(self) -> bool:
        """Whether it needs a test of its own, because no look-up can find it."""
        return self.negated or self.kind == "regex"

    def fits(self, value: str, work: PatternWork | None = None) -> bool:
        """Whether it fits the value; for those that need a test of their own."""
        if self.values is not None:
            found: object = self.values.get(_entry(value, self.hash_value))
        else:
            found = self.search(value, work or unbounded())
        return bool(found) is not self.negated

    def pieces(self) -> Iterator[object]:
        """The large objects in it, to be freed piece by piece."""
        yield from self.networks
        if self.values is not None:
            yield from self.values.parts()


def _entry(value: str, hash_value: Callable[[str], str] | None) -> str | int:
    """The entry of a list for this value."""
    if hash_value is not None:
        return hash_value(canonical(value))
    address = parse_address(value)
    return value if address is None else address


class Matchable(Protocol):
    """A node, as far as its level must know it."""

    @property
    def fit(self) -> Fit | None:
        """None: it matches by its name."""

    @property
    def priority(self) -> int:
        """The highest wins."""

    @property
    def refuses(self) -> bool:
        """Whether a request may be refused for what it leads to."""


N = TypeVar("N", bound=Matchable)


def standing(node: Matchable, order: int, first: dict[tuple[str, int], int]) -> int:
    """The place of a node in the order of the file: networks of one key and priority do where the first of them does.

    So the longest prefix wins whatever stands between them. `first` has these places; `order` is the node's own.
    """
    fit = node.fit
    if fit is None or not fit.networks or fit.negated:
        return order
    return first.setdefault((fit.key, node.priority), order)


class _OfKey(Generic[N]):
    """The fits of one key."""

    def __init__(self, ranked: "list[_Ranked[N]]") -> None:
        fits = [(found, found.node.fit) for found in ranked if found.node.fit is not None]
        looked_up = [(found, fit) for found, fit in fits if not fit.is_tested]
        lists = [(found, fit.values) for found, fit in looked_up if fit.values is not None]
        self.values: Table[str | int, _Ranked[N]] = Table(sum(len(values) for _, values in lists))
        self._addresses = any(fit.networks for _, fit in looked_up)
        self.hidden: dict[int, tuple[N, N, str | int]] = {}
        """By the identity of a node: itself, the one that is tried before, and a value that is in both lists."""
        for found, values in lists:
            for value in values:
                self._addresses = self._addresses or not isinstance(value, str)
                first = self.values.setdefault(value, found)
                if first is not found and first.rank[0] == found.rank[0]:
                    self.hidden.setdefault(id(found.node), (found.node, first.node, value))
        self._hash_value = next((fit.hash_value for _, fit in looked_up if fit.hash_value is not None), None)
        """Values of a key are secret in all lists of it, or in none."""
        networks = [(network, found) for found, fit in looked_up for network in fit.networks]
        self.ranges = Ranges(networks, lambda new, old: new.rank[0] > old.rank[0]) if networks else None
        self.tests = [(found, fit) for found, fit in fits if fit.is_tested]

    def find(self, value: str, best: "_Ranked[N] | None", work: PatternWork | None) -> "_Ranked[N] | None":
        """The best of those that fit the value, and of the `best` that is already found."""
        found = self._look_up(value)
        if found is not None and (best is None or found.rank < best.rank):
            best = found
        if not self.tests:
            return best
        work = work or unbounded()
        name = id(self), value
        if name not in work.found:
            work.found[name] = self._test(value, best, work)
        return work.found[name]  # type: ignore[return-value]  # by the identity of this

    def _look_up(self, value: str) -> "_Ranked[N] | None":
        address = parse_address(value) if self._addresses else None
        if self._hash_value is not None:
            best = self.values.get(self._hash_value(canonical(value)))
        else:
            best = self.values.get(value if address is None else address)
        if address is not None and self.ranges is not None:
            found = self.ranges.find(address)
            if found is not None and (best is None or found.rank < best.rank):
                best = found
        return best

    def _test(self, value: str, best: "_Ranked[N] | None", work: PatternWork) -> "_Ranked[N] | None":
        """The first that fits by a test of its own, unless the best is before it."""
        for found, fit in self.tests:
            if best is not None and best.rank < found.rank:
                break
            try:
                if fit.fits(value, work):
                    return found
            except TooLongError:
                # Else a longer value would be a way past what denies. Where nothing does, it does not match.
                if found.node.refuses:
                    raise
        return best


class _Ranked(NamedTuple, Generic[N]):
    """A node with its rank as what it matches by here."""

    rank: Rank
    node: N


class Matchers(Generic[N]):
    """A level of which some descriptor has a fit or a priority."""

    def __init__(self, children: Mapping[str, N]) -> None:
        self._exact: dict[str, _Ranked[N]] = {}
        self._alone: dict[str, _Ranked[N]] = {}
        patterns: list[tuple[str, _Ranked[N]]] = []
        by_key: dict[str, list[_Ranked[N]]] = {}
        first: dict[tuple[str, int], int] = {}
        for order, (name, node) in enumerate(children.items()):
            ranked = _Ranked((-node.priority, FILE_ORDER, standing(node, order, first)), node)
            if node.fit is not None:
                by_key.setdefault(node.fit.key, []).append(ranked)
                continue
            self._exact[name] = _Ranked((-node.priority, EXACT, order), node)
            self._alone[name] = _Ranked((-node.priority, KEY_ALONE, order), node)
            if "*" in name:
                patterns.append((name, ranked))
        patterns.sort(key=lambda pattern: pattern[1].rank)
        refuses = any(ranked.node.refuses for _, ranked in patterns)
        self._wildcards = Wildcards([(name, ranked) for name, ranked in patterns], refuses=refuses)
        self._by_key = {key: _OfKey(sorted(ranked, key=_rank)) for key, ranked in by_key.items()}
        self.tries = self._wildcards.tries or any(of_key.tests for of_key in self._by_key.values())
        """Whether some values are tried with patterns."""

    def find(self, key: str, value: str, exact_name: str, work: PatternWork | None = None) -> "N | None":
        """The node that an entry matches; `exact_name` is that of the one with exactly this value.

        Raises TooLongError if the value is too long for what it is compared with.
        """
        best = self._exact.get(exact_name)
        of_key = self._by_key.get(key)
        if of_key is not None:
            best = of_key.find(value, best, work)
        for found in (self._wildcards.find(f"{key}_{value}", work), self._alone.get(key)):
            if found is not None and (best is None or found.rank < best.rank):
                best = found
        return None if best is None else best.node

    def wildcard(self, text: str) -> N | None:
        """The node of the best wildcard that matches `key_value`."""
        found = self._wildcards.find(text)
        return None if found is None else found.node

    def fitting(self, key: str, value: str) -> N | None:
        """The best node that matches an entry by what it compares values with, and not by its name."""
        of_key = self._by_key.get(key)
        found = None if of_key is None else of_key.find(value, None, None)
        return None if found is None else found.node

    def listing(self, key: str, value: str) -> N | None:
        """The node of the first list that has this value, or this digest of a secret one."""
        of_key = self._by_key.get(key)
        address = parse_address(value)
        found = None if of_key is None else of_key.values.get(value if address is None else address)
        return None if found is None else found.node

    def asks(self, key: str) -> bool:
        """Whether values of this key are compared with more than the names of descriptors. It looks at all patterns."""
        return key in self._by_key or self._wildcards.may_match(f"{key}_")

    def has_fits(self, key: str) -> bool:
        """Whether some descriptor of this key has a fit."""
        return key in self._by_key

    @property
    def hidden(self) -> Iterator[tuple[N, N, str | int]]:
        """Lists with a value that another one has too: of each its node, the node tried before, and such a value."""
        for of_key in self._by_key.values():
            yield from of_key.hidden.values()

    def pieces(self) -> Iterator[object]:
        """The parts of the tables, to be freed one by one."""
        for of_key in self._by_key.values():
            yield from of_key.values.parts()


def _rank(ranked: _Ranked[N]) -> Rank:
    return ranked.rank
