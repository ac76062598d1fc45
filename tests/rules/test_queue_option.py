"""What stands in a limit's `queue`, and what contradicts it."""

import pytest

from ratelimit_service.algorithms.kinds import Queue
from ratelimit_service.algorithms.kinds import queue as leaky_queue
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.rule import rule_in_full
from ratelimit_service.system.clock import MINUTE, SECOND
from tests.books import book
from tests.rules.test_parse import limit, problems

OF_FIFTY = "algorithm: leaky_bucket, unit: second, requests_per_unit: 50"
REFUSED = "contradicts queue, where only one that waits too long is refused: remove one of them"


@pytest.mark.parametrize(
    ("written", "delay", "places"),
    [
        ("200ms", 200_000, 11),
        ("1.5s", 1_500_000, 76),
        ("2 seconds", 2 * SECOND, 101),
        ("minute", MINUTE, 3001),
        ("1ms", 1000, 1),
    ],
)
def test_a_limit_has_a_queue_of_so_much_time(written: str, delay: int, places: int) -> None:
    (rule,) = book(limit(f"{{{OF_FIFTY}, queue: {{max_delay: {written}}}}}")).rules

    assert rule.algorithm is leaky_queue
    assert rule.limit == Limit(50, Unit.SECOND, SECOND, burst=places, count_refused=False, kind=Queue(delay, delay))


def test_defaults_of_buckets_do_not_reach_a_queue() -> None:
    text = "domain: shop\ndefaults: {algorithm: leaky_bucket, burst: 7, exceed: 3, block_for: 1 minute}\n"
    (rule,) = book(f"{text}descriptors: [{{key: a, rate_limit: {{{OF_FIFTY}, queue: {{max_delay: 200ms}}}}}}]\n").rules

    assert rule_in_full(rule) == "50 requests per second (leaky bucket, up to 200 ms later, in a queue)"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("queue: {}", ["queue has no max_delay; write one, such as queue: {max_delay: 200ms}"]),
        ("queue: 200ms", ['queue must be a map, not the text "200ms"']),
        ("queue: {max_delay: soon}", ['max_delay "soon" must be a time up to a minute, such as 200ms or "2 seconds"']),
        ("queue: {max_delay: 0s}", ['max_delay "0s" must be a time up to a minute, such as 200ms or "2 seconds"']),
        ("queue: {max_delay: 61s}", ['max_delay "61s" must be a time up to a minute, such as 200ms or "2 seconds"']),
        ("queue: {max_dely: 1s}", ['unknown key "max_dely"; did you mean max_delay?']),
        (
            "burst: 5, queue: {max_delay: 1s}",
            ["burst contradicts queue, where max_delay says how many it holds: remove one of them"],
        ),
        ("exceed: 5, queue: {max_delay: 1s}", [f"exceed {REFUSED}"]),
        ("count_refused: true, queue: {max_delay: 1s}", [f"count_refused {REFUSED}"]),
        ("block_for: 1 minute, queue: {max_delay: 1s}", [f"block_for {REFUSED}"]),
    ],
)
def test_what_is_wrong_with_a_queue_is_an_error(more: str, expected: list[str]) -> None:
    found = problems(limit(f"{{{OF_FIFTY}, {more}}}"))

    assert [text.partition(": ")[2] for text in found] == expected


def test_only_a_leaky_bucket_queues() -> None:
    found = problems(limit("{unit: second, requests_per_unit: 5, queue: {max_delay: 1s}}"))

    assert [text.partition(": ")[2] for text in found] == [
        "queue has no meaning for fixed_window, only for leaky_bucket"
    ]
