"""Hits on their way through the script: parts of requests, script calls, and decisions out of replies. Pure. Hot path.

Law: no request keeps Redis from others. A hit takes 4 to 9 µs of Redis, one on a lease of a region up to 16, one
on places 11 to 18, whatever its cost. A part has at most `MAX_IN_PART` of them, a pipeline `MAX_IN_PIPELINE`, and the
next part of a request goes behind the requests that have come meanwhile. Only a bundle cannot be cut, because it must
be one step: the store rejects one of more than `MAX_IN_PIPELINE`.

The script is `batch.lua`, which says what goes in and comes out, with the algorithms' twins in it. Hits on different
counters are independent, so those on one counter are put side by side, in order of arrival. Equal hits that follow each
other are one run: the script charges as many as fit in one step, and each hit is answered as if it had come alone. That
is impossible where a charge changes what the next hit is answered:

- `reset_after` of a sliding window and of a bucket depends on how much is charged;
- so does `retry_after` where refused hits count, except in a fixed window, which ends when it ends;
- a kind of limit may say so (`in_runs`): where a denial blocks the counter, which changes `reset_after` of the hits
  after it, or where a pool has another room for each hit.

Counters that have a second counter in common are served one after the other, which is one of the orders in which hits
that arrive together may be taken.

Hits that are charged together are a run each, and no hit is moved past them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha1
from itertools import chain, groupby
from operator import attrgetter
from random import random
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol

from ratelimit_service.algorithms import NAMES
from ratelimit_service.algorithms.kinds import KINDS
from ratelimit_service.algorithms.lease import Granted
from ratelimit_service.model import SETTLED_BEFORE, Blocked, Decision, Limit, Queued, Reserving, SettledById
from ratelimit_service.rules.rule import FIRST, Rule
from ratelimit_service.stores.hit import Hit, OnCounter, common_counter
from ratelimit_service.stores.redis.floors import Floors
from ratelimit_service.stores.redis.keys import VERSION, cluster_key, cluster_second, plain_key, plain_second
from ratelimit_service.stores.redis.leases import Ask
from ratelimit_service.stores.redis.region_asks import RegionAsk
from ratelimit_service.stores.redis.replies import MISFIT, integers, misfit
from ratelimit_service.stores.redis.requests import PendingRequest
from ratelimit_service.stores.redis.script_text import script_text
from ratelimit_service.system.clock import SECOND, Clock, system_clock

MAX_IN_PART: Final = 256
"""Hits of one request. Envoy sends a handful, and Envoy Gateway up to 256; lists of limits make more of them."""

MAX_IN_PIPELINE: Final = 500
"""Hits: two to four milliseconds of Redis, in which it serves no other instance."""

Run = Sequence[Hit]
"""Hits of one rule and one cost on one counter, in order of arrival: the script answers them as one."""


class Encoded(NamedTuple):
    """Hits as a script takes them."""

    keys: Sequence[str]
    arguments: Sequence[str | int]
    runs: Sequence[Run]
    """In the order in which the script answers them."""


class Answer(NamedTuple):
    """The contents of a reply beside the decisions on its hits."""

    now: int
    """When the script ran, by the clock of its server."""
    changed: Sequence[Hit]
    """The hits that were denied, and refunds."""
    waiting: Sequence[Hit] = ()
    """Hits that are not decided, because they wait for home."""
    asked: Sequence[RegionAsk] = ()
    """What is to be asked of home."""
    granted: Sequence[Granted] = ()
    """The answer to each ask of a lease."""


class Sent(Protocol):
    """Hits that are sent together."""

    @property
    def hits(self) -> Sequence[Hit]:
        """The hits."""

    @property
    def names(self) -> Sequence[str] | None:
        """The names of their counters, if they are made already."""


class Script(Protocol):
    """A script that runs in Redis: turns hits into keys and arguments, and a reply into decisions."""

    @property
    def text(self) -> str:
        """Its source."""

    @property
    def sha(self) -> str:
        """The name that Redis gives it."""

    def key(self, hit: OnCounter) -> str:
        """The name of its counter, which may be another one a moment later."""

    def kept(self, hit: Hit) -> Sequence[str]:
        """The names of all that is kept of its counter: of the counter, and of a second one of its own."""

    def encode(self, parts: Sequence[Sent], asks: Sequence[Ask] = ()) -> Encoded:
        """Keys and arguments for the hits of these parts, and for what is asked of leases."""

    def decode(self, reply: Any, runs: Sequence[Run], asks: Sequence[Ask] = ()) -> "Answer":
        """Write the decisions on the hits; returns what else the reply says.

        Raises Fault when it is not a reply of this script to such runs and asks. Some hits may be decided then.
        """


class Group:
    """Hits of one group may travel in one script call: one object for each script, in a Cluster for each slot too."""

    __slots__ = ("script", "slot")

    def __init__(self, script: Script, slot: int = -1) -> None:
        self.script = script
        self.slot = slot


@dataclass(slots=True, eq=False)
class Part:
    """A request's hits of one group."""

    request: PendingRequest
    hits: Sequence[Hit]
    group: Group
    names: Sequence[str] | None = None
    """Of the hits' counters, if they are made already: in a Cluster a slot was chosen by the name that is sent."""
    rest: "Iterator[Part] | tuple[()]" = ()
    """Parts of the same request that are queued when this one is sent, behind what has come meanwhile."""


