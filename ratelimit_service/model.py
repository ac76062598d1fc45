"""The nouns everything else is written in: Limit, Descriptor, Request, Decision."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

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
        """How long the unit is: a month is 30 days and a year 365, as Envoy's users have it."""
        return _WINDOWS[self]


_WINDOWS = {unit: WORDS[unit.name.lower()] for unit in Unit}


@dataclass(frozen=True, slots=True)
class Limit:
    """How many per window: all an algorithm may know about a rule."""

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
    block_for: int = 0
    """Microseconds for which a denial blocks the counter; 0 for none."""
    block_up_to: int = 0
    """The length up to which a next block is twice as long as the last one; 0: all are `block_for` long."""
    max_delay: int = 0
    """Microseconds that a hit may wait in the queue of its counter; 0: there is no queue."""
    max_wait: int = 0
    """Microseconds that the caller of one hit waits: `max_delay`, or less."""
    last_end: int = 0
    """Of a refund, the end of the turn that it gives back, by the clock of the store: it does so only if that is the
    last turn of the queue. 0: whatever is last."""
    places: bool = False
    """It limits how many requests are under way: each holds its places for `window` at most. Then no unit is meant."""
    holder: int = 0
    """Of a limit of places, the 64-bit digest of the id whose hit this is; 0 for none."""
    elastic: "Elastic | None" = None
    """It may be exceeded by `exceed` on loan, as far as its pool has room."""
    longest_term: int = 0
    """Microseconds that a lease lasts at most, of a bucket with a burst exactly; 0: as long as one of an instance."""
    regions: "Regions | None" = None
    """The regions of the deployment share it; None: each region counts by itself, as if there were no others."""
    paired: bool = field(init=False, repr=False, compare=False)
    """A second counter is charged with it: its block, or its pool."""
    apart: bool = field(init=False, repr=False, compare=False)
    """A hit needs more than the algorithm's `hit`: it has places, or a second counter."""

    def __post_init__(self) -> None:
        paired = self.block_for > 0 or self.elastic is not None
        object.__setattr__(self, "paired", paired)  # frozen
        object.__setattr__(self, "apart", paired or self.places)

    @property
    def region_mode(self) -> "RegionMode | None":
        """How the regions share it; None if they do not."""
        return None if self.regions is None else self.regions.mode

    @property
    def floor(self) -> "Limit | None":
        """What a region has of it by itself, if home lends it the rest and there is a floor."""
        return None if self.regions is None else self.regions.floor


@dataclass(frozen=True, slots=True)
class Pool:
    """A rate that several limits of a domain share: what some leave idle, others may borrow."""

    name: str
    requests: int
    """Per window; the limits of the pool have the same one."""
    burst: int
    """What it admits at once after a pause."""
    reserve: int
    """The part of the burst that loans leave free."""


@dataclass(frozen=True, slots=True)
class Elastic:
    """How a limit borrows from a pool. `algorithms.elastic.member` makes it."""

    pool: Pool
    strict: bool
    """What the limit allows without a loan waits for the pool too."""
    right: Limit
    """The limit without loans."""
    counter: Limit
    """The counter of the pool: a bucket that holds the burst, and a window's requests of debt."""


class RegionMode(StrEnum):
    """How regions share a limit: a value of `regions` in `rate_limit`."""

    LEASED = "leased"
    """Each region spends what it borrows from the home Redis."""
    CENTRAL = "central"
    """All regions count in the home Redis."""
    SPLIT = "split"
    """Each region has a fixed part."""
    SYNCED = "synced"
    """Each region counts by itself, and learns now and then what the others have counted."""


@dataclass(frozen=True, slots=True)
class Regions:
    """How the regions of a deployment share a limit."""

    mode: RegionMode
    number: int
    """How many regions there are."""
    whole: int
    """The requests of all regions together; with `split` the limit's `requests` are the part of this region."""
    percent: int = 0
    """With `leased`, the share of the limit that each region has by itself, by the rules."""
    home: Limit | None = None
    """With `leased`, what the home Redis may lend: the limit less all floors."""
    floor: Limit | None = None
    """With `leased`, what each region has by itself, counted by the same algorithm; None without a floor."""


@dataclass(slots=True)
class Descriptor:
    """What is asked about: entries in order, what it costs, and a limit that stands in for the rulebook's."""

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


class ByPolicy(NamedTuple):
    """Why a hit was answered without its store, and by which policy."""

    policy: str
    """`error`, `open`, `closed` or `local`."""
    reason: str
    """What was wrong with the store, in words."""


NEVER = -1
"""`retry_after` of a hit that costs more than its limit."""
