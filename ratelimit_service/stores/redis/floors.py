"""The share of a limit that a region has as its floor, as the register at home says. Pure; times are of home's clock.

A region may spend its floor without asking, so home must not lease it out. But regions are never changed all at once:
while one runs with other rules than the next one, or with another list of regions, each would leave another share to
the others. So home has a *register*, of which a *record* says with which shares a region runs. What is leased is what
the register leaves, whatever the rules of the process say that asks. And a region has of its floor what its record has
been granted:

==============================  =======================================================================================
a region's share                is granted
==============================  =======================================================================================
of a rule that no record has     at once
as all others say it is, who    at once: they have kept it free since they have the rule
have the same rule and regions
no larger than one it has       at once
larger                          when what was leased without regard to it counts no more: `Share.lapse` after there
                                was room for it, beside all that is in the register
==============================  =======================================================================================

A record counts as long as a process of its region tells it. When its region tells only others, or when those of other
regions have begun later and do not know its region, its shares are kept free until what may have been allowed by them
counts no more. A region that tells nothing may be cut off, and has what it had.

Laws: what is leased, and all floors that are granted, are never more than the limit. Without a change all that is
granted is what the rules say.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from json import dumps
from typing import Final, NamedTuple

from ratelimit_service.algorithms.kinds import leased
from ratelimit_service.algorithms.lease import leasing
from ratelimit_service.model import Limit
from ratelimit_service.rules.rule import Rule, escaped
from ratelimit_service.system.clock import SECOND

FRESH: Final = 10 * SECOND
"""The time for which a process goes by what it has read, and after which a record counts as told no more."""

MOST: Final = 99
"""Percent of a limit that are kept free at once: something is to be leased out."""

_NEVER: Final = -1
"""A number in place of a moment: there is no room for it yet, or it has ended."""


class Share(NamedTuple):
    """The floor of a rule."""

    percent: int
    """Of the limit; 0 without a floor."""
    lapse: int
    """The time until nothing counts that was leased or allowed before, with the time for which others may not know."""
    requests: int
    """Of the limit, as is the burst. No share follows from them, but what is given back of a bucket does."""
    burst: int


Shares = Mapping[str, Share]
"""The shares by the names of rules."""


class Grant(NamedTuple):
    """The time when a share is granted that was not at once."""

    moment: int
    """Or `_NEVER`."""
    before: int
    """Percent that are granted until then."""


_NOTHING: Final = Grant(_NEVER, 0)


class Record(NamedTuple):
    """A region, as some of its processes tell it."""

    region: str
    redis: str
    """A name of what its Redis has: of two regions by one name there are two."""
    shares: str
    """The digest of them and of the list of regions."""
    since: int
    """When its region began to tell it."""
    steady: int
    """Since when it is told without a pause."""
    told: int
    """Last."""
    regions: tuple[str, ...]
    """The list of them, in its order."""
    grants: Mapping[str, Grant]
    """By the names of rules; the shares of all others were granted at once."""
    changed: Mapping[str, int]
    """When the last region gave up another limit of these rules."""


@dataclass(slots=True, eq=False)
class Register:
    """The register as it was read."""

    now: int
    records: Sequence[Record]
    shares: Mapping[str, Shares]
    """By their digests."""

    def kept(self, rule: str, regions: Collection[str], percent: int) -> Mapping[str, int]:
        """The percent to be kept free for each region; for those of the list without a record so many percent."""
        kept: dict[str, int] = {}
        for record, share in self._having(rule):
            kept[record.region] = max(kept.get(record.region, 0), _kept(record, rule, share))
        for region in regions:
            if region not in kept and sum(kept.values()) + percent <= MOST:
                kept[region] = percent
        return kept

    def granted(self, rule: str, region: str, now: int) -> int:
        """The percent of its floor that a region has at a time."""
        having = ((record, share) for record, share in self._having(rule) if record.region == region)
        return max((_granted(record, rule, share, now) for record, share in having if self._is_told(record)), default=0)

    def is_steady(self, rule: str, now: int) -> bool:
        """Whether a unit of a bucket counts as much at home as when any was leased that is not spent."""
        having = self._having(rule)
        moments = [grant.moment - share.lapse for record, share in having if (grant := record.grants.get(rule))]
        moments += [record.changed.get(rule, 0) for record in self.records]
        lapse = max((share.lapse for _, share in having), default=0)
        limits = {(share.requests, share.burst) for _, share in having}
        return len(limits) < 2 and now > max(moments, default=0) + lapse

    def record(self, own: Record, shares: Shares) -> Record:
        """The record when it is told now, for the first time or again."""
        before = self.find(own)
        return own._replace(
            since=self.now if before is None else before.since,
            steady=before.steady if before is not None and before.told >= self.now - FRESH else self.now,
            told=self.now,
            grants=self._grants(own, shares),
            changed={} if before is None else before.changed,
        )

    def find(self, own: Record) -> Record | None:
        """The record as it is in the register."""
        return next((record for record in self.records if _same(record, own)), None)

    def ended(self, own: Record) -> Sequence[tuple[Record, Record | None]]:
        """Entries that keep less free than they say, each with what it is then: None if it keeps nothing."""
        found: list[tuple[Record, Record | None]] = []
        for record in self.records:
            since = self._ends(record)
            if not since or _same(record, own):
                continue
            kept = {rule: _kept(record, rule, share) for rule, share in self.shares[record.shares].items()}
            needed, over = set[str](), set[str]()
            for rule, share in self.shares[record.shares].items():
                if kept[rule]:
                    is_over = kept[rule] <= self._told_instead(rule, record) or self.now > since + share.lapse
                    (over if is_over else needed).add(rule)
            if not needed:
                found.append((record, None))
            elif over:
                found.append((record, record._replace(grants={**record.grants, **dict.fromkeys(over, _NOTHING)})))
        return found

    def same_name(self, own: Record) -> bool:
        """Another region is told by the same name, and not only what was there before a Redis began empty."""
        since = max(own.since + FRESH, self.now - FRESH)
        return any(
            record.region == own.region and record.redis != own.redis and record.told > since for record in self.records
        )

    def other_lists(self, own: Record) -> Sequence[Record]:
        """Entries that are told with another list of regions."""
        return [record for record in self.records if record.told > self.now - FRESH and record.regions != own.regions]

    def _grants(self, own: Record, shares: Shares) -> Mapping[str, Grant]:
        """The grants that come later of the shares of a record that is told now, for the first time or again."""
        before = self.find(own)
        grants = {}
        for rule, share in shares.items():
            grant: Grant | None = _NOTHING if before is None else before.grants.get(rule)
            if share.percent and grant is not None and grant.moment == _NEVER:
                grant = self._grant(own, rule, share, grant.before)
            if share.percent and grant is not None:
                grants[rule] = grant
        return grants

    def _grant(self, own: Record, rule: str, share: Share, before: int) -> Grant | None:
        """None: it is granted at once."""
        having = [(record, other) for record, other in self._having(rule) if not _same(record, own)]
        of_region = [(record, other) for record, other in having if record.region == own.region]
        told = [_granted(record, rule, other, self.now) for record, other in of_region if self._is_told(record)]
        before = min(share.percent, max(before, *told, 0))
        alike = all(
            (other.percent, {*record.regions}, rule in record.grants) == (share.percent, {*own.regions}, False)
            for record, other in having
        )
        if before == share.percent or (alike and not of_region):
            return None
        kept = {**self.kept(rule, (), 0)}
        kept[own.region] = max(kept.get(own.region, 0), share.percent)
        if sum(kept.values()) > MOST:
            return Grant(_NEVER, before)
        return Grant(self.now + max(other.lapse for other in (share, *(other for _, other in having))), before)

    def _having(self, rule: str) -> Sequence[tuple[Record, Share]]:
        """The records that have the rule, with their shares of it."""
        found = [(record, self.shares[record.shares].get(rule)) for record in self.records]
        return [(record, share) for record, share in found if share is not None]

    def _is_told(self, record: Record) -> bool:
        """It is the last one that its region has told, or was told at nearly the same time."""
        return not self._instead(record)

    def _instead(self, record: Record) -> Sequence[Record]:
        """The records that its region has told since."""
        return [other for other in self.records if other.region == record.region and other.told > record.told + FRESH]

    def _without(self, record: Record) -> Sequence[Record]:
        """The records of other regions, if none of them knows its region and all have begun later."""
        others = [other for other in self.records if other.region != record.region and other.told > self.now - FRESH]
        is_known = any(record.region in other.regions or other.since <= record.since for other in others)
        return () if is_known else others

    def _ends(self, record: Record) -> int:
        """The time since when nothing is allowed by it any more; 0 if something may be."""
        ends = [min(other.steady for other in instead)] if (instead := self._instead(record)) else []
        ends += [max(other.since for other in without)] if (without := self._without(record)) else []
        return max(record.told, min(ends)) if ends else 0

    def _told_instead(self, rule: str, record: Record) -> int:
        """The percent kept free for its region by records that it has told since, and still tells."""
        having = [
            (other, self.shares[other.shares].get(rule)) for other in self._instead(record) if self._is_told(other)
        ]
        return max((_kept(other, rule, share) for other, share in having if share is not None), default=0)


def _kept(record: Record, rule: str, share: Share) -> int:
    """The percent that are kept free for a record's share."""
    grant = record.grants.get(rule)
    return grant.before if grant is not None and grant.moment == _NEVER else share.percent


