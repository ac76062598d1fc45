"""Counts of what a rule, a domain and the service have answered, as plain integers. Hot path.

A tally outlives a reload: a new book takes over the tallies of the old one by their path. Each number counts what
envoyproxy's number of that name counts, so that dashboards made for it stay true.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from ratelimit_service.model import SETTLED_BEFORE, Blocked, Decision, SettledById

Path = tuple[str, ...]
"""The name of a tally: the domain, then a name for each level."""

OTHER: Path = ("other",)
"""The path of the tally that adds up all those that are too many to have their own."""

MAX_PATH_LENGTH: Final = 1000
"""The most bytes of a path. A longer one has many entries of a request, which no metric should have as labels."""

MAX_LEVEL_LENGTH: Final = 128
"""The most characters of a level: what requests name longer is cut, and what is alike then is counted together. A label
of a metric that is a user agent of 60 KB says little."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The thresholds of a counter, in cost from an empty one on."""

    near: int
    """Cost above it is near the limit."""
    limit: int
    """The window's requests, or the bucket's burst."""
    room: int
    """The limit, plus what may exceed it."""
    drops: bool = False
    """What is denied is not charged, and nothing settles it."""


class PolicyAnswer(NamedTuple):
    """One way in which a failure policy answers a hit without the store."""

    number: str
    """The number of a Tally that counts such hits."""
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
"""`open` denies a hit whose limit is 0 or whose cost is above the limit; `closed` allows one that costs 0, or
whose rule is in shadow mode."""

KEPT: Final = "kept"
"""The policy in place of these, of a settle that is to be sent again: it is counted then."""

POLICY_NUMBERS: Final = {
    outcome: tuple(answer.number for answer in POLICY_ANSWERS if answer.outcome == outcome)
    for outcome in ("allowed", "refused", "failed")
}
"""The numbers of a Tally that count the hits that some policy answered so."""


@dataclass(slots=True, eq=False)
class Tally:
    """The counts of one rule. All are sums of cost, not numbers of calls.

    `total_hits` is the sum of `within_limit`, `over_limit`, `denied_below_limit`, `exceeded` and `spared`.
    """

    total_hits: int = 0
    within_limit: int = 0
    near_limit: int = 0
    """Charged above the near threshold and within the limit."""
    over_limit: int = 0
    """The part of denied hits above the limit, as envoyproxy counts it."""
    denied_below_limit: int = 0
    """The rest of them: what a denied hit that crossed the limit had below it."""
    over_limit_with_local_cache: int = 0
    """The part of `over_limit` that was denied without asking the store, which had denied it a moment before."""
    blocked: int = 0
    """The part of `over_limit` that a block denied, or that began one."""
    exceeded: int = 0
    """Allowed above the limit, as far as the limit may be exceeded."""
    spared: int = 0
    """The part of `total_hits` that was not charged, because another limit of its bundle denied its hit, or of a list
    with `charge: first` was charged in place of this one."""
    shadow_mode: int = 0
    """What a shadow rule would have refused: the part of `over_limit` that it let pass."""
    shadow_below_limit: int = 0
    """As `shadow_mode`, of `denied_below_limit`."""
    unlimited: int = 0
    replaced: int = 0
    """Not charged, because another rule of the request replaces this one."""
    total_negative_hits: int = 0
    places_expired: int = 0
    """Places that were never given back, as far as a later hit on their counter found them."""
    settled: int = 0
    """Charged in full, because it had come about; in no other number but the next one."""
    overrun: int = 0
    """The part of it above the limit, or above what was reserved."""
    settles_dropped: int = 0
    """Not charged although it had come about, because the store was away."""
    looks: int = 0
    """Hits of cost 0 that were allowed."""
    charges_dropped: int = 0
    """The cost of denied hits that was not charged, of a rule that lets looks pass: callers that look and then charge
    are never limited by it."""
    # Cost of hits answered without the store; it is in none of the numbers above.
    error_failed: int = 0
    open_allowed: int = 0
    open_refused: int = 0
    closed_allowed: int = 0
    closed_refused: int = 0
    local_allowed: int = 0
    local_refused: int = 0

    def count(self, cost: int, decision: Decision, scale: Scale, shadow: bool) -> None:
        """Count one decision on a counter with that scale."""
        if cost <= 0:
            self.total_negative_hits -= cost
            self.looks += not cost and decision.allowed
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
            if scale.drops and self.looks:
                self.charges_dropped += cost
            if decision.__class__ is Blocked:
                self.blocked += over
            if shadow:
                self.shadow_mode += over
            if over < cost:
                self.denied_below_limit += cost - over
                if shadow:
                    self.shadow_below_limit += cost - over
        if over < cost:
            # The hit crossed the limit: the part of it between the threshold and the limit was near.
            below = scale.limit - scale.near
            self.near_limit += cost - over if cost - over < below else below

    def add(self, number: str, cost: int) -> None:
        """Add to the number of that name."""
        setattr(self, number, getattr(self, number) + cost)

    def spare(self, cost: int) -> None:
        """Count a hit that was not charged, because of another one of its bundle."""
        if cost > 0:
            self.total_hits += cost
            self.spared += cost

    def count_by_policy(self, cost: int, policy: str, outcome: str) -> None:
        """Count a hit that the failure policy answered without the store."""
        if cost > 0:
            self.add(f"{policy}_{outcome}", cost)

    def by_policy(self, outcome: str) -> int:
        """The cost of hits that any policy answered so, of the outcomes in POLICY_NUMBERS."""
        return sum(getattr(self, number) for number in POLICY_NUMBERS[outcome])


