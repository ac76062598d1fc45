"""Deadlines by a clock that the test sets."""

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.transports.http2.deadlines import Deadlines


def test_a_deadline_is_told_once_when_it_is_over() -> None:
    deadlines = Deadlines()
    deadlines.add(1, 1_000_000)
    deadlines.add(3, 1_020_000)

    assert deadlines.over(999_999) == []
    assert deadlines.over(1_000_000) == [1]
    assert deadlines.over(1_019_999) == []
    assert deadlines.over(2_000_000) == [3]
    assert deadlines.over(3_000_000) == []


def test_one_that_was_done_in_time_is_never_told() -> None:
    deadlines = Deadlines()
    deadlines.add(1, 10)
    deadlines.add(3, 20)
    del deadlines.of[1]

    assert deadlines.over(15) == []
    assert deadlines.over(20) == [3]


steps = st.tuples(st.sampled_from(["add", "done", "look"]), st.integers(0, 50))


@given(st.lists(steps))
def test_whatever_comes_and_goes_each_is_told_at_the_first_look_after_it_is_over(steps: list[tuple[str, int]]) -> None:
    deadlines, waiting, now = Deadlines(), dict[int, int](), 0
    for number, (step, value) in enumerate(steps):
        match step:
            case "add":
                waiting[number] = now + value
                deadlines.add(number, now + value)
            case "done" if waiting:
                done = sorted(waiting)[value % len(waiting)]
                del waiting[done], deadlines.of[done]
            case "look":
                now += value
                over = {number for number, when in waiting.items() if when <= now}
                assert set(deadlines.over(now)) == over
                waiting = {number: when for number, when in waiting.items() if number not in over}
