"""A rule: one limit of the rules file, with everything about it that is known when the file is read."""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ratelimit_service.algorithms import Algorithm, open_algorithm
from ratelimit_service.model import NEVER, Limit, RegionMode, Regions
from ratelimit_service.rules.problems import Place
from ratelimit_service.rules.secret import NO_SECRETS, Secrets
from ratelimit_service.system.clock import duration_in_words
from ratelimit_service.telemetry.gauges import LEASED, Measured
from ratelimit_service.telemetry.reservations import NO_RESERVATIONS, Reservations
from ratelimit_service.telemetry.tally import Path, Scale, Tallies, Tally

Entries = tuple[tuple[str, str], ...]

_MAX_NAMES = 300
"""Characters of the levels in `name_prefix`."""

ALONE, LIST, REQUEST, FIRST = 0, 1, 2, 3
"""The bundle that a limit belongs to; all hits of a bundle are charged, or none. ALONE: no bundle. LIST: the limits of
the same list. REQUEST: all limits of the request that have REQUEST too. FIRST: the limits of the same list, of which
the first that has room is charged, and no other one."""


RULED, NO_COUNTER, QUEUES, REPLACES, RESERVES = 1, 2, 4, 8, 16
"""Traits of a rule, or of all rules of a request, as bits. RULED: there is a rule. NO_COUNTER: some rule has no limit.
QUEUES: a request may have to wait for its turn. REPLACES: some limit does not count beside another one. RESERVES: some
limit is charged what a request may cost."""


class Address(str):
    """An address or a prefix as it is counted, in its canonical text; or the digest of one. A text is never one."""

    __slots__ = ()


