"""Plans: the hits of a request, before any counter is read. Hot path.

A plan depends only on the request, the book and the bans, so it is cached: one plan serves all equal requests until the
next reload, or change of the bans.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.errors import RpcError, Status, TooLongError
from ratelimit_service.limiter.verdict import LateVerdict, Verdict
from ratelimit_service.model import MAX_FIELD, NEVER, Decision, Descriptor, Request, settling
from ratelimit_service.rules.address import parse_address
from ratelimit_service.rules.bans import Bans, find_ban
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.descriptor_name import shortened
from ratelimit_service.rules.pattern_work import TOO_LONG, PatternBounds, PatternWork
from ratelimit_service.rules.problems import quoted
from ratelimit_service.rules.reasons import why_unlimited
from ratelimit_service.rules.response import ResponseOptions
from ratelimit_service.rules.rule import (
    FIRST,
    NO_COUNTER,
    QUEUES,
    REPLACES,
    REQUEST,
    RESERVES,
    RULED,
    Entries,
    Level,
    Rule,
    counted_entries,
    counter_key,
    metric_entries,
    near_threshold,
    override_path,
    tally_of,
)
from ratelimit_service.stores.hit import (
    BUNDLE_OF_REQUEST,
    FIRST_BUNDLE,
    NO_BUNDLE,
    NO_LIMIT,
    DeniedHit,
    Hit,
    in_bundles,
)
from ratelimit_service.system.clock import steady_clock
from ratelimit_service.telemetry.heavy_hitters import HeavyNames
from ratelimit_service.telemetry.logs import ThrottledLog
from ratelimit_service.telemetry.tally import DomainTallies, DomainTally, Settlements, Tallies, Tally, joined

log = logging.getLogger(__name__)

UNLIMITED: Final = Decision(True, MAX_FIELD, 0, 0, 0)


def denial(cost: int, retry_after: int = NEVER) -> Decision:
    """The decision on a hit that is denied without a counter, for so many microseconds; a refund is allowed."""
    if cost < 0:
        return Decision(True, 0, 0, 0, 0)
    return Decision(False, 0, cost, max(0, retry_after), retry_after)


TallyIncrement = tuple[Tally | DomainTally | HeavyNames, str, int]
"""A tally, the name of one of its counters, and how much to add to it; added without asking the store."""

_REQUEST_BYTES: Final = 1000
_HIT_BYTES: Final = 500
_CHARACTER_BYTES: Final = 4
"""Bytes for each character of a request that waits in a queue. It keeps its message, its hits, and their keys, which
repeat the message."""


class Plan:
    """The hits of a request, and the verdict that they add up to when the store has decided them."""

    __slots__ = (
        *("charged", "denied", "domain", "edition", "hits", "increments"),
        *("has_bundles", "measured", "queued_bytes", "refused", "ruled", "verdict"),
    )

    settles = False
    """Some descriptor says what a request has cost."""

    def __init__(  # noqa: PLR0913 - one for each of its parts
        self,
        hits: Sequence[Hit | None],
        domain: DomainTally,
        increments: Sequence[TallyIncrement],
        edition: object,
        unmatched: Sequence[str] | None = None,
        idle_quota: bool = False,
        *,
        response: ResponseOptions | None = None,
        queued_bytes: int = 0,
        ruled: bool = True,
    ) -> None:
        self.edition = edition
        """Of the book that made it."""
        self.ruled = ruled
        """The rules, or a ban, say something about some descriptor; if not, nothing limits the request."""
        self.queued_bytes = queued_bytes
        """The estimated size of a request that may wait in a queue; 0 for one that never does."""
        self.domain = domain
        """Counts the outcome of the request."""
        self.increments = increments
        charged: list[Hit] = []
        self.has_bundles = False
        """Some hits are charged together, or some descriptor has several limits."""
        self.denied = False
        """Some hit without a counter is denied."""
        refused: list[Hit] = []
        for hit in hits:
            if hit is None:
                continue
            if not hit.key:
                if not hit.decision.allowed:
                    self.denied = True
                    if not hit.rule.shadow:
                        refused.append(hit)
                continue
            charged.append(hit)
            if hit.together or hit.beside:
                self.has_bundles = True
        self.charged = tuple(in_bundles(charged) if self.has_bundles else charged)
        """What the store decides: all hits that have a counter, with those beside them."""
        self.measured = False
        """Of the limit of some hit more is measured than what is counted."""
        for hit in self.charged:
            if hit.rule.measured is not None:
                self.measured = True
        self.refused = tuple(refused)
        """The hits without a counter that are denied, and not in shadow mode."""
        self.hits = self.charged if len(self.charged) == len(hits) and not self.has_bundles else hits
        """One for each descriptor, or None where nothing limits it."""
        make = LateVerdict if queued_bytes else Verdict
        self.verdict = verdict = make(True, self.hits, unmatched, idle_quota, response)
        if self.has_bundles and response is not None:
            verdict.limits = [each for hit in hits if hit is not None for each in (hit, *hit.beside)]

    @property
    def is_plain(self) -> bool:
        """It has one hit with a counter for each descriptor, and nothing else."""
        told = self.increments or self.queued_bytes or self.settles or self.verdict.idle_quota
        return self.hits is self.charged and not told and self.verdict.unmatched is None

    def again(self) -> "Plan":
        """A copy with its own hits, since requests that wait for the store must not share them."""
        if self.hits is not self.charged:
            return self.remade()
        plan = Plan.__new__(Plan)
        plan.edition = self.edition
        plan.domain = self.domain
        plan.increments = self.increments
        plan.has_bundles = plan.denied = False
        plan.measured = self.measured
        plan.ruled = True
        plan.queued_bytes = 0
        plan.refused = ()
        plan.charged = charged = tuple(map(Hit.again, self.charged))
        plan.hits = charged
        plan.verdict = verdict = Verdict.__new__(Verdict)
        verdict.allowed = True
        verdict.hits = verdict.limits = charged
        verdict.response = self.verdict.response
        verdict.unmatched = self.verdict.unmatched
        verdict.idle_quota = False
        return plan

    def remade(self) -> "Plan":
        """As `again`, of any plan."""
        hits = [hit.again() if hit is not None and hit.key else hit for hit in self.hits]
        verdict = self.verdict
        return self.__class__(
            hits,
            self.domain,
            self.increments,
            self.edition,
            verdict.unmatched,
            verdict.idle_quota,
            response=verdict.response,
            queued_bytes=self.queued_bytes,
        )


class SettlingPlan(Plan):
    """One with a descriptor whose cost has come about: it is answered as a look, and not refused."""

    __slots__ = ()

    settles = True

    again = Plan.remade


class Planner:
    """Makes plans. It owns the tallies of what no rule counts."""

    def __init__(  # noqa: PLR0913 - tallies for what has no rule, three settings, and the bans
        self,
        *,
        domains: DomainTallies,
        overrides: Tallies,
        unknown_domains: Tallies,
        unmatched: HeavyNames,
        near_ratio: float,
        quota_mode: bool,
        max_hits: int,
        pattern_bounds: PatternBounds,
        bans: Bans,
    ) -> None:
        self._bans = bans
        self._domains = domains
        self._overrides = overrides
        self._unknown_domains = unknown_domains
        self._unmatched = unmatched
        self._near_ratio = near_ratio
        self._quota_mode = quota_mode
        self._max_hits = max_hits
        self._pattern_bounds = pattern_bounds
        self._warnings = ThrottledLog(log, steady_clock)

    def plan(self, request: Request, book: RuleBook, edition: object) -> Plan:
        """The plan for a request by this edition of the book.

        Each descriptor gives a hit by itself; then what the traits of their rules say is done for all of them.
        """
        name = book.name_of(request.domain)
        tally = self._domains.of(name or request.domain)
        root = None if name is None else book.domains[name]
        increments: list[TallyIncrement] = []
        settles: Collection[int] = ()
        if root is not None and root.settle:
            request, settles = _without_marks(request, root.settle)
        work = PatternWork(self._pattern_bounds) if root is not None and root.tries else None
        denied = self._banned(request, book, tally, increments, work) if self._bans.by_key else {}
        if root is None:
            increments.append((self._unknown_domains.of((request.domain,)), "total_hits", 1))
            return _without_rules(request, denied, book, tally, increments, edition)
        if root.address_keys:
            increments += _without_address(request, root.address_keys, tally)
        hits, traits, replaced = self._hits(request, book, denied, work, increments)
        if settles:
            _settle(hits, settles)
        if traits & RESERVES:
            _reserve(hits, request, settles)
        if replaced:  # first: what is replaced takes no turn, and refuses no bundle
            _drop_replaced(hits, replaced, increments)
        takes_turn = traits & QUEUES and _takes_turn(hits)
        if takes_turn or request.together:
            _bundle(hits)
        # After the bundles are made: a hit that is denied without a counter spares the others of its bundle.
        if traits & NO_COUNTER and _count_without_counter(hits, increments):
            _spare_bundle(hits, increments)
            takes_turn = takes_turn and _takes_turn(hits)
        if takes_turn and settles:
            raise RpcError(Status.INVALID_ARGUMENT, "a request that settles may not wait for its turn in a queue too")
        return (SettlingPlan if settles else Plan)(
            hits,
            tally,
            increments,
            edition,
            _unmatched(request, hits, book, work) if request.explain else None,
            # As envoyproxy: QUOTA_MODE makes quotas of all descriptors, also of those that nothing limits.
            self._quota_mode and None in hits,
            response=root.response,
            queued_bytes=_mark_queued(hits, request) if takes_turn else 0,
            ruled=traits & RULED != 0,
        )

    def _hits(
        self,
        request: Request,
        book: RuleBook,
        denied: Mapping[int, Hit],
        work: PatternWork | None,
        increments: list[TallyIncrement],
    ) -> tuple[list[Hit | None], int, set[str]]:
        """The hits of the descriptors, each by itself; the traits of their rules; the names of those they replace.

        Raises RpcError if there are more limits than a request may meet.
        """
        domain, left = request.domain, self._max_hits
        hits: list[Hit | None] = []
        replaced: set[str] = set()
        traits = RULED | NO_COUNTER if denied else 0
        for descriptor in request.descriptors:
            if denied and len(hits) in denied:
                hits.append(denied[len(hits)])
                continue
            entries = descriptor.entries
            try:
                rule = self._rule(book, domain, descriptor, work)
            except TooLongError as error:
                hits.append(self._too_long(error, book, domain, descriptor, increments))
                traits |= RULED | NO_COUNTER
                continue
            if rule is None:
                hits.append(None)
                traits |= self._count_unmatched(book, domain, entries, work, increments)
                continue
            traits |= rule.traits
            if rule.traits & REPLACES:
                replaced.update(*[each.replaces for each in (rule, *rule.beside)])
            left -= 1 + len(rule.beside)
            if left < 0:
                raise _too_many_limits(self._max_hits)
            matched = book.matched_entries(domain, entries) if rule.tallies is not None else entries
            hit = _hit(rule, entries, matched, descriptor.cost, quota=rule.quota or self._quota_mode)
            hits.append(_join(hit, entries, matched, len(hits)) if rule.together or rule.beside else hit)
        return hits, traits, replaced

    def _count_unmatched(
        self, book: RuleBook, domain: str, entries: Entries, work: PatternWork | None, increments: list[TallyIncrement]
    ) -> int:
        """Count a descriptor that matches no rule, unless the rules exempt it; returns its traits."""
        name = book.name_of(domain) or domain
        if book.exempts(name, entries, work):
            return RULED
        shape = joined((name, *(key for key, _ in entries)))
        increments += ((self._domains.of(name), "unmatched", 1), (self._unmatched, shape, 1))
        return 0

    def _banned(
        self,
        request: Request,
        book: RuleBook,
        tally: DomainTally,
        increments: list[TallyIncrement],
        work: PatternWork | None,
    ) -> dict[int, Hit]:
        """The hits on the descriptors that are banned, by their index; `increments` counts them."""
        hits: dict[int, Hit] = {}
        for index, descriptor in enumerate(request.descriptors):
            ban = find_ban(self._bans, book, request.domain, descriptor.entries, work)
            if ban is None:
                continue
            answer = self._bans.denial(ban)
            hits[index] = hit = _denied_hit(answer.rule, answer.decision, descriptor, book, request.domain)
            hit.ban = ban
            try:
                rule = book.match(request.domain, descriptor.entries, work)
            except TooLongError:
                rule = None
            if rule is not None and rule.together == REQUEST:
                hit.together = BUNDLE_OF_REQUEST
            increments.append((tally, "banned", 1))
        return hits

    def _too_long(
        self,
        error: TooLongError,
        book: RuleBook,
        domain: str,
        descriptor: Descriptor,
        increments: list[TallyIncrement],
    ) -> Hit:
        """The hit on a descriptor with a value too long for the patterns of its level, which `increments` counts.

        It is denied: with an error a gateway that then lets requests pass would let in all long values, and
        without a match they would pass a rule that denies.
        """
        name = book.name_of(domain) or domain
        self._warnings.warn(f"a descriptor of domain {quoted(name)} is refused: {error}")
        increments.append((self._domains.of(name), TOO_LONG, 1))
        hit = _denied_hit(_too_long_rule(name), denial(descriptor.cost), descriptor, book, domain)
        if book.domains[name].together:
            hit.together = BUNDLE_OF_REQUEST
        return hit

    def _rule(self, book: RuleBook, domain: str, descriptor: Descriptor, work: PatternWork | None) -> Rule | None:
        """The limit that came with the descriptor, or else that of the book."""
        limit = descriptor.override
        if limit is None:
            return book.match(domain, descriptor.entries, work)
        entries = descriptor.entries
        near = near_threshold(limit.requests, self._near_ratio)
        tally = self._overrides.of(override_path(domain, book.shown(domain, entries)))
        return book.overriding(domain, entries, limit, near, tally, work)


def _without_rules(
    request: Request,
    banned: Mapping[int, Hit],
    book: RuleBook,
    tally: DomainTally,
    increments: Sequence[TallyIncrement],
    edition: object,
) -> Plan:
    """The plan for a request whose domain has no rules, of which some descriptors may be banned."""
    hits = [banned.get(index) for index in range(len(request.descriptors))]
    unmatched = _unmatched(request, hits, book, None) if request.explain else None
    response, ruled = book.response if banned else None, bool(banned)
    return Plan(hits, tally, increments, edition, unmatched, response=response, ruled=ruled)


def _without_address(request: Request, address_keys: Collection[str], tally: DomainTally) -> Sequence[TallyIncrement]:
    """Counts the descriptors with a value that is not an address, of a key whose values are compared as addresses."""
    return [
        (tally, "no_address", 1)
        for descriptor in request.descriptors
        if any(key in address_keys and parse_address(value) is None for key, value in descriptor.entries)
    ]


def _unmatched(request: Request, hits: Sequence[Hit | None], book: RuleBook, work: PatternWork | None) -> Sequence[str]:
    """The reasons why nothing limits a descriptor, one for each, empty where something does."""
    return [
        "" if hit is not None else why_unlimited(book, request.domain, descriptor.entries, work)
        for hit, descriptor in zip(hits, request.descriptors, strict=True)
    ]


def _too_many_limits(most: int) -> RpcError:
    wrong = f"the request matches more than {most} limits (REQUEST_MAX_HITS)"
    return RpcError(Status.INVALID_ARGUMENT, wrong)


@lru_cache(100)
def _too_long_rule(domain: str) -> Rule:
    """The rule in place of one that is not known. It has no name: no rule of the request may replace it."""
    return Rule(domain, (Level(TOO_LONG),), None, open_algorithm("fixed_window"), deny=True)


def _denied_hit(rule: Rule, decision: Decision, descriptor: Descriptor, book: RuleBook, domain: str) -> DeniedHit:
    """The hit on a descriptor that is denied whatever the rules say; a refund is allowed."""
    hit = DeniedHit(rule, "", descriptor.cost, tally=Tally(), quota=False)
    hit.ban = None
    hit.domain, hit.entries = domain, shortened(book.shown(domain, descriptor.entries))
    hit.decision = decision if descriptor.cost >= 0 else denial(descriptor.cost)
    return hit


def _hit(  # noqa: PLR0913 - two are of lists
    rule: Rule, entries: Entries, matched: Entries, cost: int, *, quota: bool, together: int = NO_BUNDLE, stem: str = ""
) -> Hit:
    """The hit of a rule, and its tally; `stem` is its counter's key without the rule's suffix, if that is known."""
    counted = counted_entries(rule, entries)
    tally = rule.tally if rule.tallies is None else tally_of(rule, metric_entries(rule, entries, matched, counted))
    if rule.limit is not None:
        key = stem + rule.key_suffix if stem else counter_key(rule, counted)
        hit = Hit(rule, key, cost, tally=tally, quota=quota, together=together)
        if rule.holder >= 0:
            hit.limit = rule.limit.kind.held_by(rule.limit, entries[rule.holder][1])
        return hit
    if not rule.deny:
        hit = Hit(rule, "", cost, tally=tally, quota=quota)
        hit.decision = UNLIMITED
        return hit
    denied = DeniedHit(rule, "", cost, tally=tally, quota=quota)
    denied.ban = None
    denied.domain, denied.entries = rule.counter_domain, shortened(counted)
    denied.decision = denial(cost, rule.retry_after)
    return denied


def _join(hit: Hit, entries: Entries, matched: Entries, index: int) -> Hit:
    """Put the hits of the descriptor's other limits beside its first, which is returned; say what bundle they are of.

    A shadow rule, or one quota of several, refuses nothing by itself. So it must not keep others from being charged:
    its limits are a bundle of their own.
    """
    rule = hit.rule
    if rule.together == REQUEST and hit.limit is not NO_LIMIT and not rule.shadow and not hit.quota:
        hit.together = BUNDLE_OF_REQUEST
    elif rule.together and rule.beside:
        hit.together = FIRST_BUNDLE + index
    stem = hit.key.removesuffix(rule.key_suffix)
    hit.beside = [
        _hit(beside, entries, matched, hit.cost, quota=hit.quota, together=hit.together, stem=stem)
        for beside in rule.beside
    ]
    if rule.holder < 0 or hit.cost >= 0:
        return hit
    # Beside places, a refund says that the request has ended, not that it did not come.
    places = next((each for each in (hit, *hit.beside) if each.limit.kind.holds), None)
    if places is None:
        return hit
    places.beside = ()
    return places


def _drop_replaced(hits: list[Hit | None], replaced: Collection[str], increments: list[TallyIncrement]) -> None:
    """Drop the hits of the rules with these names."""
    increments += [(hit.tally, "replaced", abs(hit.cost)) for hit in _all(hits) if hit.rule.name in replaced]
    for index, hit in enumerate(hits):
        if hit is not None:
            left = [each for each in (hit, *hit.beside) if each.rule.name not in replaced]
            hits[index] = first = left[0] if left else None
            if first is not None:
                first.beside = left[1:]


def _without_marks(request: Request, key: str) -> tuple[Request, Collection[int]]:
    """The request without the entries by which a descriptor settles, and the indexes of these descriptors."""
    found = [index for index, each in enumerate(request.descriptors) if each.entries and each.entries[-1][0] == key]
    if not found:
        return request, ()
    descriptors = list(request.descriptors)
    for index in found:
        each = descriptors[index]
        if each.cost < 0:
            wrong = f"descriptors[{index}] settles a cost below 0: {each.cost}; the least is 0"
            raise RpcError(Status.INVALID_ARGUMENT, wrong)
        descriptors[index] = replace(each, entries=each.entries[:-1])
    return replace(request, descriptors=descriptors), frozenset(found)


def _settle(hits: list[Hit | None], settles: Collection[int]) -> None:
    """Have the hits of the descriptors that settle charged in full, each by itself; of `charge: first` one of them."""
    for index in settles:
        if (hit := hits[index]) is not None:
            hits[index] = _settling(hit)


def _reserve(hits: Sequence[Hit | None], request: Request, settles: Collection[int]) -> None:
    """Have requests take what they may cost of the limits that reserve, and of those beside them."""
    for index, (hit, descriptor) in enumerate(zip(hits, request.descriptors, strict=True)):
        if hit is not None and hit.cost > 0 and index not in settles:
            told = descriptor.hits_addend is not None or request.hits_addend > 0
            found = (hit, *hit.beside)
            if any(each.limit.kind.reserves for each in found):
                for each in found:
                    each.cost = each.limit.kind.taken(each.cost, told=told)


def _settling(hit: Hit) -> Hit | None:
    """What settles of a descriptor's hits: the first, with the others beside it. A refund alone gives back places."""
    hits = [each for each in (hit, *hit.beside) if not each.limit.kind.holds]
    for each in hits:
        each.together = each.together if each.rule.together == FIRST else NO_BUNDLE
        if each.key:
            each.limit = settling(each.limit)
            each.tally = Settlements(each.tally)
        elif each.rule.deny:
            each.cost = 0
    if not hits:
        return None
    first, *first.beside = hits
    return first


