"""Which counts a page is sent again, and which it knows."""

import json
from typing import Any

import pytest

from ratelimit_service.rules.rule import Rule
from ratelimit_service.server.admin.recent_counts import WINDOW, RecentCounts
from ratelimit_service.system.clock import SECOND
from tests.admin.service import Service
from tests.books import book
from tests.clocks import Clock

RULES = "domain: shop\ndescriptors:\n" + "".join(
    f"  - {{key: k{number}, rate_limit: {{unit: day, requests_per_unit: 9}}}}\n" for number in range(3)
)


class Looks:
    """Looks at three rules, whose counts a test sets."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.rules: tuple[Rule, ...] = book(RULES).rules
        self.counts = [(0, 0)] * 3
        self.recent = RecentCounts(self.clock)

    def look(self) -> list[int]:
        """The indices of those that changed lately; the next look is two seconds later."""
        self.recent.begin(self.rules, 2)
        found = [index for index, counts in enumerate(self.counts) if self.recent.changed(index, counts)]
        self.clock.advance(2 * SECOND)
        return found


@pytest.fixture
def looks() -> Looks:
    """Ready for a first look."""
    return Looks()


def test_counts_from_before_the_first_look_are_not_among_those_that_changed(looks: Looks) -> None:
    looks.counts[1] = (5, 5)

    assert (looks.look(), looks.recent.since) == ([], 1)


def test_what_changed_is_told_until_all_pages_have_seen_it(looks: Looks) -> None:
    looks.look()
    looks.counts[1] = (5, 5)
    told = [looks.look() for _ in range(20)]

    assert told[:7] == [[1]] * 7
    assert told[-1] == []


def test_a_page_that_asks_within_the_window_is_sent_all_once_and_misses_no_change(looks: Looks) -> None:
    seen: dict[int, tuple[int, int]] = {}
    known, wholes = -1, 0
    for number in range(100):
        looks.counts[number % 3] = (number, number)
        changed = looks.look()
        if number % 7 == 0:  # every 14 s
            if looks.recent.since > known:
                seen, wholes = dict(enumerate(looks.counts)), wholes + 1
            seen |= {index: looks.counts[index] for index in changed}
            known = looks.recent.look
            assert seen == dict(enumerate(looks.counts))

    assert wholes == 1
    assert looks.recent.since > 80


def test_after_a_pause_a_page_has_to_ask_for_all(looks: Looks) -> None:
    looks.look()
    known = looks.recent.look
    looks.clock.advance(WINDOW)
    looks.counts[2] = (1, 1)

    assert looks.look() == []
    assert looks.recent.since > known


def test_new_rules_are_asked_for_as_a_whole(looks: Looks) -> None:
    looks.look()
    looks.rules = looks.rules[:2]
    looks.counts = [(7, 7), (0, 0)]

    assert (looks.look(), looks.recent.since) == ([], 2)
    looks.counts[1] = (1, 1)
    assert looks.look() == [1]


def test_of_the_status_only_rules_that_counted_since_the_last_time_have_counts(service: Service) -> None:
    def status() -> Any:
        return json.loads(service.get("/status/recent").text)

    first = status()
    for _ in range(4):
        service.post({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]})
    second, whole = status(), json.loads(service.get("/status/now").text)

    assert (first["counts"], first["since"], first["look"]) == ({}, 1, 1)
    assert (second["counts"], second["since"], second["look"]) == ({"0": whole["counts"][0]}, 1, 2)
    assert second["columns"] == whole["columns"]
    assert second["edition"] == whole["edition"]
