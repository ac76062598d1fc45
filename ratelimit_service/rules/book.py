"""The rulebook: all rules, compiled so that a match costs a dictionary look-up per entry. Hot path.

A book never changes once it is built; a reload makes a new one. Matching is upstream's: at each level the entry's
`key_value`, then the wildcards in the order of the file, then the key alone; the walk never turns back, and the rule is
the one of the node that the last entry reaches.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ratelimit_service.model import Limit
from ratelimit_service.rules.report import LintWarning
from ratelimit_service.rules.rule import ALONE, REQUEST, Entries, Place, Rule
from ratelimit_service.telemetry.tally import Tally


class Wildcards:
    """The patterns of one level. Finding the first that fits costs a look-up per shape, not a test per pattern.

    A pattern's shape is the lengths of its literal start and end. All patterns of one shape lie in one dictionary by
    these two literals, so ten thousand of `user_*` `path_/a/*/b` and the like are a few look-ups.
    """

    def __init__(self, patterns: Iterable[tuple[str, "Node"]]) -> None:
        shapes: dict[tuple[int, int], dict[tuple[str, str], list[_Pattern]]] = {}
        for order, (pattern, node) in enumerate(patterns):
            start, *middles, end = pattern.split("*")
            alike = shapes.setdefault((len(start), len(end)), {}).setdefault((start, end), [])
            alike.append((order, len(pattern.replace("*", "")), [middle for middle in middles if middle], node))
        self._shapes = [(*lengths, by_ends) for lengths, by_ends in shapes.items()]

    def find(self, text: str) -> "Node | None":
        """The node of the first pattern, in the order given, that `text` fits."""
        best: Node | None = None
        best_order = -1
        length = len(text)
        for start, end, by_ends in self._shapes:
            if start + end > length:
                continue
            for order, literal, middles, node in by_ends.get((text[:start], text[length - end :]), ()):
                if best is not None and order > best_order:
                    break
                if literal <= length and (not middles or _fits(text, start, length - end, middles)):
                    best, best_order = node, order
                    break
        return best


_Pattern = tuple[int, int, list[str], "Node"]
"""Its place among the patterns of the level, its characters besides `*`, what stands between two `*`, and its node."""


def _fits(text: str, start: int, end: int, middles: list[str]) -> bool:
    """Whether the middles stand in `text[start:end]` one after the other."""
    for middle in middles:
        start = text.find(middle, start, end)
        if start < 0:
            return False
        start += len(middle)
    return True


class Node:
    """A place in the tree of descriptors: what follows it, and the rule when the last entry ends here."""

    __slots__ = ("bare", "children", "place", "rule", "wildcards")

    def __init__(
        self,
        children: "Mapping[str, Node]",
        rule: Rule | None = None,
        place: Place | None = None,
        *,
        bare: bool = False,
    ) -> None:
        self.children = children
        """By `key` or `key_value`, in the order of the file."""
        patterns = [(name, child) for name, child in children.items() if "*" in name]
        self.wildcards = Wildcards(patterns) if patterns else None
        self.rule = rule
        self.place = place
        self.bare = bare
        """Whether its descriptor has a key and no value."""

    def child(self, key: str, value: str) -> "Node | None":
        """The node that an entry leads to, as `RuleBook.match` takes it."""
        composite = f"{key}_{value}"
        found = self.children.get(composite)
        if found is None and self.wildcards is not None:
            found = self.wildcards.find(composite)
        return self.children.get(key) if found is None else found


class RuleBook:
    """Every domain with its tree of nodes.

    In the domains of `together`, a limit that comes with a request is charged together with the others. `warnings` are
    those that the text of the files gave; `lint` adds what the tree tells.
    """

    def __init__(
        self, domains: Mapping[str, Node], together: Collection[str] = (), warnings: Sequence[LintWarning] = ()
    ) -> None:
        self.domains = domains
        self.warnings = warnings
        self.together = frozenset(together)
        nodes = (node for root in domains.values() for node in _nodes(root))
        self.rules = tuple(rule for node in nodes if node.rule is not None for rule in (node.rule, *node.rule.beside))
        self.joint = bool(self.together) or any(rule.together or rule.beside for rule in self.rules)
        """Some hits are charged together, or some descriptor has several limits."""

    def match(self, domain: str, entries: Entries) -> Rule | None:
        """The rule that applies to these entries, or None when nothing limits them."""
        node = self.domains.get(domain)
        if node is None:
            return None
        for key, value in entries:
            composite = f"{key}_{value}"
            children = node.children
            child = children.get(composite)
            if child is None:
                if node.wildcards is not None:
                    child = node.wildcards.find(composite)
                if child is None:
                    child = children.get(key)
                    if child is None:
                        return None
            node = child
        return node.rule

    def walk(self, domain: str, entries: Entries) -> Sequence[Node]:
        """The nodes that the entries lead to, one after the other as far as they go; first that of the domain."""
        nodes = [self.domains[domain]]
        for key, value in entries:
            node = nodes[-1].child(key, value)
            if node is None:
                break
            nodes.append(node)
        return nodes

    def exempts(self, domain: str, entries: Entries) -> bool:
        """Whether a descriptor of the file stands for these entries, and says neither a limit nor what may follow."""
        nodes = self.walk(domain, entries)
        last = nodes[-1]
        return len(nodes) == len(entries) + 1 > 1 and last.rule is None and not last.children

    def overriding(self, domain: str, entries: Entries, limit: Limit, near: int, tally: Tally) -> Rule:
        """The rule that a limit makes which comes with these entries, in place of the one that they match.

        It is charged together with what that one is charged together with. So its counter lies where that one's does,
        and is the same where window and algorithm are.
        """
        rule = self.match(domain, entries)
        if rule is not None:
            return Rule.overriding(
                domain, limit, near, tally=tally, together=rule.together, path_suffix=rule.path_suffix
            )
        together = REQUEST if domain in self.together else ALONE
        return Rule.overriding(domain, limit, near, tally=tally, together=together)


def free_books(books: list[RuleBook]) -> None:
    """Empty the list, freeing the books in it piece by piece.

    Freed at once, one of ten thousand rules would hold up all threads for 5 ms.
    """
    while books:
        book = books.pop()
        nodes = [node for root in book.domains.values() for node in _nodes(root)]
        pieces: list[object] = [*book.rules, *reversed(nodes)]  # from the end, so that a node goes before what it holds
        del book, nodes
        while pieces:
            pieces.pop()


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children.values():
        yield from _nodes(child)