class Level(NamedTuple):
    """One level of descriptors on the path to a rule: its part in the rule's name and in the keys of its counters."""

    name: str
    """The level's name in metrics: `key`, `key_value` or `key_pattern`."""
    shared: str | None = None
    """With `share_threshold`, the pattern of the value: all values that match it share one counter."""
    by_value: bool = False
    """In metrics this level has the request's value, not the rule's."""
    counted_as: Callable[[str], str] | None = None
    """The value of a request as it is counted, and as pages, logs and metrics show it, an `Address` or a text; None: as
    it is. Of a secret value a digest is made afterwards (`Rule.secrets`)."""
    key_only: bool = False
    """Its descriptor has a key, but nothing that is compared with values."""
    key: str = ""
    """The key of its descriptor, if values share a counter there, or if only values of this key are counted as others:
    an entry that a lookup has changed came with another one."""
    mark: str = ""
    """What tells its addresses from those of other descriptors of the level, where two may count the same prefix."""
    as_envoyproxy: bool = True
    """envoyproxy/ratelimit has such a descriptor, and counts its values in the same way."""
    several: bool = False
    """Its descriptor fits more values than one."""

    @property
    def counts_prefixes(self) -> bool:
        """Whether addresses are counted by their prefixes."""
        return self.counted_as is not None and not self.key


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One limit. A rule without a limit (`limit` is None) has no counters: it denies always (`deny`), or never."""

    domain: str
    levels: tuple[Level, ...]
    limit: Limit | None
    algorithm: Algorithm
    name: str = ""
    replaces: frozenset[str] = frozenset()
    deny: bool = False
    """It denies always, and has no limit."""
    retry_after: int = NEVER
    """The microseconds that one that denies always tells to wait."""
    shadow: bool = False
    quota: bool = False
    detailed: bool = False
    """With `detailed_metric`, metrics have empty values too."""
    metadata: Mapping[str, Any] | None = None
    place: Place | None = None
    near: int = 0
    """A hit counts as near the limit when more than this much is used."""
    together: int = ALONE
    """`ALONE`, `LIST`, `REQUEST` or `FIRST`."""
    beside: tuple["Rule", ...] = ()
    """The other limits of the same descriptor; only its first rule has them."""
    holder: int = -1
    """The index of the entry that names the holder of places, of a limit of places and those beside it in a list; of
    others -1. That level is shared: the name is in no key of a counter."""
    quota_unit: str = "requests"
    """What the limit counts, for the header RateLimit-Policy."""
    on_store_failure: str = ""
    """The store policy of the rule; empty: the policy of the settings."""
    lease: int = 0
    """The most units of a counter that an instance may hold, charged in Redis in advance; 0 for none."""
    regions: str = ""
    """What is written of regions, such as `leased, floor 10%`; `limit.regions` is what becomes of it here."""
    path_suffix: Path = ()
    """The last element of the path, such as `per_minute`, of a limit in a list; else empty."""
    tally: Tally = field(default_factory=Tally)
    tallies: Tallies | None = None
    """The tallies by value, for a rule whose metrics have values of requests in their names."""
    measured: Measured | None = None
    """What is measured of it beside what its tally counts, if it has a queue, is of places, is elastic, or reserves."""
    override: bool = False
    """The limit came with the request."""
    counter_domain: str = ""
    """The domain in the keys of its counters; of a rule of domain `*` that of the request."""
    default: bool = False
    """The limit of its domain for what no descriptor fits. Its one level, `default`, stands for all entries."""
    secrets: Secrets = NO_SECRETS
    """Of the domain."""
    pool: str = ""
    """The name of the pool that it stands for. Such a rule fits no request: its counter is charged by the members."""
    scale: Scale = field(init=False)
    key_prefix: str = field(init=False)
    """The prefix of the keys of the rule's counters."""
    key_suffix: str = field(init=False)
    """The suffix of these keys."""
    name_prefix: str = field(init=False)
    """The prefix of the names of its descriptors among the hottest: its levels, after a `|` if it is of domain `*`."""
    names_levels: bool = field(init=False)
    """Whether its keys have the name of some level: values share a counter there, or are counted as others."""
    changes_values: bool = field(init=False)
    """Whether some level counts a value as another one."""
    traits: int = field(init=False)
    """What a request has to do for it, and those beside it."""
    common_key: str = field(init=False)
    """The key of the second counter that its limit has in common with others, such as a pool's, or for which it stands;
    empty without one."""
    shares_slot: bool = field(init=False)
    """Its counters are in one slot of a Cluster with others: it is charged together with them, or with that one."""

    def __post_init__(self) -> None:
        limit = self.limit
        set_once = object.__setattr__  # frozen
        if limit is not None:
            drops = not limit.count_refused and limit.kind.in_windows and not limit.kind.reserves
            set_once(self, "scale", Scale(self.near, limit.capacity, limit.most, drops))
        else:
            set_once(self, "scale", Scale(0, 0, 0))
        changes_values = any(level.counted_as is not None for level in self.levels)
        set_once(self, "changes_values", changes_values)
        own = limit is not None and limit.kind.max_delay > 0
        if self.measured is None and limit is not None and (limit.kind.gauges or limit.kind.reserves):
            set_once(self, "measured", Measured())
        traits = RULED | (NO_COUNTER if limit is None else QUEUES if own else 0) | (REPLACES if self.replaces else 0)
        traits |= RESERVES if limit is not None and limit.kind.reserves else 0
        for each in self.beside:
            traits |= each.traits
        set_once(self, "traits", traits)
        set_once(self, "names_levels", changes_values or any(level.shared is not None for level in self.levels))
        if not self.counter_domain:
            set_once(self, "counter_domain", self.domain)
        set_once(self, "key_prefix", _prefix_of(self.counter_domain))
        # Limits of such a list may be alike but for their names.
        own_end = f"/first/{escaped(self.name)}" if self.together == FIRST else ""
        set_once(self, "key_suffix", "" if limit is None else limit.key_suffix(self.algorithm.name) + own_end)
        set_once(self, "common_key", "" if limit is None else _common_key_of(self.key_prefix, self.pool, limit))
        set_once(self, "shares_slot", self.together != ALONE or self.common_key != "")
        names = "|".join(map(escaped, self.path[1:]))
        set_once(self, "name_prefix", f"{'|' if self.counter_domain != self.domain else ''}{names[:_MAX_NAMES]}||")

    @property
    def reservations(self) -> Reservations:
        """What became of its reservations."""
        sums = None if self.measured is None else self.measured.reservations
        return NO_RESERVATIONS if sums is None else sums.read()

    @property
    def path(self) -> Path:
        """The rule's name in metrics and on pages: the domain, each level, and of several limits the window."""
        return (self.domain, *(level.name for level in self.levels), *self.path_suffix)

    def __repr__(self) -> str:
        return f"<Rule {'.'.join(self.path)} at {self.place}>"


