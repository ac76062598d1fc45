"""Costs that have come about: charged in full, whatever there is room for, into a debt that is bounded."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from redis import Redis as Client

from ratelimit_service.algorithms import NAMES, Algorithm, open_algorithm
from ratelimit_service.algorithms.kinds import Block, Queue, Synced, queue, synced
from ratelimit_service.algorithms.kinds.pool import Pool, member
from ratelimit_service.model import NEVER, PLAIN, Blocked, Kind, Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.system.clock import MINUTE, SECOND
from tests.algorithms.histories import History, every_algorithm, histories, is_too_deep, limits, moments, replay
from tests.algorithms.test_twins import hit, in_memory, in_redis, rule, settle

NOON = 1_790_000_000 * SECOND + 5 * SECOND


def per_minute(requests: int, *, burst: int = 0, exceed: int = 0, kind: Kind = PLAIN) -> Limit:
    return Limit(requests, Unit.MINUTE, MINUTE, burst=burst, exceed=exceed, kind=kind)


@given(every_algorithm, limits, histories, moments, st.integers(1, 60))
def test_a_cost_that_fits_is_charged_as_a_hit(
    algorithm: Algorithm, limit: Limit, history: History, now: int, cost: int
) -> None:
    state = replay(algorithm, limit, history)
    after, decision = algorithm.hit(state, limit, cost, now)
    assume(decision.allowed)

    assert algorithm.owe(state, limit, cost, now) == after


@given(every_algorithm, limits, histories, moments, st.integers(1, 200) | st.just(10**12))
def test_in_debt_nothing_is_left_and_a_look_says_until_when(
    algorithm: Algorithm, limit: Limit, history: History, now: int, cost: int
) -> None:
    assume(limit.requests)
    state = replay(algorithm, limit, history)
    assume(not is_too_deep(algorithm, limit, state, now))
    _, before = algorithm.hit(state, limit, 0, now)
    state = algorithm.owe(state, limit, cost, now)
    _, look = algorithm.hit(state, limit, 0, now)

    assert look.remaining == max(0, before.remaining - cost)
    if not look.allowed:
        assert not algorithm.hit(state, limit, 1, now)[1].allowed
        assert not algorithm.hit(state, limit, 0, now + look.retry_after - 1)[1].allowed
        assert algorithm.hit(state, limit, 0, now + look.retry_after)[1].allowed


@pytest.mark.parametrize(
    ("name", "burst", "seconds"),
    [
        ("fixed_window", 0, 15),  # its rest
        ("sliding_window", 0, 75),  # and until it has faded in the next one
        ("sub_windows", 0, 63),  # a window, and the rest of its part
        ("sliding_log", 0, 60),
        ("token_bucket", 0, 60.06),
        ("token_bucket", 200, 60.06),
        ("leaky_bucket", 5000, 300.06),
    ],
)
def test_no_debt_keeps_a_unit_out_for_longer_than_the_algorithm_remembers(
    client: Client, name: str, burst: int, seconds: float
) -> None:
    """R7, in Python and in Lua. Of 1,000 a minute, 45 seconds into a minute."""
    limited, now = rule(name, per_minute(1000, burst=burst)), NOON + 20 * SECOND
    assert now % MINUTE == 45 * SECOND
    most = 2**50 - 2**16 + 1  # of which a log that counts up to 2^16 would keep one
    steps = [hit(limited, "a", 1) if number % 2 else settle(limited, "a", most) for number in range(4)]
    history = [(now, [[step]]) for step in steps]

    for decisions in (in_memory(history), in_redis(client, history)):
        assert [each.over for each in decisions] == [most - (burst or 1000), 1, most, 1]
        assert [each.retry_after for each in decisions[1::2]] == [round(seconds * SECOND)] * 2


@pytest.mark.parametrize("name", NAMES)
def test_no_debt_is_too_large_for_lua_to_count(client: Client, name: str) -> None:
    """Four refunds of 2^50 end each."""
    limited = rule(name, per_minute(1000))
    costs = [[settle(limited, "a", 2**50)] for _ in range(12)]
    back = [[hit(limited, "a", cost)] for cost in (*[-(2**50)] * 4, 0)]

    for decisions in (in_memory([(NOON, costs + back)]), in_redis(client, [(NOON, costs + back)])):
        assert not decisions[11].allowed
        assert (decisions[-1].allowed, decisions[-1].remaining) == (True, 1000)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "sliding_log"])
def test_a_refund_lowers_a_debt_and_may_end_it(name: str) -> None:
    """A log keeps one unit of a debt."""
    algorithm, limit = open_algorithm(name), per_minute(1000)
    state = algorithm.owe(None, limit, 1700, NOON)
    answers = []
    for cost in (-600, -100, -1):
        state, _ = algorithm.hit(state, limit, cost, NOON)
        look = algorithm.hit(state, limit, 0, NOON)[1]
        answers.append((look.allowed, look.remaining))

    assert answers == [(False, 0), (True, 0), (True, 1)]


def test_a_queue_owes_no_more_than_a_window_beyond_its_longest_delay(client: Client) -> None:
    limited = Rule("shop", (), per_minute(60, kind=Queue(10 * SECOND, 10 * SECOND)), queue)
    history = [
        (NOON, [[settle(limited, "a", 10)], [hit(limited, "a", 0)], [settle(limited, "a", 10**12)]]),
        (NOON, [[hit(limited, "a", 1)]]),
        (NOON + 60 * SECOND, [[hit(limited, "a", 1)]]),
    ]

    for _, look, _, refused, last in (in_memory(history), in_redis(client, history)):
        assert (look.allowed, refused.retry_after, last.allowed) == (True, 60 * SECOND, True)


def test_a_synced_window_owes_of_its_own_count() -> None:
    limit = per_minute(1000, kind=Synced())
    end = NOON - NOON % MINUTE + MINUTE
    state = synced.owe((end, 100, 500, NOON), limit, 700, NOON)

    assert state == (end, 800, 500, NOON)
    assert synced.hit(state, limit, 0, NOON)[1].allowed is False


def test_what_leaves_a_counter_above_its_limit_starts_a_block_that_no_later_one_prolongs() -> None:
    limit = per_minute(1000, kind=Block(10 * MINUTE))
    algorithm = open_algorithm("token_bucket")
    state, block, look = limit.kind.owe(algorithm, None, None, limit, 1000, NOON)
    assert (look.allowed, block) == (True, None)
    state, block, look = limit.kind.owe(algorithm, state, block, limit, 700, NOON)
    later, same, still = limit.kind.owe(algorithm, state, block, limit, 100, NOON + MINUTE)

    assert isinstance(look, Blocked)
    assert (look.allowed, look.over, look.retry_after) == (False, 700, 10 * MINUTE)
    assert isinstance(still, Blocked)
    assert (still.over, still.retry_after) == (0, 9 * MINUTE)
    assert same == block
    assert later != state


def test_a_pool_owes_a_window_at_most(client: Client) -> None:
    pool = Pool("all", 200, 20, 0)
    one, other = (
        Rule("shop", (), member(per_minute(right, exceed=200), pool, strict=False), open_algorithm("sub_windows"),
             pool="all")
        for right in (100, 0)
    )  # fmt: skip
    history = [
        (NOON, [[settle(one, "a", 10**6)], [hit(other, "b", 1)]]),
        (NOON + 201 * MINUTE // 200 - 1, [[hit(other, "b", 1)]]),
        (NOON + 201 * MINUTE // 200, [[hit(other, "b", 1)]]),
    ]

    for first, *rest in (in_memory(history), in_redis(client, history)):
        assert (first.allowed, first.remaining, first.over) == (False, 0, 10**6 - 100)
        assert [each.allowed for each in rest] == [False, False, True]


def test_a_bucket_that_gets_no_tokens_keeps_no_debt() -> None:
    algorithm, limit = open_algorithm("token_bucket"), per_minute(0)

    state, _, look = PLAIN.owe(algorithm, None, None, limit, 5, NOON)

    assert (state, look.allowed, look.over, look.retry_after) == (None, False, 5, NEVER)
