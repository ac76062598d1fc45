"""Bans: descriptors that are refused for a while by order of an operator, whatever the rules say. Pure.

A ban has a domain and entries. It fits every descriptor of that domain that has all these entries, in any order, among
others or alone. An entry of a request has several names, and a ban has any of them: what was sent, an address in its
canonical form, each network that contains it, and what its counter is called. So what a page shows of a request bans
it. Bans are no part of the book: a reload of the rules does not touch them.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from heapq import nlargest
from typing import Any, Final, NamedTuple

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.errors import BanError, TooLongError
from ratelimit_service.model import MAX_WINDOW, NEVER, Decision
from ratelimit_service.rules.address import address_names, canonical_network, from_operator, parse_network
from ratelimit_service.rules.book import Node, RuleBook, all_nodes
from ratelimit_service.rules.descriptor_name import is_cut
from ratelimit_service.rules.pattern_work import PatternWork
from ratelimit_service.rules.problems import printable, quoted, shortened
from ratelimit_service.rules.rule import Entries, Level, Rule, changed_entries, entries_in_words, shared_entries
from ratelimit_service.system.clock import SECOND, Clock, system_clock
from ratelimit_service.system.duration import read_duration
from ratelimit_service.telemetry.logs import about, iso_time

log = logging.getLogger(__name__)

EVERY_DOMAIN: Final = "*"
"""The domain of a ban that holds in all domains."""

FOR_EVER: Final = 2**62
"""The end of a ban that has none."""

MAX_BANS: Final = 10_000
MAX_BYTES: Final = 2_000
"""The most bytes of one ban, as JSON; all of them are at most 20 MB."""
MAX_SHOWN: Final = 20
"""The bans on the page: the last ones made."""
MAX_WHY_LENGTH: Final = 200
MAX_WHO_LENGTH: Final = 100
"""Characters."""

_LATEST: Final = 250_000_000_000 * SECOND
"""The end of a ban that is not for ever: in the year 9892, which a date can still have."""

_FIELDS: Final = frozenset({"domain", "entries", "until", "why", "who", "made", "lifted_by"})


@dataclass(frozen=True, slots=True)
class Ban:
    """One ban. Times are microseconds since the epoch, of whole seconds."""

    domain: str
    entries: Entries
    """Each once, in sorted order, as `canonical` makes them."""
    until: int
    """`FOR_EVER` if it has no end."""
    why: str
    who: str
    """Who made it, as far as that is known."""
    made: int
    lifted_by: str = ""
    """Who ended it before its time. A lifted ban fits nothing: it stays in Redis for a moment, for the log."""

    @property
    def key(self) -> str:
        """The key that identifies it: there is one ban for a domain and a set of entries."""
        return key_of(self.domain, self.entries)

    @property
    def entries_as_text(self) -> list[str]:
        """Each entry as `key=value`."""
        return [entries_in_words((entry,)) for entry in self.entries]

    @property
    def text(self) -> str:
        """It as JSON: in Redis, and in answers. Times are seconds since the epoch, null for ever."""
        return json.dumps(self.as_json(), ensure_ascii=False, separators=(",", ":"))

    def as_json(self) -> dict[str, Any]:
        """It as `read_ban` reads it."""
        found: dict[str, Any] = {
            "domain": self.domain,
            "entries": [{"key": key, "value": value} for key, value in self.entries],
            "until": None if self.until == FOR_EVER else self.until // SECOND,
            "why": self.why,
            "who": self.who,
            "made": self.made // SECOND,
        }
        return found | {"lifted_by": self.lifted_by} if self.lifted_by else found

    def lifted(self, who: str, until: int) -> "Ban":
        """It, ended by `who`; nothing of it has to be kept after `until`."""
        return replace(self, lifted_by=_name(who), until=_whole_seconds(until))

    def __str__(self) -> str:
        return printable(f"{entries_in_words(self.entries)} in {domain_in_words(self.domain)}")


def domain_in_words(domain: str) -> str:
    """`domain shop`, or `every domain`."""
    return "every domain" if domain == EVERY_DOMAIN else f"domain {domain}"


def moment_in_words(until: int) -> str:
    """`until 2026-11-22 13:00:00 UTC`, or `for ever`."""
    if until == FOR_EVER:
        return "for ever"
    return f"until {datetime.fromtimestamp(until // SECOND, UTC):%Y-%m-%d %H:%M:%S} UTC"


def canonical(entries: Iterable[tuple[str, str]]) -> Entries:
    """The entries of a ban, the same for each order and form in which they may be written."""
    return _ordered((key, canonical_network(value)) for key, value in entries)


def _ordered(entries: Iterable[tuple[str, str]]) -> Entries:
    return tuple(sorted(set(entries)))


def hidden(book: RuleBook, domain: str, entries: Entries) -> Entries:
    """The canonical entries of a ban, with digests in place of secret values; a digest stands for its value."""
    return _ordered(_hidden(book, domain, entry) for entry in from_operator(entries))


def _hidden(book: RuleBook, domain: str, entry: tuple[str, str]) -> tuple[str, str]:
    if _is_shared(book, domain, entry):
        return entry  # it names a pattern or a list, which is not a secret
    plain = canonical([entry])
    [found] = book.shown_anywhere(plain) if domain == EVERY_DOMAIN else book.shown(domain, plain)
    return found


def _rules(book: RuleBook, domain: str) -> Sequence[Rule]:
    return book.rules if domain == EVERY_DOMAIN else book.rules_in(domain)


def _is_shared(book: RuleBook, domain: str, entry: tuple[str, str]) -> bool:
    """Whether some rule has a counter of this name, which values share."""
    return any(entry in shared_entries(rule, (entry,) * len(rule.levels)) for rule in _rules(book, domain))


def check_fits(book: RuleBook, domain: str, entries: Entries) -> str:
    """BanError if a ban of these entries can fit nothing. Returns what is to be said of it, or an empty text."""
    note = ""
    for entry in from_operator(entries):
        shown = _hidden(book, domain, entry)
        words = quoted(entries_in_words((shown,)))
        if is_cut(entry):
            raise BanError(f"{words} is cut, because it is too long to show: give the whole value")
        if _is_shared(book, domain, entry):
            continue
        if "*" in entry[1]:
            if (pattern := _pattern(book, domain, "_".join(entry))) is not None:
                instead = f"name one of its values, or write deny: true at {pattern.place}"
                raise BanError(f"{words} is a pattern, whose values do not share a counter: {instead}")
            note = f"a * in a ban stands for itself: {words} fits this value alone"
        [(key, value)] = canonical([entry])
        is_network = "/" in value and parse_network(value) is not None
        if is_network and shown[1] != value and not _is_counted(book, domain, key, value):
            wrong = "are secret, and no rule counts them by a prefix of this length"
            raise BanError(f"the values of {quoted(key)} {wrong}")
    return note


def _pattern(book: RuleBook, domain: str, name: str) -> Node | None:
    """The descriptor with this pattern."""
    roots = book.domains.values() if domain == EVERY_DOMAIN else [book.root(domain)]
    nodes = (node for root in roots if root is not None for node in all_nodes(root))
    return next((node.children[name] for node in nodes if name in node.children), None)


def _is_counted(book: RuleBook, domain: str, key: str, network: str) -> bool:
    """Whether some rule counts addresses by this prefix. A digest does not tell of which length to make others."""
    address = network.partition("/")[0]
    return any(
        level.counted_as is not None and level.counted_as(address) == network
        for rule in _rules(book, domain)
        for level in rule.levels
        if f"{level.name}_".startswith(f"{key}_")
    )


def find_ban(
    bans: "Bans", book: RuleBook, domain: str, entries: Entries, work: PatternWork | None = None
) -> Ban | None:
    """The ban that fits a descriptor of a request: of several the one that ends last."""
    if not (bans.concern(domain) or bans.concern(EVERY_DOMAIN)):
        return None
    try:
        rule = book.match(domain, entries, work)
    except TooLongError:  # as if no rule fits it: a ban of the value itself does
        rule = None
    names = {*entries} if rule is None or not rule.changes_values else {*entries, *changed_entries(rule, entries)}
    for key, value in entries:
        names.update([(key, name) for name in address_names(value, bans.lengths)])
    plain, shared = tuple(names), () if rule is None else tuple(shared_entries(rule, entries))
    own = bans.find(domain, {*book.shown(domain, plain), *shared})
    if not bans.concern(EVERY_DOMAIN):
        return own
    anywhere = bans.find(EVERY_DOMAIN, {*book.shown_anywhere(plain), *shared})
    return max((own, anywhere), key=lambda ban: 0 if ban is None else ban.until)


def key_of(domain: str, entries: Entries) -> str:
    """The key of the ban of these canonical entries."""
    return json.dumps([domain, *entries], ensure_ascii=False, separators=(",", ":"))


def read_length(text: str) -> int:
    """Microseconds that a ban lasts; `FOR_EVER` of `forever` or `ever`. Raises BanError."""
    if text in {"forever", "ever"}:
        return FOR_EVER
    try:
        length = read_duration(text)
    except ValueError as error:
        raise BanError(f"{quoted(text)} {error}, nor forever") from error
    if not SECOND <= length <= MAX_WINDOW:
        raise BanError(f"a ban lasts from a second to 100 years, or for ever, and not {shortened(text)}")
    return length


def make_ban(domain: str, entries: Iterable[tuple[str, str]], *, length: int, why: str, who: str, now: int) -> Ban:
    """The ban that begins `now` and lasts `length`. BanError if it cannot be."""
    until = FOR_EVER if length == FOR_EVER else _whole_seconds(now + length)
    ban = Ban(domain, canonical(entries), until, why.strip(), _name(who), now // SECOND * SECOND)
    _check(ban)
    return ban


def read_ban(text: str | bytes) -> Ban:
    """The ban of this JSON. BanError if it is none."""
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or not found.keys() <= _FIELDS:
            raise BanError("it is not a ban")
        entries = [(entry["key"], entry["value"]) for entry in found["entries"]]
        until, lifted_by = found["until"], found.get("lifted_by", "")
        if not all(isinstance(part, str) for entry in entries for part in entry):
            raise BanError("an entry is not a string")
        ban = Ban(
            found["domain"],
            _ordered(entries),
            FOR_EVER if until is None else until * SECOND,
            found["why"],
            found["who"],
            found["made"] * SECOND,
            lifted_by,
        )
        whole = all(isinstance(number, int) for number in (ban.until, ban.made))
        if not whole or not all(isinstance(one, str) for one in (ban.domain, ban.why, ban.who, lifted_by)):
            raise BanError("a field has the wrong type")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BanError("it is not the JSON of a ban") from error
    _check(ban)
    return ban


def _check(ban: Ban) -> None:
    """Raise BanError if the ban is empty, too large, or cannot be shown."""
    if not ban.domain:
        raise BanError("the domain is empty: name one, or * for every domain")
    if not ban.entries:
        raise BanError("a ban needs an entry, KEY=VALUE: without one it would ban everything")
    if any(not key for key, _ in ban.entries):
        raise BanError("the key of an entry is empty")
    if not ban.why:
        raise BanError("say why: the log and the page show it")
    if len(ban.why) > MAX_WHY_LENGTH or not ban.why.isprintable():
        raise BanError(f"why is one line of at most {MAX_WHY_LENGTH} printable characters")
    if ban.until != FOR_EVER and not 0 < ban.until <= _LATEST:
        raise BanError("its end is not a valid time")
    try:
        size = len(ban.text.encode())
    except UnicodeEncodeError as error:
        raise BanError("it has a character that cannot be written as UTF-8") from error
    if size > MAX_BYTES:
        raise BanError(f"the ban has {size:,} bytes as JSON, the maximum is {MAX_BYTES:,}")


def _name(who: str) -> str:
    return "".join(filter(str.isprintable, who))[:MAX_WHO_LENGTH] or "unknown"


def _whole_seconds(moment: int) -> int:
    """Rounded up."""
    return -(-moment // SECOND) * SECOND


def too_many() -> BanError:
    """The error where a ban would be one too many."""
    return BanError(f"there are {MAX_BANS:,} bans, the maximum: lift some, or write a rule with a list of values")


class BanSummary(NamedTuple):
    """The bans in force as the page shows them."""

    total: int
    newest: Sequence[Ban]


class Denial:
    """The answer to hits of a ban: by one rule and one decision for all, which `Bans.sweep` keeps up to date."""

    __slots__ = ("decision", "rule")

    def __init__(self, ban: Ban, now: int) -> None:
        # Its path is `shop.banned`. It has no name: no rule of the request may replace it.
        self.rule = Rule(ban.domain, (Level("banned"),), None, open_algorithm("fixed_window"), deny=True)
        self.decision = Decision(False, 0, 0, 0, NEVER)
        self.update(ban, now)

    def update(self, ban: Ban, now: int) -> None:
        """Set the time that is left. Plans are cached, so it cannot be set for each request."""
        if ban.until != FOR_EVER:
            self.decision.reset_after = self.decision.retry_after = max(1, ban.until - now)


class Bans:
    """The bans in force, as this process knows them; `on_change` is called after each change."""

    def __init__(self, clock: Clock = system_clock) -> None:
        self.on_change: Callable[[], None] = _noop
        self.clock = clock
        self._swept = 0
        self._summary: BanSummary | None = None
        self.by_key: dict[str, Ban] = {}
        """All of them; only read elsewhere."""
        self._denials: dict[Ban, Denial] = {}
        """Of the bans that some request met."""
        self._by_domain: dict[str, dict[tuple[str, str], list[tuple[Ban, Entries]]]] = {}
        """In each domain by one of the entries: that which had the fewest bans when the ban was put there. They are
        canonical, also where an earlier release, which did not compare addresses, has made the ban."""
        self._counts = Counter[int]()
        """By the length of a prefix, how many entries of bans are networks with such a prefix."""
        self.lengths: Sequence[int] = ()
        """The lengths that some have: a request has a name for each."""

    def __len__(self) -> int:
        """The number of bans."""
        return len(self.by_key)

    def get(self, key: str) -> Ban | None:
        """The ban with this key."""
        return self.by_key.get(key)

    def all(self, domain: str | None = None) -> list[Ban]:
        """All of them, or those of a domain; the last ones made come first."""
        found = [ban for ban in self.by_key.values() if domain is None or ban.domain == domain]
        return sorted(found, key=_made, reverse=True)

    def summary(self) -> BanSummary:
        """The number of bans, and the last ones made; found again after a change alone."""
        if self._summary is None:
            self._summary = BanSummary(len(self), nlargest(MAX_SHOWN, self.by_key.values(), key=_made))
        return self._summary

    def concern(self, domain: str) -> bool:
        """Whether there are any of this domain."""
        return domain in self._by_domain

    def find(self, domain: str, names: set[tuple[str, str]]) -> Ban | None:
        """The ban of this domain that fits a descriptor whose entries have these names: the one that ends last."""
        found: Ban | None = None
        by_entry = self._by_domain.get(domain, {})
        for name in names:
            for ban, entries in by_entry.get(name, ()):
                if (found is None or ban.until > found.until) and names.issuperset(entries):
                    found = ban
        return found

    def denial(self, ban: Ban) -> Denial:
        """The answer to hits of this ban."""
        found = self._denials.get(ban)
        if found is None:
            found = self._denials[ban] = Denial(ban, self.clock())
        return found

    def put(self, ban: Ban, *, quietly: bool = False) -> None:
        """Enforce a ban from now on, in place of the one with the same key; logged, unless `quietly`."""
        key = ban.key
        before = self.by_key.get(key)
        if before == ban:
            return
        if before is not None:
            self._remove(before)
        self.by_key[key] = ban
        by_entry = self._by_domain.setdefault(ban.domain, {})
        entries = canonical(ban.entries)
        buckets = [by_entry.setdefault(entry, []) for entry in entries]
        min(buckets, key=len).append((ban, entries))
        self._count_lengths(entries, 1)
        if not quietly:
            log_ban(ban)
        self._changed()

    def drop(self, key: str, reason: str) -> Ban | None:
        """End the ban with this key, and log it with the reason; returns it, or None if there is none."""
        ban = self.by_key.get(key)
        if ban is not None:
            self._remove(ban)
            fields = about(
                "ban_ended", domain=ban.domain, entries=ban.entries_as_text, made=iso_time(ban.made), reason=reason
            )
            log.info("no longer banned: %s, %s", ban, printable(reason), extra=fields)
            self._changed()
        return ban

    def sweep(self) -> None:
        """End the bans whose time is over, and tell the others' decisions how much is left; once a second at most."""
        now = self.clock()
        if 0 <= now - self._swept < SECOND or not self.by_key:
            return
        self._swept = now
        for ban in [ban for ban in self.by_key.values() if ban.until <= now]:
            self.drop(ban.key, f"its time is over; it was banned by {ban.who}: {ban.why}")
        for ban, denial in self._denials.items():
            denial.update(ban, now)

    def _changed(self) -> None:
        self._summary = None
        self.on_change()

    def _remove(self, ban: Ban) -> None:
        del self.by_key[ban.key]
        self._denials.pop(ban, None)
        by_entry = self._by_domain[ban.domain]
        entries = canonical(ban.entries)
        self._count_lengths(entries, -1)
        for entry in entries:
            bucket = by_entry.get(entry, [])
            if (ban, entries) in bucket:
                bucket.remove((ban, entries))
            if not bucket:
                by_entry.pop(entry, None)
        if not by_entry:
            del self._by_domain[ban.domain]

    def _count_lengths(self, entries: Entries, times: int) -> None:
        for _, value in entries:
            if "/" in value and (network := parse_network(value)) is not None:
                self._counts[network.bits] += times
        self.lengths = sorted((+self._counts).keys())


def log_ban(ban: Ban) -> None:
    """The log line of a ban that holds from now on."""
    fields = about(
        "banned",
        domain=ban.domain,
        entries=ban.entries_as_text,
        until=None if ban.until == FOR_EVER else iso_time(ban.until),
        who=ban.who,
        why=ban.why,
        made=iso_time(ban.made),
    )
    words = moment_in_words(ban.until)
    log.info("banned: %s %s by %s: %s", ban, words, *map(printable, (ban.who, ban.why)), extra=fields)


def _noop() -> None:
    """A callback that does nothing."""


def _made(ban: Ban) -> int:
    return ban.made
