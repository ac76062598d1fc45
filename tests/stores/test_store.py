"""The contract of a store, on every store."""

from collections.abc import Callable

import pytest

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.clock import MINUTE, SECOND
from ratelimit_service.errors import StoreError
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.store import Store
from ratelimit_service.tally import Tally
from ratelimit_service.verdict import Hit
from tests.clocks import Clock

OpenStore = Callable[[Clock], Store]

RULE = Rule("shop", (), Limit(3, Unit.MINUTE, MINUTE), open_algorithm("fixed_window"))


@pytest.fixture(params=["memory"])
def open_store(request: pytest.FixtureRequest) -> OpenStore:
    match request.param:
        case "memory":
            return lambda clock: MemoryStore(1000, clock)
        case unknown:
            raise KeyError(unknown)


def charge(store: Store, *costs_by_key: tuple[str, int]) -> list[tuple[bool, int]]:
    """Hit all at once; what each was answered."""
    hits = [Hit(RULE, key, cost, tally=Tally(), quota=False) for key, cost in costs_by_key]
    done: list[StoreError | None] = []
    store.hit(hits, done.append)
    assert done == [None]
    return [(hit.decision.allowed, hit.decision.remaining) for hit in hits]


def test_a_counter_starts_untouched(open_store: OpenStore) -> None:
    assert charge(open_store(Clock()), ("a", 1)) == [(True, 2)]


def test_counters_do_not_know_each_other(open_store: OpenStore) -> None:
    store = open_store(Clock())

    charge(store, ("a", 3))

    assert charge(store, ("a", 1), ("b", 1)) == [(False, 0), (True, 2)]


def test_two_hits_of_one_request_on_one_counter_are_charged_one_after_the_other(open_store: OpenStore) -> None:
    assert charge(open_store(Clock()), ("a", 2), ("a", 2)) == [(True, 1), (False, 0)]


def test_a_counter_ends_with_its_window(open_store: OpenStore) -> None:
    clock = Clock()
    store = open_store(clock)

    charge(store, ("a", 3))
    clock.advance(MINUTE)

    assert charge(store, ("a", 1)) == [(True, 2)]


def test_a_look_leaves_no_counter_behind(open_store: OpenStore) -> None:
    store = open_store(Clock())

    charge(store, ("a", 0))

    assert store.counters == 0


def test_a_counter_refunded_whole_is_given_up(open_store: OpenStore) -> None:
    store = open_store(Clock())

    charge(store, ("a", 2), ("a", -2))

    assert store.counters == 0


def test_a_store_says_what_it_is_and_that_it_is_well(open_store: OpenStore) -> None:
    store = open_store(Clock())

    assert store.name
    assert store.healthy


def test_sweeping_drops_what_has_expired_and_nothing_else(open_store: OpenStore) -> None:
    clock = Clock()
    store = open_store(clock)
    charge(store, ("old", 1))
    clock.advance(MINUTE - SECOND)
    charge(store, ("older", 1))
    clock.advance(SECOND)
    charge(store, ("new", 1))

    for _ in range(1000):
        store.sweep()

    assert store.counters == 1
    assert charge(store, ("new", 1)) == [(True, 1)]
