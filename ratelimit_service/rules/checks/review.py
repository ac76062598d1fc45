"""Warnings about limits: where one contradicts itself, has no effect, or contradicts another one of its domain.

A limit is *weaker* than one above it if that one is the first to deny, in requests that are charged to both. The
counter above counts all that the lower one counts, so this is sure where both count in the same way, and the lower
limit is the larger one, in windows that nest. Some such limits are meant: modes that deny nothing, one that replaces
the upper one, and one below a limit of 0, which refuses what lacks an entry.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ratelimit_service.model import Kind, Limit
from ratelimit_service.rules.address import Network, address_text
from ratelimit_service.rules.book import Domain, Node, RuleBook, all_nodes
from ratelimit_service.rules.checks.region_notes import review_regions
from ratelimit_service.rules.matching import Fit
from ratelimit_service.rules.problems import LintWarning, Report, nearest, quoted, warning_at
from ratelimit_service.rules.rule import FIRST, Rule, limit_in_words, plural
from ratelimit_service.rules.syntax.document import YamlMap
from ratelimit_service.rules.syntax.maps import given
from ratelimit_service.rules.syntax.options import OPTIONS, MapType
from ratelimit_service.rules.syntax.values import Excess
from ratelimit_service.system.clock import DAY, SECOND, delay_in_words, duration_in_words

MAX_LOG: Final = 5000
"""Entries in one counter; 8 bytes each."""

_MIN_FILL: Final = SECOND // 1000
"""Microseconds. A bucket that is full again sooner loses most of its tokens: requests do not come so evenly."""
_MAX_FILL: Final = 365 * DAY
_MANY_WINDOWS: Final = 100


def review(book: RuleBook) -> Iterator[LintWarning]:
    """All warnings about the limits of the book."""
    for rule in book.rules:
        yield from _log(rule)
        yield from _bucket(rule)
        yield from _kind(rule)
        yield from review_regions(rule)
    for name, root in book.domains.items():
        if root.settle and not any(rule.limit and not rule.limit.kind.holds for rule in book.rules_in(name)):
            message = "settle has no effect: no rule of the domain has a limit that can be charged what it has cost"
            yield warning_at(root.place, "no-effect", f"{message}; remove it, unless limits come with requests")
        yield from _weaker(root, ())
        yield from _pools(root)
        for node in all_nodes(root):
            if node.matchers is not None:
                yield from _lists(node)
    yield from _replaces(book)


def shared_keys(book: RuleBook, is_named: Callable[[Rule], bool]) -> Iterator[LintWarning]:
    """Warnings about rules that share a counter for every value, where names are as envoyproxy/ratelimit's.

    There the parts of a key are joined by `_` and not escaped. `is_named` says which rules have such keys.
    """
    rules: dict[str, Rule] = {}
    for name, root in book.domains.items():
        for text, rule in _key_texts(root, name):
            if is_named(rule) and (first := rules.setdefault(text, rule)) is not rule:
                message = (
                    f"with KEY_FORMAT=envoyproxy this limit and the one at {first.place} count on one key, "
                    f"{text.replace(_ANY_VALUE, '…')}_…: rename one of the keys, values or domains"
                )
                yield warning_at(rule.place, "one-counter", message)


def queue_notes(book: RuleBook) -> Iterator[LintWarning]:
    """Notes on what each domain with queues needs of Envoy, at the limit with the longest queue."""
    for name in book.domains:
        longest = max(
            book.rules_in(name), key=lambda rule: rule.limit.kind.max_delay if rule.limit else 0, default=None
        )
        if longest is None or longest.limit is None or not longest.limit.kind.max_delay:
            continue
        delay = longest.limit.kind.max_delay
        timeout = f"{(delay + _QUEUE_MARGIN) / SECOND:g}s"
        message = (
            f"requests of domain {quoted(name)} may wait in queues for up to {delay_in_words(delay)}: Envoy's filter "
            f"needs timeout: {timeout}, or more, and has 20 ms by default"
        )
        yield warning_at(longest.place, "queue", message)


_QUEUE_MARGIN: Final = 50_000
"""Microseconds that Envoy's timeout should be longer than a delay: for the way there and back, and a busy machine."""

