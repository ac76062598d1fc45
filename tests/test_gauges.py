"""What is true of rules now, or was lately."""

from ratelimit_service.system.clock import MINUTE, SECOND
from ratelimit_service.telemetry.gauges import Gauges, Peak
from tests.clocks import Clock


def test_a_peak_is_the_highest_of_the_last_one_to_two_minutes() -> None:
    clock = Clock()
    peak = Peak(clock)
    found = [peak.read()]
    for number in (3, 7, 5):
        peak.note(number)
    found.append(peak.read())
    clock.advance(MINUTE)
    peak.note(4)
    found.append(peak.read())
    clock.advance(MINUTE - SECOND)
    found.append(peak.read())
    clock.advance(SECOND)
    found.append(peak.read())
    clock.advance(MINUTE)

    assert found == [0, 7, 7, 7, 4]
    assert peak.read() == 0


def test_a_peak_is_forgotten_after_a_pause() -> None:
    clock = Clock()
    peak = Peak(clock)
    peak.note(7)
    clock.advance(2 * MINUTE)
    peak.note(1)

    assert peak.read() == 1


def test_together_processes_have_the_sums_and_the_highest() -> None:
    one, other = Gauges(1, 20, 3, 0.5, 7, 8), Gauges(2, 10, 1, 0.75, 4, 9)

    assert one.merge(other) == other.merge(one) == Gauges(3, 30, 4, 0.75, 7, 9)
