"""What regions use of a limit while nothing is lost, and how many hits wait, when home is some way off."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

import pytest

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.algorithms.kinds import leased as regional
from ratelimit_service.algorithms.lease import Granted
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.region_asks import RegionAsk
from ratelimit_service.system.clock import HOUR, MINUTE, SECOND
from tests.leases.fleet import Allowed, excess
from tests.regions.fleet import HomeInPython, RegionInPython

START = 1_790_000_040_000_000
"""The start of a minute."""


class Calm:
    """Three regions 1, 70 and 140 ms from home, with 60, 30 and 10 % of an even demand."""

    def __init__(self, rule: Rule, demand: float, until: int) -> None:
        assert rule.limit is not None
        self.rule = rule
        self.home = HomeInPython(rule)
        self.stores = [RegionInPython(rule) for _ in range(3)]
        self.waiting: list[list[int]] = [[], [], []]
        self.waits: list[list[int]] = [[], [], []]
        self.allowed: list[Allowed] = []
        self.hits = self.messages = 0
        self._events: list[Any] = []
        self._numbers = count()
        for number, part in enumerate((0.6, 0.3, 0.1)):
            gap = rule.limit.window / (rule.limit.requests * demand * part)
            self.at(START + int(gap), self.hit, number, gap, 1, until)
        while self._events:
            now, _, event, arguments = heappop(self._events)
            event(now, *arguments)

    def at(self, now: int, event: Callable[..., None], *arguments: Any) -> None:
        heappush(self._events, (now, next(self._numbers), event, arguments))

    def hit(self, now: int, number: int, gap: float, index: int, until: int) -> None:
        self.hits += 1
        self.charge(now, number, [now])
        if (after := START + int(gap * (index + 1))) < until:
            self.at(after, self.hit, number, gap, index + 1, until)

    def charge(self, now: int, number: int, hits: list[int]) -> None:
        assert self.rule.limit is not None
        decisions, asks = self.stores[number].run(self.rule.limit, [1] * len(hits), now + number * HOUR)
        for came, decision in zip(hits, decisions, strict=True):
            if decision is None:
                self.waiting[number].append(came)
                continue
            self.waits[number].append(now - came)
            if decision.allowed:
                self.allowed.append(Allowed(now, 1))
        for ask in asks:
            self.send(now, number, ask)

    def send(self, now: int, number: int, ask: RegionAsk) -> None:
        self.messages += 1
        self.at(now + self.way(number), self.lend, number, ask)

    def way(self, number: int) -> int:
        return (500, 35_000, 70_000)[number]

    def lend(self, now: int, number: int, ask: RegionAsk) -> None:
        granted = self.home.run(ask, now)
        if ask.numbers[2]:
            self.at(now + self.way(number), self.deposit, number, ask, granted)

    def deposit(self, now: int, number: int, ask: RegionAsk, granted: Granted) -> None:
        self.stores[number].deposit(ask, granted, now + number * HOUR)
        self.at(max(now, ask.now - number * HOUR + granted.term_end - granted.store_now), self.collect, number, ask)
        hits, self.waiting[number] = self.waiting[number], []
        if hits:
            self.charge(now, number, hits)

    def collect(self, now: int, number: int, ask: RegionAsk) -> None:
        back = self.stores[number].collect(ask, now + number * HOUR)
        if back is not None:
            self.send(now, number, back)


class Promise(NamedTuple):
    """Of such a demand: what is used of what could be, at least, and how many hits in a hundred wait, at most."""

    name: str
    limit: Limit
    demand: float
    used: float
    wait: int


PROMISES = [
    Promise("fixed_window", Limit(3000, Unit.MINUTE, MINUTE), 0.8, 1, 4),
    Promise("fixed_window", Limit(3000, Unit.MINUTE, MINUTE), 1.2, 0.995, 4),
    Promise("fixed_window", Limit(1000, Unit.SECOND, SECOND), 1.2, 0.98, 15),
    Promise("sliding_window", Limit(3000, Unit.MINUTE, MINUTE, count_refused=False), 1.2, 0.99, 6),
    Promise("sub_windows", Limit(3000, Unit.MINUTE, MINUTE, count_refused=False), 1.2, 0.97, 5),
    Promise("token_bucket", Limit(3000, Unit.MINUTE, MINUTE, count_refused=False), 3, 0.9, 8),
]


@pytest.mark.parametrize("promise", PROMISES, ids=[f"{each.name}-{each.limit.unit.name}" for each in PROMISES])
def test_calm_regions_use_the_limit_and_few_hits_wait(promise: Promise) -> None:
    limit = promise.limit
    rule = Rule("shop", (), regional.member(limit, 3, 0), open_algorithm(promise.name))
    windows = 2
    calm = Calm(rule, promise.demand, START + windows * limit.window)
    could = min(calm.hits, (windows + (promise.name == "token_bucket")) * limit.requests)
    waited = sum(wait > 0 for waits in calm.waits for wait in waits)

    assert excess(rule, calm.allowed) <= 0
    assert len(calm.allowed) >= promise.used * could
    assert waited <= promise.wait * calm.hits / 100
    assert calm.waiting == [[], [], []]


def test_what_regions_have_not_used_is_at_home_again_within_a_term() -> None:
    rule = Rule("shop", (), regional.member(Limit(600, Unit.MINUTE, MINUTE), 3, 0), open_algorithm("fixed_window"))
    calm = Calm(rule, 0.8, START + MINUTE // 2)

    assert [store.held for store in calm.stores] == [0, 0, 0]
    assert calm.home.room(START + MINUTE // 2 + 7 * SECOND) == 600 - len(calm.allowed) == 600 - calm.hits
