"""The contract of a store: it keeps counters, charges hits against them, and owns the clock by which it does."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ratelimit_service.algorithms.lease import Granted, Wanted
from ratelimit_service.errors import StoreError
from ratelimit_service.model import Cancel
from ratelimit_service.rules.bans import Ban, Bans
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit, OnCounter
from ratelimit_service.telemetry.gauges import Gauges
from ratelimit_service.telemetry.metric import Metric
from ratelimit_service.telemetry.tally import Tally

Done = Callable[[StoreError | None], None]
"""The callback when all hits are decided, or with the error because of which some hit has no decision."""

OnTaken = Callable[[Granted | None], None]
"""The callback with what was granted; None if the store could not be asked, or what it has done is not known."""


class LostServer(NamedTuple):
    """A server that cannot decide hits now."""

    server: str
    """Its name in the log."""
    cause: str
    """As in the metric of errors."""
    words: str
    """What is wrong with it, and what to do if it does not pass by itself."""
    since: float
    """Seconds since the epoch."""
    policy: str
    """What is answered meanwhile, where a rule does not say otherwise."""
    at_home: bool = False
    """It is of the home of all regions: only limits that regions share need it."""


class StoreStatus(Protocol):
    """The state of a store; where several processes share one, of all of them together."""

    @property
    def name(self) -> str:
        """The kind of store, for display."""

    @property
    def healthy(self) -> bool:
        """It can decide hits now."""

    @property
    def counters(self) -> int:
        """The number of counters that it has."""

    @property
    def evicted(self) -> int:
        """Live counters that were evicted because the store was full."""

    @property
    def errors(self) -> Mapping[str, int]:
        """Requests that the store could not decide, by cause."""

    @property
    def lost(self) -> Sequence[LostServer]:
        """The servers that cannot decide hits now; empty when all can."""

    @property
    def warnings(self) -> Sequence[str]:
        """The problems between the settings of several regions, in words."""


class BanStore(Protocol):
    """Keeps bans where counters are kept. Every method raises StoreError when that cannot be reached."""

    async def now(self) -> int:
        """The time by which bans end, in microseconds since the epoch."""

    async def put(self, ban: Ban) -> None:
        """Keep the ban, in place of one with the same key. BanError when there are too many."""

    async def lift(self, key: str, who: str) -> Ban | None:
        """End the ban with this key before its time; returns it, or None if there is none."""


class Store(StoreStatus, Protocol):
    """Keeps counters and charges hits against them."""

    @property
    def charge(self) -> Callable[[Sequence[Hit]], bool] | None:
        """Decides the hits at once and returns True, or does nothing. None if the store never decides at once."""

    def hit(self, hits: Sequence[Hit], done: Done, timeout: int | None = None) -> Cancel | None:
        """Charge all hits of one request, write a decision on each, then call `done` once, now or later.

        `timeout`: microseconds until the caller's deadline, if it has one; `done` is called before.

        Hits that stand one after the other with the same `together`, other than 0, are a bundle, charged all or none.
        Each is decided as if those before it were charged. If all are allowed, all are charged. If one is denied, then
        the denied ones keep their decision, and are charged only where their limit counts refused hits; the others are
        looked at, with cost 0, and that is their decision.

        Of a bundle of rules with `FIRST` one hit is charged, as `algorithms/first.py` says; the others are looked at,
        and `spared`. If there is no room in any, all are denied, and none is charged.

        Returns the means to cancel the request while it waits, if it waits.
        """

    def take(self, counter: OnCounter, wanted: Wanted, done: OnTaken) -> None:
        """Give back and take units of a counter for a holder who is not in this process; `done` is called once.

        Its limit must lease (`algorithms/lease.py`). It may not be the rule's own, but has the same counters.
        """

    def use(self, rules: Iterable[Rule]) -> None:
        """Prepare for hits on these rules, and on no others from now on."""

    def keep_bans(self, bans: Bans) -> BanStore:
        """Keep bans too, and have `bans` follow what is kept; called once, before the first `sweep`."""

    async def reset(self, hits: Sequence[Hit]) -> int:
        """Remove the counters of these hits, and their blocks, so that their whole limits are free.

        Returns how many there were. StoreError when they cannot be reached: then some may be left.
        """

    def held(self, key: str) -> int:
        """Units of the counter of this name that this process has charged in advance, and not spent."""

    def leased(self) -> Mapping[Tally, Gauges]:
        """The counters and units that this process has so charged, by the tallies of rules."""

    def metrics(self) -> Sequence[Metric]:
        """Metrics that only this kind of store has."""

    def sweep(self) -> None:
        """Housekeeping, called several times a second."""

    async def close(self) -> None:
        """Close its connections."""
