"""The nouns everything else is written in: Limit, Kind, Descriptor, Request, Decision."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from ratelimit_service.system.calendar import Calendar
from ratelimit_service.system.clock import DAY
from ratelimit_service.system.duration import WORDS

MAX_REQUESTS = 2**50
"""The largest limit, and the largest cost that is charged: sums of a few are exact in Lua's numbers, up to 2**53."""

MAX_FIELD = 2**32 - 1
"""The largest number of Envoy's fields for a limit and for what is left of it."""

MAX_WINDOW = 100 * 365 * DAY
"""Microseconds; the end of such a window is still exact in Lua's integers."""

Cancel = Callable[[], bool]
"""Cancels a request that waits. True: its callback is not called. Its hits were not sent to the store, and nothing is
charged; or it waits in a queue, where those behind it have its turn. False: it is too late, and the callback is
called as usual."""


class Unit(IntEnum):
    """Envoy's units of time; the number is the one on the wire (`RateLimitResponse.RateLimit.Unit`)."""

    SECOND = 1
    MINUTE = 2
    HOUR = 3
    DAY = 4
    MONTH = 5
    YEAR = 6
    WEEK = 7

    @property
    def window(self) -> int:
        """The length of the unit: a month is 30 days and a year 365, as Envoy's users have it."""
        return _WINDOWS[self]

    def in_words(self, times: int = 1) -> str:
        """`minute`, or `5 minutes`."""
        return self.name.lower() if times == 1 else f"{times} {self.name.lower()}s"


_WINDOWS = {unit: WORDS[unit.name.lower()] for unit in Unit}


State = Any
"""What a counter remembers: a tuple of integers, or bytes. Only its algorithm knows its layout."""


class Algorithm(Protocol):
    """An algorithm that counts. `algorithms/algorithm.py` is its contract."""

    @property
    def name(self) -> str:
        """Its name in rules."""

    @property
    def leases(self) -> bool:
        """It has the functions of `lease.Leasing`."""

    def hit(self, state: State | None, limit: "Limit", cost: int, now: int) -> "tuple[State | None, Decision]":
        """Charge `cost` at `now`: the new state, and the decision."""

    def owe(self, state: State | None, limit: "Limit", cost: int, now: int, /) -> State | None:
        """Charge a cost above 0 that has come about, whatever there is room for: the new state."""

    def problem(self, limit: "Limit", /) -> str | None:
        """The reason why it cannot count this limit, or None."""

    def room_after(self, limit: "Limit", reset_after: int, /) -> int:
        """Microseconds until the next bit of room, of a counter that is as if untouched after `reset_after`."""


Charge = Callable[[State | None, "Limit", int, int], "tuple[State | None, Decision]"]
"""The `hit` of an algorithm: charges a cost at a moment."""


