"""Warnings: what is allowed in a rules file, but probably not intended.

Five sources. Fixed windows of weeks, months and years do not follow the calendar. A `*` in a key fits other keys too.
Values in a notation that rules do not have (networks, lists, regular expressions, other globs) are compared as text, so
almost certainly nothing matches them; a missed one is better than a warning about a good value: paths with dots and
queries, e-mail addresses, user agents, JSON, versions and route templates are legitimate. And the compiled rules show
descriptors that no request reaches or that have no effect, limits that contradict (`review`), and regular expressions
that take long (`slow_regex`).
"""

import re
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple

from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.book import Domain, RuleBook, all_nodes
from ratelimit_service.rules.checks.review import review
from ratelimit_service.rules.checks.slow_regex import slow_regexes
from ratelimit_service.rules.checks.unreached import review_levels
from ratelimit_service.rules.problems import LintWarning, Positioned, Report, quoted, shortened, warning_at
from ratelimit_service.rules.response import limit_name
from ratelimit_service.rules.rule import Rule
from ratelimit_service.system.clock import DAY

KINDS: Final = (
    "address",
    "any-key",
    "bucket",
    "calendar",
    "cidr",
    "duplicate",
    "glob",
    "hash-key",
    "host-bits",
    "large-log",
    "lease",
    "list",
    "lookup",
    "no-effect",
    "one-counter",
    "overlap",
    "pool",
    "quota-unit",
    "regex",
    "regions",
    "replaces",
    "reserve",
    "same-name",
    "short-block",
    "slow-regex",
    "unreached",
    "weaker",
)
"""All kinds of warnings; `ratelimit check --ignore` takes them."""


def lint(book: RuleBook) -> list[LintWarning]:
    """All warnings about the book, sorted by file and line."""
    found = [*book.warnings]
    found += [warning for root in book.domains.values() for warning in review_levels(root, root)]
    found += [warning for root in book.domains.values() for warning in _lookups(root)]
    found += [warning for rule in book.rules if rule.beside for warning in _same_names(book, rule)]
    found += review(book)
    found += slow_regexes(book)
    return sorted(found, key=lambda warning: warning[:3])


def _same_names(book: RuleBook, first: Rule) -> Iterator[LintWarning]:
    """The limits of a list that RateLimit-Policy gives one name: a client has both, and cannot tell them apart."""
    response = book.domains[first.domain].response
    if response is None or "ietf" not in response.headers:
        return
    names: dict[str, Rule] = {}
    for rule in (first, *first.beside):
        other = names.setdefault(limit_name(rule), rule)
        if other is not rule:
            message = (
                f"{quoted(limit_name(rule))} is the name of the limit at {other.place} too; in the header "
                "RateLimit-Policy a client cannot tell one from the other"
            )
            yield warning_at(rule.place, "same-name", message)


def _lookups(root: Domain) -> Iterator[LintWarning]:
    """Lookups to names for which there is no descriptor, and descriptors of entries that are always looked up."""
    for lookup in root.lookups.values():
        names = {*lookup.names.values()} if lookup.otherwise is None else {lookup.otherwise, *lookup.names.values()}
        left, tried = names if root.default is None else set(), 0
        for node in all_nodes(root):
            tried += len(left)
            left = {name for name in left if node.child(lookup.becomes, name, root.secrets) is None}
            if not left:
                break
            if tried > _MAX_COMPARED:
                left = set()
                break
        if left:
            some = ", ".join(quoted(f"{lookup.becomes}={name}") for name in sorted(left)[:_MAX_LINES])
            more = f" and {len(left) - _MAX_LINES:,} more" if len(left) > _MAX_LINES else ""
            yield warning_at(
                lookup.place, "lookup", f"no descriptor fits {some}{more}, which this lookup makes of entries"
            )
        if lookup.otherwise is not None and all(other.becomes != lookup.key for other in root.lookups.values()):
            for node in all_nodes(root):
                found = node.children.get(lookup.key)
                if found is not None and found.key_only:
                    message = (
                        f"{quoted(lookup.key)} is never reached: the lookup at {lookup.place} turns all its entries"
                    )
                    yield warning_at(found.place, "unreached", f"{message} into {quoted(lookup.becomes)}")


_MAX_COMPARED: Final = 200_000
"""Names tried at descriptors, for one lookup."""


_MAX_LINES: Final = 10


