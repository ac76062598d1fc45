"""Replays requests through the service's own limiter, with counters in memory and a clock that the requests set."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Final, NamedTuple

from ratelimit_service.algorithms import BUCKETS, open_algorithm
from ratelimit_service.commands.simulate.heaviest import Heaviest
from ratelimit_service.commands.simulate.mapping import Mapping, Values
from ratelimit_service.commands.simulate.settled import CostSums, Ended
from ratelimit_service.errors import RpcError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.plan import Plan
from ratelimit_service.limiter.turns import TurnQueues
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Descriptor, Kind, Request, settling
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.rule import Entries, Rule, entries_in_words
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.system.clock import DAY, HOUR, MINUTE, SECOND

MAX_COUNTERS: Final = 1_000_000
"""The most counters, as the service has by default; 250 MB."""

MAX_PLANS: Final = 50_000
MAX_CACHED: Final = 512
"""Characters in the values of a line whose plan is kept; so all plans take 100 MB at most."""

HEAVIEST: Final = 10_000
"""Refused keys that are counted exactly, and half of those that are kept at most."""

MAX_KEY: Final = 200
"""Characters of a refused key; the rest of a longer one is shown as a digest."""

MAX_SPANS: Final = 240

MAX_MOMENT: Final = 2**63
"""After the end of every request."""

_WIDTHS: Final = (
    *(SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND, MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE),
    *(HOUR, 6 * HOUR, DAY, 7 * DAY, 28 * DAY, 364 * DAY, 3640 * DAY, 36400 * DAY, 364000 * DAY),
)
"""Each a multiple of the one before."""


@dataclass(slots=True)
class Loans:
    """Requests on an elastic limit."""

    by_right: int = 0
    on_loan: int = 0
    refused: int = 0

    @property
    def allowed(self) -> int:
        """The cost allowed by right and on loan."""
        return self.by_right + self.on_loan

    @property
    def asked(self) -> int:
        """All of them."""
        return self.allowed + self.refused

    def add(self, other: "Loans") -> None:
        """Add the counts of another one to this."""
        self.by_right += other.by_right
        self.on_loan += other.on_loan
        self.refused += other.refused


@dataclass(slots=True)
class Span:
    """Some time, and what was asked and refused in it."""

    start: int
    """Microseconds since 1970."""
    requests: int = 0
    refused: int = 0
    by_rule: dict[Rule, int] = field(default_factory=dict)
    """Requests that each rule refused."""
    elastic: dict[Rule, Loans] = field(default_factory=dict)
    """Requests on each elastic limit."""
    moved: int = 0
    """Allowed requests that came before and left a queue in this time, less those that came and went on waiting."""

    @property
    def allowed(self) -> int:
        """Requests that were let through in this time."""
        return self.requests - self.refused + self.moved

    def add(self, other: "Span") -> None:
        """Add the counts of another one to this."""
        self.requests += other.requests
        self.refused += other.refused
        self.moved += other.moved
        for rule, count in other.by_rule.items():
            self.by_rule[rule] = self.by_rule.get(rule, 0) + count
        for rule, loans in other.elastic.items():
            self.elastic.setdefault(rule, Loans()).add(loans)


class Timeline:
    """At most `MAX_SPANS` spans of one width, which grows with the time that they take."""

    def __init__(self) -> None:
        self.width = _WIDTHS[0]
        self.spans: list[Span] = []
        """In the order of time, without those in which nothing came."""
        self._end = 0

    def at(self, now: int) -> Span:
        """The span of this moment, which is not before the last one."""
        if now < self._end:
            return self.spans[-1]
        while self.spans and (now - self.spans[0].start) // self.width >= MAX_SPANS - 1:
            self._widen()
        start = now // self.width * self.width
        if not self.spans or self.spans[-1].start != start:
            self.spans.append(Span(start))
        self._end = start + self.width
        return self.spans[-1]

    def _widen(self) -> None:
        self.width = next(width for width in _WIDTHS if width > self.width)
        spans, self.spans = self.spans, []
        for span in spans:
            start = span.start // self.width * self.width
            if not self.spans or self.spans[-1].start != start:
                self.spans.append(Span(start))
            self.spans[-1].add(span)


@dataclass(slots=True)
class RuleSums:
    """The sums of a rule."""

    refused: int = 0
    """Requests; one that several rules refuse counts for each."""
    shadow: int = 0
    """Requests that it would have refused, were it not in shadow mode."""
    first: int = 0
    last: int = 0
    """When it refused, or would have."""


class Refused(NamedTuple):
    """A key that was refused: the entries of its descriptor, as they may be shown, and by which rule."""

    rule: Rule
    entries: str


class _Asked:
    """The plan and the entries of equal lines."""

    __slots__ = ("elastic", "end", "entries", "plan", "settled", "settles", "shadow", "shown", "unlimited")

    def __init__(self, plan: Plan, entries: Sequence[Entries], end: Plan | None, settles: Sequence[int]) -> None:
        self.plan = plan
        self.settles = settles
        """The descriptors that are settled when it ends, by their index."""
        self.settled = [each for index in settles for each in _settled(plan.hits[index])]
        """The hits that are: those that have reserved, or looked."""
        self.end = end
        """Gives its places back, if it takes some."""
        self.entries = entries
        self.unlimited = all(hit is None for hit in plan.hits)
        # What may wait in a queue is decided on copies of these, and counted for no pool.
        self.elastic = [] if plan.queued_bytes else [hit for hit in plan.charged if hit.limit.kind.common]
        """Its hits on elastic limits, decided anew for each of the lines."""
        self.shadow = any(hit is not None and hit.rule.shadow for hit in (*plan.hits, *plan.charged))
        self.shown: dict[int, str] = {}
        """The entries as they may be shown, by index; made when they are refused."""


class Side:
    """Rules under a replay. `algorithm` counts all limits by another one than they say, as far as that can be.

    Values that are secret in one of `books` are shown as digests.
    """

    def __init__(
        self,
        name: str,
        book: RuleBook,
        domain: str,
        mapping: Mapping,
        algorithm: str,
        books: Sequence[RuleBook],
    ) -> None:
        self.name = name
        self.requests = self.refused = self.unlimited = self.failed = 0
        """`failed`: requests that are answered with an error."""
        self.failure = ""
        """The first of these errors."""
        self.rules: dict[Rule, RuleSums] = {}
        self.heaviest: Heaviest[Refused] = Heaviest(HEAVIEST)
        self.timeline = Timeline()
        self.store = MemoryStore(MAX_COUNTERS, self._clock)
        self._books = books
        self._domain = domain
        self._mapping = mapping
        self._algorithm = algorithm
        self._counted_as: dict[Rule, Rule] = {}
        self.delayed = 0
        """Requests that waited in a queue."""
        self.longest_delay = 0
        self._turns = TurnQueues(clock=self._clock)
        self._limiter = Limiter(self.store, turns=self._turns)
        self._limiter.book = book
        self.took_places = False
        """Some request held a place."""
        self._ends: list[tuple[int, int, Plan, Ended | None]] = []
        """A heap: when requests end, a number of their own, and what gives their places back, or settles their cost."""
        self._ending = 0
        root = book.root(domain)
        self.mark = "" if root is None else root.settle
        """The key of the entry by which a descriptor settles; empty: none does."""
        self.reserves = any(rule.limit is not None and rule.limit.kind.reserves for rule in book.rules_in(domain))
        """Some limit of the domain does."""
        self.settlements = CostSums()
        self._plans: dict[Values, _Asked] = {}
        self._seen: set[int] = set()
        """Hashes of values that came once."""
        self._now = 0
        self._asked: _Asked
        self._span: Span

    def _clock(self) -> int:
        return self._now

    def ask(self, now: int, values: Values) -> bool:
        """Whether the request of a line is allowed at this moment."""
        self._end_requests(now)
        self._run_turns(now)
        self.requests += 1
        self._span = span = self.timeline.at(now)
        span.requests += 1
        asked = self._plans.get(values)
        if asked is None:
            try:
                asked = self._plan(values)
            except RpcError as error:
                self.failed += 1
                self.failure = self.failure or error.message
                return True
        if asked.unlimited:
            self.unlimited += 1
            return True
        self._asked = asked
        allowed = self._limiter.decide_now(asked.plan, self._note, b"")
        if allowed is None:
            refused = self.refused
            if self._limiter.decide_later(asked.plan, self._on_verdict) is not None:
                span.moved -= 1
            allowed = self.refused == refused
        if asked.end is not None and allowed:
            self.took_places = True
            self._end_later(now + self._mapping.lasted(values), asked.end)
        if asked.settled and allowed:
            self._settle_later(now, asked, values)
        return allowed

    def _settle_later(self, now: int, asked: _Asked, values: Values) -> None:
        cost = self._mapping.cost(values)
        if cost is None:
            self.settlements.leave([hit for hit in asked.settled if not hit.spared])
            return
        settles = [Descriptor((*asked.entries[index], (self.mark, "1")), cost) for index in asked.settles]
        plan = self._limiter.plan(Request(self._domain, settles))
        if self._algorithm:
            for hit in plan.charged:
                self._count_otherwise(hit)
        ended = Ended(now, asked.settled, cost)
        self._end_later(now + self._mapping.lasted(values), plan, ended)

    def _end_later(self, when: int, plan: Plan, ended: Ended | None = None) -> None:
        self._ending += 1
        heappush(self._ends, (when, self._ending, plan, ended))

    def _end_requests(self, until: int) -> None:
        """Give back the places of all requests that have ended, and settle what they have cost."""
        while self._ends and self._ends[0][0] <= until:
            self._now, _, end, ended = heappop(self._ends)
            self._limiter.decide_now(end, lambda *_: True, b"")
            if ended is not None:
                charged = {hit.key for hit in end.charged if not hit.spared}
                self.settlements.settle(ended._replace(hits=[hit for hit in ended.hits if hit.key in charged]))

    def finish(self) -> None:
        """Let the turns of all come that still wait, and all requests end."""
        while (due := self._turns.due) is not None:
            self._run_turns(due)
        self._end_requests(MAX_MOMENT)

    def _run_turns(self, until: int) -> None:
        while (due := self._turns.due) is not None and due <= until:
            self._now = due
            self._turns.run()
        self._now = until

    def _on_verdict(self, verdict: Verdict | RpcError) -> None:
        """Count a request that a queue may delay."""
        if isinstance(verdict, RpcError):
            return  # counters in memory are always there
        if verdict.delay:
            self.delayed += 1
            self.longest_delay = max(self.longest_delay, verdict.delay)
            self.timeline.at(self._now).moved += 1
        else:
            self._note(verdict, b"")

    def _plan(self, values: Values) -> _Asked:
        entries = self._mapping.entries(values)
        marked: Sequence[int] = ()
        if self.mark and self._mapping.settles:
            marked = [index for index, each in enumerate(entries) if each[-1][0] == self.mark]
            entries = [each[:-1] if index in marked else each for index, each in enumerate(entries)]
        plan = self._limiter.plan(Request(self._domain, [Descriptor(each) for each in entries]))
        settles = [index for index, hit in enumerate(plan.hits) if hit and any(kind.reserves for kind in _kinds(hit))]
        if looks := self._looks(plan, marked):
            asked = [Descriptor(each, int(index not in looks)) for index, each in enumerate(entries)]
            plan = self._limiter.plan(Request(self._domain, asked))
            settles += looks
        if self._algorithm:
            for hit in plan.charged:
                self._count_otherwise(hit)
        named = zip(entries, plan.hits, strict=True)
        held = [each for each, hit in named if hit and any(kind.holds for kind in _kinds(hit))]
        end = self._limiter.plan(Request(self._domain, [Descriptor(each, -1) for each in held])) if held else None
        made = _Asked(plan, entries, end, settles)
        seen = hash(values)
        if seen not in self._seen:  # keeping what never comes again takes as long as making it
            if len(self._seen) >= MAX_PLANS:
                self._seen.clear()
                self.store.sweep()
            self._seen.add(seen)
        elif sum(len(value) for value in values if value) <= MAX_CACHED:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self._plans[values] = made
        return made

    def _looks(self, plan: Plan, marked: Sequence[int]) -> Sequence[int]:
        """The descriptors that only look when a request begins: those that are marked, or where nothing reserves all.

        Not those that take a place, or reserve.
        """
        if not self.mark or not self._mapping.settles or (self.reserves and not marked):
            return ()
        return [
            index
            for index, hit in enumerate(plan.hits)
            if hit and (index in marked or not marked)
            if not any(kind.holds or kind.reserves for kind in _kinds(hit))
        ]

    def _count_otherwise(self, hit: Hit) -> None:
        # Its key stays the same: two limits of one list must not have one counter.
        rule = hit.rule
        if hit.limit.kind.only_counted_so:
            return
        if rule not in self._counted_as:
            self._counted_as[rule] = counted_by(rule, self._algorithm)[0]
        hit.rule = self._counted_as[rule]
        limit = hit.rule.limit or hit.limit
        hit.limit = settling(limit) if hit.limit.owes else limit

    def _note(self, verdict: Verdict, _: bytes) -> bool:
        """Count what is refused, and what would be but for shadow mode."""
        asked = self._asked
        for hit in asked.elastic:
            loans = self._span.elastic.setdefault(hit.rule, Loans())
            if not hit.decision.allowed:
                loans.refused += 1
            elif hit.decision.over:
                loans.on_loan += 1
            else:
                loans.by_right += 1
        if verdict.allowed:
            if asked.shadow:
                self._note_shadow(verdict)
            return True
        self.refused += 1
        self._span.refused += 1
        over = [(index, hit) for index, hit in enumerate(verdict.hits) if hit is not None and hit.over]
        causes = [(index, hit) for index, hit in over if not hit.quota] or over
        for rule in {hit.rule: None for _, hit in causes}:
            sums = self._sums(rule)
            sums.refused += 1
            by_rule = self._span.by_rule
            by_rule[rule] = by_rule.get(rule, 0) + 1
        for index, hit in causes:
            if index not in asked.shown:
                asked.shown[index] = self._shown(asked.entries[index])
            self.heaviest.add(Refused(hit.rule, asked.shown[index]), self._now)
        if asked.shadow:
            self._note_shadow(verdict)
        return False

    def loans(self) -> dict[Rule, Loans]:
        """The sums of each elastic limit, in the order of the rules."""
        found: dict[Rule, Loans] = {}
        for span in self.timeline.spans:
            for rule, loans in span.elastic.items():
                found.setdefault(rule, Loans()).add(loans)
        return dict(sorted(found.items(), key=lambda item: item[0].place or ()))

    def _shown(self, entries: Entries) -> str:
        for book in self._books:
            entries = book.shown(self._domain, entries)
        return _bounded(entries_in_words(entries))

    def _note_shadow(self, verdict: Verdict) -> None:
        for rule in {hit.rule: None for hit in verdict.hits if hit and hit.rule.shadow and not hit.decision.allowed}:
            self._sums(rule).shadow += 1

    def _sums(self, rule: Rule) -> RuleSums:
        sums = self.rules.get(rule)
        if sums is None:
            sums = self.rules[rule] = RuleSums(first=self._now)
        sums.last = self._now
        return sums


def _kinds(hit: Hit) -> list[Kind]:
    """Those of the limit of a hit, and of the limits beside it."""
    return [each.limit.kind for each in (hit, *hit.beside)]


def _settled(hit: Hit | None) -> list[Hit]:
    """What settles of a descriptor's hits: those that have reserved, or all where none does."""
    hits = [] if hit is None else [each for each in (hit, *hit.beside) if each.rule.limit is not None]
    return [each for each in hits if each.limit.kind.reserves] or hits


