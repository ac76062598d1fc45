"""The contract of a store: it keeps counters, charges hits against them, and owns the clock it does that by."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ratelimit_service.errors import StoreError
from ratelimit_service.model import Cancel
from ratelimit_service.stores.hit import Hit
from ratelimit_service.telemetry.metric import Metric

Done = Callable[[StoreError | None], None]


class Lost(NamedTuple):
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


class StoreStatus(Protocol):
    """What a store tells of itself; of one that several processes share, all of them together."""

    @property
    def name(self) -> str:
        """What kind of store it is, for people."""

    @property
    def healthy(self) -> bool:
        """It can decide hits now."""

    @property
    def counters(self) -> int:
        """How many it holds."""

    @property
    def evicted(self) -> int:
        """Live counters that had to make way for others."""

    @property
    def errors(self) -> Mapping[str, int]:
        """Requests that it could not decide, by cause."""

    @property
    def lost(self) -> Sequence[Lost]:
        """Each server that cannot decide hits now; empty when all is well."""


class Store(StoreStatus, Protocol):
    """Where counters live."""

    @property
    def charge(self) -> Callable[[Sequence[Hit]], bool] | None:
        """Does what `hit` does at once, and says so, or does nothing. None in a store that always waits for others."""

    def hit(self, hits: Sequence[Hit], done: Done, timeout: int | None = None) -> Cancel | None:
        """Charge all hits of one request, write a decision on each, then call `done` once, now or later.

        `timeout` is how many microseconds the caller waits for its answer, if it says so; `done` is called before.

        Hits that stand one after the other with the same `together`, other than 0, are a bundle, charged all or none.
        Each is decided as if those before it were charged. If all are allowed, all are charged. If one is denied, then
        the denied ones keep their decision, and are charged only where their limit counts refused hits; the others are
        looked at, with cost 0, and that is their decision.

        With an error, `done` says that some hit has no decision. What is returned takes back those that wait.
        """

    def metrics(self) -> Sequence[Metric]:
        """Metrics that only this kind of store has."""

    def sweep(self) -> None:
        """A little housekeeping, called several times a second."""

    async def close(self) -> None:
        """Give back what it holds outside the process."""