class Kind:
    """The kind of a limit, beside its numbers. This one is plain, and its answers are the defaults of the other kinds.

    A kind is a class in `algorithms/kinds`, with the numbers of its own as fields: a composition over any algorithm,
    which answers what the other parts have to know of it. No part tests which kind a limit has.
    """

    __slots__ = ()

    # How it is charged.
    twin: ClassVar[str] = ""
    """The name of its Lua twin, the file beside its module (`algorithms.kinds`). Empty: there is none."""
    composite: ClassVar[bool] = False
    """A hit needs more than the algorithm's `hit`."""
    in_windows: ClassVar[bool] = True
    """It limits what comes in a window. False: what is under way at once; then no unit is meant."""
    holds: ClassVar[bool] = False
    """What a hit takes is held by the request that a level of the rule names, until a refund gives it back."""
    reserves: ClassVar[bool] = False
    """A hit is charged what the request may cost, under its id, until that is settled."""
    hold: int = 0
    """Microseconds for which it can be settled."""
    estimate: int = 0
    """What a request reserves that does not say its cost; 0: the cost of any request."""
    has_second: ClassVar[bool] = False
    """A second counter is charged with the limit's own: one for each, or one that several limits have in common."""
    strict: bool = False
    """With a common counter, what the limit allows by itself needs room there too."""
    ending: ClassVar[str] = ""
    """The end of the name of a second counter that each counter has; no name of a counter ends so."""

    @property
    def common(self) -> str:
        """The name of the second counter that limits of a domain have in common; empty without one."""
        return ""

    @property
    def common_limit(self) -> "Limit | None":
        """The limit by which a token bucket counts there."""
        return None

    @property
    def second_ending(self) -> str:
        """The end of the name of the second counter of this hit's own counter; empty if it has none."""
        return self.ending

    def hit(
        self, charge: Charge, state: State | None, second: State | None, limit: "Limit", cost: int, now: int
    ) -> "tuple[State | None, State | None, Decision]":
        """Charge `cost` to the counter, and to the second one: the new states, and the decision."""
        state, decision = charge(state, limit, cost, now)
        return state, second, decision

    def owe(
        self, algorithm: Algorithm, state: State | None, second: State | None, limit: "Limit", cost: int, now: int
    ) -> "tuple[State | None, State | None, Decision]":
        """Charge a cost that has come about, whatever there is room for: as `hit`, and the decision on a look after it.

        Its `over` is the part of the cost that lies above the limit.
        """
        state, before = algorithm.hit(state, limit, 0, now)
        if cost:
            state = algorithm.owe(state, limit, cost, now)
        state, second, look = self.hit(algorithm.hit, state, second, limit, 0, now)
        room = before.remaining
        look.over = max(0, min(cost, cost + limit.exceed - room))
        if cost and not room and look.allowed:  # a bucket that gets no tokens keeps no debt
            look.allowed, look.retry_after = False, NEVER
        return state, second, look

    def deny(self, second: State | None, limit: "Limit", cost: int, charged: int, now: int) -> tuple[State | None, int]:
        """Apply a denied hit of a bundle: the new state of the second counter, and how much of it is charged."""
        return second, charged

    def rest(self, second: State | None, now: int) -> int:
        """The time for which the second counter denies every hit."""
        return 0

    def reservation(self, second: State | None, now: int) -> int:
        """Of the id of a hit with this second counter: 2: it has a reservation; 1: that is settled; 0: neither."""
        return 0

    def taken(self, cost: int, *, told: bool) -> int:
        """What a request takes of it, beside limits that reserve; `told`: the caller has told the cost."""
        return cost

    def held_by(self, limit: "Limit", holder: str) -> "Limit":
        """The limit for the hits of this holder."""
        return limit

    def counted(self, limit: "Limit") -> "Limit":
        """The limit whose numbers its twin gets."""
        return limit

    def numbers(self, limit: "Limit", algorithm: Algorithm, interval: int) -> tuple[int, ...]:
        """The numbers for its twin, beside those of the limit; `interval` is the time between exchanges of regions."""
        return ()

    def share(self, limit: "Limit", part: Callable[[int], int], whole: Callable[[int], int]) -> "Kind":
        """The kind of a share of the limit, for one instance of several: `part` rounds up, and `whole` down."""
        return self

    def burst_of(self, requests: int, window: int, burst: int) -> int:
        """Its burst, of so many requests; `burst` as it is written."""
        return burst

    # How long its hits may wait for their turns, in a queue.
    max_delay: int = 0
    """Microseconds that a hit may wait; 0: there is no queue."""
    max_wait: int = 0
    """Microseconds that the caller of one hit waits: `max_delay`, or less."""

    def with_wait(self, limit: "Limit", wait: int) -> "Limit":
        """The limit for a caller who waits for no longer than that."""
        return limit

    def with_turn(self, limit: "Limit", end: int) -> "Limit":
        """The limit for a refund that gives back the turn which ends then, by the clock of the store."""
        return limit

    # What the home of regions has to do with it.
    asks_home: ClassVar[int] = 0
    """How many numbers its twin tells of a counter about which home is to be asked; 0: of none."""
    waits_for_home: ClassVar[bool] = False
    """Home grants what it has: its hits may be undecided until home has answered."""
    exchanges: ClassVar[bool] = False
    """Home knows what each region has counted."""

    # What may be done with its hits.
    in_runs: ClassVar[bool] = True
    """Equal hits may be charged in one step, if those of the algorithm may."""
    why_not_settled: ClassVar[str] = ""
    """Why no cost that comes about later can be charged to it."""
    moved_by_denials: ClassVar[bool] = True
    """Denied hits are charged to its counter, if `count_refused`."""
    longest_denial: ClassVar[int] = MAX_WINDOW
    """Microseconds for which a denial may be remembered at most."""
    why_not_leased: ClassVar[str] = ""
    """Why instances cannot lease it."""
    may_be_central: ClassVar[bool] = True
    """All regions may count it in their home Redis."""
    only_counted_so: ClassVar[str] = ""
    """Why no other algorithm can count it."""

    # What is told of it.
    tallied: ClassVar[Sequence[str]] = ()
    """The numbers of a tally that it has beside all others; what a hit has found is added to the first one."""
    outcomes: ClassVar[Mapping[str, Sequence[str]]] = MappingProxyType({})
    """The outcomes of its hits, each with the numbers of a tally that it sums: for a metric with the name of the first
    number in `tallied`."""
    outcomes_help: ClassVar[str] = ""
    """The help text of that metric."""
    gauges: ClassVar[Sequence[str]] = ()
    """The gauges that it has; a decision is noted on the first one."""
    counts: ClassVar[str] = "requests"
    """The quota unit of RateLimit-Policy, if the rule says none."""
    option: ClassVar[str] = "requests_per_unit"
    """The option of rules that has its number."""
    tells_excess: ClassVar[bool] = True
    """What is allowed above `requests` is told to callers as an excess."""
    ceiling_is_policy: ClassVar[bool] = False
    """What it may come to is a policy of its own in headers."""

    @property
    def by_another(self) -> "Kind":
        """The kind where another algorithm counts it."""
        return self

    def noted(self, limit: "Limit", decision: "Decision") -> int:
        """The number for its first gauge; 0 for nothing."""
        return 0

    def found(self, decision: "Decision") -> int:
        """The number that a hit has found and that is tallied."""
        return 0

    def why_refused(self, limit: "Limit", over: str) -> tuple[str, str]:
        """The reason why a hit is refused: one word, and more of them; `over` says which limit it is over."""
        return "limit", over

    def words(self, limit: "Limit", holder: str) -> Mapping[str, str]:
        """The words for how it counts, by subject, in place of what is said of a plain limit or after that.

        `holder` is the name of the level that names who holds what it takes.
        """
        return {}

    def described(self, limit: "Limit", second_key: str) -> Mapping[str, Any]:
        """The same as JSON, in place of what is said of a plain limit or beside it."""
        return {}

    def look(self, limit: "Limit", remaining: int, second_remaining: int) -> Mapping[str, Any]:
        """The fields of JSON of a look at both counters."""
        return {}

    def options(self, limit: "Limit", holder: str) -> Mapping[str, Any]:
        """The options of rules that say it, with their values; None for one that such a limit cannot have."""
        return {}

    def key_suffix(self, algorithm: str, limit: "Limit") -> str:
        """The end of its counters' keys: what changes the meaning of a state."""
        return f"|{algorithm}/{limit.window}"

    def lint(self, limit: "Limit", algorithm: str) -> Iterator[tuple[str, str]]:
        """Warnings about such a limit: a name, and a message."""
        yield from ()


