"""Limits that regions sync: a table of cases, and how far regions that exchange their counts can be above a limit."""

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.algorithms import fixed_window
from ratelimit_service.algorithms.kinds import synced
from ratelimit_service.model import Decision, Limit, Unit
from ratelimit_service.system.clock import SECOND
from tests.clocks import Clock

T0 = 1_790_000_040 * SECOND
"""A minute begins."""
INTERVAL = SECOND
TEN = Limit(10, Unit.MINUTE, 60 * SECOND)
END = T0 + 60 * SECOND


def test_what_the_others_have_counted_is_no_room() -> None:
    state, _ = synced.hit(None, TEN, 3, T0)
    state = synced.deposit(state, END, 6, T0)

    state, decision = synced.hit(state, TEN, 1, T0)
    assert decision == Decision(True, 0, 0, 60 * SECOND, 0)
    assert state == (END, 4, 6, 0)
    assert synced.hit(state, TEN, 1, T0) == ((END, 5, 6, 0), Decision(False, 0, 1, 60 * SECOND, 60 * SECOND))


def test_a_refund_gives_back_what_this_region_has_counted_and_no_more() -> None:
    state: synced.State | None = (END, 2, 9, 0)

    assert synced.hit(state, TEN, -1, T0) == ((END, 1, 9, 0), Decision(True, 0, 0, 60 * SECOND, 0))
    assert synced.hit(state, TEN, -5, T0) == ((END, 0, 9, 0), Decision(True, 1, 0, 60 * SECOND, 0))
    assert synced.hit((END, 0, 11, 0), TEN, -5, T0) == ((END, 0, 11, 0), Decision(True, 0, 0, 60 * SECOND, 0))


def test_the_next_window_knows_nothing_of_the_last_one() -> None:
    state, decision = synced.hit((END, 5, 5, T0), TEN, 1, END)

    assert state == (END + 60 * SECOND, 1, 0, 0)
    assert decision.allowed


def test_the_first_exchange_begins_at_once_and_the_next_one_an_interval_later() -> None:
    state, wait = synced.plan((END, 1, 0, 0), TEN, INTERVAL, T0)
    assert wait == 0
    assert synced.plan(state, TEN, INTERVAL, T0) == (state, synced.NOT_NOW)

    state, own = synced.collect(state, END, T0 + 300)
    assert own == 1
    _, wait = synced.plan(state, TEN, INTERVAL, T0 + 400)
    assert wait == INTERVAL - 100
    _, wait = synced.plan(state, TEN, INTERVAL, T0 + 3 * INTERVAL)
    assert wait == 0


def test_an_exchange_that_never_begins_is_planned_again() -> None:
    state, _ = synced.plan((END, 1, 0, 0), TEN, INTERVAL, T0)

    assert synced.plan(state, TEN, INTERVAL, T0 + SECOND - 1)[1] == synced.NOT_NOW
    assert synced.plan(state, TEN, INTERVAL, T0 + SECOND)[1] == INTERVAL


def test_a_clock_that_steps_back_does_not_keep_an_exchange_from_beginning() -> None:
    assert synced.plan((END, 1, 0, T0 + 30 * SECOND), TEN, INTERVAL, T0)[1] == 0


def test_a_cold_counter_exchanges_nothing() -> None:
    thousand = Limit(1000, Unit.MINUTE, 60 * SECOND)

    assert synced.plan((END, 9, 0, 0), thousand, INTERVAL, T0)[1] == synced.NOT_NOW
    assert synced.plan((END, 10, 0, 0), thousand, INTERVAL, T0)[1] == 0


def test_an_exchange_that_is_late_for_its_window_changes_nothing() -> None:
    state = (END, 5, 1, T0)

    assert synced.collect(state, END - 60 * SECOND, T0) == (state, 0)
    assert synced.collect(state, END, END) == (state, 0)
    assert synced.deposit(state, END - 60 * SECOND, 9, T0) == state
    assert synced.deposit(None, END, 9, T0) is None


@given(st.integers().map(Random))
def test_a_region_that_knows_of_no_other_counts_as_a_fixed_window(random: Random) -> None:
    limit = Limit(
        random.choice([0, 1, 7, 50]),
        Unit.MINUTE,
        60 * SECOND,
        exceed=random.choice([0, 2]),
        count_refused=random.random() < 0.5,
    )
    state, plain, now = None, None, T0
    for _ in range(60):
        now += random.choice([0, SECOND, 7 * SECOND, -SECOND])
        own = 0 if plain is None or plain[0] <= now else plain[1]
        cost = max(random.choice([0, 1, 1, 2, 30, -1, -4]), -own)
        plain, expected = fixed_window.hit(plain, limit, cost, now)
        state, decision = synced.hit(state, limit, cost, now)

        assert (decision, state and state[:2]) == (expected, plain)


