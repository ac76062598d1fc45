"""Hit, which carries its decision home, and Verdict, what all hits of a request add up to. Hot path."""

from collections.abc import Sequence
from typing import NamedTuple

from ratelimit_service.model import Decision, Request
from ratelimit_service.rules.rule import Rule
from ratelimit_service.tally import Tally


class Hit:
    """A charge against one counter. The store that decides it writes `decision`."""

    __slots__ = ("cost", "decision", "key", "quota", "rule", "tally")

    decision: Decision

    def __init__(self, rule: Rule, key: str, cost: int, *, tally: Tally, quota: bool) -> None:
        self.rule = rule
        self.key = key
        """Empty for an unlimited rule: there is no counter."""
        self.cost = cost
        self.tally = tally
        self.quota = quota
        """The request is refused only if all of its quotas are used up."""

    @property
    def over(self) -> bool:
        """The hit is answered as over its limit: denied, and not by a rule that only looks on."""
        return not self.decision.allowed and not self.rule.shadow


class Verdict(NamedTuple):
    """The answer for a request."""

    allowed: bool
    request: Request
    hits: Sequence[Hit | None]
    """One for each descriptor, in order; None where no rule applied."""

    def tightest(self) -> Hit | None:
        """The hit whose limit the caller should hear of: the last one refused, else the first with the least left."""
        chosen: Hit | None = None
        refused = False
        for hit in self.hits:
            if hit is None or hit.rule.limit is None:
                continue
            if hit.over and not hit.quota:
                chosen, refused = hit, True
            elif not refused and (chosen is None or hit.decision.remaining < chosen.decision.remaining):
                chosen = hit
        return chosen