@dataclass(slots=True, eq=False)
class ScriptCall:
    """A call of a script, and the parts of requests in it, all of one group."""

    group: Group
    parts: Sequence[Part]
    asks: Sequence[Ask] = ()
    """What is asked of leases."""
    runs: Sequence[Run] = ()
    """The hits of the parts, as they were sent last."""
    tries: int = 0
    sent: float = 0.0
    """When it was sent last, in seconds of the monotonic clock."""
    asking: bool = False
    """It goes to a node of a Cluster that does not have its slot yet: ASKING is sent before it each time."""
    asking_error: Exception | None = None
    """What the node answered to ASKING, if that was an error."""

    def on_asking(self, reply: Any) -> None:
        """Keep the error that the node answers to ASKING."""
        if isinstance(reply, Exception):
            self.asking_error = reply

    def without_answered(self) -> "ScriptCall | None":
        """The call without requests that were answered meanwhile, which must not be charged; None if all were."""
        parts = [part for part in self.parts if not part.request.answered]
        if len(parts) == len(self.parts):
            return self
        if not parts and not self.asks:
            return None
        return ScriptCall(self.group, parts, self.asks, tries=self.tries, asking=self.asking)


def largest_bundle(hits: Sequence[Hit]) -> int:
    """The number of hits in the largest bundle."""
    return max((len(list(members)) for together, members in groupby(hits, _together) if together), default=0)


def cut(hits: Sequence[Hit], most: int = MAX_IN_PART) -> Iterator[Sequence[Hit]]:
    """The hits in order, in pieces of at most `most`; a larger bundle is a piece of its own."""
    piece: list[Hit] = []
    for together, members in groupby(hits, _together):
        for unit in [list(members)] if together else [[hit] for hit in members]:
            if piece and len(piece) + len(unit) > most:
                yield piece
                piece = []
            piece += unit
    if piece:
        yield piece


