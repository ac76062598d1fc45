"""Callers do not decide what tracing costs."""

from ratelimit_service.server.tracing import CallBudget
from ratelimit_service.system.clock import SECOND
from tests.clocks import Clock


def test_no_more_calls_have_spans_than_the_setting_allows_however_many_ask() -> None:
    clock = Clock(5 * SECOND)
    budget = CallBudget(10, clock)

    at_once = sum(budget.take() for _ in range(1000))
    clock.now += SECOND // 2
    later = sum(budget.take() for _ in range(1000))
    clock.now += 100 * SECOND
    after_a_pause = sum(budget.take() for _ in range(1000))

    assert (at_once, later, after_a_pause) == (10, 5, 10)


def test_zero_is_no_limit() -> None:
    budget = CallBudget(0, Clock(5 * SECOND))

    assert sum(budget.take() for _ in range(1000)) == 1000
