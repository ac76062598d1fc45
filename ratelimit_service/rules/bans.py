"""Bans: descriptors that are refused for a while by order of an operator, whatever the rules say. Pure.

A ban has a domain and entries. It fits every descriptor of that domain that has all these entries, in any order, among
others or alone. Bans are no part of the book: a reload of the rules does not touch them.
"""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from heapq import nlargest
from typing import Any, Final, NamedTuple

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.errors import BanError
from ratelimit_service.model import MAX_WINDOW, NEVER, Decision
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.report import printable, quoted, shortened
from ratelimit_service.rules.rule import Entries, Level, Rule, entries_in_words
from ratelimit_service.rules.secret import from_operator
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
"""Of one ban, as JSON; all of them are at most 20 MB."""
MAX_SHOWN: Final = 20
"""On the page: the last ones made."""
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
        """What identifies it: there is one ban for a domain and a set of entries."""
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
    """The entries of a ban, the same for each order in which they may be written."""
    return tuple(sorted(set(entries)))


def hidden(book: RuleBook, domain: str, entries: Entries) -> Entries:
    """The canonical entries of a ban, with digests in place of secret values; a digest stands for its value."""
    entries = from_operator(entries)
    return canonical(book.shown_anywhere(entries) if domain == EVERY_DOMAIN else book.shown(domain, entries))


def find_ban(bans: "Bans", book: RuleBook, domain: str, entries: Entries) -> Ban | None:
    """The ban that fits a descriptor of a request."""
    return bans.find(domain, book.shown(domain, entries), book.shown_anywhere(entries))


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
            raise BanError("an entry of it is no text")
        ban = Ban(
            found["domain"],
            canonical(entries),
            FOR_EVER if until is None else until * SECOND,
            found["why"],
            found["who"],
            found["made"] * SECOND,
            lifted_by,
        )
        whole = all(isinstance(number, int) for number in (ban.until, ban.made))
        if not whole or not all(isinstance(one, str) for one in (ban.domain, ban.why, ban.who, lifted_by)):
            raise BanError("a field of it has another type")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BanError("it is not the JSON of a ban") from error
    _check(ban)
    return ban


def _check(ban: Ban) -> None:
    """Raise BanError if the ban is empty, too large, or cannot be shown."""
    if not ban.domain:
        raise BanError("the domain is empty: name one, or * for every domain")
    if not ban.entries:
        raise BanError("a ban needs an entry, KEY=VALUE: without one it would be of everything")
    if any(not key for key, _ in ban.entries):
        raise BanError("the key of an entry is empty")
    if not ban.why:
        raise BanError("say why: the log and the page show it")
    if len(ban.why) > MAX_WHY_LENGTH or not ban.why.isprintable():
        raise BanError(f"why is one line of at most {MAX_WHY_LENGTH} printable characters")
    if ban.until != FOR_EVER and not 0 < ban.until <= _LATEST:
        raise BanError("it ends at a time that does not exist")
    try:
        size = len(ban.text.encode())
    except UnicodeEncodeError as error:
        raise BanError("it has a character that UTF-8 does not have") from error
    if size > MAX_BYTES:
        raise BanError(f"the ban has {size:,} bytes as JSON, and the most is {MAX_BYTES:,}")


def _name(who: str) -> str:
    return "".join(filter(str.isprintable, who))[:MAX_WHO_LENGTH] or "unknown"


def _whole_seconds(moment: int) -> int:
    """Rounded up."""
    return -(-moment // SECOND) * SECOND


def too_many() -> BanError:
    """The error where a ban would be one too many."""
    return BanError(
        f"there are {MAX_BANS:,} bans, the most there may be: lift some, or write a rule with a list of values"
    )


class BanSummary(NamedTuple):
    """What the page shows of the bans in force."""

    total: int
    newest: Sequence[Ban]


class Denial:
    """How the hits of a ban are answered: by one rule and one decision for all, which `Bans.sweep` keeps up to date."""

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
        self._by_key: dict[str, Ban] = {}
        self._denials: dict[Ban, Denial] = {}
        """Of the bans that some request met."""
        self._by_domain: dict[str, dict[tuple[str, str], list[Ban]]] = {}
        """In each domain by one of the entries: that which had the fewest bans when the ban was put there."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self._by_key)

    def get(self, key: str) -> Ban | None:
        """The ban with this key."""
        return self._by_key.get(key)

    def all(self, domain: str | None = None) -> list[Ban]:
        """All of them, or those of a domain; the last ones made come first."""
        found = [ban for ban in self._by_key.values() if domain is None or ban.domain == domain]
        return sorted(found, key=_made, reverse=True)

    def summary(self) -> BanSummary:
        """How many there are, and the last ones made; found again after a change alone."""
        if self._summary is None:
            self._summary = BanSummary(len(self), nlargest(MAX_SHOWN, self._by_key.values(), key=_made))
        return self._summary

    def find(self, domain: str, entries: Entries, anywhere: Entries | None = None) -> Ban | None:
        """The ban that fits a descriptor with these entries: of several the one that ends last.

        Bans of every domain are compared with the entries `anywhere`, if they are given.
        """
        found: Ban | None = None
        for of_domain, shown in ((domain, entries), (EVERY_DOMAIN, entries if anywhere is None else anywhere)):
            by_entry = self._by_domain.get(of_domain)
            if by_entry is None:
                continue
            for entry in shown:
                for ban in by_entry.get(entry, ()):
                    if (found is None or ban.until > found.until) and set(ban.entries).issubset(shown):
                        found = ban
        return found

    def denial(self, ban: Ban) -> Denial:
        """How the hits of this ban are answered."""
        found = self._denials.get(ban)
        if found is None:
            found = self._denials[ban] = Denial(ban, self.clock())
        return found

    def put(self, ban: Ban, *, quietly: bool = False) -> None:
        """Enforce a ban from now on, in place of the one with the same key; logged, unless `quietly`."""
        key = ban.key
        before = self._by_key.get(key)
        if before == ban:
            return
        if before is not None:
            self._remove(before)
        self._by_key[key] = ban
        by_entry = self._by_domain.setdefault(ban.domain, {})
        buckets = [by_entry.setdefault(entry, []) for entry in ban.entries]
        min(buckets, key=len).append(ban)
        if not quietly:
            log_ban(ban)
        self._changed()

    def drop(self, key: str, reason: str) -> Ban | None:
        """End the ban with this key, and log it with the reason; returns it, or None if there is none."""
        ban = self._by_key.get(key)
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
        if 0 <= now - self._swept < SECOND or not self._by_key:
            return
        self._swept = now
        for ban in [ban for ban in self._by_key.values() if ban.until <= now]:
            self.drop(ban.key, f"its time is over; it was banned by {ban.who}: {ban.why}")
        for ban, denial in self._denials.items():
            denial.update(ban, now)

    def _changed(self) -> None:
        self._summary = None
        self.on_change()

    def _remove(self, ban: Ban) -> None:
        del self._by_key[ban.key]
        self._denials.pop(ban, None)
        by_entry = self._by_domain[ban.domain]
        for entry in ban.entries:
            bucket = by_entry.get(entry, [])
            if ban in bucket:
                bucket.remove(ban)
            if not bucket:
                by_entry.pop(entry, None)
        if not by_entry:
            del self._by_domain[ban.domain]


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
