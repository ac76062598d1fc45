"""What a rule has answered so far, as plain integers. Hot path.

A tally outlives a reload: a new book takes over the tallies of the old one by their path. What each number counts is
upstream's, so that its dashboards go on telling the truth.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from ratelimit_service.model import Decision

Path = tuple[str, ...]
"""Where a tally stands: the domain, then a name for each level."""

OTHER: Path = ("other",)
"""Where those stand together that are too many to be told apart."""

LONGEST_PATH = 1000
"""Characters; a longer path is made of a request's huge value, which no metric should carry."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The marks of a counter, from an untouched one on."""

    near: int
    """Above it a hit counts as near the limit."""
    limit: int
    """The window's requests, or the bucket's burst."""
    room: int
    """The limit, and what may exceed it."""


class PolicyAnswer(NamedTuple):
    """One way in which a policy answers a hit without the store."""

    number: str
    """The number of a Tally that counts it."""
    policy: str
    outcome: str
    """`allowed`, `refused` or `failed`."""


POLICY_ANSWERS: Final = (
    PolicyAnswer("error_failed", "error", "failed"),
    PolicyAnswer("open_allowed", "open", "allowed"),
    PolicyAnswer("open_refused", "open", "refused"),
    PolicyAnswer("closed_allowed", "closed", "allowed"),
    PolicyAnswer("closed_refused", "closed", "refused"),
    PolicyAnswer("local_allowed", "local", "allowed"),
    PolicyAnswer("local_refused", "local", "refused"),
)
"""`open` refuses where the limit is 0 or the cost above the limit; `closed` allows a look, which costs 0."""


class Tally:
    """Counts of cost, not of calls, except where said otherwise."""

    __slots__ = (
        *(answer.number for answer in POLICY_ANSWERS),
        "exceeded",
        "near_limit",
        "over_limit",
        "over_limit_with_local_cache",
        "replaced",
        "shadow_mode",
        "spared",
        "total_hits",
        "total_negative_hits",
        "unlimited",
        "within_limit",
    )

    def __init__(self) -> None:
        self.total_hits = 0
        self.within_limit = 0
        self.near_limit = 0
        """What was charged above the near threshold and within the limit."""
        self.over_limit = 0
        self.over_limit_with_local_cache = 0
        """What was refused without asking the store, because it had been a moment ago; in `over_limit` too."""
        self.exceeded = 0
        """What lay above the limit and was let through, because the limit may be exceeded by as much."""
        self.spared = 0
        """What was not charged, because a limit that is charged together with this one refused; in `total_hits` too."""
        self.shadow_mode = 0
        """What a shadow rule let pass although it was over."""
        self.unlimited = 0
        self.replaced = 0
        """What another rule of the same request took over."""
        self.total_negative_hits = 0
        # What was answered without the store is in none of the numbers above.
        self.error_failed = 0
        self.open_allowed = 0
        self.open_refused = 0
        self.closed_allowed = 0
        self.closed_refused = 0
        self.local_allowed = 0
        self.local_refused = 0

    def count(self, cost: int, decision: Decision, scale: Scale, shadow: bool) -> None:
        """Add one decision on a counter with that scale."""
        if cost < 0:
            self.total_negative_hits -= cost
            return
        self.total_hits += cost
        over = decision.over
        if decision.allowed:
            if not over:
                self.within_limit += cost
                above = scale.room - scale.near - decision.remaining
                if above > 0:
                    self.near_limit += above if above < cost else cost
                return
            self.exceeded += over
            self.within_limit += cost - over
        else:
            self.over_limit += over
            if shadow:
                self.shadow_mode += over
        if over < cost:
            # The hit crossed the limit: what lay below it, and above the threshold, came near.
            below = scale.limit - scale.near
            self.near_limit += cost - over if cost - over < below else below

    def add(self, number: str, cost: int) -> None:
        """Add to the number of that name."""
        setattr(self, number, getattr(self, number) + cost)

    def spare(self, cost: int) -> None:
        """Add a hit that would have been allowed, and was not charged for another's sake."""
        if cost > 0:
            self.total_hits += cost
            self.spared += cost

    def count_by_policy(self, cost: int, policy: str, outcome: str) -> None:
        """Add a hit that the policy answered without the store."""
        if cost > 0:
            self.add(f"{policy}_{outcome}", cost)


