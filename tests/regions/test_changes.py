"""Regions whose floors, lists of regions and limits are changed one process after the other, while anything may happen.

Each process goes by the rules that it has, and by what it has read of the register at home.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.algorithms.kinds import leased as regional
from ratelimit_service.algorithms.lease import leasing
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.floors import FRESH, Floors, Record, Register, Shares
from ratelimit_service.stores.redis.region_asks import RegionAsk
from ratelimit_service.system.clock import DAY, SECOND
from tests.leases.fleet import excess
from tests.regions.fleet import KEY, Fleet, HomeInPython, Process, Region, RegionInPython, play
from tests.regions.test_fleets import DIFFERENT, START

NAMES = ("eu", "us", "ap")


class RegisterInPython:
    """What home keeps of it."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str, str], Record] = {}
        self.shares: dict[str, Shares] = {}
        self.version = 0

    def tell(self, own: Record | None, now: int) -> tuple[int, Register]:
        """Tell a record again, if it is there, and read all."""
        if own is not None and own[:3] in self.records:
            self.records[own[:3]] = self.records[own[:3]]._replace(told=now)
        return self.version, Register(now, [*self.records.values()], dict(self.shares))

    def write(
        self, version: int, own: Record, shares: Shares, ended: Sequence[tuple[Record, Record | None]], now: int
    ) -> None:
        """A record, if nothing was written since that version."""
        if version == self.version:
            self.version += 1
            self.records[own[:3]] = own._replace(told=now)
            self.shares[own.shares] = shares
            for record, after in ended:
                if after is None:
                    del self.records[record[:3]]
                else:
                    self.records[record[:3]] = after

    def follow(self, floors: Floors, version: int, register: Register, asked: int, now: int) -> None:
        """Write what follows from what was read, and have it learned."""
        if to_tell := floors.to_tell(register):
            self.write(version, to_tell[0], floors.shares, to_tell[1], now)
            _, register = self.tell(None, now)
        floors.learn(register, asked, now)


class Edition(NamedTuple):
    """What operators say."""

    number: int
    percent: int
    regions: tuple[str, ...]
    requests: int


class Changed(Process):
    """A process that has an edition; it does not run where that does not have its region."""

    def __init__(self, region: str, edition: Edition, base: Rule) -> None:
        super().__init__()
        self.region = region
        self.edition = edition
        assert base.limit is not None
        limit = replace(base.limit, requests=edition.requests)
        self.rule = replace(base, limit=regional.member(limit, len(edition.regions), edition.percent))
        self.start()
        self.runs = region in edition.regions
        self.is_deaf = False
        """It alone does not reach home."""
        self.beaten = 0
        """When it last read something."""
        self.read: tuple[int, Register, int] | None = None
        """The version and the register, before anything is written; and when it was asked for."""

    def start(self) -> None:
        """It knows nothing."""
        self.floors = Floors(self.region, self.edition.regions)
        self.floors.redis = self.region
        self.floors.use([self.rule])