def _granted(record: Record, rule: str, share: Share, now: int) -> int:
    """The percent that are granted of a record's share."""
    grant = record.grants.get(rule)
    return share.percent if grant is None or _NEVER < grant.moment <= now else grant.before


class Floors:
    """The floors as one process of a region knows and tells them."""

    def __init__(self, region: str, regions: Sequence[str]) -> None:
        self.redis = ""
        """The name of what the region's Redis has."""
        self.register: Register | None = None
        self.own: Record | None = None
        """Its record in the register."""
        self.region = region
        self._regions = tuple(regions)
        self.shares: Shares = {}
        """Of the rules in force."""
        self.digest = ""
        """Of these and of the list of regions."""
        self._sent = self._arrived = 0
        """When the register was asked for, and when it came; microseconds of the monotonic clock."""
        self._copied_at = 0
        self._copied: Mapping[str, int] = {}
        self._limits: dict[Rule, Limit] = {}

    def use(self, rules: Iterable[Rule]) -> None:
        """Go by these rules from now on."""
        limits = ((rule, rule.limit) for rule in rules)
        self._set(
            {_name_of(rule): _share_of(rule, limit) for rule, limit in limits if limit and limit.kind.waits_for_home}
        )

    @property
    def is_ready(self) -> bool:
        """It goes by rules."""
        return bool(self.digest)

    def to_tell(self, register: Register) -> tuple[Record, Sequence[tuple[Record, Record | None]]] | None:
        """The record that is to be in the register, and what others become; None if all is there as it should be."""
        own = register.record(self._entry(), self.shares)
        ended, before = register.ended(own), register.find(own)
        gone = [register.shares[record.shares] for record, after in ended if after is None]
        changed = {
            rule: register.now for shares in gone for rule, share in shares.items() if self._differs(rule, share)
        }
        own = own._replace(changed={**own.changed, **changed})
        if before is None or before.told < register.now - FRESH or ended or before != own._replace(told=before.told):
            return own, ended
        return None

    def _differs(self, rule: str, share: Share) -> bool:
        own = self.shares.get(rule)
        return own is not None and (own.requests, own.burst) != (share.requests, share.burst)

    def learn(self, register: Register, sent: int, arrived: int) -> None:
        """Go by the register as it was asked for and came at those moments of the monotonic clock."""
        self.register, self._sent, self._arrived = register, sent, arrived
        self.own = register.find(self._entry())
        self.forget()

    def is_fresh(self, now: int) -> bool:
        """Home may be asked by what is known."""
        return self.own is not None and now <= self._sent + FRESH

    def copy(self) -> tuple[int, Mapping[str, int]]:
        """The copy that the region's other processes use while home cannot be reached: when, and what is granted."""
        register = self.register
        assert register is not None, "it was read"
        rules = {rule for shares in register.shares.values() for rule, share in shares.items() if share.percent}
        granted = {rule: register.granted(rule, self.region, register.now) for rule in sorted(rules)}
        return register.now, {rule: percent for rule, percent in granted.items() if percent}

    def learn_copy(self, at: int, granted: Mapping[str, int]) -> None:
        """The copy of a process that has reached home, perhaps later than this one."""
        self._copied_at, self._copied = at, granted
        self.forget()

    def forget(self) -> None:
        """Reckon anew what is granted."""
        self._limits.clear()

    def limit_of(self, rule: Rule, limit: Limit, now: int) -> Limit:
        """The limit of a rule with what is kept free of it now, and what this region has."""
        found = self._limits.get(rule)
        if found is None:
            found = self._limits[rule] = self._limit_of(rule, limit, now)
        return found

    def is_steady(self, rule: Rule, now: int) -> bool:
        """Units may be given back."""
        register = self.register
        if leasing(rule.algorithm).leased_from is None:
            return True
        return register is not None and register.is_steady(_name_of(rule), register.now + now - self._arrived)

    def _set(self, shares: Shares) -> None:
        self.shares = shares
        text = dumps([self._regions, sorted(shares.items())])
        self.digest = sha256(text.encode()).hexdigest()[:16]
        self.own = None
        self.forget()

    def _entry(self) -> Record:
        return Record(self.region, self.redis, self.digest, 0, 0, 0, self._regions, {}, {})

    def _limit_of(self, rule: Rule, limit: Limit, now: int) -> Limit:
        name, register = _name_of(rule), self.register
        if name not in self.shares:
            self._set({**self.shares, name: _share_of(rule, limit)})  # of rules that are in no book
        percent = granted = limit.floor_percent
        kept: Mapping[str, int] = dict.fromkeys(self._regions, percent)
        if register is not None:
            kept = register.kept(name, self._regions, percent)
        if register is not None and register.now >= self._copied_at:
            granted = register.granted(name, self.region, register.now + now - self._arrived)
        else:
            granted = self._copied.get(name, 0)
        return leased.shared(limit, kept.values(), min(percent, granted))


def _name_of(rule: Rule) -> str:
    """The name of a rule in all its editions, as long as it has the same counters."""
    return "|".join(map(escaped, rule.path)) + rule.key_suffix


def _share_of(rule: Rule, limit: Limit) -> Share:
    lapse = 2 * FRESH + leased.lapse(rule.algorithm, limit)
    return Share(limit.floor_percent, lapse, limit.requests, limit.burst)


def _same(record: Record, other: Record) -> bool:
    return (record.region, record.redis, record.shares) == (other.region, other.redis, other.shares)
