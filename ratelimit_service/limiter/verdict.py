"""The verdict: what all hits of a request add up to. Hot path."""

from collections.abc import Sequence

from ratelimit_service.model import NEVER
from ratelimit_service.stores.hit import NO_LIMIT, Hit


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
            if hit is None or hit.limit is NO_LIMIT:
                continue
            if hit.quota:
                quotas += 1
                exhausted += hit.over
            elif hit.over:
                return False
        return not quotas or exhausted < quotas or self.idle_quota

    def tightest(self) -> Hit | None:
        """The hit whose limit the response reports: the last one refused, else the first with the least left."""
        chosen: Hit | None = None
        refused = False
        for hit in self.hits:
            if hit is None or hit.limit is NO_LIMIT:
                continue
            if hit.over and not hit.quota:
                chosen, refused = hit, True
            elif not refused and (chosen is None or hit.remaining < chosen.remaining):
                chosen = hit
        return chosen


def tightest_of(hits: Sequence[Hit]) -> Hit:
    """Of the limits of one descriptor: the denied one with the longest wait, else the first with the least left."""
    return min(hits, key=_left)


def _left(hit: Hit) -> int:
    decision = hit.decision
    if decision.allowed:
        return hit.remaining
    return _LEAST if decision.retry_after == NEVER else -1 - decision.retry_after


_LEAST = -(2**63)  # before every wait: what can never be allowed