class Settlements(Tally):
    """A tally for hits whose cost has come about: it counts them apart in another one, and has no numbers itself."""

    __slots__ = ("tally",)

    def __init__(self, tally: Tally) -> None:
        self.tally = tally

    def count(self, cost: int, decision: Decision, scale: Scale, shadow: bool) -> None:
        """As Tally says; one that was settled before is charged nothing."""
        if not isinstance(decision, SettledById) or decision.reserved != SETTLED_BEFORE:
            self.tally.settled += cost
            self.tally.overrun += decision.over

    def add(self, number: str, cost: int) -> None:
        """As Tally says."""
        self.tally.add(number, cost)

    def spare(self, cost: int) -> None:
        """Another limit of a list is charged it, and counts it."""

    def count_by_policy(self, cost: int, policy: str, outcome: str) -> None:
        """As Tally says: only `local` charges anything."""
        if policy != KEPT:
            self.tally.add("settled" if policy == "local" else "settles_dropped", cost)


OUTCOMES: Final = ("allowed", "refused", "shadow", "policy_allowed", "policy_refused", "unlimited", "failed")
"""The outcomes of a request; the names of a DomainTally's counts."""


@dataclass(slots=True, eq=False)
class DomainTally:
    """The counts of one domain: requests by outcome, and descriptors of which there is more to say."""

    allowed: int = 0
    refused: int = 0
    shadow: int = 0
    """Allowed only because a rule, or the service, is in shadow mode."""
    policy_allowed: int = 0
    policy_refused: int = 0
    """Answered so while the store could not decide at least one hit."""
    unlimited: int = 0
    """Allowed because the rules say nothing about any of its descriptors."""
    failed: int = 0
    """Ended with an error."""
    unmatched: int = 0
    """Descriptors, not requests."""
    no_address: int = 0
    """Descriptors with a value that is not an address, of a key whose values are to be addresses."""
    banned: int = 0
    """Descriptors that a ban denied."""
    too_long: int = 0
    """Descriptors denied for a value that is too long for the patterns that it is compared with."""

    def add(self, number: str, count: int) -> None:
        """Add to the number of that name."""
        setattr(self, number, getattr(self, number) + count)


