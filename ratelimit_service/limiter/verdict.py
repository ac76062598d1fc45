"""The verdict: what all hits of a request add up to. Hot path."""

from collections.abc import Callable, Sequence
from typing import Any

from ratelimit_service.errors import RpcError
from ratelimit_service.model import NEVER
from ratelimit_service.rules.response import ResponseOptions
from ratelimit_service.rules.rule import FIRST
from ratelimit_service.stores.hit import NO_LIMIT, Hit, first_with_room


class Verdict:
    """The answer for a request."""

    __slots__ = ("allowed", "hits", "idle_quota", "limits", "response", "unmatched")

    delay = 0
    """Microseconds that it waited in a queue."""

    def __init__(
        self,
        allowed: bool,
        hits: Sequence[Hit | None],
        unmatched: Sequence[str] | None = None,
        idle_quota: bool = False,
        response: ResponseOptions | None = None,
    ) -> None:
        self.allowed = allowed
        self.hits = hits
        """One for each descriptor, in order; None where no rule applied."""
        self.limits = hits
        """The same, and with `response` the hits of a descriptor's further limits behind its first."""
        self.response = response
        """What the response has beside the decision; None: nothing."""
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

    def retry_after(self) -> int:
        """Microseconds until a refused request would be allowed if no other came; NEVER if waiting does not help."""
        longest = 0
        quotas: list[int] = []
        idle = self.idle_quota
        for hit in self.hits:
            if hit is None or hit.limit is NO_LIMIT:
                continue
            if hit.quota:
                if hit.over:
                    quotas.append(hit.decision.retry_after)
                else:
                    idle = True
            elif hit.over:
                wait = hit.decision.retry_after
                if wait == NEVER:
                    return NEVER
                longest = max(longest, wait)
        if quotas and not idle:  # it passes when the first of them has room again
            wait = min((wait for wait in quotas if wait != NEVER), default=NEVER)
            return NEVER if wait == NEVER else max(longest, wait)
        return longest

    def tightest(self, *, with_shadow: bool = True) -> Hit | None:
        """The hit whose limit the response reports: the last one refused, else the first with the least left."""
        chosen: Hit | None = None
        refused = False
        for hit in self.hits:
            if hit is None or hit.limit is NO_LIMIT or (hit.rule.shadow and not with_shadow):
                continue
            if hit.over and not hit.quota:
                chosen, refused = hit, True
            elif not refused and (chosen is None or hit.remaining < chosen.remaining):
                chosen = hit
        return chosen


class LateVerdict(Verdict):
    """The answer for a request that may wait in a queue."""

    __slots__ = ("delay",)

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.delay = 0


OnVerdict = Callable[[Verdict | RpcError], None]
"""The callback with the verdict, or with the error in place of it."""


def tightest_of(hits: Sequence[Hit]) -> Hit:
    """The tightest limit of a descriptor: the denied one with the longest wait, else the first with the least left."""
    return min(hits, key=_left)


def by_descriptor(hits: Sequence[Hit | None]) -> Sequence[Hit | None]:
    """The limit of each descriptor that answers, by its first hit: the tightest, or that which is charged first."""
    return [_answering(hit) if hit is not None and hit.beside else hit for hit in hits]


def _answering(hit: Hit) -> Hit:
    of = first_with_room if hit.rule.together == FIRST else tightest_of
    return of((hit, *hit.beside))


def tightest_first(hits: Sequence[Hit]) -> list[Hit]:
    """The hits by how tight they are, as `tightest_of` has it."""
    return sorted(hits, key=_left)


def _left(hit: Hit) -> int:
    decision = hit.decision
    if decision.allowed:
        return hit.remaining
    return _LEAST if decision.retry_after == NEVER else -1 - decision.retry_after


_LEAST = -(2**63)  # before every wait: what can never be allowed