def _takes_turn(hits: Sequence[Hit | None]) -> bool:
    return any(hit.limit.kind.max_delay and hit.cost > 0 and not hit.limit.owes for hit in _all(hits))


def _bundle(hits: Sequence[Hit | None]) -> None:
    """Make one bundle of all that may refuse a request: then it takes nothing, and no turn of a queue."""
    for hit in _all(hits):
        if not hit.rule.shadow and not hit.quota and hit.limit is not NO_LIMIT and hit.rule.together != FIRST:
            hit.together = BUNDLE_OF_REQUEST


def _count_without_counter(hits: Sequence[Hit | None], increments: list[TallyIncrement]) -> bool:
    """Count the hits that have no counter; returns whether one of them denies its bundle, that of the request."""
    denied = False
    for hit in hits:
        if hit is None or hit.key:
            continue
        if not hit.rule.deny:
            increments.append((hit.tally, "unlimited", abs(hit.cost)))
        elif hit.cost < 0:
            increments.append((hit.tally, "total_negative_hits", -hit.cost))
        else:
            denied = denied or hit.together == BUNDLE_OF_REQUEST
            numbers = ("total_hits", "over_limit", "shadow_mode") if hit.rule.shadow else ("total_hits", "over_limit")
            increments += [(hit.tally, number, hit.cost) for number in numbers]
    return denied


def _spare_bundle(hits: Sequence[Hit | None], increments: list[TallyIncrement]) -> None:
    """Make looks of the charges of the request's bundle, since it is denied."""
    for hit in _all(hits):
        if hit.key and hit.together == BUNDLE_OF_REQUEST:
            if hit.cost > 0:
                increments += [(hit.tally, "total_hits", hit.cost), (hit.tally, "spared", hit.cost)]
            hit.cost, hit.together, hit.spared = 0, NO_BUNDLE, True


def _mark_queued(hits: Sequence[Hit | None], request: Request) -> int:
    """Mark the bundles of a request that may wait; returns its size in bytes."""
    charged = [hit for hit in _all(hits) if hit.key]
    alone = FIRST_BUNDLE + len(hits)
    for number, hit in enumerate(charged):
        hit.together = -(hit.together or alone + number)
    characters = sum(len(key) + len(value) for each in request.descriptors for key, value in each.entries)
    return _REQUEST_BYTES + _HIT_BYTES * len(charged) + _CHARACTER_BYTES * characters


def _all(hits: Sequence[Hit | None]) -> Iterator[Hit]:
    """The hits, each with those beside it."""
    for hit in hits:
        if hit is not None:
            yield hit
            yield from hit.beside
