"""How hits are encoded for our script, and how its reply is read."""

import json

import pytest

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.model import NEVER, Decision, Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.script import BatchScript
from ratelimit_service.system.clock import MINUTE, SECOND
from ratelimit_service.telemetry.tally import Tally
from tests.parts import parts_of

FIXED = Rule("shop", (), Limit(3, Unit.MINUTE, MINUTE), open_algorithm("fixed_window"))
BUCKET = Rule(
    "shop", (), Limit(5, Unit.SECOND, SECOND, burst=9, count_refused=False, exceed=1), open_algorithm("token_bucket")
)


def script() -> BatchScript:
    return BatchScript()


def hit(rule: Rule, key: str, cost: int = 1, together: int = 0) -> Hit:
    return Hit(rule, key, cost, tally=Tally(), quota=False, together=together)


def test_limits_are_sent_once_and_hits_have_their_numbers() -> None:
    first, second = [hit(FIXED, "a"), hit(BUCKET, "b", -2)], [hit(FIXED, "d", 4), hit(FIXED, "c", 0)]

    keys, (text,), runs = script().encode(parts_of(first, second))

    assert keys == ["rl2|a", "rl2|b", "rl2|d", "rl2|c"]
    limits = "1,3,60000000,0,10,0,1,0,1,0,5,5,1000000,9,10,0,0,1,0,0"
    hits = "1, 1, 1, 2, -2, 1, 1, 4, 1, 1, 0, 1"
    assert text == f"[0,0,2,{limits},{hits}]"
    assert [list(run) for run in runs] == [[each] for each in first + second]


def test_like_hits_on_one_counter_are_one_entry_and_others_stand_beside() -> None:
    hits = [hit(FIXED, name, cost) for name, cost in [("a", 1), ("b", 1), ("a", 1), ("b", 2), ("a", 1), ("b", 1)]]

    keys, (text,), runs = script().encode(parts_of(hits[:2], hits[2:5], hits[5:]))

    assert keys == ["rl2|a", "rl2|b", "rl2|b", "rl2|b"]
    assert json.loads(str(text))[13:] == [1, 1, 3, 1, 1, 1, 1, 2, 1, 1, 1, 1]
    assert [list(run) for run in runs] == [hits[0:5:2], [hits[1]], [hits[3]], [hits[5]]]


@pytest.mark.parametrize(
    ("name", "count_refused", "merged"),
    [
        ("fixed_window", True, True),
        ("fixed_window", False, True),
        ("sub_windows", False, True),
        ("sub_windows", True, False),
        ("sliding_log", False, True),
        ("sliding_log", True, False),
        ("sliding_window", False, False),
        ("token_bucket", False, False),
        ("leaky_bucket", False, False),
    ],
)
def test_hits_are_one_run_only_where_each_can_be_answered_as_if_alone(
    name: str, count_refused: bool, merged: bool
) -> None:
    rule = Rule("shop", (), Limit(3, Unit.MINUTE, MINUTE, count_refused=count_refused), open_algorithm(name))

    _, _, runs = script().encode(parts_of([hit(rule, "a")], [hit(rule, "a")]))

    assert len(runs) == (1 if merged else 2)


@pytest.mark.parametrize("cost", [0, -1])
def test_looks_and_refunds_are_never_one_run(cost: int) -> None:
    _, _, runs = script().encode(parts_of([hit(FIXED, "a", cost)], [hit(FIXED, "a", cost)]))

    assert len(runs) == 2


def test_the_keys_of_a_calendar_s_windows_outlive_them_by_more_or_less() -> None:
    jittered = BatchScript(jitter_seconds=1000)

    def jitter_of(rule: Rule) -> int:
        (text,) = jittered.encode(parts_of([hit(rule, "a")])).arguments
        _, jitter, _, *limit = json.loads(str(text))
        return int(jitter * limit[8])

    assert len({jitter_of(FIXED) for _ in range(10)}) > 1
    assert {jitter_of(BUCKET) for _ in range(10)} == {0}


def test_a_test_may_tell_the_time() -> None:
    _, (text,), _ = BatchScript("", lambda: 1_790_000_000_123_456).encode(parts_of([hit(FIXED, "a")]))

    assert json.loads(str(text))[0] == 1_790_000_000_123_456


def test_hits_that_are_charged_together_are_led_by_how_many_they_are() -> None:
    first = [hit(FIXED, "a"), hit(FIXED, "b", together=1), hit(FIXED, "c", together=1), hit(FIXED, "d", together=2)]
    second = [hit(FIXED, "e", together=2), hit(FIXED, "f")]

    _, (text,), _ = script().encode(parts_of(first, second))

    assert json.loads(str(text))[13:] == [1, 1, 1, -2, 1, 1, 1, 1, 1, 1, -1, 1, 1, 1, -1, 1, 1, 1, 1, 1, 1]


def test_no_hit_is_moved_past_those_that_are_charged_together() -> None:
    hits = [hit(FIXED, "a"), hit(FIXED, "a", together=1), hit(FIXED, "b", together=1), hit(FIXED, "a")]

    keys, _, runs = script().encode(parts_of(*([each] for each in hits)))

    assert keys == ["rl2|a", "rl2|a", "rl2|b", "rl2|a"]
    assert [run[0] for run in runs] == hits


def test_of_an_entry_the_first_hits_are_allowed_and_the_refused_are_named() -> None:
    hits = [hit(BUCKET, "a", 2) for _ in range(4)]

    # Ten are there: nine, and one that may exceed them. Three of them are taken.
    refused = script().decode([123, 3, 7, 1, 60, 30], [hits]).changed

    assert [each.decision for each in hits] == [
        Decision(True, 5, 0, 60, 0),
        Decision(True, 3, 0, 60, 0),
        Decision(True, 1, 0, 60, 0),
        Decision(False, 1, 2, 60, 30),
    ]
    assert refused == hits[3:]


def test_what_is_allowed_above_the_limit_is_counted_as_over() -> None:
    hits = [hit(BUCKET, "a", 2), hit(BUCKET, "b", 1)]

    script().decode([123, 1, 2, 0, 60, 0, 0, 0, 0, 60, NEVER], [hits[:1], hits[1:]])

    assert [each.decision for each in hits] == [Decision(True, 0, 1, 60, 0), Decision(False, 0, 1, 60, NEVER)]


def test_a_refused_hit_that_counts_leaves_the_next_one_less() -> None:
    hits = [hit(FIXED, "a", 2) for _ in range(3)]

    script().decode([123, 1, 3, 0, 60, 60], [hits])

    assert [(each.decision.allowed, each.decision.remaining, each.decision.over) for each in hits] == [
        (True, 1, 0),
        (False, 0, 1),
        (False, 0, 2),
    ]


def test_a_hit_that_was_spared_took_nothing() -> None:
    spared = [hit(BUCKET, "a", 2, together=1), hit(BUCKET, "in debt", 2, together=1)]

    script().decode([123, 1, 1, 1, 60, 0, -1, 0, 0, 60, 30], [spared[:1], spared[1:]])

    assert [each.decision for each in spared] == [Decision(True, 1, 0, 60, 0), Decision(False, 0, 0, 60, 30)]


def test_the_script_has_the_name_that_redis_gives_it() -> None:
    assert script().sha == script().sha
    assert len(script().sha) == 40
