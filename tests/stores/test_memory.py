"""What the memory store promises beyond the contract: it is bounded, and forgets in the right order."""

import gc
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_service.algorithms import NAMES, open_algorithm
from ratelimit_service.algorithms.kinds import Block
from ratelimit_service.model import Blocked, Decision, Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import NO_LIMIT, Hit
from ratelimit_service.stores.memory import SEGMENT, MemoryStore, _size
from ratelimit_service.system.clock import MINUTE
from ratelimit_service.telemetry.tally import Tally
from tests.clocks import Clock
from tests.sampled import sampled
from tests.stores.test_store import RULE, charge, charge_together


def test_when_full_the_expired_make_way_first() -> None:
    clock = Clock()
    store = MemoryStore(2, clock)
    charge(store, ("a", 3))
    clock.advance(MINUTE)
    charge(store, ("b", 3))

    charge(store, ("c", 3))

    assert charge(store, ("b", 0), ("c", 0)) == [(True, 0), (True, 0)]
    assert store.evicted == 0


def test_when_full_of_live_counters_the_least_recently_used_makes_way_and_is_counted() -> None:
    store = MemoryStore(2, Clock())
    charge(store, ("a", 3), ("b", 3))
    charge(store, ("a", 1))

    charge(store, ("c", 3))

    assert charge(store, ("a", 0), ("b", 0), ("c", 0)) == [(False, 0), (True, 3), (True, 0)]
    assert store.evicted == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_counter_that_is_used_up_makes_way_last(name: str) -> None:
    """Also if it was hit before the store was crowded, and is hit no more."""
    store, tally = MemoryStore(50, Clock(10**15)), Tally()

    def hit(key: str, cost: int, requests: int = 5) -> Decision:
        charged = Hit(rule(name, requests), key, cost, tally=tally, quota=False)
        store.charge([charged])
        return charged.decision

    hit("left", 4)
    for _ in range(6):
        hit("used up", 1)
    for number in range(500):
        hit(f"made up {number}", 1)

    assert not hit("used up", 1).allowed
    assert hit("left", 4).allowed


def test_a_blocked_counter_stays_blocked_whatever_else_comes() -> None:
    store = MemoryStore(50, Clock())
    blocking = replace(
        rule("fixed_window", 1), limit=replace(rule("fixed_window", 1).limit or NO_LIMIT, kind=Block(MINUTE))
    )
    for key in (*("blocked",) * 2, *map(str, range(500))):
        hit = Hit(blocking, key, 1, tally=Tally(), quota=False)
        store.hit([hit], lambda _: None)

    hit = Hit(blocking, "blocked", 1, tally=Tally(), quota=False)
    store.hit([hit], lambda _: None)

    assert isinstance(hit.decision, Blocked)


def test_counters_of_which_something_is_left_again_make_way_like_others() -> None:
    clock = Clock()
    store = MemoryStore(2, clock)
    charge(store, ("a", 3), ("b", 1))
    clock.advance(MINUTE)
    charge(store, ("b", 1), ("a", 1))
    charge(store, ("b", 1))

    charge(store, ("c", 1))

    assert charge(store, ("b", 0), ("c", 0)) == [(True, 1), (True, 2)]
    store.sweep()
    assert not store._used_up


@pytest.mark.parametrize("kind", ["all used up", "nothing to keep"])
def test_of_used_up_counters_a_bounded_number_is_known(kind: str) -> None:
    clock = Clock()
    store = MemoryStore(80, clock)
    requests = 1 if kind == "all used up" else 0
    for number in range(500):
        store.charge([Hit(rule("fixed_window", requests), str(number), 1, tally=Tally(), quota=False)])

    assert len(store._used_up) <= 10
    assert 70 <= store.counters <= 80 or not requests
    clock.advance(MINUTE)
    for _ in range(256):
        store.sweep()
    assert not store._used_up


@settings(max_examples=20)
@given(st.integers(1, 3 * SEGMENT), st.integers(0, 2**32))
def test_there_are_never_many_more_counters_than_asked_for(most: int, seed: int) -> None:
    store = MemoryStore(most, Clock())

    for number in range(4 * SEGMENT):
        charge(store, (f"{seed}/{number}", 1))

    # Each segment holds its share, rounded up.
    assert store.counters < most + 4


def test_sweeping_goes_round_the_whole_store() -> None:
    clock = Clock()
    store = MemoryStore(1000 * SEGMENT, clock)
    charge(store, *((str(number), 1) for number in range(2000)))
    clock.advance(MINUTE)

    for _ in range(256):
        store.sweep()

    assert store.counters == 0