_ANY_VALUE: Final = "\0"
"""A character that no key or value of a file contains."""


def _key_texts(node: Node, above: str) -> Iterator[tuple[str, Rule]]:
    """The limits below a node, each with the text of its counters' keys. Of patterns and lists it is not known."""
    for name, child in node.children.items():
        if child.fit is None and not child.is_wildcard(name):
            text = f"{above}_{name}_{_ANY_VALUE}" if child.key_only else f"{above}_{name}"
            if child.rule is not None:
                yield text, child.rule
            yield from _key_texts(child, text)


def review_descriptor(item: YamlMap, values: Mapping[str, Any], report: Report) -> None:
    """Warn about options of a limit at a descriptor without one: those below do not inherit them."""
    if given(item, "rate_limit") or given(item, "rate_limits"):
        return
    for key in _OF_A_LIMIT:
        if values.get(key):
            message = f"{key} has no effect: there is no rate_limit here, and the levels below do not inherit it"
            report.warn(item.fields[key].key, "no-effect", f"{message}; write it beside the rate_limit that is meant")


_OF_A_LIMIT: Final = tuple(
    option.key
    for option in OPTIONS
    if MapType.DESCRIPTOR in option.maps and (option.rule_field or option.key == "charge")
)


def review_limit(block: YamlMap, options: Mapping[str, Any], report: Report) -> None:
    """Warn about options of a limit that its number makes void."""
    requests: int | None = options.get("requests_per_unit")
    excess: Excess | None = options.get("exceed")
    if requests == 0 and "burst" in options:
        message = "burst has no effect: a bucket that gets 0 requests per unit is always empty; remove it"
        report.warn(block.fields["burst"].key, "bucket", message)
    if requests is not None and excess is not None and excess.number and not excess.of(requests):
        percent = f"exceed has no effect: {excess.number}% of {plural(requests, 'request')}, rounded down, is 0"
        report.warn(block.fields["exceed"].value, "no-effect", f"{percent}; write a number")


def _log(rule: Rule) -> Iterator[LintWarning]:
    limit = rule.limit
    if rule.algorithm.name == "sliding_log" and limit is not None and limit.requests > MAX_LOG:
        message = (
            f"sliding_log remembers up to {limit.requests:,} moments in each counter; sub_windows lets no more through "
            "either, and remembers a few numbers"
        )
        yield warning_at(rule.place, "large-log", message)


