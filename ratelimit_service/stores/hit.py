"""A hit: one charge against one counter; the store writes the decision on it. Hot path."""

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from ratelimit_service.model import MAX_FIELD, MAX_WINDOW, NEVER, ByPolicy, Decision, Limit, Unit
from ratelimit_service.rules.bans import Ban
from ratelimit_service.rules.rule import FIRST, Entries, Rule
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.tally import Tally

NO_LIMIT: Final = Limit(MAX_FIELD, Unit.SECOND, SECOND)
"""The limit of a hit on an unlimited rule."""

ZERO_LIMIT: Final = Limit(0, Unit.SECOND, SECOND)
"""The limit of a hit on a rule that denies always."""


class OnCounter(Protocol):
    """A counter to charge: by which rule, and under which name."""

    @property
    def rule(self) -> Rule:
        """The rule."""

    @property
    def limit(self) -> Limit:
        """Its limit."""

    @property
    def key(self) -> str:
        """The name."""


NO_BUNDLE: Final = 0
"""The number of hits that are charged alone."""

BUNDLE_OF_REQUEST: Final = 1
"""The bundle of all hits of a request which may refuse it."""

FIRST_BUNDLE: Final = 2
"""The first number for other bundles of a request, such as that of the limits of one descriptor."""


class NamedCounter(NamedTuple):
    """A counter by its name, without a hit on it."""

    rule: Rule
    limit: Limit
    key: str


class Hit:
    """A charge against one counter. The store that decides it writes `decision`."""

    __slots__ = (
        "beside",
        "by_policy",
        "cost",
        "decision",
        "key",
        "limit",
        "quota",
        "rule",
        "spared",
        "tally",
        "together",
    )

    decision: Decision

    def __init__(
        self, rule: Rule, key: str, cost: int, *, tally: Tally, quota: bool, together: int = NO_BUNDLE
    ) -> None:
        self.rule = rule
        self.limit = rule.limit or (ZERO_LIMIT if rule.deny else NO_LIMIT)
        """The rule's limit; `NO_LIMIT` or `ZERO_LIMIT` when it has none, and nothing is charged."""
        self.key = key
        """The counter's name; empty for a rule without a limit, which has no counter: then the plan decides the hit."""
        self.cost = cost
        self.tally = tally
        self.quota = quota
        """A request is denied by its quotas only if all of them are used up."""
        self.together = together
        """The number of its bundle: hits of a request with the same one are all charged, or none, or the first with
        room; `NO_BUNDLE`: alone. See `may_wait`."""
        self.beside: Sequence[Hit] = ()
        """The hits of the other limits of the same descriptor."""
        self.spared = False
        """It was allowed and not charged, because another hit of its bundle was denied; or was charged in its place."""
        self.by_policy: ByPolicy | None = None
        """The policy that answered it without the store, if one did."""

    def again(self) -> "Hit":
        """A copy without a decision."""
        hit = Hit.__new__(Hit)  # 0.2 µs; by name the constructor's arguments take 0.5
        hit.rule = self.rule
        hit.limit = self.limit
        hit.key = self.key
        hit.cost = self.cost
        hit.tally = self.tally
        hit.quota = self.quota
        hit.together = self.together
        hit.beside = [each.again() for each in self.beside] if self.beside else ()
        hit.spared = self.spared
        hit.by_policy = None
        return hit

    @property
    def may_wait(self) -> bool:
        """Its request may have to wait for its turn in a queue: then the numbers of all its bundles are below 0."""
        return self.together < NO_BUNDLE

    @property
    def over(self) -> bool:
        """Answered as over its limit: denied, and not by a rule in shadow mode."""
        return not self.decision.allowed and not self.rule.shadow

    @property
    def exceeds_by(self) -> int:
        """The number let through above the limit, of those that `exceed` allows; below 0 what is left of it."""
        return self.limit.exceed - self.decision.remaining

    @property
    def remaining(self) -> int:
        """The part of the limit that is left, without what may exceed it."""
        remaining = self.decision.remaining
        exceed = self.limit.exceed
        if not exceed:
            return remaining
        return remaining - exceed if remaining > exceed else 0


class DeniedHit(Hit):
    """A hit on a rule or a ban that denies always, and so has no counter."""

    __slots__ = ("ban", "domain", "entries")

    domain: str
    """Of the request."""
    entries: Entries
    """As they would be counted; long ones are cut."""
    ban: Ban | None
    """What denies it; None if it is the rule."""


def common_counter(rule: Rule) -> NamedCounter:
    """The second counter that the limit of a rule has in common with others, in the slot of the rule's counters."""
    return NamedCounter(rule, rule.limit or NO_LIMIT, rule.common_key)


def common_look(rule: Rule) -> Hit:
    """A hit of cost 0 on that counter, by the rule that stands for it."""
    return Hit(rule, rule.common_key, 0, tally=Tally(), quota=False)


def second_key(hit: Hit) -> str:
    """The key of the second counter of a hit that has one."""
    return hit.rule.common_key or hit.key + hit.limit.kind.second_ending


def in_bundles(hits: Sequence[Hit]) -> list[Hit]:
    """These hits and those beside them, in such an order that the hits of a bundle follow each other."""
    found = [each for hit in hits for each in (hit, *hit.beside)]
    found.sort(key=_together)  # stable: hits on one counter stay in the order of the request
    return found


def spare(hits: Sequence[Hit]) -> None:
    """Mark the allowed hits of bundles that have a denied one. All hits are decided, and in order of bundles.

    With `charge: first` the store has marked them, or a policy allows several, of which the first counts.
    """
    for together, members in groupby(hits, key=_together):
        if together:
            bundle = list(members)
            if bundle[0].rule.together == FIRST:
                found = first_with_room(bundle)
                for hit in bundle:
                    hit.spared = hit.spared or (found.decision.allowed and hit.decision.allowed and hit is not found)
                continue
            denied = not all(hit.decision.allowed for hit in bundle)
            for hit in bundle:
                hit.spared = denied and hit.decision.allowed


def first_with_room(hits: Sequence[Hit]) -> Hit:
    """Of the limits of a list with `charge: first` the one that is charged, else the one that has room soonest."""
    left = [hit for hit in hits if not hit.spared]
    return next((hit for hit in left if hit.decision.allowed), None) or min(left, key=_wait)


def _wait(hit: Hit) -> int:
    wait = hit.decision.retry_after
    return MAX_WINDOW if wait == NEVER else wait


_together = attrgetter("together")