@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_state_is_it_is_swept_when_it_expires_and_not_before(name: str) -> None:
    clock = Clock()
    store = MemoryStore(1, clock)
    assert RULE.limit is not None
    rule = Rule("shop", (), replace(RULE.limit, count_refused=False), open_algorithm(name))
    hit = Hit(rule, "a", 2, tally=Tally(), quota=False)
    store.charge([hit])

    assert hit.decision is not None
    clock.advance(hit.decision.reset_after - 1)
    store.sweep()
    assert store.counters == 1
    clock.advance(1)
    store.sweep()
    assert store.counters == 0


def test_counters_charged_together_are_bounded_and_used_like_any_other() -> None:
    store = MemoryStore(2, Clock())
    charge(store, ("a", 1), ("b", 1))

    charge_together(store, (RULE, "a", 1, 1), (RULE, "c", 1, 1))

    assert charge(store, ("a", 0), ("b", 0), ("c", 0)) == [(True, 1), (True, 3), (True, 2)]
    assert store.evicted == 1


MEBIBYTE = 1024 * 1024


def rule(name: str, requests: int = 1000) -> Rule:
    return Rule("shop", (), Limit(requests, Unit.MINUTE, MINUTE, count_refused=False), open_algorithm(name))


@pytest.mark.parametrize("length", sampled([20, 500], 2))
@pytest.mark.parametrize("name", NAMES)
def test_counters_take_no_more_bytes_than_they_may(name: str, length: int) -> None:
    """Whatever their algorithm, the length of their names, and how often they were hit; within a fifth."""
    clock, tally, counted = Clock(10**15), Tally(), rule(name)
    names = [f"{number:0{length}}" for number in range(8_000)]
    gc.collect()
    tracemalloc.start()
    try:
        store = MemoryStore(10**6, clock, max_bytes=MEBIBYTE)
        before, _ = tracemalloc.get_traced_memory()
        for step in range(20 if name == "sliding_log" else 3):
            for key in names[: 1_000 if step else None]:
                clock.advance(1)
                store.charge([Hit(counted, str(key.encode(), "ascii"), 1, tally=tally, quota=False)])
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert store.evicted > 0
    assert store.bytes <= MEBIBYTE
    assert 0.6 * MEBIBYTE < taken < 1.2 * MEBIBYTE


def test_counters_that_were_not_hit_for_longest_make_way_for_a_large_one() -> None:
    clock = Clock()
    store = MemoryStore(1024, clock, max_bytes=MEBIBYTE)
    log = rule("sliding_log", 65_535)
    for _ in range(60_000):
        clock.advance(1)
        store.charge([Hit(log, "log", 1, tally=Tally(), quota=False)])
    charge(store, *((f"{number:0500}", 1) for number in range(600)))

    charge(store, *((f"{number:0500}", 1) for number in range(10, 600)))
    looked = Hit(log, "log", 0, tally=Tally(), quota=False)
    store.charge([looked])

    assert looked.decision.remaining == 65_535
    assert charge(store, (f"{20:0500}", 0)) == [(True, 1)]


def test_a_counter_that_grows_among_those_that_refuse_is_not_the_one_that_makes_way() -> None:
    """Two logs in a store with room for one and a half: the first is used up, and is evicted as the second grows."""
    clock, log = Clock(), rule("sliding_log", 1_000)
    store = MemoryStore(1000, clock, max_bytes=18_000)
    for name in "ab":
        for _ in range(1_000):
            clock.advance(1)
            store.charge([Hit(log, name, 1, tally=Tally(), quota=False)])
    store.charge([last := Hit(log, "b", 1, tally=Tally(), quota=False)])

    assert not last.decision.allowed
    assert (store.counters, store.evicted) == (1, 1)


def test_counters_so_large_that_few_segments_have_any_make_way_for_another() -> None:
    """Ten logs of 12,000 bytes in 1,024 segments: most have none, and hardly one has two."""
    clock, log = Clock(), rule("sliding_log", 1_000)
    store = MemoryStore(10**6, clock, max_bytes=10 * 12_000)
    for name in range(40):
        for _ in range(1_000):
            clock.advance(1)
            store.charge([Hit(log, str(name), 1, tally=Tally(), quota=False)])

    assert store.counters == 9
    assert store.evicted == 31


steps = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from("abcdefgh"), st.integers(-3, 9), st.integers(0, MINUTE)),
    max_size=60,
)


@given(steps)
def test_its_bytes_are_those_of_the_counters_that_it_has(found: list[tuple[str, str, int, int]]) -> None:
    clock = Clock(10**15)
    store = MemoryStore(6, clock, max_bytes=1500)
    for name, key, cost, pause in found:
        clock.advance(pause)
        store.charge([Hit(rule(name, 20), f"{key}/{name}", cost, tally=Tally(), quota=False)])
        if cost == 0:
            store.sweep()

        held = [item for segment in store._segments for item in segment.items()]
        assert store.bytes == sum(_size(*item) for item in held) <= 1500