def _bucket(rule: Rule) -> Iterator[LintWarning]:
    limit = rule.limit
    if limit is None or not limit.burst or not limit.requests or limit.kind.max_delay:
        return
    fill = limit.burst * limit.window // limit.requests
    if fill < _MIN_FILL and limit.burst < limit.requests:
        enough = min(limit.requests, -(-limit.requests * 10 * _MIN_FILL // limit.window))
        message = (
            f"a bucket of {limit.burst:,} fills in {fill} µs, and what is added to a full one is lost: far fewer than "
            f"{limit_in_words(limit)} pass; write burst: {enough}, or more"
        )
        yield warning_at(rule.place, "bucket", message)
    elif fill > _MAX_FILL and limit.burst > limit.requests * _MANY_WINDOWS:
        message = (
            f"a bucket of {limit.burst:,} takes {duration_in_words(fill)} to fill with {limit_in_words(limit)}: it is "
            "never full again; write a smaller burst, or a larger limit"
        )
        yield warning_at(rule.place, "bucket", message)


def _kind(rule: Rule) -> Iterator[LintWarning]:
    limit = rule.limit
    for name, message in () if limit is None else limit.kind.lint(limit, rule.algorithm.name):
        yield warning_at(rule.place, name, message)


def _weaker(node: Node, above: tuple[Rule, ...]) -> Iterator[LintWarning]:
    """Warnings about limits below the node; `above` has the limits of the nodes on the way to it."""
    for child in node.children.values():
        rules = () if child.rule is None else (child.rule, *child.rule.beside)
        for rule in rules:
            stronger = next((upper for upper in above if _is_weaker(rule, upper)), None)
            if stronger is not None and not any(each.replaces & {upper.name for upper in above} for each in rules):
                message = (
                    f"the limit of {limit_in_words(rule.limit)} is larger than {limit_in_words(stronger.limit)} "
                    f"at {stronger.place}, which counts the same and more: where a request has both descriptors, that "
                    "one denies first; lower this one, or give that one a name, and write it here under replaces"
                )
                yield warning_at(rule.place, "weaker", message)
        yield from _weaker(child, (*above, *rules))


def _is_weaker(rule: Rule, upper: Rule) -> bool:
    limit, other = rule.limit, upper.limit
    if limit is None or other is None or not other.requests or rule.algorithm is not upper.algorithm:
        return False
    if limit.kind.has_second:  # its second counter denies when the other one has room
        return False
    if any(each.shadow or each.quota or each.together == FIRST for each in (rule, upper)):
        return False
    larger, at_least = _compare(limit, other)
    return larger and at_least and _nest(rule.algorithm.name, limit, other)


def _nest(algorithm: str, limit: Limit, other: Limit) -> bool:
    """Whether what the limit counts at any time is within what the other one counts."""
    same = limit.same_windows(other)
    match algorithm:
        case "fixed_window":
            if limit.first_request or other.first_request:
                return False
            return same or (limit.epoch_aligned and other.epoch_aligned and not other.window % limit.window)
        case "sub_windows":  # it remembers up to a part more than the window
            return limit.parts == other.parts if same else limit.window * 2 <= other.window
        case "sliding_window":  # it takes the requests of the window before as evenly spread
            return same
    return limit.window <= other.window


def _compare(limit: Limit, other: Limit) -> tuple[bool, bool]:
    """Whether something of the limit is larger, and whether nothing is smaller: what it allows at once, and in time."""
    pairs = [(limit.most, other.most), (limit.requests, other.requests)]
    return any(one > two for one, two in pairs), all(one >= two for one, two in pairs)


class _Member(NamedTuple):
    """A rule whose limit has a counter in common with others, that of a pool."""

    rule: Rule
    right: int
    kind: Kind
    alone: bool
    """It has one counter, whatever requests have."""


def _pools(root: Domain) -> Iterator[LintWarning]:
    """Warnings about the members of each pool: their rights together, and some that are strict among others."""
    members: dict[str, list[_Member]] = {name: [] for name in root.pools}
    for member in _members(root, ()) if members else ():
        members[member.kind.common].append(member)
    for name, found in members.items():
        pool = root.pools[name]
        assert pool.limit is not None, "a pool has a counter"
        if not found:
            message = f"pool {quoted(name)} has no members; give a limit elastic: {{pool: {name}, …}}, or remove it"
            yield warning_at(pool.place, "pool", message)
        rights = sum(member.right for member in found)
        if rights > pool.limit.requests:
            several = next((member.rule for member in found if not member.alone), None)
            at_least = "" if several is None else f" at least: the one at {several.place} is a right for each value"
            message = (
                f"the rights of the members of pool {quoted(name)} add up to {rights:,}{at_least}, more than the "
                f"pool's {pool.limit.requests:,}, which they exceed without any loan: lower them, or raise the pool"
            )
            yield warning_at(pool.place, "pool", message)
        strict = [member.rule for member in found if member.kind.strict]
        other = next((member.rule for member in found if not member.kind.strict), None)
        if strict and other is not None:
            message = f"this limit is strict, and the one at {other.place} is not, whose right may exceed their pool"
            yield warning_at(strict[0].place, "pool", f"{message}; write strict: true for all members, or for none")


def _members(node: Node, above: tuple[bool, ...]) -> Iterator[_Member]:
    """All members below the node; `above` says of each level whether it has one value."""
    for name, child in node.children.items():
        levels = (*above, child.has_one_value(name))
        yield from _as_members(child.rule, levels)
        yield from _members(child, levels)
    if isinstance(node, Domain):
        yield from _as_members(node.default, (False,))


def _as_members(first: Rule | None, levels: tuple[bool, ...]) -> Iterator[_Member]:
    for rule in () if first is None else (first, *first.beside):
        limit = rule.limit
        if limit is not None and limit.kind.common:
            alone = all(single or level.shared for single, level in zip(levels, rule.levels, strict=True))
            yield _Member(rule, limit.requests, limit.kind, alone)


def _lists(parent: Node) -> Iterator[LintWarning]:
    """Warnings about lists of one level that overlap: addresses in networks that are tried first, networks in networks.

    A network inside one of another list is usual: the longest prefix wins.
    """
    fits = [(node, node.fit) for node in parent.children.values() if node.fit is not None and not node.fit.negated]
    ranges = Counter(fit.key for _, fit in fits if fit.networks)
    for node, fit in fits:
        hidden = _hidden(parent, node, fit) if fit.values is not None and ranges[fit.key] else []
        if hidden:
            value, first = hidden[0]
            more = f" (and {plural(len(hidden) - 1, 'other')} of this list)" if len(hidden) > 1 else ""
            message = (
                f"{quoted(value)}{more} never fits this list: the networks at {first.place} are tried first; move this "
                "list before them, or give it a higher priority"
            )
            yield warning_at(node.place, "overlap", message)
        if ranges[fit.key] == 1 and (inner := _inside(fit.networks)):
            more = f" (and {plural(len(inner) - 1, 'other')} of this list)" if len(inner) > 1 else ""
            message = f"{inner[0][0]}{more} changes nothing: it is inside {inner[0][1]}; remove one of them"
            yield warning_at(node.place, "overlap", message)


def _hidden(parent: Node, node: Node, fit: Fit) -> list[tuple[str, Node]]:
    """The addresses of a list that networks contain which are tried first, with the node of these."""
    found = []
    for number in fit.values or ():
        if isinstance(number, int) and parent.matchers is not None:
            value = address_text(number)
            taken = parent.matchers.find(fit.key, value, f"{fit.key}_{value}")
            if taken is not None and taken is not node and taken.fit is not None and taken.fit.networks:
                found.append((value, taken))
    return found


def _inside(networks: Sequence[Network]) -> list[tuple[Network, Network]]:
    """The networks that another one of them contains, each with that one."""
    found = []
    outer: Network | None = None
    # Sorted in pieces: one sort of 100,000 would stop all threads for 40 ms.
    pieces = [sorted(networks[at : at + _PIECE], key=_start) for at in range(0, len(networks), _PIECE)]
    for network in merge(*pieces, key=_start):
        if outer is not None and network.low < outer.end:
            found.append((network, outer))
        else:
            outer = network
    return found


_PIECE: Final = 1000
_start: Final = attrgetter("low", "bits")


def _replaces(book: RuleBook) -> Iterator[LintWarning]:
    """Warnings about names that no limit of the domain has: a request has only one domain."""
    names: dict[str, set[str]] = {}
    for rule in book.rules:
        names.setdefault(rule.domain, set()).add(rule.name)
    for rule in book.rules:
        for name in sorted(rule.replaces - names[rule.domain]):
            near = nearest(name, names[rule.domain] - {""})
            hint = f"did you mean {quoted(near)}?" if near else "give the limit that is meant this name, or remove it"
            message = f"replaces {quoted(name)}, which is the name of no limit in domain {quoted(rule.domain)}; {hint}"
            yield warning_at(rule.place, "replaces", message)