class Changing(Fleet):
    """A fleet in which any process may change at any moment."""

    def __init__(self, rule: Rule, random: Random, editions: Iterator[Edition], shift: int) -> None:
        super().__init__(
            rule,
            lambda _: RegionInPython(rule),
            HomeInPython(rule),
            start=START + random.randrange(SECOND),
            shift=shift,
        )
        self.random = random
        self.register = RegisterInPython()
        self.editions = editions
        self.edition = next(editions)
        self.largest = self.edition.requests
        self.copies: dict[str, Any] = {}
        self.told: dict[str, int] = {}
        """The edition that each region told last."""
        self.exhausting = False
        for region, name in zip(self.regions, NAMES, strict=True):
            region.processes = [Changed(name, self.edition, rule) for _ in region.processes]
            for process in self.everyone():
                if process.runs:
                    self.read(process)
                    self.write(region, process)

    def limit_of(self, process: Process) -> Limit:
        assert isinstance(process, Changed)
        assert process.rule.limit is not None
        return process.floors.limit_of(process.rule, process.rule.limit, self.now)

    def runs(self, region: Region, process: Process) -> bool:
        """A region that has been removed elsewhere, since it has told home anything, is stopped if it is cut off."""
        assert isinstance(process, Changed)
        told = self.told.get(process.region, -1)
        later = [each for each in self.everyone() if each.edition.number > told]
        is_removed = any(process.region not in each.edition.regions for each in later)
        return process.runs and not (self.is_cut(region, process) and is_removed)

    def everyone(self) -> list["Changed"]:
        return [each for region in self.regions for each in region.processes if isinstance(each, Changed)]

    def is_cut(self, region: Region, process: Process) -> bool:
        assert isinstance(process, Changed)
        return region.cut or process.is_deaf

    def run(self, region: Region, process: Process) -> None:
        assert isinstance(process, Changed)
        self.happen(region, process)
        if not self.runs(region, process):
            process.queue = []
            return
        before = len(process.calls)
        if leasing(self.rule.algorithm).leased_from:  # a refund of a bucket counts by the rate that it has then
            process.queue = [cost for cost in process.queue if cost >= 0]
        super().run(region, process)
        for call in process.calls[before:]:
            if not self.is_cut(region, process) and not process.floors.is_fresh(self.now):
                self.read(process)
                self.write(region, process)
            if process.floors.is_fresh(self.now):
                call.ask = self.given_back(process, call.ask._replace(limit=self.limit_of(process)))
            else:
                process.calls.remove(call)

    def collect(self, region: Region, process: Process, ask: RegionAsk) -> None:
        before = len(process.calls)
        super().collect(region, process, ask)
        for call in process.calls[before:]:
            self.limit_of(process)
            call.ask = self.given_back(process, call.ask)

    def given_back(self, process: Process, ask: RegionAsk) -> RegionAsk:
        """Units of a bucket are not given back while what it may lend changes."""
        assert isinstance(process, Changed)
        steady = process.floors.is_steady(process.rule, self.now)
        return ask if steady else ask._replace(numbers=(0, 0, *ask.numbers[2:]))

    def spend(self, region: Region, process: Process) -> None:
        if self.runs(region, process):
            super().spend(region, process)

    def exhaust(self, ask: RegionAsk) -> None:
        """All processes spend what they can, and home lends to the one that knows of the fewest floors."""
        for region in self.regions:
            for process in region.processes:
                self.spend(region, process)
        fresh = [each for each in self.everyone() if each.runs and each.floors.is_fresh(self.now)]
        if fresh:
            limit = max(map(self.limit_of, fresh), key=lambda limit: regional.home_of(limit).requests)
            super().exhaust(ask._replace(limit=limit))

    def restart(self, region: Region, number: int) -> None:
        process = region.processes[number]
        assert isinstance(process, Changed)
        region.processes[number] = Changed(process.region, process.edition, self.rule)

    def happen(self, region: Region, process: "Changed") -> None:
        """What may happen at any moment; all that run read something every five seconds."""
        for each in self.regions:
            for other in each.processes:
                assert isinstance(other, Changed)
                if other.runs and self.now > other.beaten + FRESH // 2:
                    self.beat(each, other)
        chance = self.random.random()
        if chance < 0.3 and process.runs and not self.is_cut(region, process):
            self.read(process)
        elif chance < 0.5 and process.runs and not self.is_cut(region, process):
            self.write(region, process)
        elif chance < 0.56:
            self.change(region, process)
        elif chance < 0.58:
            process.is_deaf = not process.is_deaf
        elif chance < 0.63 and not self.exhausting:
            self.exhausting = True
            self.exhaust(RegionAsk(self.rule, self.limit, KEY, KEY, (0, 0, 0, 0), self.now))
            self.exhausting = False

    def beat(self, region: Region, process: "Changed") -> None:
        process.beaten = self.now
        process.floors.forget()
        if not self.runs(region, process):
            process.start()
        elif not self.is_cut(region, process):
            self.read(process)
            self.write(region, process)
        elif copy := self.copies.get(process.region):
            process.floors.learn_copy(*copy)

    def read(self, process: "Changed") -> None:
        own = process.floors.own if process.floors.is_fresh(self.now) else None
        process.read = (*self.register.tell(own, self.now), self.now)

    def write(self, region: Region, process: "Changed") -> None:
        """What it has read, perhaps some time ago, and what follows from that."""
        if process.read is None:
            return
        self.told[process.region] = max(process.edition.number, self.told.get(process.region, 0))
        (version, register, asked), process.read = process.read, None
        self.register.follow(process.floors, version, register, asked, self.now)
        if process.floors.own is not None:
            self.copies[process.region] = process.floors.copy()

    def change(self, region: Region, process: "Changed") -> None:
        """To the newest edition, of which there is another one when all have it, or sometimes before."""
        if self.random.random() < 0.1 or all(each.edition == self.edition for each in self.everyone()):
            self.edition = next(self.editions)
            self.largest = max(self.largest, self.edition.requests)
        number = region.processes.index(process)
        region.processes[number] = Changed(process.region, self.edition, self.rule)


