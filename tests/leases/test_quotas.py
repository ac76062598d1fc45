"""Quotas of Envoys, by a fleet of models of Envoy: never more than the limit, and most of it."""

import pytest

from ratelimit_service.algorithms.lease import Granted
from ratelimit_service.limiter.quota import Holding, Quota
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.system.clock import MINUTE, SECOND
from ratelimit_service.telemetry.tally import Tally
from tests.books import book
from tests.leases.envoys import MILLISECOND, Envoy, Fleet


def rules(limit: int, seconds: int, options: str = "") -> RuleBook:
    return book(
        f"""
        domain: shop
        descriptors:
          - key: user
            rate_limit: {{unit: second, unit_multiplier: {seconds}, requests_per_unit: {limit}{options}}}
        """
    )


@pytest.mark.parametrize("interval", [200 * MILLISECOND, SECOND, 5 * SECOND, 30 * SECOND])
def test_three_envoys_use_a_limit_and_no_more_of_it_whatever_their_interval(interval: int) -> None:
    fleet = Fleet(rules(6000, 60))
    for rate in (100, 50, 30):
        Envoy(fleet, rate, interval=interval)

    fleet.run(3 * MINUTE + 50 * SECOND)

    windows = fleet.by_window(60)
    assert max(windows) <= 6000
    assert min(windows[1:]) >= 5820


@pytest.mark.parametrize("seed", range(20))
def test_no_failure_lets_more_pass_than_the_limit(seed: int) -> None:
    """Envoys that come, go, are killed and change their load; streams, services and stores that break."""
    fleet = Fleet(rules(500, 10), seed)
    random = fleet.random
    for _ in range(5):
        Envoy(fleet, random.choice([0.5, 5, 40, 100]), interval=random.choice([SECOND, 5 * SECOND]))

    for _ in range(40):
        fleet.run(random.randint(0, 3 * SECOND))
        envoy = random.choice(fleet.envoys)
        match random.randrange(8):
            case 0:
                envoy.kill()
                fleet.envoys.remove(envoy)
                Envoy(fleet, random.choice([5, 40, 100]), interval=envoy.interval)
            case 1:
                envoy.break_stream()
            case 2:
                fleet.restart()
            case 3:
                fleet.store_away = not fleet.store_away
            case 4:
                fleet.store_delay = random.choice([0, 20 * MILLISECOND, SECOND])
            case 5:
                fleet.call("ada", random.randint(1, 60))
            case _:
                envoy.rate = random.choice([0, 0.5, 5, 40, 100])

    fleet.allowed.update(fleet.called)
    windows = fleet.by_window(10)
    assert max(windows) <= 500
    assert sum(windows) > 0


def test_what_callers_and_envoys_use_is_one_limit() -> None:
    fleet = Fleet(rules(1000, 60))
    Envoy(fleet, 100)

    fleet.run(51 * SECOND)
    called = fleet.call("ada", 400)
    fleet.run(59 * SECOND)

    assert called == 400
    assert fleet.by_window(60)[1] <= 600
    assert fleet.by_window(60)[1] >= 580


def test_an_envoy_below_the_limit_is_not_refused_but_at_the_end_of_a_window() -> None:
    fleet = Fleet(rules(6000, 60))
    Envoy(fleet, 40)

    fleet.run(4 * MINUTE)

    wanted = sum(fleet.wanted[second] for second in range(60, 240))
    allowed = sum(fleet.allowed[second] for second in range(60, 240))
    assert allowed >= wanted * 0.98


def test_what_an_idle_envoy_holds_comes_back_within_the_window() -> None:
    fleet = Fleet(rules(6000, 60))
    first, second = Envoy(fleet, 200), Envoy(fleet, 0)
    fleet.run(59 * SECOND)
    first.rate, second.rate = 0, 200

    fleet.run(50 * SECOND)

    assert fleet.by_window(60)[1] >= 5700


def test_a_window_has_units_from_its_start_on() -> None:
    """Reports come in the middle of it."""
    fleet = Fleet(rules(1000, 10))
    fleet.run(2500 * MILLISECOND)
    Envoy(fleet, 200)

    fleet.run(29 * SECOND)

    assert fleet.allowed[39] == 0
    assert fleet.allowed[40] >= 150


def test_a_killed_envoy_costs_what_it_held_in_its_window_only() -> None:
    fleet = Fleet(rules(1000, 10))
    envoys = [Envoy(fleet, rate) for rate in (150, 60, 30)]
    fleet.run(43 * SECOND)
    envoys[1].kill()

    fleet.run(27 * SECOND)

    windows = fleet.by_window(10)
    assert max(windows) <= 1000
    assert windows[4] >= 700
    assert min(windows[5:7]) >= 950


def test_requests_that_pass_without_an_assignment_are_charged() -> None:
    """A soft Envoy lets pass what comes in the first round trip; it has less of the window then."""
    fleet = Fleet(rules(1000, 60))
    Envoy(fleet, 200, soft=True)

    fleet.run(49 * SECOND)
    fleet.run(60 * SECOND)

    windows = fleet.by_window(60)
    assert windows[0] <= 1000
    assert windows[1] <= 1000


def test_a_bucket_without_requests_is_abandoned() -> None:
    fleet = Fleet(rules(1000, 10))
    envoy = Envoy(fleet, 50)
    fleet.run(15 * SECOND)
    envoy.rate = 0

    fleet.run(80 * SECOND)

    assert not envoy.known
    assert fleet.quotas.buckets == 0
    assert fleet.quotas.abandoned == 1


def test_what_is_granted_to_an_envoy_that_has_gone_is_given_back() -> None:
    fleet = Fleet(rules(1000, 60))
    fleet.store_delay = SECOND
    envoy = Envoy(fleet, 100)
    fleet.run(200 * MILLISECOND)
    envoy.kill()
    fleet.run(5 * SECOND)

    assert fleet.call("ada", 1001) == 1000


def leased(now: int = 0) -> Holding:
    """A holding with 100 units that live for 20 seconds, of a window that lasts for 60."""
    rule = rules(6000, 60).rules[0]
    assert rule.limit is not None
    holding = Holding(Quota(rule, rule.limit, "key", Tally()), now)
    holding.ask(100)
    holding.answered(Granted(100, 5900, 60 * SECOND, 0, 0, now), now, now, 5 * SECOND)
    return holding


def test_what_is_left_of_a_dead_lease_is_given_back_at_the_second_report_after_its_death() -> None:
    """The first one may have been made before, and have waited on its way."""
    holding = leased()
    holding.report(30, 0, 0, 5 * SECOND, soft=False)

    holding.report(10, 0, 0, 21 * SECOND, soft=False)
    assert (holding.lease.left, holding.lease.back) == (60, 0)
    holding.report(20, 0, 0, 26 * SECOND, soft=False)
    assert (holding.lease.left, holding.lease.back, holding.lease.back_end) == (0, 40, 60 * SECOND)


def test_what_is_left_when_a_window_has_ended_is_not_given_back() -> None:
    """It may have been used, and not be reported yet."""
    holding = leased()
    holding.ask(50)

    holding.answered(Granted(50, 5950, 120 * SECOND, 0, 0, 60 * SECOND), 60 * SECOND, 60 * SECOND, 5 * SECOND)

    assert (holding.lease.left, holding.lease.back, holding.lost) == (50, 0, 100)