def may_refuse(rule: Rule) -> bool:
    """Whether a request may be refused for it, or for one beside it."""
    return any((each.deny or each.limit is not None) and not each.shadow for each in (rule, *rule.beside))


def gauge_names(rule: Rule) -> Sequence[str]:
    """The names of the gauges that say more of the rule than what it has counted."""
    limit = rule.limit
    if limit is None:
        return ()
    if rule.lease:
        return LEASED
    return limit.kind.gauges


def counted_in(rule: Rule, domain: str) -> Rule:
    """A rule of domain `*` as it is for requests for this domain: with counters of their own, and the same tally."""
    return replace(rule, counter_domain=domain, beside=tuple(counted_in(each, domain) for each in rule.beside))


def with_limit(rule: Rule, limit: Limit, near: int, tally: Tally) -> Rule:
    """A rule of a limit that came with a request, with another such limit and its own tally.

    In a third of the time that a new one takes, as a request may bring a limit with each descriptor.
    """
    made = object.__new__(Rule)
    for put, value in zip(_SETTERS, _values_of(rule), strict=True):
        put(made, value)
    set_once = object.__setattr__  # frozen
    set_once(made, "limit", limit)
    set_once(made, "near", near)
    set_once(made, "tally", tally)
    set_once(made, "scale", Scale(near, limit.requests, limit.requests))
    set_once(made, "key_suffix", limit.key_suffix(rule.algorithm.name))
    return made


_values_of: Final = attrgetter(*(each.name for each in fields(Rule)))
_SETTERS: Final = tuple(getattr(Rule, each.name).__set__ for each in fields(Rule))
"""Of slots: faster than by name."""


def counted_entries(rule: Rule, entries: Entries) -> Entries:
    """The entries of a request as the rule counts them: `counter_key` takes these."""
    if rule.changes_values:
        entries = changed_entries(rule, entries)
    return rule.secrets.hide(entries) if rule.secrets.keys else entries


def changed_entries(rule: Rule, entries: Entries) -> Entries:
    """The entries with the values as which a rule that changes values counts them; no secret is hidden yet."""
    return tuple(
        [
            entry
            if level.counted_as is None or level.key not in ("", entry[0])
            else (entry[0], level.counted_as(entry[1]))
            for level, entry in zip(rule.levels, entries, strict=True)
        ]
    )


def shared_entries(rule: Rule, entries: Entries) -> Iterator[tuple[str, str]]:
    """The entries, with the one that stands for all in place of each whose values share a counter."""
    for level, (key, _) in zip(rule.levels, entries, strict=False):  # a default has one level for all entries
        if level.shared is not None and not rule.default:
            yield level.key or key, level.shared


def metric_entries(rule: Rule, entries: Entries, matched: Entries, counted: Entries) -> Entries:
    """The entries as `tally_of` and `metric_path` take them: what a lookup made of them, or as they are counted.

    What is looked up is often a secret, and has too many values for a metric; `detailed_metric` shows it all the same.
    """
    if matched is entries or rule.detailed:
        return counted
    return tuple(
        [
            looked if looked is not entry else plain
            for entry, looked, plain in zip(entries, matched, counted, strict=True)
        ]
    )


def tally_of(rule: Rule, entries: Entries) -> Tally:
    """The tally that counts hits of this rule by these entries."""
    tallies = rule.tallies
    if tallies is None:
        return rule.tally
    return tallies.of(metric_path(rule, entries))


def metric_path(rule: Rule, entries: Entries) -> Path:
    """The name in metrics of a hit of this rule by these entries."""
    if rule.default:
        values = [f"{key}_{value}" for key, value in entries] if rule.levels[0].by_value else ()
        return (rule.domain, rule.levels[0].name, *values, *rule.path_suffix)
    return (
        rule.domain,
        *(
            level.name if not level.by_value else f"{key}_{value}" if value or rule.detailed else key
            for level, (key, value) in zip(rule.levels, entries, strict=True)
        ),
        *rule.path_suffix,
    )


def override_path(domain: str, entries: Entries) -> Path:
    """The name in metrics of a hit of a limit that came with the request; `entries` as they are shown."""
    return (domain, *(f"{key}_{value}" if value else key for key, value in entries))