class BatchScript:
    """Charges hits on counters at the time of Redis; in tests at the time of `clock`.

    The names of the counters begin with `prefix`; those for a Cluster have a hash tag where they need one. With
    `looking` all hits have cost 0, and nothing is written.
    """

    def __init__(  # noqa: PLR0913 - what differs between deployments, and for tests
        self,
        prefix: str = "",
        clock: Clock | None = None,
        *,
        clustered: bool = False,
        jitter_seconds: int = 0,
        sync_seconds: float = 1,
        floors: Floors | None = None,
        looking: bool = False,
    ) -> None:
        self.text = script_text((*_TWINS, *KINDS))
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        self.key = (cluster_key if clustered else plain_key)(prefix)
        self._start = prefix + VERSION
        """Of all names; without a Cluster the counter's key follows."""
        self._clustered = clustered
        self._clock = clock
        self._jitter = jitter_seconds * SECOND
        self._looking = looking
        self._sync = round(sync_seconds * SECOND)
        """Between two exchanges of the counts of regions."""
        self._floors = floors
        """What home keeps free of limits that it grants to regions; None: what the rules say."""
        self._second = cluster_second if clustered else plain_second
        """The name of a counter's second one, in the same slot."""
        self._numbers = {name: number for number, name in enumerate(("", *_TWINS, *KINDS))}
        """Of the twins, as the script knows them; 0 for none."""
        self._rows: dict[Rule, str] = {}
        """The limits of rules as the script reads them, but for those of a calendar, whose edges move."""

    def forget_limits(self) -> None:
        """Read them anew: floors may have changed."""
        self._rows.clear()

    def kept(self, hit: Hit) -> Sequence[str]:
        """As Script says."""
        name = self.key(hit)
        ending = hit.limit.kind.ending
        return (name, self._second(name, ending)) if ending else (name,)

    def encode(self, parts: Sequence[Sent], asks: Sequence[Ask] = ()) -> Encoded:
        """The hits of these parts as a batch of runs; and what is asked of leases, each on a counter of its own."""
        sections, counters = self._sections(parts)
        of_leases = [(ask, name := self.key(ask.counter), counters.pop(name, [])) for ask in asks] if asks else ()
        limits = _Limits({}, {}, [], [])
        known = limits.known
        keys: list[str] = []
        runs: list[Run] = []
        numbers: list[int] = []
        for mark, hits_by_key in sections:
            if mark:
                numbers += mark
            for key, of_key in hits_by_key:
                if len(of_key) == 1:  # almost all: 0.1 µs less than below
                    first = of_key[0]
                    number = known.get(id(first.limit)) or self._number(first.rule, first.limit, limits)
                    keys.append(key)
                    runs.append(of_key)
                    numbers += (number, first.cost, 1)
                    continue
                for run in _runs(of_key):
                    first = run[0]
                    keys.append(key)
                    runs.append(run)
                    numbers += (self._number(first.rule, first.limit, limits), first.cost, len(run))
        seconds = self._seconds(keys, runs) if limits.with_second else ()
        leases = self._add_leases(of_leases, keys, runs, numbers, limits) if asks else ()
        keys += seconds
        now = 0 if self._clock is None else self._clock()
        # Aligned windows end all at once; if their keys expired so too, Redis would stall at each minute.
        jitter = -1 if self._looking else int(random() * self._jitter)  # noqa: S311 - no secret
        # str() writes a list of integers as JSON has it, in half the time of json.dumps.
        text = f"[{now},{jitter},{len(limits.rows)},{','.join(limits.rows)},{str(numbers)[1:]}"
        return Encoded(keys, (text, str(leases)) if asks else (text,), runs)

    def _sections(self, parts: Sequence[Sent]) -> "tuple[list[_Section], dict[str, list[Hit]]]":
        """The hits of these parts, counter by counter; no hit is moved past a bundle.

        Returns with the sections the counters of the last one, which has no bundle.
        """
        start = self._start
        names = (
            chain.from_iterable(part.names or map(self.key, part.hits) for part in parts) if self._clustered else None
        )
        counters: dict[str, list[Hit]] = {}
        sections: list[_Section] = [((), counters.items())]
        for part in parts:
            hits = part.hits
            for hit in hits:
                if hit.together:
                    self._add_bundles(hits[hits.index(hit) :], names, sections)
                    counters = {}
                    sections.append(((), counters.items()))
                    break
                key = start + hit.key if names is None else next(names)
                found = counters.get(key)
                if found is None:
                    counters[key] = [hit]
                else:
                    found.append(hit)
        return sections, counters

    def _add_bundles(self, hits: Sequence[Hit], names: Iterator[str] | None, sections: "list[_Section]") -> None:
        """Add a section for each bundle of these hits; `names`: of their counters, if they are made already."""
        start = self._start
        for together, members in groupby(hits, _together):
            bundle = [(start + hit.key if names is None else next(names), [hit]) for hit in members]
            mark: Sequence[int] = ()
            if together:
                is_first = bundle[0][1][0].rule.together == FIRST
                mark = (-len(bundle), 0) if is_first else (-len(bundle),)
            sections.append((mark, bundle))

    def _add_leases(
        self,
        of_leases: Sequence[tuple[Ask, str, list[Hit]]],
        keys: list[str],
        runs: list[Run],
        numbers: list[int],
        limits: "_Limits",
    ) -> list[int]:
        """Add leases, each before the hits on its counter; returns the list that the script has of them."""
        leases: list[int] = []
        for ask, key, hits in of_leases:
            leased = ask.counter
            keys.append(key)
            numbers += (self._number(leased.rule, leased.limit, limits), len(leases) + 1, 0)
            for run in _runs(hits):
                first = run[0]
                keys.append(key)
                runs.append(run)
                numbers += (self._number(first.rule, first.limit, limits), first.cost, len(run))
            if ask.before_hit and not hits:
                ask.least = ask.extra = 0  # the hit comes later, and has to find all that is given back
            leases += (leased.term, leased.phase, ask.back, ask.back_end, ask.least, ask.extra)
        return leases

    def _number(self, rule: Rule, limit: Limit, limits: "_Limits") -> int:
        """The number of this limit in the batch, to which it is added if it is not in it."""
        known = limits.known
        number = known.get(id(limit))
        if number is None:
            row = self._rows.get(rule) if limit is rule.limit else None
            if row is None:
                row = self._row(rule, limit)
                number = limits.by_row.get(row)
            if number is None:
                limits.rows.append(row)
                number = len(limits.rows)
                if limit is not rule.limit:
                    limits.by_row[row] = number
                if limit.kind.has_second:
                    limits.with_second.append(limit)
            known[id(limit)] = number
        return number

    def _row(self, rule: Rule, limit: Limit) -> str:
        """A limit as the script reads it: PER_LIMIT integers, then the edges of a calendar, and what its kind has."""
        written, kind, algorithm = limit, limit.kind, rule.algorithm
        if self._floors is not None and kind.waits_for_home:
            limit = self._floors.limit_of(rule, limit, int(monotonic() * SECOND))
        counted, calendar = kind.counted(limit), limit.calendar
        numbers: tuple[int, ...] = (
            -self._numbers[algorithm.name] if limit.owes else self._numbers[algorithm.name],
            counted.requests,
            counted.window,
            counted.burst,
            counted.parts,
            int(counted.first_request) if calendar is None else _BY_CALENDAR,
            _CROSSING_ONLY if counted.crossing_only else int(counted.count_refused),
            counted.exceed,
            int(algorithm.name == "fixed_window" and not counted.first_request),
            self._numbers[kind.twin],
        )
        of_kind = kind.numbers(limit, algorithm, self._sync)
        if calendar is not None:
            return ",".join(map(str, (*numbers, *calendar.edges((self._clock or system_clock)()), *of_kind)))
        return self._remember(rule, written, numbers + of_kind)

    def _remember(self, rule: Rule, limit: Limit, numbers: Sequence[int]) -> str:
        """These numbers as a row."""
        if limit is not rule.limit:
            return ",".join(map(str, numbers))  # of one hit alone
        if len(self._rows) >= _MAX_ROWS:  # each limit sent with a request is a rule of its own
            self._rows.clear()
        row = self._rows[rule] = ",".join(map(str, numbers))
        return row

    def _seconds(self, keys: Sequence[str], runs: Sequence[Run]) -> list[str]:
        """The second counters of the runs that have one."""
        return [
            self._second(key, kind.second_ending) if kind.second_ending else self.key(common_counter(run[0].rule))
            for key, run in zip(keys, runs, strict=True)
            if (kind := run[0].limit.kind).has_second
        ]

    def decode(  # noqa: PLR0912 - hot: one answer in a few ways
        self, reply: Any, runs: Sequence[Run], asks: Sequence[Ask] = ()
    ) -> Answer:
        """As Script says."""
        changed: list[Hit] = []
        waiting: list[Hit] = []
        try:
            end, of_asks = 1 + _PER_RUN * len(runs), _PER_ASK * len(asks)
            names = reply[end : len(reply) - of_asks] if len(reply) > end + of_asks else ()
            numbers = integers(reply[:end] + reply[end + len(names) :] if names else reply, end + of_asks)
            now = next(numbers)
            for hits, got, room, left, reset, retry in zip(runs, *[numbers] * _PER_RUN):  # noqa: B905 - asks may follow
                if got == 1 and len(hits) == 1:
                    hit = hits[0]
                    exceed = hit.limit.exceed
                    over = _exceeded(exceed, room, left) if left < exceed else 0
                    hit.decision = Decision(True, left, over, reset, 0)
                    if hit.cost < 0:
                        if left < 0:  # a refund to a blocked counter: how long it is blocked, negative
                            hit.decision = Blocked(True, 0, 0, reset, 0, -left)
                        changed.append(hit)
                elif got == _QUEUED and len(hits) == 1:
                    if not 0 <= retry <= hits[0].limit.kind.max_delay:
                        raise ValueError(retry)
                    hits[0].decision = Queued(True, left, 0, reset, 0, retry, now + retry)
                elif got == _PASSED_OVER and len(hits) == 1:
                    hits[0].decision, hits[0].spared = Decision(True, left, 0, reset, 0), True
                elif got <= _SETTLED:
                    (hit,) = hits
                    hit.decision = _settled(hit.cost, got, room, left, reset, retry)
                    changed += hits if not hit.decision.allowed else ()
                elif got == _RESERVED and len(hits) == 1:
                    hits[0].decision = Reserving(True, left, _exceeded(hits[0].limit.exceed, room, left), reset, 0)
                elif retry == _WAITS:
                    if not hits[0].limit.kind.waits_for_home:
                        raise ValueError(retry)
                    if got:
                        _share(hits[:got], got, room, left, reset, 0)
                    waiting += hits[got:]
                else:
                    _share(hits, got, room, left, reset, retry)
                    changed += hits[max(0, got) :]
            if not (names or asks):
                return Answer(now, changed, waiting)
            granted = [_granted(ask, answer, now) for ask, *answer in zip(asks, *[numbers] * _PER_ASK, strict=True)]
            asked = self._read_names(names, runs, now)
        except MISFIT as error:
            raise misfit("the script") from error
        return Answer(now, changed, waiting, asked, granted)

    def _read_names(self, names: Sequence[Any], runs: Sequence[Run], now: int) -> list[RegionAsk]:
        """Count places that were never given back; returns what is to be asked of home."""
        shared = {self.key(run[0]): run[0] for run in runs if run[0].limit.kind.asks_home}
        asked = []
        pairs = iter(names)
        for name, found in zip(pairs, pairs, strict=True):
            if isinstance(found, int):
                self._count_found(name.decode(), found, runs)
            else:
                hit = shared[name.decode()]
                asked.append(RegionAsk.read(hit, name.decode(), found, now))
        return asked

    def _count_found(self, name: str, found: int, runs: Sequence[Run]) -> None:
        """Count what the twin of a kind has found of the counter with this name."""
        hit = next((run[0] for run in runs if run[0].limit.kind.tallied and self.key(run[0]) == name), None)
        if hit is not None:
            hit.tally.add(hit.limit.kind.tallied[0], found)


