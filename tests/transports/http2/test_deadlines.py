"""Deadlines by a clock that the test sets."""

from ratelimit_service.transports.http2.deadlines import Deadlines


def test_a_deadline_is_told_once_it_is_over_and_at_most_a_hundredth_of_a_second_later() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.add("early", 1_000_000)
    deadlines.add("late", 1_020_000)

    assert list(deadlines.over(999_999)) == []
    assert list(deadlines.over(1_010_000)) == ["early"]
    assert list(deadlines.over(1_010_000)) == []
    assert list(deadlines.over(2_000_000)) == ["late"]


def test_one_that_was_done_in_time_is_never_told_and_leaves_nothing() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for number in range(1_000):
        deadlines.add(number, 3_600_000_000 + 7 * number)
        deadlines.discard(number)
    deadlines.discard(5)

    assert len(deadlines) == 0
    assert deadlines._buckets == {}