def counter_key(rule: Rule, entries: Entries) -> str:
    """The key of the counter of this rule and these entries.

    It is unique for a rule and a list of entries, with one exception: as in envoyproxy, a limit that a request brings
    uses the counter of the rule that it overrides, if that counts in a fixed window of the same length.

    Separators are escaped inside the parts. A shared level is written with `~` and the level's name, which cannot be
    taken for a value; not with the pattern, because one pattern may occur twice at one level, below `a*` and `a`. An
    address that is counted in its canonical form, or by its prefix, has `~=` in place of `=`: `value: 10.0.0.1` fits
    this text alone, and a list `::ffff:10.0.0.1` too. Which list or network it fits is not in the key, so that a list
    may change: an address fits the same one however it is written. Only a prefix may have addresses that fit several;
    these have a mark each, after the `~`.

    The suffix has the algorithm, the window, and everything else that changes the meaning of a state. It does not have
    the limit itself, so a changed limit keeps its counters. A very long key is replaced by its digest, so that the size
    of a counter does not depend on what clients send.
    """
    key = rule.key_prefix
    if not rule.names_levels:
        for name, value in entries:
            if len(value) > MAX_KEY_LENGTH or len(name) > MAX_KEY_LENGTH:
                return _digest(_plain_parts(rule, entries), rule)
            # Most need no escape. This test takes 0.03 µs, the escape 0.15 µs.
            safe_name = name if name.isidentifier() else escaped(name)
            key += f"|{safe_name}={value if value.isalnum() else escaped(value)}"
    elif rule.default:
        return f"{key}|~{rule.levels[0].name}{rule.key_suffix}"
    else:
        for level, (name, value) in zip(rule.levels, entries, strict=True):
            if len(value) > MAX_KEY_LENGTH or len(name) > MAX_KEY_LENGTH:
                return _digest(_plain_parts(rule, entries), rule)
            if level.shared is not None:
                key += f"|{escaped(level.key or name)}~{escaped(level.name)}"
            elif level.counted_as is not None and value.__class__ is Address:
                key += f"|{escaped(name)}~{escaped(level.mark)}={escaped(value)}"
            else:
                key += f"|{escaped(name)}={escaped(value)}"
    return _digest(key, rule) if len(key) > MAX_KEY_LENGTH else key + rule.key_suffix


def _digest(key: str, rule: Rule) -> str:
    return f"{rule.key_prefix}|%{sha256(key.encode()).hexdigest()}{rule.key_suffix}"


def _plain_parts(rule: Rule, entries: Entries) -> str:
    """The text that a digest is made of: as unambiguous as the escaped key, in a tenth of the time."""
    parts = [rule.counter_domain]
    for index, (name, value) in enumerate(entries):
        level = rule.levels[index] if rule.names_levels else None
        if level is not None and level.shared is not None:
            parts += (level.key or name, "~", level.name)
        elif level is not None and level.counted_as is not None and value.__class__ is Address:
            parts += (name, "~=", level.mark, value)
        else:
            parts += (name, "=", value)
    return "".join([f"{len(part)}:{part}" for part in parts])


def _prefix_of(domain: str) -> str:
    # No escape has two percent signs in a row.
    return escaped(domain) if len(domain) <= MAX_KEY_LENGTH else f"%%{sha256(domain.encode()).hexdigest()}"


def escaped(text: str) -> str:
    """The text with the separators of a key escaped."""
    # 4 times as fast as str.translate, and 40 times for text that is not ASCII.
    if "%" in text:
        text = text.replace("%", "%25")
    if "|" in text:
        text = text.replace("|", "%7C")
    if "=" in text:
        text = text.replace("=", "%3D")
    if "~" in text:
        text = text.replace("~", "%7E")
    return text


def _common_key_of(key_prefix: str, pool: str, limit: Limit) -> str:
    name = pool or limit.kind.common
    # Every entry of a counter's key has = or ~ in it; here there is none.
    return f"{key_prefix}|{escaped(name)}|{POOL}/{limit.window}" if name else ""


POOL: Final = "pool"
"""The word in place of an algorithm, in the key of a pool."""


