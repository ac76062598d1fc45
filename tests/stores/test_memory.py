"""What the memory store promises beyond the contract: it is bounded, and forgets in the right order."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_service.algorithms import NAMES, open_algorithm
from ratelimit_service.clock import MINUTE
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.memory import SEGMENT, MemoryStore
from ratelimit_service.tally import Tally
from ratelimit_service.verdict import Hit
from tests.clocks import Clock
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