def _exceeded(exceed: int, room: int, left: int) -> int:
    """The part above the limit of what a hit took, which is not its cost, if it was spared or was a refund."""
    return max(0, min(exceed - left, room - left))


def _settled(cost: int, got: int, over: int, left: int, reset: int, retry: int) -> Decision:
    """The decision on a settle, of which so much was above the limit, or above what was reserved."""
    if left < 0:
        return Blocked(False, 0, over, reset, retry, -left)
    allowed = got % 2 == _SETTLED % 2
    if got > _SETTLED_BEFORE:
        return Decision(allowed, left, over, reset, retry)
    age = (_SETTLED_NOW - got) // 2
    if age < 0:
        return SettledById(allowed, left, 0, reset, retry, SETTLED_BEFORE, 0)
    return SettledById(allowed, left, max(0, over), reset, retry, cost - over, age)


def _granted(ask: Ask, answer: Sequence[int], now: int) -> Granted:
    """The answer to an ask; ValueError when it has units that were not asked for."""
    granted = Granted._make((*answer, now))
    if not 0 <= granted.units <= max(ask.least, ask.extra):
        raise ValueError(granted.units)
    return granted


_PER_RUN: Final = 5
"""Numbers."""

_PER_ASK: Final = 5


class _Limits(NamedTuple):
    """The limits of a batch."""

    known: dict[int, int]
    """The number of each by its identity: its hash takes a microsecond. A hit on places has a limit of its own."""
    by_row: dict[str, int]
    """The same of limits that hits have of their own, of which many are alike: ids are in the names of memos."""
    rows: list[str]
    """As the script reads them."""
    with_second: list[Limit]
    """Those with a second counter."""


