"""What the scripts of a region do beside its Python twin: keys, clocks, bundles, calendars, and values of others."""

from random import Random
from typing import Any

import pytest
from redis import Redis as Client

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.algorithms.kinds import Queue
from ratelimit_service.algorithms.kinds import leased as regional
from ratelimit_service.algorithms.kinds import queue as leaky_queue
from ratelimit_service.algorithms.lease import Granted
from ratelimit_service.model import Decision, Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.region_asks import RegionAsk, RegionScript, at_home
from ratelimit_service.stores.redis.script import BatchScript
from ratelimit_service.system.calendar import Calendar
from ratelimit_service.system.clock import HOUR, MINUTE, SECOND
from ratelimit_service.telemetry.tally import Tally
from tests.clocks import Clock
from tests.parts import parts_of
from tests.redis import Redis
from tests.regions.fleet import Fleet, play
from tests.regions.test_fleets import opened

START = 1_790_000_040_000_000
"""The start of a minute."""


def leased(percent: int = 0, name: str = "fixed_window") -> Rule:
    limit = Limit(1000, Unit.MINUTE, MINUTE, count_refused=False)
    return Rule("shop", (), regional.member(limit, 3, percent), open_algorithm(name))


def hit(rule: Rule, key: str, cost: int = 1, together: int = 0) -> Hit:
    return Hit(rule, key, cost, tally=Tally(), quota=False, together=together)


class Region:
    """A region's Redis, at the time of a clock, or its own."""

    def __init__(self, client: Client, now: int | None = START) -> None:
        client.flushdb()
        self.client = client
        self.clock = None if now is None else Clock(now)
        self.script = BatchScript("", self.clock)
        self.leases = RegionScript(self.clock)
        self.asked: list[RegionAsk] = []
        self.waiting: list[Hit] = []

    def run(self, *requests: list[Hit]) -> None:
        keys, arguments, runs = self.script.encode(parts_of(*requests))
        reply: Any = self.client.eval(self.script.text, len(keys), *keys, *arguments)
        answer = self.script.decode(reply, runs)
        self.asked += answer.asked
        self.waiting += answer.waiting

    def taken(self) -> tuple[list[RegionAsk], list[Hit]]:
        found = self.asked, self.waiting
        self.asked, self.waiting = [], []
        return found

    def deposit(self, ask: RegionAsk, units: int) -> None:
        keys, arguments = self.leases.deposit(ask, Granted(units, 9, ask.now + 6 * SECOND, MINUTE, 0, ask.now))
        self.client.eval(self.leases.text, len(keys), *keys, *arguments)

    def collect(self, ask: RegionAsk) -> RegionAsk | None:
        keys, arguments = self.leases.collect(ask)
        return self.leases.collected(ask, self.client.eval(self.leases.text, len(keys), *keys, *arguments))


def test_equal_hits_are_one_run_of_which_the_first_are_allowed_and_the_others_wait(client: Client) -> None:
    region, rule = Region(client), leased()
    region.run([hit(rule, "a", 3)])
    ((ask,), _) = region.taken()
    region.deposit(ask, 5)
    hits = [hit(rule, "a", 2) for _ in range(4)]
    region.run(*([each] for each in hits))
    asked, waiting = region.taken()

    assert [each.decision.remaining for each in hits[:2]] == [3, 1]
    assert waiting == hits[2:]
    assert [(each.key, [*each.numbers], each.now) for each in asked] == [("a", [0, 0, 3, asked[0].numbers[3]], START)]


def test_of_a_run_all_hits_that_wait_are_asked_for_however_much_they_cost_together(client: Client) -> None:
    region, rule = Region(client), leased()
    region.run(*([hit(rule, "a", 400)] for _ in range(5)))
    (ask,), waiting = region.taken()

    assert (ask.numbers[2], len(waiting)) == (2000, 5)


def test_each_counter_has_an_ask_of_its_own_and_its_name_in_redis(client: Client) -> None:
    region, rule = Region(client), leased()
    region.run([hit(rule, "a"), hit(rule, "b", 7)], [hit(rule, "a")])
    asked, waiting = region.taken()

    assert [(each.key, each.name, each.numbers[2]) for each in asked] == [("a", "rl2|a", 2), ("b", "rl2|b", 7)]
    assert len(waiting) == 3