PLAIN: Final = Kind()


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit, so many per window: all an algorithm may know about a rule."""

    requests: int
    unit: Unit
    window: int
    """Microseconds. The unit's own, or a multiple of it; with a calendar about its length."""
    burst: int = 0
    """Capacity of a bucket; 0 for as many as `requests`. Of a queue, how many hits have a place, with the first one."""
    parts: int = 10
    """Into how many sub-windows the window is cut."""
    first_request: bool = False
    """A fixed window begins with its first request, not with the calendar."""
    count_refused: bool = True
    """A refused hit is charged too."""
    crossing_only: bool = False
    """Of the refused hits of a fixed window only the one that takes it above its limit is charged."""
    exceed: int = 0
    """How many above `requests` are let through, and counted as such."""
    calendar: Calendar | None = None
    """Windows of a calendar in place of equally long ones; only of a fixed window."""
    longest_term: int = 0
    """Microseconds that a lease lasts at most, of a bucket with a burst exactly; 0: as long as one of an instance."""
    regions: "Regions | None" = None
    """The regions of the deployment share it; None: each region counts by itself, as if there were no others."""
    kind: Kind = PLAIN
    """What it is beside these numbers: with a block after denials, a member of a pool, …"""
    owes: bool = False
    """What is charged by it has come about: it is charged in full, whatever there is room for."""
    composite: bool = field(init=False, repr=False, compare=False)
    """A hit needs more than the algorithm's `hit`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "composite", self.kind.composite or self.owes)  # frozen

    @property
    def capacity(self) -> int:
        """The most that may be charged at once, but for what exceeds it."""
        return self.burst or self.requests

    @property
    def equal_windows(self) -> bool:
        """It has windows, and all are equally long."""
        return self.calendar is None and self.kind.in_windows

    @property
    def epoch_aligned(self) -> bool:
        """Its windows follow each other from the Unix epoch on, where they are fixed."""
        return self.calendar is None and not self.first_request

    def same_windows(self, other: "Limit") -> bool:
        """Whether windows of the other limit are as long, and of the same calendar."""
        return self.window == other.window and self.calendar == other.calendar

    @property
    def only_counted_so(self) -> str:
        """Why no other algorithm can count it."""
        return self.kind.only_counted_so if self.calendar is None else "windows of a calendar are fixed"

    @property
    def tells_excess(self) -> bool:
        """What it allows above `requests` is told to callers as an excess."""
        return self.exceed > 0 and self.kind.tells_excess

    @property
    def alone(self) -> "Limit":
        """The limit without a second counter, but that of an id, without which the state cannot be read."""
        return replace(self, kind=PLAIN) if self.kind.has_second and not self.kind.reserves else self

    @property
    def most(self) -> int:
        """The most that may be charged at once."""
        return self.capacity + self.exceed

    @property
    def tallied(self) -> Sequence[str]:
        """The numbers of a tally that it has beside those of all limits."""
        return (*self.kind.tallied, "exceeded") if self.exceed else self.kind.tallied

    @property
    def ceiling(self) -> int:
        """The number that is let through in a window, with those above `requests`."""
        return self.requests + self.exceed

    @property
    def window_in_words(self) -> str:
        """`minute`, `5 minutes`, or `calendar month from the 15th, Europe/Berlin`; empty for one that has none."""
        if not self.kind.in_windows:
            return ""
        return self.unit.in_words(self.window // self.unit.window) if self.calendar is None else str(self.calendar)

    @property
    def window_label(self) -> str:
        """`per_minute`, `per_calendar_month` or `at_once`."""
        if not self.kind.in_windows:
            return "at_once"
        words = self.window_in_words if self.calendar is None else f"calendar {self.calendar.unit}"
        return f"per_{words}".replace(" ", "_")

    def key_suffix(self, algorithm: str) -> str:
        """The end of its counters' keys: what changes the meaning of a state."""
        key_suffix = self.kind.key_suffix(algorithm, self)
        if algorithm == "sub_windows":
            return f"{key_suffix}/{self.parts}"
        if self.calendar is not None:
            return f"{key_suffix}/{self.calendar.key}"
        return f"{key_suffix}/first_request" if self.first_request else key_suffix

    @property
    def is_central(self) -> bool:
        """All regions count it in the home Redis."""
        return self.regions is not None and self.regions.mode is RegionMode.CENTRAL

    @property
    def needs_home(self) -> bool:
        """Without the home Redis, or what it has granted, its hits cannot be decided."""
        return self.is_central or self.kind.waits_for_home

    @property
    def sharing_regions(self) -> int:
        """The number of regions that have it together."""
        return 1 if self.regions is None or self.regions.mode is RegionMode.SPLIT else self.regions.number

    @property
    def floor_percent(self) -> int:
        """The share of it that each region has by itself, by the rules."""
        return 0 if self.regions is None else self.regions.percent

    @property
    def floor(self) -> "Limit | None":
        """The part that a region has of it by itself, if home grants it the rest and there is a floor."""
        return None if self.regions is None else self.regions.floor


