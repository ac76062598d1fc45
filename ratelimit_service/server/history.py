"""The recent history: sixty minutes of domains and rules, and the last minute of calls, as differences of counts.

The counts are those that metrics show, of all workers where there are several. `look` compares them with those of its
last look, so no call costs more, and a reload of rules loses nothing.

Time is the machine's steady clock: when its wall clock is set, no minute is lost or counted twice.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import add, attrgetter, sub
from typing import Final, NamedTuple

from ratelimit_service.errors import RpcError, Status
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.rule import Rule
from ratelimit_service.server.dropped_charges import DroppedCharges, Dropping
from ratelimit_service.server.per_minute import Key, MinuteSums, Numbers
from ratelimit_service.server.series import domain_numbers
from ratelimit_service.server.state import ServiceState
from ratelimit_service.system.clock import MINUTE, SECOND, Clock, steady_clock
from ratelimit_service.telemetry.latency import BOUNDS, Latency
from ratelimit_service.telemetry.metric import BLOCK, value_of
from ratelimit_service.telemetry.tally import OTHER, OUTCOMES, POLICY_NUMBERS, Path, Tally

MAX_DOMAINS: Final = 50
"""The domains with sums of their own: 3,500 bytes and the name for each, 380 kB when all names are as long as they may
be. The counts of the last look are 420 bytes for each domain that has had a request."""
MAX_RULES: Final = 500
"""The rules with sums of their own: 3,500 bytes and the path for each, 2.3 MB when all paths are as long as they may
be. The counts of the last look are 300 bytes and the path for each rule that has had a hit."""
LOOK_SECONDS: Final = 5
"""Seconds between two looks. One at a hundred domains takes 0.1 ms, at ten thousand 4 ms, or 14 ms when all had
requests. Of ten thousand rules it takes 5 ms, or 22 ms when all had hits, in blocks of half a millisecond."""

RULE_OUTCOMES: Final = ("allowed", "refused", "shadow", "policy_allowed", "policy_refused", "failed", "spared")
"""The outcomes of the cost of a rule's hits. `allowed` is what its tally has as within the limit, exceeded and
unlimited; `refused` and `shadow` are the cost of denied hits; `spared` was allowed, and not charged because another
limit of the request denied, or was charged in its place. These four are `total` of `/status`."""

_LOOKS: Final = 60 // LOOK_SECONDS + 1
_WIDTH: Final = len(OUTCOMES)
_CALLS: Final = "calls"
"""The key of the only histogram that has sums by minute."""
_NONE: Final = (0,) * len(RULE_OUTCOMES)

_read: Callable[[Tally], tuple[int, ...]] = attrgetter(
    *("within_limit", "exceeded", "unlimited", "over_limit", "denied_below_limit"),
    *("shadow_mode", "shadow_below_limit", "spared"),
    *(number for numbers in POLICY_NUMBERS.values() for number in numbers),
)
_BY_POLICY: Final = tuple(map(len, POLICY_NUMBERS.values()))


class Snapshot(NamedTuple):
    """Counts since the start, at one moment."""

    when: int
    """By the steady clock."""
    calls: int
    latency: Latency
    waits: Latency
    lag: Latency | None
    """None if the transport does not measure it."""
    errors: Mapping[str, int]
    """Of the store, by cause."""
    outcomes: Numbers
    """Requests, in the order of OUTCOMES."""


class LastMinute(NamedTuple):
    """The counts since the oldest snapshot that is at most a minute old."""

    seconds: float
    calls: int
    latency: Latency
    waits: Latency
    lag: Latency | None
    errors: Mapping[str, int]
    outcomes: Numbers


class History:
    """The recent history of the service."""

    def __init__(self, state: ServiceState, clock: Clock = steady_clock) -> None:
        self.domains = MinuteSums[str](_WIDTH, MAX_DOMAINS, OTHER[0])
        self._rules = MinuteSums[Path](len(RULE_OUTCOMES), MAX_RULES)
        self._latency = MinuteSums[str](len(BOUNDS) + 1, 1)
        self._dropped = DroppedCharges(clock)
        self._one_look = asyncio.Lock()
        self._edition = 0
        """Of the rules that were last looked at."""
        self._caught_up: int | None = None
        """When `_catch_up` last looked, by the clock."""
        self._state = state
        self._clock = clock
        self._started = clock()
        nothing = Snapshot(self._started, 0, Latency(), Latency(), None, {}, (0,) * _WIDTH)
        self._snapshots = deque([nothing], maxlen=_LOOKS)

    @property
    def running_seconds(self) -> float:
        """The seconds of the running minute that have passed."""
        return (self._clock() - self._started) % MINUTE / SECOND

    def look(self) -> None:
        """Take a snapshot, and add what was counted since the last look. Called every LOOK_SECONDS."""
        self.update()
        self._snapshots.append(self._snapshot())

    def update(self) -> None:
        """Add what domains have counted, and how long calls took, since the last look to the running minute."""
        domains = self._state.counted.domains.items()
        self.domains.add(self.minute, ((domain, domain_numbers(tally)[:_WIDTH]) for domain, tally in domains))
        self._latency.add(self.minute, [(_CALLS, tuple(self._state.method.latency.counts))])

    async def look_at_rules(self) -> None:
        """Add what rules have counted since the last look, in blocks between which calls go on."""
        async with self._one_look:
            await self._look_at_rules()

    def latency(self, share: float, minutes: int) -> Sequence[float]:
        """The seconds in which this share of the calls of each of the last minutes was answered; 0 without calls."""
        if _CALLS not in self._latency.keys:
            return [0] * minutes
        columns = [row[-minutes:] for row in self._latency.rows(_CALLS)]
        return [Latency(counts).quantile(share) for counts in zip(*columns, strict=True)]

    def rule_blocks(self) -> Iterator[None]:
        """Add what rules have counted; yields after each block, which takes a fraction of a millisecond."""
        edition, book = self._state.loading.successes, self._state.counted.book
        if edition != self._edition:
            self._edition = edition
            self._rules.begin_edition()
        # Each goes when it was looked at: a reload may have left them to this list, and to free all at once takes long.
        rules = [] if book is None else list(reversed(book.rules))
        del book
        dropping: dict[Path, Dropping] = {}
        left = BLOCK
        while rules:
            rule = rules.pop()
            numbers = _NONE
            # The rule's own tally has what it counted before it counted by value.
            for tally in (rule.tally, *(() if rule.tallies is None else (tally for _, tally in rule.tallies.items()))):
                numbers = _with(numbers, tally)
                if tally.charges_dropped:
                    _, looks, dropped = dropping.get(rule.path) or (rule, 0, 0)
                    dropping[rule.path] = Dropping(rule, looks + tally.looks, dropped + tally.charges_dropped)
                left -= 1
                if not left:
                    left = BLOCK
                    yield
            if numbers is not _NONE:
                self._rules.add(self.minute, ((rule.path, numbers),))
        self._rules.add(self.minute, ())
        while self._rules.forget(BLOCK):
            yield
        self._dropped.tell(dropping)

    async def of_domain(self, domain: str) -> Mapping[str, Sequence[int]]:
        """The requests for a domain by outcome, in each of the last sixty minutes; at most a second late.

        RpcError if there is no such domain, or it is not among those with sums.
        """
        await self._catch_up()
        if domain not in self.domains.keys:
            if all(name != domain for name, _ in self._state.counted.domains.items()):
                raise RpcError(Status.NOT_FOUND, f"domain {domain} has no rules, and had none; /status lists domains")
            _check_room(self.domains, domain, f"{MAX_DOMAINS} other domains", "its requests are among those of `other`")
            return {}
        return named(OUTCOMES, self.domains.rows(domain))

    async def of_rule(self, domain: str, name: str) -> Mapping[str, Sequence[int]]:
        """The cost of a rule's hits by RULE_OUTCOMES, in each of the last sixty minutes; at most a second late.

        `name` is the rule's path without the domain, joined by dots; rules with one name are added up, as in metrics.
        RpcError if there is no such rule, or it is not among those with sums.
        """
        await self._catch_up()
        found = [self._rules.rows(path) for path in self._rules.keys if _is_named(path, domain, name)]
        if not found:
            async with self._one_look:  # of many such requests, one at a time takes its share of the loop
                await self._check_rule(domain, name)
            return {}
        return named(
            RULE_OUTCOMES, ([sum(minute) for minute in zip(*rows, strict=True)] for rows in zip(*found, strict=True))
        )

    async def _catch_up(self) -> None:
        """Add what was counted since the last look, and until now, unless that was within the last second."""
        async with self._one_look:
            now = self._clock()
            if self._caught_up is None or now - self._caught_up >= SECOND:
                if self._state.workers is not None:
                    await self._state.workers.refresh()
                self.update()
                await self._look_at_rules()
                self._caught_up = now

    async def _look_at_rules(self) -> None:
        for _ in self.rule_blocks():
            await asyncio.sleep(0)

    async def _check_rule(self, domain: str, name: str) -> None:
        """Raise RpcError unless there is such a rule, which had no hits."""
        rule = await rule_named(self._state.counted.book, domain, name)
        _check_room(self._rules, rule.path, f"{MAX_RULES} other rules", "its counts are in /status")

    @property
    def minute(self) -> int:
        """The number of the running minute, from 0 on."""
        return (self._clock() - self._started) // MINUTE

    def last_minute(self) -> LastMinute:
        """The last minute until now; less after the start."""
        self.update()
        now = self._snapshot()
        # Looks may be late, and a machine that slept looks at nothing.
        oldest = next((each for each in self._snapshots if now.when - each.when <= MINUTE), self._snapshots[-1])
        return LastMinute(
            (now.when - oldest.when) / SECOND,
            now.calls - oldest.calls,
            _difference(now.latency, oldest.latency),
            _difference(now.waits, oldest.waits),
            None if now.lag is None else _difference(now.lag, oldest.lag or Latency()),
            dict(sorted((Counter(now.errors) - Counter(oldest.errors)).items())),
            tuple(map(sub, now.outcomes, oldest.outcomes)),
        )

    def _snapshot(self) -> Snapshot:
        counted, method = self._state.counted, self._state.method
        lag = value_of(self._state.metrics(), "ratelimit_loop_lag_seconds")
        return Snapshot(
            self._clock(),
            method.calls,
            method.latency.copy(),
            counted.waits.copy(),
            lag.copy() if isinstance(lag, Latency) else None,
            dict(counted.store.errors),
            self.domains.total,
        )


async def rule_named(book: RuleBook | None, domain: str, name: str) -> Rule:
    """The first rule of this name, which is its path without the domain, joined by dots; RpcError if there is none."""
    for count, rule in enumerate(() if book is None else book.rules, 1):
        if count % BLOCK == 0:
            await asyncio.sleep(0)
        if rule.domain == domain and _is_named(rule.path, domain, name):
            return rule
    raise RpcError(Status.NOT_FOUND, f"domain {domain} has no rule {name}; /status/rules lists their paths")


def _with(numbers: Numbers, tally: Tally) -> Numbers:
    """The numbers, by RULE_OUTCOMES, with those of the tally."""
    read = _read(tally)
    if not any(read):
        return numbers
    within, exceeded, unlimited, over, below, shadow, shadow_below, spared, *answered = read
    shadow += shadow_below
    by_policy = iter(answered)
    allowed, refused, failed = (sum(islice(by_policy, numbers)) for numbers in _BY_POLICY)
    found = (within + exceeded + unlimited, over + below - shadow, shadow, allowed, refused, failed, spared)
    return found if numbers is _NONE else tuple(map(add, numbers, found))


def named(outcomes: Sequence[str], rows: Iterable[Sequence[int]]) -> dict[str, Sequence[int]]:
    """The rows by their outcomes, without those that did not occur."""
    return {outcome: row for outcome, row in zip(outcomes, rows, strict=True) if any(row)}


def _check_room(sums: MinuteSums[Key], key: Key, others: str, instead: str) -> None:
    """Raise RpcError if the key has no sums because there was no room."""
    if sums.full and sums.saw(key):
        raise RpcError(Status.NOT_FOUND, f"{others} came first, and no more have a history; {instead}")


def _is_named(path: Path, domain: str, name: str) -> bool:
    return path[0] == domain and ".".join(path[1:]) == name


def _difference(now: Latency, before: Latency) -> Latency:
    # A worker that was killed takes what it had not reported with it: no number may become negative.
    counts = [max(0, one - other) for one, other in zip(now.counts, before.counts, strict=True)]
    return Latency(counts, max(0, now.nanoseconds - before.nanoseconds))