def test_a_hit_that_waits_keeps_its_bundle_from_being_charged_and_home_is_asked(client: Client) -> None:
    limit = Limit(10, Unit.SECOND, SECOND, count_refused=False, kind=Queue(SECOND, SECOND))
    queue = Rule("shop", (), limit, leaky_queue)
    region, rule = Region(client), leased()
    hits = [hit(rule, "a", 4, -1), hit(queue, "q", 1, -1)]
    region.run(hits)
    (ask,), waiting = region.taken()
    region.deposit(ask, 4)
    region.run(hits)

    assert (waiting, ask.numbers[2]) == (hits[:1], 4)
    assert region.taken() == ([], [])
    assert hits[0].decision == Decision(True, 0, 0, MINUTE, 0)
    assert hits[1].decision == Decision(True, 10, 0, 100_000, 0)  # the first one in its queue


def test_all_keys_expire(client: Client) -> None:
    region, rule = Region(client, now=None), leased(10)
    region.run([hit(rule, "a", 200)])
    (ask,), _ = region.taken()
    waits: Any = client.pttl("rl2|a")
    region.deposit(ask, 200)
    lent: Any = client.pttl("rl2|a")

    assert 11_000 < waits <= 12_000
    assert 11_000 < lent <= 12_000
    assert region.collect(ask) is None


def test_a_deposit_comes_into_a_counter_that_is_gone_and_nothing_is_collected_from_one(client: Client) -> None:
    region, rule = Region(client), leased()
    region.run([hit(rule, "a", 3)])
    ((ask,), _) = region.taken()
    client.flushdb()
    nothing = region.collect(ask)
    region.deposit(ask, 5)
    region.run([one := hit(rule, "a", 5)])

    assert nothing is None
    assert one.decision.allowed


@pytest.mark.parametrize(
    "foreign", [b"", b"1", b"hello, this is no counter of ours", b"\xff" * 40, b"\x93\x01\x02\x03"]
)
def test_what_is_no_counter_is_written_over(client: Client, foreign: bytes) -> None:
    region, rule = Region(client), leased(10)
    client.set("rl2|a", foreign)
    region.run([one := hit(rule, "a", 5)])
    client.set("rl2|b", foreign)
    assert rule.limit is not None
    region.deposit(RegionAsk(rule, rule.limit, "b", "rl2|b", (0, 0, 1, 0), START), 3)
    region.run([other := hit(rule, "b", 5)])

    assert (one.decision.remaining, other.decision.remaining) == (95, 98)


def test_a_loan_that_seems_longer_than_a_term_is_not_spent(client: Client) -> None:
    region, rule = Region(client), leased()
    region.run([hit(rule, "a")])
    (ask,), _ = region.taken()
    region.deposit(ask, 500)
    assert region.clock is not None
    region.clock.now = START - 10_000
    region.run([late := hit(rule, "a")])

    assert region.taken()[1] == [late]


def test_home_counts_by_its_own_limit_though_by_the_script_of_the_region(client: Client) -> None:
    region, rule = Region(client), leased(10)
    region.run([hit(rule, "a", 200)])
    (ask,), _ = region.taken()
    asks = [at_home(ask)]
    keys, arguments, runs = region.script.encode((), asks)
    reply: Any = client.eval(region.script.text, len(keys), *keys, *arguments)
    (granted,) = region.script.decode(reply, runs, asks).granted

    assert [*keys] == ["rl2|a|home"]
    assert (granted.units, granted.room) == (200, 500)


def test_a_server_whose_clock_was_ahead_leaves_the_floor_and_no_loan(client: Client) -> None:
    region, rule = Region(client, START + HOUR), leased(10)
    region.run([hit(rule, "a", 40), hit(rule, "a", 100)])
    ((ask,), _) = region.taken()
    region.deposit(ask, 500)
    assert region.clock is not None
    region.clock.now = START
    region.run([look := hit(rule, "a", 0)], [one := hit(rule, "a", 1)], [hit(rule, "a", 100)])
    asked, waiting = region.taken()

    assert (look.decision.remaining, one.decision.remaining) == (60, 59)
    assert (len(asked), len(waiting)) == (1, 1)


def test_windows_of_a_calendar_are_lent_and_kept_as_in_the_python(redis: Redis) -> None:
    days = Calendar("day", "", "Europe/Berlin")
    limit = Limit(1000, Unit.DAY, days.length, count_refused=False, calendar=days)
    for seed in range(4):
        random = Random(seed)  # noqa: S311 - the seed tells the schedule
        rule = Rule("shop", (), regional.member(limit, 2, random.choice([0, 10])), open_algorithm("fixed_window"))
        open_region, home = opened(rule, redis)
        play(Fleet(rule, open_region, home, regions=2, start=START), random, 300)