def editions_of(random: Random, requests: Sequence[int]) -> Iterator[Edition]:
    for number in count():
        regions = random.choice([NAMES, NAMES, NAMES[:2], NAMES[1:]])
        yield Edition(
            number, random.choice([0, 5, 10, 33, 45 if len(regions) < 3 else 33]), regions, random.choice(requests)
        )


def changing(name: str, seed: int, *, kind: type[Changing] = Changing, events: int = 600) -> Changing:
    random = Random(seed)  # noqa: S311 - the seed tells the schedule
    requests = random.choice([100, 240, 1000])
    limit = Limit(
        requests,
        Unit.SECOND,
        random.choice([SECOND, 7 * SECOND, 60 * SECOND]),
        burst=random.choice([0, 0, 500]) if name == "token_bucket" else 0,
        parts=random.choice([3, 5]),
    )
    rule = Rule("shop", (), regional.member(limit, 3, 0), open_algorithm(name))
    sizes = [requests] if limit.burst else [requests, requests, 2 * requests]  # it would take another time to fill
    shift = 0 if name in {"fixed_window", "sliding_window"} else random.randrange(limit.window)
    fleet = kind(rule, random, editions_of(random, sizes), shift)
    play(fleet, random, events)
    return fleet


def over(fleet: Changing) -> float:
    limit = fleet.rule.limit
    assert limit is not None
    largest = replace(fleet.rule, limit=replace(limit, requests=fleet.largest))
    estimates = 3 if fleet.rule.algorithm.name == "sliding_window" else 0
    return excess(largest, fleet.allowed) - estimates


@pytest.mark.parametrize("name", DIFFERENT)
@given(st.integers(0, 2**64))
def test_through_any_sequence_of_changes_regions_never_allow_more_than_the_limit(name: str, seed: int) -> None:
    fleet = changing(name, seed)

    assert over(fleet) <= 0


MONTH = 30 * DAY


class Regions:
    """One process in each of some regions, which all tell the register when time goes by."""

    def __init__(self, percent: int, names: tuple[str, ...]) -> None:
        self.now = START
        self.register = RegisterInPython()
        self.floors: dict[str, Floors] = {}
        self.rules: dict[str, Rule] = {}
        for name in names:
            self.change(name, percent, names)

    def change(self, name: str, percent: int, names: tuple[str, ...], redis: str = "") -> None:
        """This region has another edition, perhaps at once with another Redis."""
        limit = regional.member(Limit(1000, Unit.DAY, MONTH), len(names), percent)
        self.rules[name] = Rule("shop", (), limit, open_algorithm("fixed_window"))
        self.floors[name] = Floors(name.rstrip("2"), names)
        self.floors[name].redis = redis or name
        self.floors[name].use([self.rules[name]])
        self.tell(name)

    def tell(self, *names: str) -> None:
        for name in names or self.floors:
            floors = self.floors[name]
            version, register = self.register.tell(floors.own, self.now)
            self.register.follow(floors, version, register, self.now, self.now)

    def wait(self, span: int, *names: str) -> None:
        """Time goes by; these tell the register before, meanwhile and after, or all."""
        self.tell(*names)
        self.now += span - FRESH // 2
        self.tell(*names)
        self.now += FRESH // 2
        self.tell(*names)

    def of(self, name: str) -> tuple[int, int]:
        """What home lends when this region asks, and its floor."""
        limit = self.rules[name].limit
        assert limit is not None
        found = self.floors[name].limit_of(self.rules[name], limit, self.now)
        assert found.regions is not None
        return regional.home_of(found).requests, found.regions.floor.requests if found.regions.floor else 0