class Fleet:
    """Regions, and the counts that home has of them, on a clock that is turned."""

    def __init__(
        self, limit: Limit, ways: Sequence[int], interval: int = INTERVAL, lost: Callable[[], bool] = bool
    ) -> None:
        self.limit = limit
        self.interval = interval
        self.ways = ways
        """To home, of each region."""
        self.lost = lost
        self.clock = Clock(T0)
        self.states: list[synced.State | None] = [None] * len(ways)
        self.home = [0] * len(ways)
        self.allowed = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = count()

    def hits(self, moments: Sequence[tuple[int, int, int]]) -> int:
        """What is allowed of these: the time since the window began, the region and the cost."""
        for moment, region, cost in moments:
            self._at(T0 + moment, partial(self._hit, region, cost))
        while self._events:
            now, _, event = heapq.heappop(self._events)
            self.clock.now = now
            event()
        return self.allowed

    def _at(self, moment: int, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._number), event))

    def _hit(self, region: int, cost: int) -> None:
        now = self.clock()
        self.states[region], decision = synced.hit(self.states[region], self.limit, cost, now)
        self.allowed += cost * decision.allowed
        self.states[region], wait = synced.plan(self.states[region], self.limit, self.interval, now)
        if wait != synced.NOT_NOW and not self.lost():
            self._at(now + wait, partial(self._collect, region))

    def _collect(self, region: int) -> None:
        self.states[region], own = synced.collect(self.states[region], END, self.clock())
        if own:
            self._at(self.clock() + self.ways[region], partial(self._exchange, region, own))

    def _exchange(self, region: int, own: int) -> None:
        self.home[region] = own
        others = sum(self.home) - own
        self._at(self.clock() + self.ways[region], partial(self._deposit, region, others))

    def _deposit(self, region: int, others: int) -> None:
        self.states[region] = synced.deposit(self.states[region], END, others, self.clock())


def arrivals(random: Random, regions: int) -> list[tuple[int, int, int]]:
    """Hits of one window: long trickles, in some of the regions each, and bursts."""
    found = []
    for length, most in [(40 * SECOND, 200)] * random.randint(1, 3) + [(SECOND // 10, 10)] * random.randint(0, 3):
        begin, of = random.randrange(18 * SECOND), random.sample(range(regions), random.randint(1, regions))
        found += [
            (begin + random.randrange(length), random.choice(of), random.choice([1, 1, 1, 4]))
            for _ in range(random.randint(1, most))
        ]
    return sorted(found)


def most_within(moments: Sequence[tuple[int, int, int]], region: int, span: int) -> int:
    """The most that this region is offered within so long."""
    own = [(moment, cost) for moment, of, cost in moments if of == region]
    return max((sum(cost for moment, cost in own if end - span <= moment <= end) for end, _ in own), default=0)


@given(st.integers().map(Random))
def test_the_excess_is_at_most_what_is_offered_while_counts_are_under_way(random: Random) -> None:
    regions = random.randint(2, 4)
    ways = [random.choice([0, 35_000, 70_000]) for _ in range(regions)]
    limit = Limit(random.choice([1, 20, 100, 300]), Unit.MINUTE, 60 * SECOND, count_refused=random.random() < 0.5)
    moments = arrivals(random, regions)
    interval = random.choice([SECOND // 10, SECOND])

    allowed = Fleet(limit, ways, interval).hits(moments)

    unknown = sum(most_within(moments, region, 2 * (interval + max(ways))) for region in range(regions))
    cold = regions * ((limit.requests - 1) // 100)
    assert allowed <= limit.requests + unknown + cold
    assert allowed <= limit.requests * regions


@given(st.integers().map(Random))
def test_the_excess_is_never_above_the_limit_of_each_other_region_whatever_is_lost(random: Random) -> None:
    limit = Limit(random.choice([1, 20, 100]), Unit.MINUTE, 60 * SECOND, count_refused=random.random() < 0.5)
    share = random.random()

    allowed = Fleet(limit, [0, 35_000, 70_000], lost=lambda: random.random() < share).hits(arrivals(random, 3))

    assert allowed <= 3 * limit.requests


def test_three_times_the_limit_is_above_it_by_some_percent_of_a_minute() -> None:
    """In three regions, at 60, 30 and 10 %: 300 a second."""
    limit = Limit(6000, Unit.MINUTE, 60 * SECOND)
    random = Random(1)  # noqa: S311 - no secret
    moments = sorted((random.randrange(60 * SECOND), random.choices((0, 1, 2), (6, 3, 1))[0], 1) for _ in range(18_000))

    assert 6100 < Fleet(limit, [500, 35_000, 70_000]).hits(moments) < 6200
