"""A limiter with counters in memory and a clock that tests turn; what it is asked is written as text."""

from typing import Any

from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Descriptor, Limit, Request
from ratelimit_service.rules.rule import Entries
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.telemetry.tally import DomainTally, Tally
from tests.books import book
from tests.clocks import Clock
from tests.verdicts import check


def entries_of(text: str) -> Entries:
    """Those of `user=ada path=/`; a key without a value has x."""
    return tuple((key, value if given else "x") for key, given, value in (each.partition("=") for each in text.split()))


def summary(verdict: Verdict) -> list[tuple[bool, int] | None]:
    """Of each descriptor: is it over, and what remains."""
    return [None if hit is None else (hit.over, hit.remaining) for hit in verdict.hits]


def counted(tally: Tally | DomainTally) -> dict[str, int]:
    """What was counted, without zeros."""
    return {name: number for name in tally.__slots__ if (number := getattr(tally, name))}


class Shop:
    """A limiter, and what it answers."""

    def __init__(self, rules: str, now: int = 0, **options: Any) -> None:
        self.clock = Clock(now)
        self.store = MemoryStore(1000, self.clock)
        self.limiter = Limiter(self.store, **options)
        self.limiter.book = book(rules)

    def ask(self, *descriptors: str, domain: str = "shop", cost: int = 1, override: Limit | None = None) -> Verdict:
        """A request with these descriptors."""
        asked = [Descriptor(entries_of(each), cost, override=override) for each in descriptors]
        return check(self.limiter, Request(domain, asked))

    def counts(self, *path: str) -> dict[str, int]:
        """What the rule at this path of the domain has counted, without zeros."""
        assert self.limiter.book is not None
        (tally,) = [rule.tally for rule in self.limiter.book.rules if rule.path[1:] == path]
        return counted(tally)