class Calendars:
    """The fixed windows of weeks, months and years in one file. Equal ones get one warning: there may be hundreds."""

    def __init__(self) -> None:
        self._found: dict[str, dict[int, Positioned]] = {}
        """Their positions, by message and line."""

    def add(self, limit: Limit, unit: Unit, at: Positioned) -> None:
        """Add the limit of a fixed window that is aligned to the clock; `unit` is the one that the file names."""
        times = limit.window // unit.window
        words = unit.in_words(times) if times > 1 else f"a {unit.name.lower()}"
        days = limit.window // DAY
        match unit:
            case Unit.WEEK:
                really = (
                    f"{words} {'begin' if times > 1 else 'begins'} on a Thursday at 00:00 UTC, as 1970-01-01 was one"
                )
            case Unit.MONTH | Unit.YEAR:
                really = f"{words} {'are' if times > 1 else 'is'} {days} days, counted from 1970-01-01, in no calendar"
            case _:
                return
        true = f"; for the calendar's write calendar: {{unit: {unit.name.lower()}}}" if times == 1 else ""
        message = f"{really}{true}; if that is meant, write unit: {days} days, which counts the same"
        self._found.setdefault(message, {}).setdefault(at.line, at)

    def warn(self, report: Report) -> None:
        """Report the warnings."""
        for message, places in self._found.items():
            first, *others = places.values()
            lines = [report.pointers.get(other.line, f"{other.line}").lstrip() for other in others[:_MAX_LINES]]
            if len(others) > _MAX_LINES:
                lines.append("…")
            also = "at" if report.pointers else "in line" if len(others) == 1 else "in lines"
            more = f" (also {also} {', '.join(lines)})" if others else ""
            report.warn(first, "calendar", f"{message}{more}")


class Finding(NamedTuple):
    """A probable mistake in a key or a value."""

    kind: str
    message: str


def lint_key(key: str, value: str) -> Finding | None:
    """The mistake in a descriptor's key, or None. A `*` in the value too shows that the author intends it."""
    if "*" not in key or value:
        return None
    fits = "fits every entry, whatever its key" if key == "*" else "stands for any text in key and value together"
    return Finding(
        "any-key", f'the * of key {quoted(key)} {fits}, before any key alone does; if that is meant, add value: "*"'
    )


def without_hash_key(*, digest: bool) -> Finding:
    """The warning about `hash_values` where the operator has set no key; `digest`: the value in the file is one."""
    wrong = "no value has this digest" if digest else "digests are made with a random key, and change with each start"
    return Finding("hash-key", f"HASH_KEY is not set, so {wrong}; with counters in Redis these rules are refused")


def lint_value(key: str, value: str) -> Finding | None:
    """The mistake in the value of a descriptor, or None: the first notation that is recognised."""
    if _MAYBE.search(value) is None:
        return None
    return next(_findings(key, value), None)


_MAYBE: Final = re.compile(r"[\^$\[({?|,;\\:]|\*\*|/\.?[+*]|^\.[+*]|/[0-9]{1,3}$|(?:^|\.)0[0-9]")
"""A quick test: a value without any of this has no mistake. Most values have none."""


def _findings(key: str, value: str) -> Iterator[Finding]:
    as_text = f"value {quoted(value)} is compared as text"
    if network := _network(value):
        if key != _MASKED:
            yield Finding("cidr", f"{as_text}, not as a network: no address fits it; {_instead_of(network)}")
        elif value != str(network):
            yield Finding("cidr", f"{as_text}, and Envoy sends this network otherwise: write {_value(str(network))}")
        return
    if "forwarded" not in key.lower() and (what := _list_of(value)):
        option = "cidr" if "/" in value and what == "address" else "values"
        parts = ", ".join(part.strip() for part in _SEPARATOR.split(value))
        instead = f"write {option}: [{shortened(parts)}]"
        yield Finding("list", f"{as_text}, not as a list: no {what} fits it; {instead}")
    if canonical := _canonical(value):
        yield Finding("address", f"{as_text}, and Envoy sends this address otherwise: write {_value(canonical)}")
    if any(pattern.search(value) for pattern in _REGEX):
        instead = _instead(_SOME_OF_REGEX, value)
        yield Finding("regex", f"{as_text}, not as a regular expression; write regex in place of value, or {instead}")
    if "**" in value:
        instead = f"write {_value(re.sub('[*]+', '*', value))}"
        yield Finding("glob", f"** means no more than *, which stands for any text, also with / in it: {instead}")
    if any(pattern.search(value) for pattern in _GLOB):
        instead = _instead(_SOME_OF_GLOB, value)
        yield Finding("glob", f"{as_text}, not as a pattern of a shell; only * stands for any text: {instead}")


_MASKED: Final = "masked_remote_address"
"""The key whose values are networks: Envoy's action of this name sends `10.0.0.0/8`."""


def _network(value: str) -> IPv4Network | IPv6Network | None:
    if _NETWORK.fullmatch(value) is None:
        return None
    try:
        return ip_network(value, strict=False)
    except ValueError:
        return None


_NETWORK: Final = re.compile(r"[0-9.]+/[0-9]{1,2}|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*/[0-9]{1,3}")


