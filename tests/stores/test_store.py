"""The contract of a store, on every store."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratelimit_service.algorithms import NAMES, open_algorithm
from ratelimit_service.algorithms.kinds import Block
from ratelimit_service.algorithms.lease import Granted, Wanted
from ratelimit_service.errors import StoreError
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit, NamedCounter
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.store import Store
from ratelimit_service.system.clock import MINUTE, SECOND
from ratelimit_service.telemetry.tally import Tally
from tests import peers
from tests.clocks import Clock
from tests.redis import start_redis
from tests.stores.redis_stores import RedisStores

OpenStore = Callable[[Clock], Store]

RULE = Rule("shop", (), Limit(3, Unit.MINUTE, MINUTE), open_algorithm("fixed_window"))


@pytest.fixture(scope="session")
def redis_stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisStores]:
    with start_redis(tmp_path_factory.mktemp("redis")) as redis, RedisStores(redis) as stores:
        yield stores


@pytest.fixture(scope="session")
def redis_6_2_stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisStores]:
    folder = tmp_path_factory.mktemp("redis-6.2")
    with start_redis(folder, program=peers.redis_6_2()) as redis, RedisStores(redis) as stores:
        yield stores


@pytest.fixture(scope="session")
def valkey_stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisStores]:
    folder = tmp_path_factory.mktemp("valkey")
    with start_redis(folder, program=peers.valkey()) as valkey, RedisStores(valkey) as stores:
        yield stores


@pytest.fixture(params=["memory", "redis", "redis_6_2", "valkey"])
def open_store(request: pytest.FixtureRequest) -> OpenStore:
    match request.param:
        case "memory":
            return lambda clock: MemoryStore(1000, clock)
        case server:
            stores: RedisStores = request.getfixturevalue(f"{server}_stores")
            return stores.open


def charge(store: Store, *costs_by_key: tuple[str, int]) -> list[tuple[bool, int]]:
    """Hit all at once; what each was answered."""
    hits = [Hit(RULE, key, cost, tally=Tally(), quota=False) for key, cost in costs_by_key]
    done: list[StoreError | None] = []
    store.hit(hits, done.append)
    assert done == [None]
    return [(hit.decision.allowed, hit.decision.remaining) for hit in hits]


def take(store: Store, *wanted: int) -> tuple[int, int, int]:
    """Give back and take units of counter `a` until its window ends: units, room, and the time until that end."""
    assert RULE.limit is not None
    taken: list[Granted | None] = []
    store.take(NamedCounter(RULE, replace(RULE.limit, longest_term=MINUTE), "a"), Wanted(*wanted), taken.append)
    assert len(taken) == 1
    assert taken[0] is not None
    return taken[0].units, taken[0].room, taken[0].term_end - taken[0].store_now


def test_units_are_taken_of_what_hits_have_left_and_the_rest_is_left_to_hits(open_store: OpenStore) -> None:
    store = open_store(Clock(20 * SECOND))
    charge(store, ("a", 1))

    assert take(store, 0, 0, 1, 0) == (1, 1, 40 * SECOND)
    assert charge(store, ("a", 1)) == [(True, 0)]
    assert take(store, 0, 0, 5, 0) == (0, 0, 40 * SECOND)


def test_as_many_units_are_taken_as_there_are(open_store: OpenStore) -> None:
    assert take(open_store(Clock()), 0, 0, 5, 0) == (3, 0, MINUTE)


def test_units_that_are_given_back_are_taken_again_in_their_window_only(open_store: OpenStore) -> None:
    clock = Clock()
    store = open_store(clock)
    taken: list[Granted | None] = []
    assert RULE.limit is not None
    counter = NamedCounter(RULE, replace(RULE.limit, longest_term=MINUTE), "a")
    store.take(counter, Wanted(0, 0, 3, 0), taken.append)
    assert taken[0] is not None
    end = taken[0].term_end

    assert take(store, 2, end, 3, 0)[0] == 2
    clock.advance(MINUTE)
    assert take(store, 0, 0, 3, 0)[0] == 3
    assert take(store, 2, end, 3, 0)[0] == 0


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


@pytest.mark.parametrize("open_store", ["memory"], indirect=True)  # Redis drops the expired by a clock of its own
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


SMALL = Rule("shop", (), Limit(1, Unit.MINUTE, MINUTE, count_refused=False), open_algorithm("fixed_window"))
COUNTING = Rule("shop", (), Limit(1, Unit.MINUTE, MINUTE, count_refused=True), open_algorithm("fixed_window"))


def charge_together(store: Store, *hits: tuple[Rule, str, int, int]) -> list[tuple[bool, int]]:
    """Hits as (rule, key, cost, together); what each was answered."""
    made = [Hit(rule, key, cost, tally=Tally(), quota=False, together=together) for rule, key, cost, together in hits]
    done: list[StoreError | None] = []
    store.hit(made, done.append)
    assert done == [None]
    return [(hit.decision.allowed, hit.decision.remaining) for hit in made]


def test_hits_together_are_all_charged_when_all_are_allowed(open_store: OpenStore) -> None:
    store = open_store(Clock())

    assert charge_together(store, (RULE, "a", 1, 1), (SMALL, "b", 1, 1)) == [(True, 2), (True, 0)]
    assert charge(store, ("a", 0)) == [(True, 2)]


def test_one_that_is_refused_spares_all_that_are_together_with_it(open_store: OpenStore) -> None:
    store = open_store(Clock())
    charge_together(store, (SMALL, "b", 1, 0))

    answered = charge_together(store, (RULE, "a", 1, 7), (SMALL, "b", 1, 7), (RULE, "c", 2, 7))

    assert answered == [(True, 3), (False, 0), (True, 3)]
    assert store.counters == 1


def test_what_is_not_together_with_a_refused_hit_is_charged_all_the_same(open_store: OpenStore) -> None:
    store = open_store(Clock())

    answered = charge_together(
        store, (RULE, "a", 1, 0), (RULE, "b", 1, 1), (SMALL, "c", 2, 1), (RULE, "d", 1, 2), (RULE, "e", 1, 0)
    )

    assert answered == [(True, 2), (True, 3), (False, 1), (True, 2), (True, 2)]
    assert charge(store, ("a", 0), ("b", 0), ("d", 0), ("e", 0)) == [(True, 2), (True, 3), (True, 2), (True, 2)]


def test_a_refused_hit_that_counts_itself_does_so_although_the_others_are_spared(open_store: OpenStore) -> None:
    store = open_store(Clock())

    charge_together(store, (RULE, "a", 1, 1), (COUNTING, "b", 5, 1))
    refund = charge_together(store, (COUNTING, "b", -4, 0))

    assert refund == [(True, 0)]
    assert charge(store, ("a", 0)) == [(True, 3)]


def test_two_hits_together_on_one_counter_need_room_for_both(open_store: OpenStore) -> None:
    store = open_store(Clock())
    three = Rule("shop", (), Limit(3, Unit.MINUTE, MINUTE, count_refused=False), open_algorithm("fixed_window"))

    assert charge_together(store, (three, "a", 2, 1), (three, "a", 2, 1)) == [(True, 3), (False, 1)]
    assert charge_together(store, (three, "a", 2, 1), (three, "a", 1, 1)) == [(True, 1), (True, 0)]
    assert charge_together(store, (three, "a", 0, 0)) == [(True, 0)]


def test_a_refund_together_with_a_refused_hit_gives_nothing_back(open_store: OpenStore) -> None:
    store = open_store(Clock())
    charge(store, ("a", 3))

    assert charge_together(store, (RULE, "a", -2, 1), (SMALL, "b", 2, 1)) == [(True, 0), (False, 1)]
    assert charge(store, ("a", 0)) == [(True, 0)]


STRICT = Rule(
    "shop",
    (),
    Limit(2, Unit.MINUTE, MINUTE, kind=Block(3 * MINUTE, 10 * MINUTE)),
    open_algorithm("fixed_window"),
)


def test_a_denial_blocks_its_counter_alone(open_store: OpenStore) -> None:
    clock = Clock()
    store = open_store(clock)

    assert charge_together(store, *[(STRICT, "a", 1, 0)] * 4, (STRICT, "b", 1, 0)) == [
        (True, 1),
        (True, 0),
        (False, 0),
        (False, 0),
        (True, 1),
    ]
    clock.advance(3 * MINUTE - 1)
    assert charge_together(store, (STRICT, "a", 0, 0), (STRICT, "a", -1, 0), (STRICT, "a", 1, 0)) == [
        (False, 0),
        (True, 0),
        (False, 0),
    ]
    clock.advance(1)
    assert charge_together(store, (STRICT, "a", 1, 0)) == [(True, 1)]


def test_a_rule_without_blocks_on_the_same_counter_does_not_see_one(open_store: OpenStore) -> None:
    store = open_store(Clock())
    sent = Rule("shop", (), Limit(9, Unit.MINUTE, MINUTE), open_algorithm("fixed_window"), override=True)

    answers = charge_together(store, (STRICT, "a", 3, 0), (sent, "a", 1, 0), (STRICT, "a", 1, 0), (sent, "a", 1, 0))

    assert answers == [(False, 0), (True, 5), (False, 0), (True, 4)]


def test_of_a_bundle_only_the_denied_counter_is_blocked(open_store: OpenStore) -> None:
    store = open_store(Clock())

    answers = charge_together(store, (STRICT, "a", 1, 1), (STRICT, "b", 3, 1), (STRICT, "b", 1, 1))
    after = charge_together(store, (STRICT, "a", 1, 2), (STRICT, "c", 1, 2))
    blocked = charge_together(store, (STRICT, "a", 1, 3), (STRICT, "b", 1, 3))

    assert answers == [(True, 2), (False, 0), (False, 0)]
    assert after == [(True, 1), (True, 1)]
    assert blocked == [(True, 1), (False, 0)]


def reset(store: Store, *hits: tuple[Rule, str]) -> int:
    """Reset the counters of these hits; how many there were."""
    work = store.reset([Hit(rule, key, 0, tally=Tally(), quota=False) for rule, key in hits])
    with pytest.raises(StopIteration) as ended:
        work.send(None)
    return int(ended.value.value)


def test_a_reset_frees_the_whole_limit_and_ends_the_block_of_these_counters_alone(open_store: OpenStore) -> None:
    store = open_store(Clock())
    before = charge_together(store, (STRICT, "a", 3, 0), (RULE, "b", 3, 0), (STRICT, "c", 3, 0))

    assert reset(store, (STRICT, "a"), (RULE, "b"), (RULE, "new")) == 2
    after = charge_together(store, (STRICT, "a", 1, 0), (RULE, "b", 1, 0), (STRICT, "c", 1, 0))

    assert before == [(False, 0), (True, 0), (False, 0)]
    assert after == [(True, 1), (True, 2), (False, 0)]


@pytest.mark.parametrize("open_store", ["memory"], indirect=True)
def test_what_was_reset_takes_no_memory(open_store: OpenStore) -> None:
    store = open_store(Clock())
    charge_together(store, (STRICT, "a", 3, 0), (RULE, "b", 3, 0))

    reset(store, (STRICT, "a"), (RULE, "b"))

    assert isinstance(store, MemoryStore)
    assert (store.counters, store.bytes) == (0, 0)


@pytest.mark.parametrize("open_store", ["memory"], indirect=True)  # Redis drops the expired by a clock of its own
def test_blocks_are_swept_when_they_are_forgotten(open_store: OpenStore) -> None:
    clock = Clock()
    store = open_store(clock)
    charge_together(store, (STRICT, "a", 9, 0))
    assert store.counters == 2  # the counter and its block

    for minutes, left in ((1, 1), (4, 1), (1, 0)):
        clock.advance(minutes * MINUTE)
        for _ in range(1000):
            store.sweep()
        assert store.counters == left


hits_together = st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 2))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(NAMES), st.lists(st.lists(hits_together, max_size=5), max_size=5))
def test_of_what_is_together_all_is_charged_or_nothing(
    open_store: OpenStore, algorithm: str, requests: list[list[tuple[str, int, int]]]
) -> None:
    store = open_store(Clock())
    rules = {
        key: Rule("shop", (), Limit(most, Unit.MINUTE, MINUTE, count_refused=False), open_algorithm(algorithm))
        for key, most in (("a", 1), ("b", 2), ("c", 2))
    }
    spent = {"a": 0, "b": 0, "c": 0}

    for request in requests:
        ordered = sorted(request, key=lambda hit: hit[2])
        answers = charge_together(store, *((rules[key], key, cost, group) for key, cost, group in ordered))
        passed = {
            number: all(allowed for (allowed, _), hit in zip(answers, ordered, strict=True) if hit[2] == number)
            for number in (1, 2)
        }
        for (allowed, _), (key, cost, group) in zip(answers, ordered, strict=True):
            spent[key] += cost if (passed[group] if group else allowed) else 0

    left = charge_together(store, *((rules[key], key, 0, 0) for key in spent))
    assert [remaining for _, remaining in left] == [1 - spent["a"], 2 - spent["b"], 2 - spent["c"]]