class DomainTallies:
    """A DomainTally for each domain that has, or had, rules; one for all other domains, named `other`."""

    def __init__(self) -> None:
        self.other = DomainTally()
        self._by_domain = {OTHER[0]: self.other}

    def add_domains(self, domains: Iterable[str]) -> None:
        """Give each of these domains a tally of its own."""
        for domain in domains:
            if domain not in self._by_domain:
                self._by_domain[domain] = DomainTally()

    def of(self, domain: str) -> DomainTally:
        """The tally in which requests for the domain are counted."""
        return self._by_domain.get(domain, self.other)

    def items(self) -> Iterator[tuple[str, DomainTally]]:
        """Every domain with its tally."""
        return iter(tuple(self._by_domain.items()))


BYTES: Final = 64 * 1024 * 1024
"""The most bytes for the tallies by value of all rules, and for their text in /metrics: 40,000 of them. Without this
limit, ten thousand rules with a thousand values each, of 1,000 characters, would take 13 GB, and ten times as much as
text."""

_BASE_BYTES: Final = 320
"""Bytes of a tally, without the characters of its path."""

_LINES: Final = 12
"""Lines of a tally in /metrics at most, but for a few that no rule has together."""

_LINE_BYTES: Final = 90
"""Bytes of such a line, without the characters of its path."""


def cut(path: Path) -> Path:
    """The path with its long levels cut; each that was ends with an ellipsis."""
    if max(map(len, path)) <= MAX_LEVEL_LENGTH:
        return path
    return tuple([level if len(level) <= MAX_LEVEL_LENGTH else f"{level[: MAX_LEVEL_LENGTH - 1]}…" for level in path])


def length_of(path: Path) -> int:
    """The bytes of a path, and of what is escaped where it is a label."""
    return sum(len(level.encode(errors="replace")) + level.count('"') + level.count("\\") for level in path)


_BETWEEN_LEVELS: Final = "\0"


def joined(path: Path) -> str:
    """The path as a name, with its long levels cut; that of OTHER where it is too long all the same."""
    path = cut(path)
    return _BETWEEN_LEVELS.join(path if length_of(path) <= MAX_PATH_LENGTH else OTHER)


def parted(name: str) -> Path:
    """The path of a name that `joined` has made."""
    return tuple(name.split(_BETWEEN_LEVELS))


class ByteBudget:
    """Bytes that are left for the tallies of several rules."""

    def __init__(self, left: int = BYTES) -> None:
        self.left = left


class Tallies:
    """At most `most` tallies by path, within the budget; one more, `other`, counts for all paths beyond that."""

    def __init__(self, other: Path, most: int, budget: ByteBudget | None = None) -> None:
        self._by_path: dict[Path, Tally] = {}
        self._other_path = other
        self._other = Tally()
        self._most = most
        self._budget = budget or ByteBudget()
        self._bytes = 0

    def of(self, path: Path) -> Tally:
        """The tally at that path, with its long levels cut; a new one if the budget allows it, else `other`."""
        path = cut(path)
        tally = self._by_path.get(path)
        if tally is None:
            length = length_of(path)
            size = _BASE_BYTES + length + _LINES * (_LINE_BYTES + length)
            if len(self._by_path) >= self._most or length > MAX_PATH_LENGTH or size > self._budget.left:
                return self._by_path.setdefault(self._other_path, self._other)
            self._bytes += size
            self._budget.left -= size
            tally = self._by_path[path] = Tally()
        return tally

    def use_budget(self, budget: ByteBudget) -> None:
        """Take the bytes of all tallies, old and new, from this budget."""
        self._budget = budget
        budget.left -= self._bytes

    def items(self) -> Iterator[tuple[Path, Tally]]:
        """Every path with its tally."""
        return iter(tuple(self._by_path.items()))


@dataclass(slots=True, eq=False)
class Totals:
    """The counts of the service as a whole, in calls."""

    service_errors: int = 0
    """Calls that ended with an error because of the request, or because there were no rules."""
    store_errors: int = 0
    """Calls that ended with an error because the store failed."""
    global_shadow_mode: int = 0
    """Denied requests that SHADOW_MODE turned into OK."""
