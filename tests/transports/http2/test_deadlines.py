"""Deadlines by a clock that the test sets."""

from hypothesis import example, given
from hypothesis import strategies as st

from ratelimit_service.system.clock import HOUR, SECOND
from ratelimit_service.transports.http2.timeouts import GRAIN, HORIZON, Deadlines


class Some:
    """Calls of a connection; counts how often one of them was looked at."""

    def __init__(self) -> None:
        self.looks = 0
        self.timed: dict[int, int] = Counted(self)

    def expire(self, number: int) -> None:
        """Who asks which are over does that."""


class Counted(dict[int, int]):
    """Of some calls."""

    def __init__(self, some: Some) -> None:
        super().__init__()
        self._some = some

    def get(self, *args: int) -> int | None:  # type: ignore[override] # no default is asked for
        self._some.looks += 1
        return super().get(*args)


def numbers(deadlines: Deadlines, now: int) -> list[int]:
    """The calls whose time has come."""
    return [number for _, number in deadlines.take_expired(now)]


def test_a_deadline_is_told_once_when_it_is_over() -> None:
    deadlines, calls = Deadlines(), Some()
    deadlines.add(calls, 1, 1_000_000, 0)
    deadlines.add(calls, 3, 1_020_000, 0)

    assert numbers(deadlines, 999_999) == []
    assert numbers(deadlines, 1_000_000) == [1]
    assert numbers(deadlines, 1_019_999) == []
    assert numbers(deadlines, 2_000_000) == [3]
    assert numbers(deadlines, 3_000_000) == []
    assert not deadlines


def test_one_that_was_done_in_time_is_never_told() -> None:
    deadlines, calls = Deadlines(), Some()
    deadlines.add(calls, 1, GRAIN, 0)
    deadlines.add(calls, 3, 2 * GRAIN, 0)
    del calls.timed[1]

    assert numbers(deadlines, GRAIN) == []
    assert numbers(deadlines, 2 * GRAIN) == [3]


def test_each_connection_has_its_own() -> None:
    deadlines, one, other = Deadlines(), Some(), Some()
    deadlines.add(one, 1, GRAIN, 0)
    deadlines.add(other, 1, 2 * GRAIN, 0)

    assert list(deadlines.take_expired(GRAIN)) == [(one, 1)]
    assert list(deadlines.take_expired(2 * GRAIN)) == [(other, 1)]


def test_calls_that_wait_cost_nothing_while_others_end() -> None:
    """50 connections with 990 open calls each, one of which ends every 10 ms: all of them were looked at each time."""
    deadlines, calls, over = Deadlines(), Some(), 0
    for number in range(50 * 990):
        deadlines.add(calls, number, HOUR, 0)
    for tick in range(100):
        deadlines.add(calls, 100_000 + tick, (tick + 1) * GRAIN, tick * GRAIN)
        over += len(numbers(deadlines, (tick + 1) * GRAIN))

    assert over == 100
    assert calls.looks == 100 + 50 * 990  # each once a second


def test_what_is_kept_of_calls_that_are_answered_is_gone_after_a_second_however_far_their_deadline_was() -> None:
    deadlines, calls = Deadlines(), Some()
    for number in range(1_000):
        deadlines.add(calls, number, HOUR, 0)
        del calls.timed[number]

    assert numbers(deadlines, HORIZON) == []
    assert not deadlines


steps = st.tuples(st.sampled_from(["add", "done", "look"]), st.integers(0, 3 * SECOND))


@given(st.lists(steps))
@example([("add", 50), ("add", 0), ("look", 10), ("look", 40)])
@example([("add", 3 * SECOND), ("look", SECOND), ("add", 1), ("done", 0), ("look", 2 * SECOND + GRAIN)])
def test_whatever_comes_and_goes_each_is_told_once_when_it_is_over_and_soon_after(steps: list[tuple[str, int]]) -> None:
    deadlines, calls, waiting, now = Deadlines(), Some(), dict[int, int](), 0
    for number, (step, value) in enumerate(steps):
        match step:
            case "add":
                waiting[number] = now + value
                deadlines.add(calls, number, now + value, now)
            case "done" if waiting:
                done = sorted(waiting)[value % len(waiting)]
                del waiting[done], calls.timed[done]
            case "look":
                now += value
                told = set(numbers(deadlines, now))
                assert all(waiting[number] <= now for number in told)
                assert told >= {number for number, when in waiting.items() if when <= now - GRAIN}
                waiting = {number: when for number, when in waiting.items() if number not in told}
                assert calls.timed == waiting