def settling(limit: Limit) -> Limit:
    """The limit by which costs that have come about are charged: one for each hit, as each limit is of one rule."""
    return replace(limit, owes=True)


class RegionMode(StrEnum):
    """The way in which regions share a limit: a value of `regions` in `rate_limit`."""

    LEASED = "leased"
    """Each region spends what it leases from the home Redis."""
    CENTRAL = "central"
    """All regions count in the home Redis."""
    SPLIT = "split"
    """Each region has a fixed part."""
    SYNCED = "synced"
    """Each region counts by itself, and learns now and then what the others have counted."""


@dataclass(frozen=True, slots=True)
class Regions:
    """The regions of a deployment that share a limit."""

    mode: RegionMode
    number: int
    """How many regions there are."""
    whole: int
    """The requests of all regions together; with `split` the limit's `requests` are the part of this region."""
    percent: int = 0
    """With `leased`, the share of the limit that each region has by itself, by the rules."""
    home: Limit | None = None
    """With `leased`, what the home Redis may grant: the limit less all floors."""
    floor: Limit | None = None
    """With `leased`, what each region has by itself, counted by the same algorithm; None without a floor."""


@dataclass(slots=True)
class Descriptor:
    """The subject of a request: entries in order, what it costs, and a limit that stands in for the rulebook's."""

    entries: tuple[tuple[str, str], ...]
    cost: int = 1
    """0 looks without charging; below 0 gives back."""
    hits_addend: int | None = None
    """The descriptor's own cost as it was sent, if one was."""
    override: Limit | None = None