def _bounded(text: str) -> str:
    if len(text) <= MAX_KEY:
        return text
    return f"{text[: MAX_KEY - 20]}…{blake2b(text.encode(errors='surrogatepass'), digest_size=8).hexdigest()}"


def counted_by(rule: Rule, name: str) -> tuple[Rule, str]:
    """The rule with another algorithm; and if that cannot count its limit, the rule as it is, and why."""
    limit, algorithm = rule.limit, open_algorithm(name)
    if limit is None or rule.algorithm is algorithm:
        return rule, ""
    if why := limit.only_counted_so:
        return rule, why
    # What was not chosen is as it is by default with the other one.
    default = limit.count_refused == (rule.algorithm.name == "fixed_window")
    kind = limit.kind.by_another
    other = replace(
        limit,
        count_refused=name == "fixed_window" if default else limit.count_refused,
        first_request=False,
        burst=limit.burst if name in BUCKETS and kind is limit.kind else 0,
        kind=kind,
    )
    if reason := algorithm.problem(other):
        return rule, reason
    return replace(rule, algorithm=algorithm, limit=other), ""


@dataclass(slots=True)
class Differences:
    """The differences of two sides, by requests."""

    only_first: int = 0
    """Refused by the first alone."""
    only_second: int = 0


@dataclass(slots=True)
class Replay:
    """The result of a replay."""

    sides: Sequence[Side]
    requests: int = 0
    first: int = 0
    last: int = 0
    """The simulated time of the first and the last request, in microseconds since 1970."""
    early: int = 0
    """Requests whose time is before that of one before them; they are replayed at the latest time so far."""
    earliest: int = 0
    """By how many microseconds at most."""
    differences: Differences = field(default_factory=Differences)

    def run(self, records: Iterable[tuple[int, Values]]) -> None:
        """Replay all records, in their order."""
        first, *others = [side.ask for side in self.sides]
        now = 0
        for when, values in records:
            if when >= now:
                now = when
                if not self.requests:
                    self.first = when
            else:
                self.early += 1
                self.earliest = max(self.earliest, now - when)
            self.requests += 1
            allowed = first(now, values)
            for other in others:
                if other(now, values) is not allowed:
                    if allowed:
                        self.differences.only_second += 1
                    else:
                        self.differences.only_first += 1
        self.last = now
        for side in self.sides:
            side.finish()