def _instead_of(network: IPv4Network | IPv6Network) -> str:
    length, address = network.prefixlen, str(network.network_address)
    if length == network.max_prefixlen:
        return f"write {_value(address)}"
    if length == 0:
        return "leave the value out to fit any"
    return f"write cidr: {network}"


def _list_of(value: str) -> str:
    """The kind of list that the value is: `address`, `method` or `path`; empty when it is none."""
    parts = [part.strip() for part in _SEPARATOR.split(value)]
    if len(parts) > 1:
        if all(_is_address(part) for part in parts):
            return "address"
        if all(part.upper() in _METHODS for part in parts):
            return "method"
        if all(part.startswith("/") and not set(part) & _OF_A_QUERY for part in parts):
            return "path"
    return ""


_SEPARATOR: Final = re.compile("[,;|]")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"})
_OF_A_QUERY: Final = frozenset("?=&(")


def _is_address(text: str) -> bool:
    if _network(text) is not None:
        return True
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _canonical(value: str) -> str:
    """The address as Envoy writes it, if the value is an address in another form; it may end with `*`. Else empty."""
    octets = value.split(".")
    if len(octets) == 4 and all(_OCTET.fullmatch(octet) for octet in octets):
        plain = [octet if octet == "*" else str(int(octet)) for octet in octets]
        return ".".join(plain) if plain != octets else ""
    groups = value.split(":")
    # Hardware addresses and fingerprints have two digits in every group; no IPv6 address is written so.
    if len(groups) < 3 or all(len(group) == 2 for group in groups if group != "*"):
        return ""
    if groups[-1] == "*" and all(_GROUP.fullmatch(group) for group in groups[:-1]):
        plain = [f"{int(group, 16):x}" for group in groups[:-1]]
        return ":".join([*plain, "*"]) if plain != groups[:-1] else ""
    try:
        address = IPv6Address(value)
    except ValueError:
        return ""
    written = f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)
    return written if written != value and any(map(str.isdecimal, value)) else ""


_OCTET: Final = re.compile(r"\*|[01]?[0-9]?[0-9]|2[0-4][0-9]|25[0-5]")
_GROUP: Final = re.compile("[0-9a-fA-F]{1,4}")


_REGEX: Final[Sequence[re.Pattern[str]]] = tuple(
    map(
        re.compile,
        (
            r"^\^(?!=?[0-9][\w.*+-]*$)",  # not the ^1.2 of a version
            r"^/.*\$$",
            r"\.[*+].*\$$",
            r"/\.[*+]",
            r"^\.[*+]",
            r"\[[^\]\s]*(?:0-9|a-z|A-Z|a-f|A-F)[^\]\s]*\]",
            r"\[\^[^\]\s]+\]",
            r"\\[dws](?:\+|\{[0-9])",
            r"\\[./]",
            r"\(\?[:i<=!P]",
            r"\([^()\s|]+(?:\|[^()\s|]+)+\)",
        ),
    )
)
"""Signs of a regular expression. `10.*` and `www.*` are good wildcards, `DOMAIN\\doe` is a user."""

_GLOB: Final[Sequence[re.Pattern[str]]] = tuple(
    map(
        re.compile,
        (
            r"\[![^\]\s]+\]",
            r"^/.*(?:[\w.*-]\[\w{2,}\]|\[\w{2,}\][\w.*-])",  # /user/[id] is a template of a route
            r"\{[^{}\":=\s]*,[^{}\":=\s]*\}",  # {"a":1,"b":2} is JSON
            r"^/[^?=]*\?(?:[/.?]|$)",  # /search?q=* has a query
            r"^[0-9.*?]*\.[0-9.*]*\?[0-9.*?]*$",
            r"^\S*\?\?\S*$",
        ),
    )
)
"""Signs of the globs of shells and other servers."""


def _instead(some: re.Pattern[str], value: str) -> str:
    """The advice what to write: the value with a `*` for each part that is not literal."""
    text = value
    if text.startswith("^"):
        text = text[1:] if text.endswith("$") else f"{text[1:]}*"
    text = some.sub("*", text.removesuffix("$"))
    text = re.sub(r"\*+", "*", re.sub(r"\\(.)", r"\1", text))
    if set(text) & _LEFT_OVER:
        return "write a descriptor for each text that is meant"
    return f"write {_value(text)}, or a descriptor for each text that is meant"


_SOME_OF_REGEX: Final = re.compile(
    r"(?:\[[^\]]*\]|\([^()]*\)|\\[dws]|\.)(?:[*+?]|\{[0-9,]+\})|\[[^\]]*\]|\([^()]*\)|\\[dws]"
)
_SOME_OF_GLOB: Final = re.compile(r"\[[^\]]*\]|\{[^{}]*\}|\?")
_LEFT_OVER: Final = frozenset("^$[](){}|\\+?")


def _value(text: str) -> str:
    return f"value: {quoted(text)}"