@dataclass(slots=True)
class Request:
    """One question: may these descriptors be charged?"""

    domain: str
    descriptors: Sequence[Descriptor]
    hits_addend: int = 0
    """As it was sent; it is in the cost of each descriptor that has none of its own."""
    explain: bool = False
    """The caller asks for the reasons of the answer."""
    together: bool = False
    """All descriptors are charged, or none, whatever the rules say."""


@dataclass(slots=True)
class Decision:
    """The answer for one hit."""

    allowed: bool
    remaining: int
    """What could still be charged now."""
    over: int
    """The part of the cost that lies above the limit; 0 when all of it fitted."""
    reset_after: int
    """Microseconds until the counter is as if untouched."""
    retry_after: int
    """Microseconds until the same hit would be allowed if no other comes: 0 when it is, `NEVER` when it cannot be."""


@dataclass(slots=True)
class Blocked(Decision):
    """The answer for a hit on a counter that is blocked, or by which it is."""

    # A field of Decision would cost every hit; this class costs those that have a block.
    blocked_for: int
    """Microseconds until the block ends; `retry_after` may be longer."""


@dataclass(slots=True)
class Queued(Decision):
    """The answer for a hit that is allowed, later: it has a place in the queue of its counter."""

    wait: int
    """Microseconds until its turn."""
    turn: int
    """When it may be answered, by the clock of the store."""


@dataclass(slots=True)
class Reserving(Decision):
    """The answer for a hit that has reserved its cost under its id."""


SETTLED_BEFORE: Final = -1
"""In place of what was reserved under an id: it has been settled, and nothing is charged again."""


@dataclass(slots=True)
class SettledById(Decision):
    """The answer for a settle of an id that is known."""

    reserved: int
    """The units that were reserved under it, or `SETTLED_BEFORE`."""
    age: int
    """Microseconds since they were."""


class ByPolicy(NamedTuple):
    """The cause why a hit was answered without its store, and the policy."""

    policy: str
    """`error`, `open`, `closed` or `local`."""
    reason: str
    """What was wrong with the store, in words."""


NEVER = -1
"""`retry_after` of a hit that costs more than its limit."""