_Section = tuple[Sequence[int], Iterable[tuple[str, list[Hit]]]]
"""The numbers before the runs of a bundle, empty for hits that are charged alone; and the hits on each counter."""


_TWINS: Final = (*NAMES, "lease", "settle", "first")

_EXPIRES_AT_ONCE: Final = frozenset({"fixed_window", "sub_windows", "sliding_log"})
"""Algorithms whose charges of one moment expire at one moment, however much they are."""


_MAX_ROWS: Final = 10_000
_BY_CALENDAR: Final = 2
"""The value in place of `first_request`; the edges of the windows follow the limit."""
_CROSSING_ONLY: Final = 2
"""The value in place of `count_refused`."""
_QUEUED: Final = 2
"""The value in place of `got`: the hit has a place in a queue."""
_RESERVED: Final = 3
"""The value in place of `got`: the hit is a new reservation."""
_PASSED_OVER: Final = 4
"""The value in place of `got`: another limit of its list was charged."""
_SETTLED: Final = -3
"""The value in place of `got` of a settle; one less if a look after it is denied, as with the next two."""
_SETTLED_BEFORE: Final = -5
"""The same of an id that has been settled: nothing is charged."""
_SETTLED_NOW: Final = -7
"""The same of a reservation made just now; for each microsecond since then less by two."""
_WAITS: Final = -2
"""The value in place of `retry_after`: the refused hits wait for the home Redis."""


