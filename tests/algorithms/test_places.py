"""Places in Python and, in a real Redis, in Lua: what a caller may rely on, whatever comes in what order."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis as Client

from ratelimit_service.algorithms import PLACES, open_algorithm
from ratelimit_service.algorithms.kinds import Places
from ratelimit_service.algorithms.kinds.places import MOST, STEP
from ratelimit_service.model import NEVER, Decision, Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.system.clock import HOUR, MINUTE, SECOND
from ratelimit_service.telemetry.tally import Tally
from tests.algorithms.test_twins import Batch, in_memory, in_redis, run

START = 1_790_000_000_000_000
HOLD = MINUTE


class Step(NamedTuple):
    """A hit: when, of which holder, at what cost, on how many places, and in which bundle."""

    now: int
    holder: int
    cost: int
    places: int = 3
    together: int = 0
    hold: int = HOLD


Answer = tuple[bool, int, int, int, int]
Decide = Callable[[Sequence[Sequence[Step]]], list[Decision]]
"""What requests on one counter are answered; the hits of one request come at one moment."""


@pytest.fixture(scope="module", params=["python", "lua"])
def decide(request: pytest.FixtureRequest) -> Decide:
    if request.param == "python":
        return lambda requests: in_memory(batches(requests))
    client: Client = request.getfixturevalue("client")
    return lambda requests: in_redis(client, batches(requests))


def limit_of(places: int, hold: int = HOLD) -> Limit:
    return Limit(places, Unit.SECOND, hold, count_refused=False, kind=Places())


def hit(step: Step, rules: dict[tuple[int, int], Rule]) -> Hit:
    """A hit on the one counter; steps with the same limit have the same rule."""
    rule = rules.setdefault(
        (step.places, step.hold), Rule("shop", (), limit_of(step.places, step.hold), open_algorithm(PLACES))
    )
    found = Hit(rule, "a", step.cost, tally=Tally(), quota=False, together=step.together)
    found.limit = replace(found.limit, kind=Places(step.holder))
    return found


def batches(requests: Sequence[Sequence[Step]]) -> list[tuple[int, Batch]]:
    rules: dict[tuple[int, int], Rule] = {}
    return [(steps[0].now, [[hit(step, rules) for step in steps]]) for steps in requests]


def answers(decide: Decide, *steps: Step) -> list[Answer]:
    return [plain(decision) for decision in decide([[step] for step in steps])]


def plain(decision: Decision) -> Answer:
    """Allowed, remaining, over, reset after, retry after."""
    return decision.allowed, decision.remaining, decision.over, decision.reset_after, decision.retry_after


def test_places_are_taken_given_back_and_taken_again(decide: Decide) -> None:
    taken = [Step(START + number * SECOND, number, 1) for number in (1, 2, 3)]

    got = answers(
        decide, *taken, Step(START + 4 * SECOND, 4, 1), Step(START + 5 * SECOND, 2, -1), Step(START + 6 * SECOND, 4, 1)
    )

    assert got == [
        (True, 2, 0, 60 * SECOND, 0),
        (True, 1, 0, 60 * SECOND, 0),
        (True, 0, 0, 60 * SECOND, 0),
        (False, 0, 1, 59 * SECOND, 57 * SECOND),
        (True, 1, 0, 58 * SECOND, 0),
        (True, 0, 0, 60 * SECOND, 0),
    ]


def test_the_same_holder_renews_its_place_and_takes_none(decide: Decide) -> None:
    got = answers(decide, Step(START, 1, 1, 1), Step(START + 30 * SECOND, 1, 1, 1), Step(START + 80 * SECOND, 2, 1, 1))

    assert got == [
        (True, 0, 0, 60 * SECOND, 0),
        (True, 0, 0, 60 * SECOND, 0),
        (False, 0, 1, 10 * SECOND, 10 * SECOND),
    ]


def test_a_cost_takes_as_many_places_and_one_refund_gives_back_all(decide: Decide) -> None:
    got = answers(
        decide, Step(START, 1, 2), Step(START, 2, 2), Step(START, 3, 4), Step(START, 1, -1), Step(START, 2, 2)
    )

    assert got == [
        (True, 1, 0, 60 * SECOND, 0),
        (False, 1, 1, 60 * SECOND, 60 * SECOND),
        (False, 1, 3, 60 * SECOND, NEVER),
        (True, 3, 0, 0, 0),
        (True, 1, 0, 60 * SECOND, 0),
    ]


def test_a_holder_may_take_more_and_never_has_fewer(decide: Decide) -> None:
    got = answers(decide, Step(START, 1, 1), Step(START, 1, 3), Step(START, 1, 1), Step(START, 2, 1))

    assert [answer[:2] for answer in got] == [(True, 2), (True, 0), (True, 0), (False, 0)]


def test_a_refund_for_a_holder_without_a_place_changes_nothing(decide: Decide) -> None:
    got = answers(decide, Step(START, 1, 1, 1), Step(START, 2, 1, 1), Step(START, 2, -1, 1), Step(START, 3, 1, 1))

    assert [answer[:2] for answer in got] == [(True, 0), (False, 0), (True, 0), (False, 0)]


def test_a_lower_limit_refuses_no_holder_that_renews(decide: Decide) -> None:
    got = answers(decide, Step(START, 1, 1), Step(START, 2, 1), Step(START, 1, 1, 1), Step(START, 3, 1, 1))

    assert [answer[:2] for answer in got] == [(True, 2), (True, 1), (True, 0), (False, 0)]


def test_no_places_at_all_refuse_for_ever(decide: Decide) -> None:
    assert answers(decide, Step(START, 1, 1, 0), Step(START, 1, -1, 0)) == [(False, 0, 1, 0, NEVER), (True, 0, 0, 0, 0)]


def test_a_look_changes_nothing(decide: Decide) -> None:
    got = answers(decide, Step(START, 1, 0), Step(START, 1, 1), Step(START + SECOND, 1, 0), Step(START + SECOND, 9, 0))

    assert got == [
        (True, 3, 0, 0, 0),
        (True, 2, 0, 60 * SECOND, 0),
        (True, 2, 0, 59 * SECOND, 0),
        (True, 2, 0, 59 * SECOND, 0),
    ]


def test_a_bundle_with_a_denied_hit_takes_no_place_and_gives_none_back(decide: Decide) -> None:
    """Of a request that needs two places and finds one; and of one whose first hit is a refund."""
    bundles = [
        [Step(START, 1, 1, 2)],
        [Step(START, 2, 1, 2, together=1), Step(START, 3, 1, 2, together=1)],
        [Step(START, 1, -1, 2, together=1), Step(START, 4, 3, 2, together=1)],
        [Step(START, 5, 1, 2)],
        [Step(START, 6, 1, 2)],
    ]

    got = [(decision.allowed, decision.remaining) for decision in decide(bundles)]

    assert got == [(True, 1), (True, 1), (False, 0), (True, 1), (False, 2), (True, 0), (False, 0)]


steps = st.tuples(
    st.integers(0, 4 * HOLD).map(lambda after: START + after),
    st.integers(1, 4),
    st.sampled_from([1, 1, 1, 2, 3, 0, -1, -2, 5]),
).map(lambda found: Step(*found))
"""In order of time: a clock that steps back has a test of its own."""
histories = st.lists(steps, max_size=25).map(lambda found: sorted(found, key=lambda step: step.now))


@given(histories)
def test_never_more_than_the_limit_are_live_and_answers_are_those_of_a_model(
    decide: Decide, history: list[Step]
) -> None:
    """P1, P2, P3, P5: the model is a dictionary of holders, with their places and ends."""
    live: dict[int, tuple[int, int]] = {}
    for step, decision in zip(history, decide([[step] for step in history]), strict=True):
        live = {holder: found for holder, found in live.items() if found[1] > step.now}
        mine = live.get(step.holder, (0, 0))[0]
        used = sum(places for places, _ in live.values())
        allowed = step.cost <= mine or used - mine + step.cost <= 3
        if step.cost > 0 and allowed:
            end = (step.now + HOLD) // STEP * STEP
            live[step.holder] = max(mine, step.cost), end
        elif step.cost < 0:
            live.pop(step.holder, None)
        used = sum(places for places, _ in live.values())
        last = max((end for _, end in live.values()), default=step.now)

        assert used <= 3
        assert (decision.allowed, decision.remaining, decision.reset_after) == (allowed, 3 - used, last - step.now)


@given(histories)
def test_after_hold_all_places_are_free_whatever_crashed(decide: Decide, history: list[Step]) -> None:
    """P4."""
    end = history[-1].now if history else START

    *_, got = answers(decide, *history, Step(end + HOLD, 99, 3))

    assert got[:2] == (True, 0)


@given(histories, st.sampled_from([1, 2, 3]))
def test_who_waits_as_told_is_allowed_if_nothing_else_comes(decide: Decide, history: list[Step], cost: int) -> None:
    end = history[-1].now if history else START
    asked = Step(end, 99, cost)
    *_, first = decide([[step] for step in (*history, asked)])

    *_, second = decide([[step] for step in (*history, asked, asked._replace(now=end + first.retry_after))])

    assert second.allowed


@given(st.integers(0, 2**64))
def test_the_twin_answers_as_the_python_does(client: Client, seed: int) -> None:
    """Bundles, limits and holds that change, and a clock that steps back a little."""
    random = Random(seed)  # noqa: S311 - the seed tells the history
    requests: list[list[Step]] = []
    now = latest = START
    for _ in range(60):
        now += random.choice([0, 0, 1, STEP, HOLD // 3, HOLD, -HOLD // 5, random.randint(0, 2 * HOLD)])
        now = max(now, latest - HOLD // 3)
        latest = max(now, latest)
        places, hold = random.choice([3, 3, 3, 2, 40]), random.choice([HOLD, HOLD, HOLD * 3 // 4])
        together = random.choice([0, 0, 1])
        requests.append(
            [
                Step(now, random.randint(1, 5), random.choice([1, 1, 2, 3, 0, -1, 7]), places, together, hold)
                for _ in range(random.randint(1, 4))
            ]
        )

    expected, got = in_memory(batches(requests)), in_redis(client, batches(requests))

    assert [*map(plain, got)] == [*map(plain, expected)]


def test_a_clock_that_stepped_back_never_makes_room(decide: Decide) -> None:
    got = answers(decide, Step(START, 1, 1, 1), Step(START - 10 * SECOND, 2, 1, 1), Step(START + 59 * SECOND, 2, 1, 1))

    assert [answer[0] for answer in got] == [True, False, False]


def test_a_server_whose_clock_was_ahead_holds_no_place_for_longer_than_a_hold_more(client: Client) -> None:
    ahead = [Step(START + HOUR, holder, 1) for holder in (1, 2, 3)]

    def ask(now: int) -> list[tuple[int, Batch]]:
        return batches([[step] for step in (*ahead, Step(START, 4, 0), Step(now, 4, 3))])

    *_, early = in_redis(client, ask(START + HOLD - STEP))
    *_, in_time = in_redis(client, ask(START + HOLD))

    assert (early.allowed, in_time.allowed) == (False, True)


def test_a_key_of_places_expires_a_hold_after_its_last_place_and_is_gone_with_its_holders(client: Client) -> None:
    """P6."""
    client.flushdb()
    rules: dict[tuple[int, int], Rule] = {}
    _, [taken] = run(client, [[hit(Step(0, 1, 1), rules)]])
    left = client.pttl("rl2|a")
    run(client, [[hit(Step(0, 2, 0), rules), hit(Step(0, 2, -1), rules)]])
    still = client.keys()
    run(client, [[hit(Step(0, 1, -1), rules)]])

    assert isinstance(left, int)
    assert 2 * HOLD // 1000 - 1000 < left <= 2 * HOLD // 1000
    assert 0 < taken.reset_after <= HOLD
    assert still == [b"rl2|a"]
    assert client.keys() == []


def test_a_bundle_that_is_undone_leaves_no_key_and_takes_no_expiry(client: Client) -> None:
    client.flushdb()
    rules: dict[tuple[int, int], Rule] = {}
    run(client, [[hit(Step(0, 1, 1, 2, together=1), rules), hit(Step(0, 2, 2, 2, together=1), rules)]])
    none = client.keys()
    run(client, [[hit(Step(0, 1, 1, 2), rules)]])
    run(client, [[hit(Step(0, 1, -1, 2, together=1), rules), hit(Step(0, 2, 3, 2, together=1), rules)]])
    left = client.pttl("rl2|a")

    assert none == []
    assert isinstance(left, int)
    assert left > 0


@pytest.mark.parametrize("foreign", [b"", b"1", b"hello, this is no counter of ours", b"\xff" * 40])
def test_what_is_no_counter_of_places_is_written_over(client: Client, foreign: bytes) -> None:
    rules: dict[tuple[int, int], Rule] = {}
    for write in (lambda: client.set("rl2|a", foreign), lambda: client.zadd("rl2|a", {foreign: 7})):
        client.flushdb()
        write()
        _, [decision] = run(client, [[hit(Step(0, 1, 1), rules)]])

        assert (decision.allowed, decision.remaining) == (True, 2)


def test_places_that_ended_are_counted_once_in_both(client: Client) -> None:
    history = [[Step(START, 1, 2)], [Step(START, 2, 1)], [Step(START + HOLD, 3, 1)], [Step(START + HOLD, 3, 1)]]
    for decide_all in (in_memory, lambda found: in_redis(client, found)):
        made = batches(history)
        decide_all(made)

        assert [each.tally.places_expired for _, batch in made for hits in batch for each in hits] == [0, 0, 3, 0]


def test_the_most_places_are_taken_found_and_given_back(decide: Decide) -> None:
    others = [number * 0x9E3779B97F4A7C15 % 2**64 for number in range(1, MOST + 1)]
    taken = [Step(START, holder, 1, MOST) for holder in others]
    one_more, given_back = Step(START + 1, 17, 1, MOST), Step(START + 1, others[7], -1, MOST)

    got = decide([taken, [one_more], [given_back], [one_more]])

    assert [decision.allowed for decision in got[-3:]] == [False, True, True]
    assert all(decision.allowed for decision in got[:MOST])