OUTCOMES: Final = ("allowed", "refused", "shadow", "by_policy", "failed")
"""What becomes of requests, as a DomainTally counts them."""


class DomainTally:
    """Counts of requests for one domain by their outcome, and of descriptors that no rule fits."""

    __slots__ = (*OUTCOMES, "unmatched")

    def __init__(self) -> None:
        self.allowed = 0
        self.refused = 0
        self.shadow = 0
        """Allowed because a rule, or the service, is in shadow mode; refused without it."""
        self.by_policy = 0
        """Answered, allowed or refused, with some counter's store out of reach."""
        self.failed = 0
        """Ended with an error in place of an answer."""
        self.unmatched = 0
        """Descriptors, not requests."""

    def add(self, number: str, count: int) -> None:
        """Add to the number of that name."""
        setattr(self, number, getattr(self, number) + count)


class DomainTallies:
    """A DomainTally for each domain that has rules, or had; one for all other domains, under `other`."""

    def __init__(self) -> None:
        self.other = DomainTally()
        self._by_domain = {OTHER[0]: self.other}

    def know(self, domains: Iterable[str]) -> None:
        """Begin to count these domains apart."""
        for domain in domains:
            if domain not in self._by_domain:
                self._by_domain[domain] = DomainTally()

    def of(self, domain: str) -> DomainTally:
        """The tally that requests for the domain are counted in."""
        return self._by_domain.get(domain, self.other)

    def items(self) -> Iterator[tuple[str, DomainTally]]:
        """Every domain with its tally."""
        return iter(tuple(self._by_domain.items()))


BYTES: Final = 64 * 1024 * 1024
"""Of the tallies by value of all rules: 150,000 of them. Ten thousand rules with a thousand values each, of a thousand
characters, would take 13 GB."""

_BESIDES: Final = 320
"""Bytes of a tally besides the characters of its path."""


class Room:
    """Bytes that are left for the tallies of several rules."""

    def __init__(self, left: int = BYTES) -> None:
        self.left = left


class Tallies:
    """At most `most` tallies by path, as long as there is room; what comes after is summed in one more, `other`."""

    def __init__(self, other: Path, most: int, room: Room | None = None) -> None:
        self._by_path: dict[Path, Tally] = {}
        self._other_path = other
        self._other = Tally()
        self._most = most
        self._room = room or Room()
        self._bytes = 0

    def of(self, path: Path) -> Tally:
        """The tally at that path, made when it is new and there is room."""
        tally = self._by_path.get(path)
        if tally is None:
            length = sum(map(len, path))
            if len(self._by_path) >= self._most or length > LONGEST_PATH or length + _BESIDES > self._room.left:
                return self._by_path.setdefault(self._other_path, self._other)
            self._bytes += length + _BESIDES
            self._room.left -= length + _BESIDES
            tally = self._by_path[path] = Tally()
        return tally

    def move(self, room: Room) -> None:
        """Take bytes from that room from now on, those of the tallies that there are first."""
        self._room = room
        room.left -= self._bytes

    def items(self) -> Iterator[tuple[Path, Tally]]:
        """Every path with its tally."""
        return iter(tuple(self._by_path.items()))


class Totals:
    """What the service as a whole has answered; counts of calls."""

    __slots__ = ("global_shadow_mode", "service_errors", "store_errors")

    def __init__(self) -> None:
        self.service_errors = 0
        """Calls that could not be answered: nothing asked, no rules."""
        self.store_errors = 0
        self.global_shadow_mode = 0
        """Refusals turned into OK by SHADOW_MODE."""
