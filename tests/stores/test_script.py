"""What our script for Redis is told, and how its reply is read."""

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.clock import MINUTE, SECOND
from ratelimit_service.model import NEVER, Decision, Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.script import Script
from ratelimit_service.tally import Tally
from ratelimit_service.verdict import Hit

FIXED = Rule("shop", (), Limit(3, Unit.MINUTE, MINUTE), open_algorithm("fixed_window"))
BUCKET = Rule(
    "shop", (), Limit(5, Unit.SECOND, SECOND, burst=9, count_refused=False, exceed=1), open_algorithm("token_bucket")
)


def script() -> Script:
    return Script(lambda hit: f"rl1|{hit.key}")


def hit(rule: Rule, key: str, cost: int = 1, together: int = 0) -> Hit:
    return Hit(rule, key, cost, tally=Tally(), quota=False, together=together)


def test_counters_and_limits_are_told_once_and_hits_by_their_numbers() -> None:
    first, second = [hit(FIXED, "a"), hit(BUCKET, "b", -2)], [hit(FIXED, "a", 4), hit(FIXED, "c", 0)]

    keys, (plan,) = script().encode([first, second])

    assert keys == ["rl1|a", "rl1|b", "rl1|c"]
    limits = "1, 3, 60000000, 0, 10, 0, 1, 0, 0, 5, 5, 1000000, 9, 10, 0, 0, 1, 0"
    hits = "1, 1, 1, 2, 2, -2, 1, 1, 4, 3, 1, 0"
    assert plan == f"[0, 2, {limits}, {hits}]"


def test_the_keys_of_a_calendar_s_windows_outlive_them_by_more_or_less() -> None:
    jittered = Script(lambda hit: hit.key, jitter_seconds=1000)

    plans = {jittered.encode([[hit(FIXED, "a")]])[1] for _ in range(10)}
    others = {jittered.encode([[hit(BUCKET, "a")]])[1] for _ in range(10)}

    assert len(plans) > 1
    assert len(others) == 1


def test_a_test_may_tell_the_time() -> None:
    _, (plan,) = Script(lambda hit: hit.key, lambda: 1_790_000_000_123_456).encode([])

    assert plan == "[1790000000123456, 0]"


def test_hits_that_are_charged_together_are_led_by_how_many_they_are() -> None:
    first = [hit(FIXED, "a"), hit(FIXED, "b", together=1), hit(FIXED, "c", together=1), hit(FIXED, "d", together=2)]
    second = [hit(FIXED, "e", together=2), hit(FIXED, "f")]

    _, (plan,) = script().encode([first, second])

    assert plan.endswith(" 1, 1, 1, -2, 2, 1, 1, 3, 1, 1, -1, 4, 1, 1, -1, 5, 1, 1, 6, 1, 1]")


def test_a_hit_that_need_not_wait_is_allowed() -> None:
    hits = [hit(FIXED, "a"), hit(FIXED, "b"), hit(FIXED, "c")]

    script().decode([123, 2, 0, 60, 0, 1, 2, 60, 30, 3, 9, 60, -1], [hits[:2], hits[2:]])

    assert [each.decision for each in hits] == [
        Decision(True, 2, 0, 60, 0),
        Decision(False, 1, 2, 60, 30),
        Decision(False, 3, 9, 60, NEVER),
    ]


def test_the_script_has_the_name_that_redis_gives_it() -> None:
    assert script().sha == script().sha
    assert len(script().sha) == 40