EU_US = ("eu", "us")


def test_without_a_change_each_region_has_its_floor_at_once() -> None:
    regions = Regions(10, EU_US)

    assert (regions.of("eu"), regions.of("us")) == ((800, 100), (800, 100))


def test_a_raised_floor_is_had_when_nothing_counts_that_was_lent_before() -> None:
    regions = Regions(10, EU_US)
    regions.change("eu", 40, EU_US)
    regions.tell()
    assert (regions.of("eu"), regions.of("us")) == ((500, 100), (500, 100))

    regions.change("us", 40, EU_US)
    regions.tell()
    assert (regions.of("eu"), regions.of("us")) == ((200, 100), (200, 100))
    regions.wait(MONTH)
    assert regions.of("eu") == (200, 100)  # a term may have begun before
    regions.wait(DAY * 7)
    assert (regions.of("eu"), regions.of("us")) == ((200, 400), (200, 400))


def test_a_lowered_floor_is_lent_when_nothing_counts_that_was_allowed_by_it() -> None:
    regions = Regions(40, EU_US)
    for name in EU_US:
        regions.change(name, 10, EU_US)
    regions.tell()
    assert (regions.of("eu"), regions.of("us")) == ((200, 100), (200, 100))

    regions.wait(2 * MONTH)
    regions.wait(2 * MONTH)
    assert (regions.of("eu"), regions.of("us")) == ((800, 100), (800, 100))


def test_a_region_that_joins_has_its_floor_when_there_was_room_for_it_long_enough() -> None:
    three = (*EU_US, "ap")
    regions = Regions(30, EU_US)
    regions.change("ap", 30, three)
    regions.tell()
    assert (regions.of("eu"), regions.of("ap")) == ((100, 300), (100, 0))

    regions.wait(2 * MONTH)
    assert (regions.of("eu"), regions.of("ap")) == ((100, 300), (100, 300))


def test_what_a_region_had_that_left_is_lent_when_the_others_know_it_no_more() -> None:
    regions = Regions(10, (*EU_US, "ap"))
    del regions.floors["ap"]
    regions.wait(3 * MONTH)
    assert regions.of("eu") == (700, 100)  # it may be cut off

    for name in EU_US:
        regions.change(name, 10, EU_US)
    regions.wait(2 * MONTH)
    regions.wait(2 * MONTH)
    assert (regions.of("eu"), regions.of("us")) == ((800, 100), (800, 100))


def test_two_regions_by_one_name_are_noticed_and_a_redis_that_begins_empty_is_not_taken_for_one() -> None:
    def are_noticed() -> list[bool]:
        found = [(floors.register, floors.own) for floors in regions.floors.values()]
        return [register is not None and own is not None and register.same_name(own) for register, own in found]

    regions = Regions(10, EU_US)
    regions.change("eu", 10, EU_US, redis="empty")
    for _ in range(5):
        regions.wait(FRESH)
        assert are_noticed() == [False, False]

    regions.change("eu2", 10, EU_US)
    for _ in range(5):
        regions.wait(FRESH)
    assert are_noticed() == [True, False, True]
    del regions.floors["eu2"]
    regions.wait(2 * FRESH)
    assert are_noticed() == [False, False]