def pool_rule(domain: str, pool: str, counter: Limit, place: Place | None = None) -> Rule:
    """The rule that stands for the pool with this name and counter, for looking at it."""
    level = Level(f"pool {pool}")
    return Rule(domain, (level,), counter, open_algorithm("token_bucket"), place=place, pool=pool)


def _regions_in_words(regions: Regions) -> str:
    """`split, of 100 for 3 regions`, or `leased, for 3 regions, with a floor of 10 each`."""
    if regions.mode is RegionMode.SPLIT:
        return f"split, of {regions.whole:,} for {regions.number} regions"
    floor = "" if regions.floor is None else f", with a floor of {regions.floor.requests:,} each"
    return f"{regions.mode}, for {regions.number} regions{floor}"


def near_threshold(requests: int, ratio: float) -> int:
    """The use of a limit above which a hit counts as near it. Computed in 32-bit floats, as envoyproxy does."""
    return int(_float32(_float32(requests) * _float32(ratio)))


def _float32(number: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


MAX_KEY_LENGTH = 500
"""The most characters of a key; a longer one is replaced by its digest."""


def limit_in_words(limit: Limit | None) -> str:
    """`10 requests per minute`."""
    if limit is None:
        return "unlimited"
    if limit.requests == 0:
        return f"no requests at all ({amount_in_words(limit)})"
    return f"{plural(limit.requests, 'request')} {per_window(limit)}"


def amount_in_words(limit: Limit) -> str:
    """`10 per minute`, or `50 at once`."""
    return f"{limit.requests:,} {per_window(limit)}"


def per_window(limit: Limit) -> str:
    """`per minute`, or `at once`."""
    return f"per {limit.window_in_words}" if limit.kind.in_windows else "at once"


def rule_in_words(rule: Rule) -> str:
    """The limit of a rule in words, or `always denied`."""
    if not rule.deny:
        return limit_in_words(rule.limit)
    if rule.retry_after == NEVER:
        return "always denied"
    return f"always denied, with a retry after {duration_in_words(rule.retry_after)}"


def rule_in_full(rule: Rule) -> str:
    """The limit of a rule in words, and how it is counted: `5 requests per minute (token bucket, burst 10)`."""
    counting = counting_in_words(rule)
    return f"{rule_in_words(rule)} ({', '.join(counting)})" if counting else rule_in_words(rule)


def entries_in_words(entries: Entries) -> str:
    """`plan=free user=ada`, as on the command line."""
    return " ".join(f"{key}={value}" for key, value in entries)


def plural(number: int, noun: str) -> str:
    """`1 rule`, or `2,000 rules`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def counting_in_words(rule: Rule) -> list[str]:
    """The algorithm and the options of a rule, as far as they differ from Envoy's way of counting."""
    return list(_counting(rule))


def _counting(rule: Rule) -> Iterator[str]:
    limit = rule.limit
    if limit is None:
        return
    algorithm = rule.algorithm.name
    fixed = algorithm == "fixed_window"
    words = {
        "algorithm": "" if fixed else algorithm.replace("_", " "),
        "burst": f"burst {limit.burst:,}" if limit.burst else "",
        "parts": f"{limit.parts} parts" if algorithm == "sub_windows" else "",
        "anchor": "from the first request" if limit.first_request else "",
        "count_refused": ""
        if limit.count_refused == fixed or rule.together == FIRST
        else "refused count too"
        if limit.count_refused
        else "refused do not count",
        "exceed": f"may exceed by {limit.exceed:,}" if limit.exceed else "",
        **limit.kind.words(limit, rule.levels[rule.holder].name if rule.holder >= 0 else ""),
    }
    yield from filter(None, words.values())
    if rule.together == REQUEST:
        yield "charged together"
    if rule.together == FIRST:
        yield "charged if it is the first with room"
    if rule.quota_unit != limit.kind.counts:
        yield f"of {rule.quota_unit}"
    yield from _storing(rule, limit)


def _storing(rule: Rule, limit: Limit) -> Iterator[str]:
    if rule.on_store_failure:
        yield f"{rule.on_store_failure} without Redis"
    if limit.regions is not None:
        yield _regions_in_words(limit.regions)
    if rule.lease:
        yield f"leases of up to {rule.lease:,}"
