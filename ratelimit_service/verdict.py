"""Hit, which carries its decision home, and Verdict, what all hits of a request add up to. Hot path."""

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from ratelimit_service.model import NEVER, ByPolicy, Decision
from ratelimit_service.rules.rule import Rule
from ratelimit_service.tally import Tally


class Hit:
    """A charge against one counter. The store that decides it writes `decision`."""

    __slots__ = ("beside", "by_policy", "cost", "decision", "key", "quota", "rule", "spared", "tally", "together")

    decision: Decision

    def __init__(self, rule: Rule, key: str, cost: int, *, tally: Tally, quota: bool, together: int = 0) -> None:
        self.rule = rule
        self.key = key
        """Empty for an unlimited rule: there is no counter."""
        self.cost = cost
        self.tally = tally
        self.quota = quota
        """The request is refused only if all of its quotas are used up."""
        self.together = together
        """0: charged by itself. Hits of a request with the same other number are a bundle: charged all or none."""
        self.beside: Sequence[Hit] = ()
        """The hits of the other limits of the same descriptor."""
        self.spared = False
        """Its limit had room, and it was not charged, because another one that is charged together with it refused."""
        self.by_policy: ByPolicy | None = None
        """How it was answered without the store."""

    def again(self) -> "Hit":
        """The same charge once more, undecided."""
        hit = Hit.__new__(Hit)  # 0.2 µs; by name the constructor's arguments take 0.5
        hit.rule = self.rule
        hit.key = self.key
        hit.cost = self.cost
        hit.tally = self.tally
        hit.quota = self.quota
        hit.together = self.together
        hit.beside = [each.again() for each in self.beside] if self.beside else ()
        hit.spared = False
        hit.by_policy = None
        return hit

    @property
    def over(self) -> bool:
        """The hit is answered as over its limit: denied, and not by a rule that only looks on."""
        return not self.decision.allowed and not self.rule.shadow

    @property
    def remaining(self) -> int:
        """What is left of the limit. What may exceed it is promised to nobody."""
        remaining = self.decision.remaining
        limit = self.rule.limit
        if limit is None or not limit.exceed:
            return remaining
        return remaining - limit.exceed if remaining > limit.exceed else 0


class Verdict:
    """The answer for a request."""

    __slots__ = ("allowed", "hits", "idle_quota", "unmatched")

    def __init__(
        self,
        allowed: bool,
        hits: Sequence[Hit | None],
        unmatched: Sequence[str] | None = None,
        idle_quota: bool = False,
    ) -> None:
        self.allowed = allowed
        self.hits = hits
        """One for each descriptor, in order; None where no rule applied."""
        self.unmatched = unmatched
        """For each descriptor why no rule applied, in words, where the caller asks for it."""
        self.idle_quota = idle_quota
        """One of those without a hit counts as a quota that is not used up."""

    def passes(self) -> bool:
        """Whether the hits allow it: no limit is over, and of several quotas not all are."""
        quotas = exhausted = 0
        for hit in self.hits:
            if hit is None or hit.rule.limit is None:
                continue
            if hit.quota:
                quotas += 1
                exhausted += hit.over
            elif hit.over:
                return False
        return not quotas or exhausted < quotas or self.idle_quota

    def tightest(self) -> Hit | None:
        """The hit whose limit the caller should hear of: the last one refused, else the first with the least left."""
        chosen: Hit | None = None
        refused = False
        for hit in self.hits:
            if hit is None or hit.rule.limit is None:
                continue
            if hit.over and not hit.quota:
                chosen, refused = hit, True
            elif not refused and (chosen is None or hit.remaining < chosen.remaining):
                chosen = hit
        return chosen


def in_bundles(hits: Sequence[Hit]) -> list[Hit]:
    """These hits and those beside them, ordered so that those of a bundle stand one after the other."""
    found = [each for hit in hits for each in (hit, *hit.beside)]
    found.sort(key=_together)  # stable: hits on one counter stay in the order of the request
    return found


def spare(hits: Sequence[Hit]) -> None:
    """Mark the hits that the refusal of another one of their bundle has spared. All are decided, and in bundles."""
    for together, members in groupby(hits, key=_together):
        if together:
            bundle = list(members)
            denied = not all(hit.decision.allowed for hit in bundle)
            for hit in bundle:
                hit.spared = denied and hit.decision.allowed


def tightest_of(hits: Sequence[Hit]) -> Hit:
    """Of the limits of one descriptor: the denied one with the longest wait, else the first with the least left."""
    return min(hits, key=_left)


def _left(hit: Hit) -> int:
    decision = hit.decision
    if decision.allowed:
        return hit.remaining
    return _LEAST if decision.retry_after == NEVER else -1 - decision.retry_after


_LEAST = -(2**63)  # before every wait: what can never be allowed
_together = attrgetter("together")
