"""Elastic limits: tables of cases, and what they promise of any history, in Python and by the Lua twin in a real Redis.

A promise is held to a model that keeps no counters, but all that was admitted, and the level of the pool as a fraction.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import floor
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis as Client

from ratelimit_service.algorithms import State, open_algorithm
from ratelimit_service.algorithms.kinds import Block, Elastic
from ratelimit_service.algorithms.kinds.pool import Pool, member
from ratelimit_service.model import NEVER, PLAIN, Decision, Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.system.clock import SECOND
from tests.algorithms.test_twins import Batch, hit, in_memory, in_redis, rule, settle

SUB_WINDOWS = open_algorithm("sub_windows")
T0 = 1_790_000_000 * SECOND


def limit_of(right: int, ceiling: int, pool: Pool, *, strict: bool = False, parts: int = 10, window: int = 1) -> Limit:
    plain = Limit(right, Unit.SECOND, window * SECOND, parts=parts, count_refused=False, exceed=ceiling - right)
    return member(plain, pool, strict=strict)


class Members:
    """Members of one pool, and what they are answered; by letter."""

    def __init__(self, **limits: Limit) -> None:
        self.limits = limits
        self.states: dict[str, State | None] = {}
        self.pool: State | None = None

    def hit(self, member: str, cost: int, seconds: float) -> Decision:
        now = T0 + round(seconds * SECOND)
        state, limit = self.states.get(member), self.limits[member]
        self.states[member], self.pool, decision = limit.kind.hit(SUB_WINDOWS.hit, state, self.pool, limit, cost, now)
        return decision

    def free(self, seconds: float) -> int:
        kind = next(iter(self.limits.values())).kind
        assert isinstance(kind, Elastic)
        return kind.free(self.pool, T0 + round(seconds * SECOND))


CHECKOUT = Pool("checkout", 1000, 100, 0)


def test_what_is_above_the_limit_is_admitted_as_far_as_the_pool_has_room() -> None:
    members = Members(a=limit_of(400, 1000, CHECKOUT))

    assert members.hit("a", 50, 0) == Decision(True, 950, 0, 1_100_000, 0)
    assert members.free(0) == 50
    assert members.hit("a", 350, 0.3) == Decision(True, 600, 0, 1_100_000, 0)
    assert members.free(0.3) == -250
    assert members.hit("a", 1, 0.3) == Decision(False, 600, 1, 1_100_000, 251_000)
    assert members.hit("a", 51, 0.6) == Decision(False, 600, 51, 800_000, 1000)
    assert members.hit("a", 50, 0.6) == Decision(True, 550, 50, 1_100_000, 0)


def test_a_right_is_honoured_while_the_pool_is_lent_out_and_nothing_more_is_lent_until_the_debt_is_paid() -> None:
    members = Members(a=limit_of(400, 1000, CHECKOUT), b=limit_of(600, 1000, CHECKOUT))
    for tenth in range(10):
        members.hit("a", 100, tenth / 10)
    assert members.free(1) == 100

    assert members.hit("b", 600, 1).allowed
    assert members.free(1) == -500
    refused = members.hit("a", 1, 1.05)
    assert (refused.allowed, refused.retry_after) == (False, 451_000)
    assert members.hit("a", 1, 1.501).allowed


def test_a_strict_right_waits_for_the_pool() -> None:
    members = Members(a=limit_of(400, 1000, CHECKOUT, strict=True), b=limit_of(600, 1000, CHECKOUT, strict=True))
    assert members.hit("a", 90, 0).allowed

    refused = members.hit("b", 11, 0)
    assert refused == Decision(False, 410, 1, 0, 1000)
    assert members.hit("b", 10, 0) == Decision(True, 400, 0, 1_100_000, 0)
    assert members.free(0) == 0


def test_a_reserve_is_left_to_rights() -> None:
    members = Members(
        a=limit_of(1, 1000, replace(CHECKOUT, reserve=50)), b=limit_of(600, 1000, replace(CHECKOUT, reserve=50))
    )

    assert not members.hit("a", 51, 0).allowed
    assert members.hit("a", 50, 0).allowed
    assert members.hit("b", 50, 0).allowed
    assert members.hit("b", 50, 0).allowed
    assert members.free(0) == -50


def test_what_can_never_be_admitted_says_so() -> None:
    members = Members(a=limit_of(40, 1000, CHECKOUT), b=limit_of(400, 1000, CHECKOUT, strict=True))

    assert members.hit("a", 101, 0).retry_after == NEVER
    assert members.hit("b", 101, 0).retry_after == NEVER
    assert members.hit("b", 1001, 0).retry_after == NEVER


def test_a_debt_is_at_most_a_windows_requests() -> None:
    members = Members(a=limit_of(5000, 5000, CHECKOUT))

    assert members.hit("a", 5000, 0).allowed
    assert members.free(0) == -1000


def test_a_refund_gives_the_pool_what_the_member_had_used_and_no_more() -> None:
    members = Members(a=limit_of(400, 1000, CHECKOUT), b=limit_of(400, 1000, CHECKOUT))
    members.hit("a", 60, 0)
    members.hit("b", 10, 0)

    assert members.hit("b", -50, 0) == Decision(True, 1000, 0, 0, 0)
    assert members.free(0) == 40
    members.hit("a", -5, 0)
    assert members.free(0) == 45


class Call(NamedTuple):
    """A hit of one of the members."""

    now: int
    member: int
    cost: int


class Case(NamedTuple):
    """Members of one pool, and calls in the order of time."""

    pool: Pool
    window: int
    limits: Sequence[Limit]
    calls: Sequence[Call]


CALLS = 150


def a_case(random: Random, *, strict: bool) -> Case:
    """The pool is lent out most of the time, and the steps are of all sizes."""
    rate = random.choice([1, 3, 7, 30, 1000])
    burst = random.choice([1, max(1, rate // 10), rate, 2 * rate])
    pool = Pool("checkout", rate, burst, random.choice([0, burst // 2, burst - 1]))
    window, parts = random.choice([1, 1, 60]), random.choice([1, 2, 7, 10])
    limits = []
    for _ in range(random.randint(1, 3)):
        right = random.choice([1, max(1, rate // 3), rate, 2 * rate])
        ceiling = right + random.choice([0, 1, rate // 2, 3 * rate])
        limits.append(limit_of(right, ceiling, pool, strict=strict, parts=parts, window=window))
    now, calls = T0, []
    span = window * SECOND
    for _ in range(CALLS):
        now += random.choice([0, 0, 1, span // (rate + 1), span // 10, span // 30, random.randrange(span)])
        if random.random() < 0.02:
            now += random.choice([span, 3 * span])
        cost = random.choice([1, 1, 1, 2, max(1, rate // 5), max(1, rate // 2), rate])
        calls.append(Call(now, random.randrange(len(limits)), cost))
    return Case(pool, span, limits, calls)


def hold(case: Case, answers: Sequence[Decision], *, strict: bool) -> None:
    """Hold the answers to what is promised."""
    pool = case.pool
    admitted: list[list[tuple[int, int]]] = [[] for _ in case.limits]
    level, latest = Fraction(0), 0
    for call, answer in zip(case.calls, answers, strict=True):
        now, cost = call.now, call.cost
        limit, mine = case.limits[call.member], admitted[call.member]
        level = max(Fraction(0), level - Fraction((now - latest) * pool.requests, case.window))
        latest = now
        part = -(-case.window // limit.parts)
        own = sum(units for at, units in mine if now // part - at // part <= limit.parts)
        ceiling = limit.requests + limit.exceed
        right, lent = own + cost <= limit.requests, level + cost <= pool.burst - pool.reserve
        if strict:
            right = right and level + cost <= pool.burst
        told = (call, limit, pool, own, float(level), answer)
        if answer.allowed:
            if own + cost > limit.requests:
                assert lent, ("E3: a loan leaves the reserve", *told)
            if strict:
                assert level + cost <= pool.burst, ("E4: the pool is never above its burst", *told)
            mine.append((now, cost))
            level += min(cost, floor(pool.burst + pool.requests - level))  # a debt is at most a window's
            window = sum(units for at, units in mine if at > now - case.window)
            assert window <= ceiling, ("E2: no window holds more than the ceiling", *told)
            assert answer.over == max(0, min(cost, own + cost - limit.requests)), told
        else:
            assert not right, ("E1: a right is never refused", *told)
            assert own + cost > ceiling or not lent, ("E5: idle capacity is not refused below the ceiling", *told)
            assert (answer.retry_after == NEVER) is (
                (cost > limit.requests or (strict and cost > pool.burst))
                and (cost > ceiling or cost > pool.burst - pool.reserve)
            ), told
        # E6: both counters have moved or neither, or one of these would differ later.


def in_lua(client: Client, case: Case) -> list[Decision]:
    rules = [rule("sub_windows", limit) for limit in case.limits]
    return in_redis(client, [(now, [[hit(rules[who], f"m{who}", cost)]]) for now, who, cost in case.calls])


@pytest.mark.parametrize("strict", [False, True])
@given(st.integers(0, 2**64))
def test_the_promises_hold_in_python_and_in_redis(client: Client, strict: bool, seed: int) -> None:
    case = a_case(Random(seed), strict=strict)  # noqa: S311 - the seed tells the case
    members = Members(**{f"m{number}": limit for number, limit in enumerate(case.limits)})
    answers = [members.hit(f"m{who}", cost, (now - T0) / SECOND) for now, who, cost in case.calls]

    hold(case, answers, strict=strict)
    assert in_lua(client, case) == answers


@pytest.mark.parametrize("strict", [False, True])
@given(st.integers(0, 2**64))
def test_after_the_wait_it_is_admitted_and_not_before(strict: bool, seed: int) -> None:
    case = a_case(Random(seed), strict=strict)  # noqa: S311 - the seed tells the case
    members = Members(**{f"m{number}": limit for number, limit in enumerate(case.limits)})
    for now, who, cost in case.calls:
        name = f"m{who}"
        state, pool, limit = members.states.get(name), members.pool, case.limits[who]
        wait = members.hit(name, cost, (now - T0) / SECOND).retry_after
        if wait > 0:
            early, in_time = (
                limit.kind.hit(SUB_WINDOWS.hit, state, pool, limit, cost, now + after)[2] for after in (wait - 1, wait)
            )
            assert (early.allowed, in_time.allowed) == (False, True), (now, who, cost, wait, limit)


def a_batch_history(random: Random) -> list[tuple[int, Batch]]:
    """Two pools and a plain limit, in batches, with refunds and looks, a clock that steps back, and changed pools."""
    window = SECOND
    strict = random.random() < 0.5

    def rules() -> list[Rule]:
        found = [rule("token_bucket", Limit(5, Unit.SECOND, window, kind=random.choice([PLAIN, Block(window)])))]
        for name in ("one", "two"):
            rate = random.choice([1, 7, 30, 10**6, 2**48 - 1])
            burst = random.choice([1, max(1, rate // 10), 2 * rate])
            pool = Pool(name, rate, burst, random.choice([0, burst // 2]))
            for _ in range(2):
                right = random.choice([1, rate, 2 * rate])
                found.append(rule("sub_windows", limit_of(right, right + random.choice([0, 3, rate]), pool)))
                if strict:
                    found[-1] = rule("sub_windows", limit_of(right, right + 3, pool, strict=True))
        return found

    books = [rules(), rules()]
    book = books[0]
    now = latest = T0
    history = []
    for _ in range(40):
        now = max(now + random.choice([0, 1, window // 7, window, -window // 5]), latest - window // 2)
        latest = max(now, latest)
        if random.random() < 0.1:
            book = random.choice(books)
        batch = []
        for _ in range(random.randint(1, 5)):
            hits: list[Hit] = []
            for _ in range(random.randint(1, 3)):
                number = random.randrange(len(book))
                cost = random.choice(
                    [1, 1, 2, 5, 0, -1, -3, random.choice([10**5, 2**47, 2**50]) if random.random() < 0.2 else 1]
                )
                settles = cost >= 0 and random.random() < 0.1
                hits.append((settle if settles else hit)(book[number], f"m{number}", cost))
            batch.append(hits)
        history.append((now, batch))
    return history


@given(st.integers(0, 2**64))
def test_the_twin_answers_as_the_python_does_in_batches_of_several_pools(client: Client, seed: int) -> None:
    history = a_batch_history(Random(seed))  # noqa: S311 - the seed tells the history
    # Members of a pool are served as the script puts them: the hits on one counter side by side.
    history = [(now, [[each for _, of_key in _by_key(batch) for each in of_key]]) for now, batch in history]
    hits = [(now, each) for now, batch in history for requests in batch for each in requests]

    for step, (expected, got) in enumerate(zip(in_memory(history), in_redis(client, history), strict=True)):
        assert got == expected, (step, hits[step][0], hits[step][1].cost, hits[step][1].rule.limit)


@given(st.integers(0, 2**64))
def test_a_bundle_charges_pools_with_all_or_none_of_its_hits(client: Client, seed: int) -> None:
    random = Random(seed)  # noqa: S311 - the seed tells the history
    pool = Pool("one", 30, 10, 0)
    book = [
        rule("sub_windows", limit_of(3, 9, pool, strict=random.random() < 0.5)),
        rule("sub_windows", limit_of(1, 20, pool)),
        rule("token_bucket", Limit(4, Unit.SECOND, SECOND, count_refused=random.random() < 0.5)),
    ]
    history: list[tuple[int, Batch]] = []
    for number in range(60):
        chosen = random.sample(range(3), random.randint(1, 3))
        bundle = [hit(book[which], f"m{which}", random.choice([1, 1, 2, 5]), random.choice([0, 1])) for which in chosen]
        bundle.sort(key=lambda each: each.together)
        history.append((T0 + number * SECOND // 20, [bundle]))

    assert in_redis(client, history) == in_memory(history)


def _by_key(batch: Batch) -> list[tuple[str, list[Hit]]]:
    found: dict[str, list[Hit]] = {}
    for hits in batch:
        for each in hits:
            found.setdefault(each.key, []).append(each)
    return list(found.items())


def test_a_pool_is_read_once_and_written_once_however_many_members_a_call_has(client: Client) -> None:
    rules = [rule("sub_windows", limit_of(5, 50, CHECKOUT)) for _ in range(20)]
    client.flushall()
    client.config_resetstat()

    in_redis(client, [(T0, [[hit(each, f"m{number}", 1)] for number, each in enumerate(rules)])])

    commands = client.info("commandstats")
    assert commands["cmdstat_set"]["calls"] == 21
    assert commands["cmdstat_mget"]["calls"] == 1


def test_a_pools_own_counter_may_stand_behind_those_of_its_members(client: Client) -> None:
    """The next key is its own again, as the second one of a member."""
    tenant = rule("sub_windows", limit_of(5, 50, CHECKOUT))
    assert tenant.limit is not None
    limit = tenant.limit.kind.common_limit
    assert limit is not None
    pool = rule("token_bucket", limit)
    hits = [hit(tenant, "ada", 0), hit(pool, tenant.common_key, 0)]
    client.flushall()

    assert [each.remaining for each in in_redis(client, [(T0, [hits])])] == [50, 1100]  # with what it may owe
