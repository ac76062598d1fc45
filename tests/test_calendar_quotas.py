"""Quotas by a calendar through the limiter, by a clock that is turned to each edge: what Envoy and callers are told."""

from typing import Any

import pytest

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitResponse
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.model import Descriptor, Request
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis.policy import Policy
from ratelimit_service.system.clock import DAY, HOUR, SECOND
from tests.books import book
from tests.clocks import Clock
from tests.test_calendar import moment
from tests.verdicts import check

RULES = """
    domain: shop
    headers: [ratelimit]
    descriptors:
      - key: month
        rate_limit: {calendar: {unit: month, start: 15, zone: Europe/Berlin}, requests_per_unit: 3}
      - key: quarter
        rate_limit: {calendar: {unit: quarter}, requests_per_unit: 3}
      - key: day
        rate_limit: {calendar: {unit: day, zone: America/New_York}, requests_per_unit: 3, count_refused: false}
      - key: shadow
        shadow_mode: true
        rate_limit: {calendar: {unit: week, week: sunday}, requests_per_unit: 1}
      - key: soft
        rate_limit: {calendar: {unit: year, start: 02-29}, requests_per_unit: 2, exceed: 1}
      - key: list
        rate_limits:
          - {calendar: {unit: day}, requests_per_unit: 2, count_refused: false}
          - {calendar: {unit: month}, requests_per_unit: 3, count_refused: false}
      - key: blocked
        rate_limit: {calendar: {unit: day}, requests_per_unit: 1, block_for: 2 days}
      - key: joint
        charge: together
        rate_limit: {calendar: {unit: month}, requests_per_unit: 9}
      - key: closed
        charge: together
        rate_limit: {calendar: {unit: day}, requests_per_unit: 0}
    """


class Service:
    """A limiter whose clock can be turned."""

    def __init__(self, now: str, rules: str = RULES) -> None:
        self.clock = Clock(moment(now))
        self.limiter = Limiter(MemoryStore(1000, self.clock))
        self.limiter.book = book(rules)
        self._encoder = ResponseEncoder()

    def ask(self, *keys: str, cost: int = 1) -> RateLimitResponse:
        plan = self.limiter.plan(Request("shop", [Descriptor(((key, "x"),), cost) for key in keys]))
        answer = self.limiter.decide_now(plan, self._encoder.encode, b"")
        assert answer is not None
        return RateLimitResponse.FromString(answer)

    def told(self, key: str, now: str, cost: int = 1) -> tuple[bool, int, int, dict[str, str]]:
        """Whether a request is allowed at this moment, what remains, the seconds until the reset, and the headers."""
        self.clock.now = moment(now)
        answer = self.ask(key, cost=cost)
        [status] = answer.statuses
        headers = {header.key: header.value for header in answer.response_headers_to_add}
        allowed = answer.overall_code == RateLimitResponse.OK
        return allowed, status.limit_remaining, status.duration_until_reset.seconds, headers


def headers(limit: int, remaining: int, reset: int) -> dict[str, str]:
    return {"RateLimit-Limit": str(limit), "RateLimit-Remaining": str(remaining), "RateLimit-Reset": str(reset)}


def test_a_month_is_told_to_the_second_at_its_edges() -> None:
    """It has 31 days, less the hour that the clocks went forward."""
    service = Service("2026-03-14T23:00Z")
    month = (31 * DAY - HOUR) // SECOND

    assert service.told("month", "2026-03-14T22:59:59.999999Z", cost=4) == (False, 0, 1, headers(3, 0, 1))
    assert service.told("month", "2026-03-14T23:00Z") == (True, 2, month, headers(3, 2, month))
    assert service.told("month", "2026-03-29T01:00Z") == (True, 1, 17 * 86400 - 3 * 3600, headers(3, 1, 1458000))
    assert service.told("month", "2026-04-14T21:59:58Z") == (True, 0, 2, headers(3, 0, 2))
    assert service.told("month", "2026-04-14T21:59:59.5Z") == (False, 0, 1, headers(3, 0, 1))
    assert service.told("month", "2026-04-14T22:00Z") == (True, 2, 30 * 86400, headers(3, 2, 2592000))


def test_the_other_headers_end_at_the_edge_too() -> None:
    service = Service("2026-03-14T22:59:57Z", RULES.replace("[ratelimit]", "[x_ratelimit, ietf]"))

    assert service.told("month", "2026-03-14T22:59:57Z")[3] == {
        "X-RateLimit-Limit": "3, 3;w=2592000",
        "X-RateLimit-Remaining": "2",
        "X-RateLimit-Reset": "3",
        "RateLimit-Policy": '"month";q=3',  # no window, because they are not equally long
        "RateLimit": '"month";r=2;t=3',
    }


