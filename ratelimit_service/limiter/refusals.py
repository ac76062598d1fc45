"""A sample of the requests that are refused, each with why. Hot path.

A request that is allowed costs nothing. Of those that are refused in a second PER_SECOND are kept: all of them while
there are no more, and else so many at random, each of which stands for several. To choose them takes a comparison of
two numbers for each (Li: "Reservoir-sampling algorithms of time complexity O(n(1 + log(N/n)))", 1994, algorithm L): of
ten thousand in a second about fifty are looked at, 0.3 ms together.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from math import log, log1p
from random import Random
from typing import Final, NamedTuple, Protocol

from ratelimit_service.limiter.hit_log import name_of
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Blocked
from ratelimit_service.rules.rule import amount_in_words
from ratelimit_service.stores.hit import NO_LIMIT, DeniedHit, Hit
from ratelimit_service.system.clock import SECOND, Clock, duration_in_words, system_clock

PER_SECOND: Final = 5
"""The refusals that each process keeps in a second."""
MOST: Final = 200
"""The most refusals that are kept until they are drained."""

_MAX_WORDS: Final = 200
"""Characters of why, and of where a rule stands."""


class Refusal(NamedTuple):
    """A request that was refused."""

    when: int
    """Microseconds since the epoch."""
    name: str
    """Of the descriptor, among the hottest, and the rule that refused it; with digests of secret values."""
    why: str
    """`limit`, `deny`, `ban`, `block`, `queue`, `places` or `policy`."""
    words: str
    place: str
    """Of the rule in the files; empty for a ban, and for a limit that came with the request."""
    cost: int
    stands_for: float = 1
    """So many requests, of which this one was chosen."""


class RefusalSource(Protocol):
    """A part that keeps refusals."""

    def drain(self) -> Sequence[Refusal]:
        """Remove and return the refusals since the last time."""


class RefusalSums:
    """The refusals of several processes since they were last taken; workers add to it."""

    def __init__(self) -> None:
        self._kept: deque[Refusal] = deque(maxlen=MOST)

    def add(self, refusals: Iterable[Refusal]) -> None:
        """Add what a worker has chosen."""
        self._kept.extend(refusals)

    def drain(self) -> Sequence[Refusal]:
        """As RefusalSource says."""
        taken, self._kept = list(self._kept), deque(maxlen=MOST)
        return taken


class RefusalLog:
    """The refusals of one limiter since they were last taken."""

    def __init__(self, clock: Clock = system_clock, chance: Random | None = None) -> None:
        self._clock = clock
        self._chance = chance or Random()  # noqa: S311 - it chooses examples
        self._kept: deque[Refusal] = deque(maxlen=MOST)
        """Of seconds that are over."""
        self._begin()

    def note(self, verdict: Verdict) -> None:
        """Note a request that is refused."""
        self._seen += 1
        if self._seen >= self._next:
            self._choose(verdict)

    def fold(self) -> None:
        """Begin another second if this one is over; called several times a second."""
        if self._chosen and not 0 <= self._clock() - self._began < SECOND:
            self._close()

    def drain(self) -> Sequence[Refusal]:
        """As RefusalSource says."""
        self._close()
        taken, self._kept = list(self._kept), deque(maxlen=MOST)
        return taken

    def _begin(self) -> None:
        self._chosen: list[Refusal] = []
        """Of the running second, which begins with its first refusal."""
        self._began = 0
        self._seen = 0
        """How many refusals this second has had."""
        self._next = 0
        """The number of the one that is chosen next."""
        self._least = 1.0
        """What algorithm L calls W."""

    def _close(self) -> None:
        each = self._seen / len(self._chosen) if self._chosen else 1
        self._kept.extend(sorted(found._replace(stands_for=each) for found in self._chosen))
        self._begin()

    def _choose(self, verdict: Verdict) -> None:
        now, chosen, draw = self._clock(), self._chosen, self._chance.random
        found = _refusal(verdict, now)
        if found is None:
            return
        if not chosen:
            self._began = now
        if len(chosen) < PER_SECOND:
            chosen.append(found)
        else:
            chosen[self._chance.randrange(PER_SECOND)] = found
        if len(chosen) == PER_SECOND:  # 0 may be drawn, and has no logarithm
            self._least *= (draw() or 0.5) ** (1 / PER_SECOND)
            self._next = self._seen + int(log(draw() or 0.5) / log1p(-self._least)) + 1


def _refusal(verdict: Verdict, now: int) -> Refusal | None:
    """The record of a refused request: the last limit that refuses it by itself, else its first quota."""
    over = [hit for hit in verdict.hits if hit is not None and hit.limit is not NO_LIMIT and hit.over]
    if not over:
        return None
    hit = next((hit for hit in reversed(over) if not hit.quota), over[0])
    rule = hit.rule
    place = "" if rule.place is None else rule.place.short
    why, words = _why(hit)
    return Refusal(now, name_of(hit), why, words[:_MAX_WORDS], place[-_MAX_WORDS:], hit.cost)


def _why(hit: Hit) -> tuple[str, str]:
    if isinstance(hit, DeniedHit):
        return ("deny", "always denied") if hit.ban is None else ("ban", f"banned by {hit.ban.who}: {hit.ban.why}")
    if hit.by_policy is not None:
        return "policy", f"{hit.by_policy.policy}, because: {hit.by_policy.reason}"
    limit, decision = hit.limit, hit.decision
    over = f"over {amount_in_words(limit)}{', sent with the request' if hit.rule.override else ''}"
    if isinstance(decision, Blocked):
        return "block", f"blocked for {duration_in_words(decision.blocked_for)}, {over}"
    return limit.kind.why_refused(limit, over)
