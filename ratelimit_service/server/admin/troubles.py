"""What is wrong with the service now: what, since when, why, and what is answered meanwhile. The page's banners."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ratelimit_service.rules.watch import Watcher
from ratelimit_service.server.state import ServiceState, Workers
from ratelimit_service.system.clock import MINUTE, SECOND

_MOST_PROBLEMS: Final = 100

LATELY: Final = 15 * MINUTE
AGAIN_AND_AGAIN: Final = 2
"""Workers that ended unexpectedly within that time. One may be chance; the log has it."""

_MEANWHILE: Final = {
    "error": "requests end with UNAVAILABLE, and the caller decides (in Envoy, failure_mode_deny)",
    "open": "requests are allowed, as if no counter had been charged yet",
    "closed": "requests are refused",
    "local": "each process counts in its own memory, with its share of the limits",
}


class Trouble(NamedTuple):
    """One thing that is wrong."""

    what: str
    since: float | None
    """Seconds since the epoch."""
    why: str
    meanwhile: str
    """What is answered, or done, until it is over."""
    details: Sequence[str] = ()


def troubles(state: ServiceState, now: int) -> Iterator[Trouble]:
    """All that is wrong at the moment `now`, the most urgent first."""
    health, watcher = state.health, state.watcher
    if health.draining_since is not None:
        yield Trouble(
            "The service is draining",
            health.draining_since / SECOND,
            "it was told to stop",
            "health says NOT_SERVING; calls are still answered until the ports close",
        )
    for lost in state.counted.store.lost:
        answered = _MEANWHILE[lost.policy]
        yield Trouble(
            f"Redis at {lost.server} is lost",
            lost.since,
            lost.words,
            f"{answered} (ON_STORE_FAILURE={lost.policy}; a rule's on_store_failure comes first)",
        )
    if watcher.problems:
        yield _not_loaded(watcher)
    if state.workers is not None:
        yield from _deaths(state.workers, now)


def _not_loaded(watcher: Watcher) -> Trouble:
    more = len(watcher.problems) - _MOST_PROBLEMS
    details = [str(problem) for problem in watcher.problems[:_MOST_PROBLEMS]]
    return Trouble(
        "The rules on disk could not be loaded",
        None if watcher.failing_since is None else watcher.failing_since / SECOND,
        f"{watcher.path} has problems",
        "there are no rules in force, and calls fail" if watcher.book is None else "the old ones stay in force",
        details + ([f"and {more:,} more"] if more > 0 else []),
    )


def _deaths(workers: Workers, now: int) -> Iterator[Trouble]:
    lately = [death for death in workers.last_deaths if death.when >= now - LATELY]
    if len(lately) >= AGAIN_AND_AGAIN:
        first, last = lately[0], lately[-1]
        yield Trouble(
            f"{len(lately)} workers ended unexpectedly in the last {LATELY // MINUTE} minutes",
            first.when / SECOND,
            f"the last one, worker {last.number}, {last.how}",
            "each is replaced, after a longer pause each time; its clients connect again",
        )