def _runs(hits: Sequence[Hit]) -> list[list[Hit]]:
    """Hits on one counter, equal ones that follow each other as one run."""
    runs: list[list[Hit]] = []
    limit, cost = None, 0
    for hit in hits:
        if hit.cost == cost and hit.limit is limit:
            runs[-1].append(hit)
        else:
            runs.append([hit])
            limit, cost = (hit.limit, hit.cost) if hit.cost > 0 and _is_answered_in_a_run(hit) else (None, 0)
    return runs


def _is_answered_in_a_run(hit: Hit) -> bool:
    """The answer to each hit of a run follows from the answers before and after the whole run."""
    name = hit.rule.algorithm.name
    limit = hit.limit
    if limit.owes or not limit.kind.in_runs:
        return False
    return name in _EXPIRES_AT_ONCE and (name == "fixed_window" or not limit.count_refused)


def _share(hits: Run, got: int, room: int, left: int, reset: int, retry: int) -> None:
    """First come, first served: the first `got` are allowed, and each has what those before it have left."""
    cost, exceed = hits[0].cost, hits[0].limit.exceed
    if got < 0:
        cost = 0
    for index, hit in enumerate(hits):
        if index < got:
            room -= cost
            over = max(0, min(exceed - room, cost)) if room < exceed else 0
            hit.decision = Decision(True, room, over, reset, 0)
        else:
            over = max(0, min(cost + exceed - room, cost))
            if left >= 0:
                hit.decision = Decision(False, left, over, reset, retry)
                room = left
            else:
                hit.decision = Blocked(False, 0, over, reset, retry, -left)


_together = attrgetter("together")