@pytest.mark.parametrize(
    ("now", "hours"), [("2026-03-08T05:00Z", 23), ("2026-03-09T04:00Z", 24), ("2026-11-01T04:00Z", 25)]
)
def test_a_day_lasts_as_long_as_its_clocks_say(now: str, hours: int) -> None:
    service = Service(now)
    service.ask("day", cost=3)

    assert service.told("day", now) == (False, 0, hours * 3600, headers(3, 0, hours * 3600))
    service.clock.advance(hours * HOUR - 1)
    assert not service.ask("day").statuses[0].limit_remaining
    service.clock.advance(1)
    assert service.ask("day").statuses[0].limit_remaining == 2


@pytest.mark.parametrize(
    ("key", "unit", "multiplier"),
    [("month", "MONTH", 0), ("quarter", "MONTH", 3), ("day", "DAY", 0), ("shadow", "WEEK", 0), ("soft", "YEAR", 0)],
)
def test_envoy_is_told_the_nearest_of_its_units(key: str, unit: str, multiplier: int) -> None:
    [status] = Service("2026-11-22T12:00Z").ask(key).statuses

    assert RateLimitResponse.RateLimit.Unit.Name(status.current_limit.unit) == unit
    assert status.current_limit.unit_multiplier.value == multiplier


def test_a_rule_in_shadow_mode_counts_by_the_calendar_too() -> None:
    service = Service("2026-11-22T00:00Z")
    service.ask("shadow", cost=5)

    answer = service.ask("shadow")

    assert answer.overall_code == RateLimitResponse.OK
    assert (answer.statuses[0].limit_remaining, answer.statuses[0].duration_until_reset.seconds) == (0, 7 * 86400)


def test_what_exceeds_a_quota_is_let_through_so_far() -> None:
    service = Service("2027-02-27T23:59:59Z")

    assert [service.told("soft", "2027-02-27T23:59:59Z")[:3] for _ in range(4)] == [
        (True, 1, 1),
        (True, 0, 1),
        (True, 0, 1),
        (False, 0, 1),
    ]
    assert service.told("soft", "2027-02-28T00:00Z")[:3] == (True, 1, 366 * 86400)


def test_the_tightest_of_a_list_is_told() -> None:
    service = Service("2026-11-28T00:00Z")

    told = [service.told("list", f"2026-11-{day}T00:00Z")[:3] for day in (28, 28, 28, 29, 29, 30)]
    told.append(service.told("list", "2026-12-01T00:00Z")[:3])

    day, rest = 86400, 2 * 86400
    assert told == [
        (True, 1, day),
        (True, 0, day),
        (False, 0, day),
        (True, 0, rest),
        (False, 0, rest),
        (False, 0, day),
        (True, 1, day),
    ]


def test_what_is_charged_together_is_spared_where_another_denies() -> None:
    service = Service("2026-11-28T00:00Z")

    service.ask("joint", "closed")

    assert service.ask("joint", cost=0).statuses[0].limit_remaining == 9


def test_a_block_outlasts_the_window_in_which_it_began() -> None:
    service = Service("2026-11-28T23:00Z")
    service.ask("blocked")

    assert service.told("blocked", "2026-11-28T23:00Z")[:3] == (False, 0, 2 * 86400)
    assert service.told("blocked", "2026-11-29T00:00Z")[:3] == (False, 0, 47 * 3600)
    assert service.told("blocked", "2026-11-30T23:00Z")[:3] == (True, 0, 3600)


def test_a_share_counts_by_the_same_calendar_while_the_store_is_away() -> None:
    clock = Clock(moment("2026-04-14T21:59:59Z"))
    policy = Policy("local", 3, 100, clock)
    service = Service("2026-04-14T21:59:59Z")
    [hit, *_] = check(service.limiter, Request("shop", [Descriptor((("month", "x"),))])).hits
    assert hit is not None

    def answer(cost: int) -> Any:
        again = hit.again()
        again.cost = cost
        policy.answer([again], "away")
        return again.decision

    refused = [answer(1), answer(1)][1]
    clock.advance(SECOND)

    assert (refused.allowed, refused.retry_after) == (False, SECOND)
    assert (answer(1).allowed, answer(0).reset_after) == (True, 30 * DAY)
