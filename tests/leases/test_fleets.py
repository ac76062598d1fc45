"""What leases promise, whatever happens to instances and calls, in Python and in Lua; and that the tests would notice.

Each mutant breaks one rule of the design; the schedules that find nothing wrong with leases find it.
"""

from collections.abc import Callable
from dataclasses import astuple
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis as Client

from ratelimit_service.algorithms import NAMES, State, lease, open_algorithm
from ratelimit_service.algorithms.lease import Lease
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.leasing import most_leased
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.leases import Ask, Leases
from ratelimit_service.system.clock import SECOND
from tests.leases.fleet import KEY, Allowed, Call, Fleet, InPython, InRedis, Instance, Store, excess, play
from tests.sampled import extended

DIFFERENT = [name for name in NAMES if name not in {"sliding_log", "leaky_bucket"}]
EACH = [*DIFFERENT, extended("leaky_bucket")]
"""The leaky bucket is the token bucket's functions under another name."""

START = 1_790_000_000_000_000

SCHEDULES = 40
EVENTS = 400


@pytest.fixture(scope="module", params=["python", "lua"])
def open_store(request: pytest.FixtureRequest) -> Callable[[], Store]:
    if request.param == "python":
        return InPython
    client: Client = request.getfixturevalue("client")
    return lambda: InRedis(client)


def a_rule(algorithm: Any, random: Random) -> Rule:
    limit = Limit(
        random.choice([100, 240, 1000]),
        Unit.SECOND,
        random.choice([SECOND, SECOND, 999_983]),
        burst=random.choice([0, 0, 500]) if algorithm.name.endswith("bucket") else 0,
        parts=random.choice([3, 10, 10]),
        count_refused=False,
    )
    return Rule("shop", (), limit, algorithm, lease=most_leased(limit, 0.05))


def played(
    algorithm: Any,
    seed: int,
    store: Store,
    *,
    faults: bool = True,
    settles: bool = False,
    kind: type[Fleet] = Fleet,
    leases: type[Leases] = Leases,
) -> Fleet:
    """A fleet after a schedule."""
    random = Random(seed)  # noqa: S311 - the seed tells the schedule
    rule = a_rule(algorithm, random)
    fleet = kind(rule, store, start=START + random.randrange(SECOND), open_leases=lambda: leases(deny=5000))
    play(fleet, random, EVENTS, faults=faults, settles=settles)
    return fleet


@pytest.mark.parametrize("name", EACH)
@given(st.integers(0, 2**64), st.booleans())
def test_no_window_ever_has_more_than_the_limit(
    open_store: Callable[[], Store], name: str, seed: int, settles: bool
) -> None:
    """L1: by the moments at which hits are allowed, over all instances, whatever is settled meanwhile."""
    fleet = played(open_algorithm(name), seed, open_store(), settles=settles)

    assert excess(fleet.rule, fleet.allowed) <= 0


@pytest.mark.parametrize("name", EACH)
@given(st.integers(0, 2**64), st.booleans())
def test_units_are_conserved(name: str, seed: int, settles: bool) -> None:
    """L2."""
    fleet = played(open_algorithm(name), seed, InPython(), settles=settles)

    for instance in fleet.instances:
        leases = instance.leases
        coming_back = sum(ask.back for call in instance.calls for ask in call.asks)
        assert leases.granted == leases.spent + leases.returned + leases.lost + leases.held + coming_back


@pytest.mark.parametrize("name", EACH)
def test_the_schedules_lease(name: str) -> None:
    fleets = [played(open_algorithm(name), seed, InPython()) for seed in range(SCHEDULES)]

    assert sum(instance.leases.spent for fleet in fleets for instance in fleet.instances) > 5 * SCHEDULES


@pytest.mark.parametrize("name", EACH)
def test_after_the_last_hit_all_is_given_back_within_a_term(open_store: Callable[[], Store], name: str) -> None:
    """L3, L5: and without crashes a counter of windows has just what was allowed, and settled."""
    for seed in range(20):
        fleet = played(open_algorithm(name), seed, open_store(), faults=False, settles=seed % 2 > 0)
        for instance in fleet.instances:
            for call in tuple(instance.calls):
                if call.reply is None:
                    fleet.execute(call)
                fleet.deliver(instance, call)
            fleet.call(instance)
        while fleet.last_calls:
            fleet.execute(fleet.last_calls.pop())
        fleet.now += open_algorithm(name).term(fleet.limit)  # type: ignore[attr-defined]
        for instance in fleet.instances:
            instance.leases.sweep(fleet.now + instance.ahead)
            fleet.call(instance)

        assert [instance.leases.held for instance in fleet.instances] == [0, 0, 0]
        (look,), _ = fleet.store.run(fleet.rule, [0], [], fleet.now)
        window = fleet.limit.window
        if name == "fixed_window":
            since = fleet.now - fleet.now % window
            lost = sum(instance.leases.lost for instance in fleet.instances)
            used = sum(cost for now, cost in fleet.allowed + fleet.settled if now >= since)
            most = fleet.limit.requests
            assert min(most, used) <= most - look.remaining <= used + lost


@pytest.mark.parametrize(("name", "most"), [*((name, 50) for name in DIFFERENT[:3]), ("token_bucket", 50 + 100)])
def test_an_instance_that_crashes_takes_no_more_than_its_share_with_it(name: str, most: int) -> None:
    """L5: and a bucket is charged as if at the term's end, up to 100 ms ahead."""
    rule = Rule("shop", (), Limit(1000, Unit.SECOND, SECOND, count_refused=False), open_algorithm(name), lease=50)
    fleet = Fleet(rule, InPython(), instances=2, start=START)
    one, other = fleet.instances
    one.leases.by_key[KEY].phase = 0
    for _ in range(2):
        fleet.hit(one, 50)
        fleet.call(one)
        fleet.now += 1000
    held = fleet.left(one)
    fleet.crash(0)
    fleet.exhaust(other)

    assert held > 40
    assert 1000 - most <= sum(cost for _, cost in fleet.allowed) < 1000


class Mutant(NamedTuple):
    """One rule broken."""

    algorithm: Any
    leases: type[Leases] = Leases
    fleet: type[Fleet] = Fleet


def changed(name: str, **functions: Any) -> Any:
    """The algorithm with other functions."""
    return SimpleNamespace(**{**vars(open_algorithm(name)), **functions})


class FromArrival(Fleet):
    """Counts the time of a lease from when the reply arrives."""

    def counted_from(self, instance: Instance, call: Call) -> int:
        return self.now + instance.ahead


class OtherLeases(Leases):
    """Those of another machine."""

    lease: type[Lease]

    def hit(self, rule: Rule, limit: Limit, key: str, cost: int, now: int) -> Any:
        found = super().hit(rule, limit, key, cost, now)
        leased = self.by_key.get(key)
        if leased is not None and type(leased.lease) is Lease:
            leased.lease = self.lease(*astuple(leased.lease))
        return found


class MixingLease(Lease):
    """Gives back the rest of two terms as if all of it were of the later one."""

    def expire(self) -> int:
        self.back, self.back_end = self.back + self.left, self.term_end
        self.left = 0
        return 0


class Mixing(OtherLeases):
    """Leases that do."""

    lease = MixingLease


class ProlongedLease(Lease):
    """Spends what is left of a term in the next one."""

    def expire(self) -> int:
        return 0


class Prolonging(OtherLeases):
    """Leases that do."""

    lease = ProlongedLease


class Overdrawing(Leases):
    """Allows a hit that costs more than is left."""

    def hit(self, rule: Rule, limit: Limit, key: str, cost: int, now: int) -> Any:
        leased = self.by_key.get(key)
        if leased is not None and 0 < leased.lease.left < cost:
            leased.lease.left = cost
        return super().hit(rule, limit, key, cost, now)


def refund(name: str) -> Any:
    """Gives back as a hit of negative cost does."""

    def give(state: State | None, limit: Limit, units: int, _term_end: int, now: int) -> State | None:
        return open_algorithm(name).hit(state, limit, -units, now)[0]

    return give


def by_age(state: State | None, limit: Limit, units: int, term_end: int, now: int) -> State | None:
    """Takes off what time has given back since the term's end, and not what the next lease may have skipped."""
    lost = max(0, now - term_end) * limit.requests
    back = units * limit.window - lost
    bucket: Any = open_algorithm("token_bucket")
    whole = limit.requests * limit.window
    if state is None or back <= 0:
        return state
    moment, part = bucket.STATE.unpack(state)
    missing = (moment - now) * limit.requests + (part - limit.requests if part else 0) - back
    assert missing < 100 * whole
    return bucket.STATE.pack(now - -missing // limit.requests, missing % limit.requests) if missing > 0 else None


def term_of(name: str, limit: Limit) -> int:
    algorithm: Any = open_algorithm(name)
    length: int = algorithm.term(limit)
    return length


def unaligned(name: str) -> Any:
    return changed(name, term_end=lambda _, limit, now, _phase: now + term_of(name, limit))


def one_and_a_half(_: State | None, limit: Limit, now: int, _phase: int) -> int:
    part = -(-limit.window // limit.parts)
    return now - now % part + part + part // 2


MUTANTS = {
    **{f"{name}: counted from the arrival": Mutant(open_algorithm(name), fleet=FromArrival) for name in DIFFERENT},
    **{f"{name}: spent in the next term": Mutant(open_algorithm(name), leases=Prolonging) for name in DIFFERENT},
    **{f"{name}: allowed by what is not left": Mutant(open_algorithm(name), leases=Overdrawing) for name in DIFFERENT},
    **{f"{name}: given back as a refund": Mutant(changed(name, give=refund(name))) for name in DIFFERENT},
    "fixed_window: beyond the window's end": Mutant(
        changed(
            "fixed_window",
            term_end=lambda _, limit, now, _phase: lease.next_term(term_of("fixed_window", limit), now) + SECOND // 3,
        )
    ),
    "sub_windows: for a part and a half": Mutant(changed("sub_windows", term_end=one_and_a_half)),
    "token_bucket: charged at once": Mutant(changed("token_bucket", leased_from=lambda state, _: state)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_found(name: str) -> None:
    mutant = MUTANTS[name]
    found = (
        excess(fleet.rule, fleet.allowed)
        for seed in range(1000)
        for fleet in [played(mutant.algorithm, seed, InPython(), kind=mutant.fleet, leases=mutant.leases)]
    )

    assert any(units > 0 for units in found)


def mixed_up(algorithm: Any) -> float:
    """Three instances on a bucket of 100, a token each 10 ms: what two lease and one gives back, spent at one instant.

    The first lease, of five, ends at 100 ms. The second one is taken by another instance just before or just after,
    where the bucket would be full without the first, which is then given back. Returns the excess.
    """
    rule = Rule("shop", (), Limit(100, Unit.SECOND, SECOND, burst=100, count_refused=False), algorithm, lease=5)
    limit = rule.limit
    assert limit is not None
    worst = -100.0
    for first_at, second_at, given_at in ((50, 101, 102), (0, 99, 100), (0, 99, 99)):
        times = [START + milliseconds * 1000 for milliseconds in (first_at, second_at, given_at)]
        after, first = lease.take(algorithm, None, limit, 5, 5, times[0])
        after, second = lease.take(algorithm, after, limit, 5, 5, times[1])
        state = algorithm.give(after, limit, first.units, first.term_end, times[2])
        spent_at = second.term_end - 1
        left = algorithm.hit(state, limit, 0, spent_at)[1].remaining
        allowed = [Allowed(spent_at, second.units), Allowed(spent_at, left)]
        worst = max(worst, excess(rule, allowed))
    return worst


def test_a_lease_of_a_bucket_that_is_given_back_makes_no_room_that_was_used() -> None:
    assert mixed_up(open_algorithm("token_bucket")) <= 0


def test_terms_of_a_bucket_that_are_not_aligned_would_make_room_twice() -> None:
    assert mixed_up(unaligned("token_bucket")) > 3


def test_a_bucket_that_takes_off_the_age_alone_would_make_room_twice() -> None:
    assert mixed_up(changed("token_bucket", give=by_age)) > 3


def rests_of_two_terms(leases: type[Leases], name: str) -> float:
    """An instance leases in two terms, and stops while it holds a rest of both; another one leases too: the excess.

    The second lease is asked for in advance, and answered late, while the first one is not used up.
    """
    rule = Rule("shop", (), Limit(1000, Unit.SECOND, SECOND, count_refused=False), open_algorithm(name), lease=50)
    fleet = Fleet(rule, InPython(), instances=2, start=START, round_trip=10_000, open_leases=lambda: leases(deny=5000))
    one, other = fleet.instances
    fleet.now = START + SECOND - 50_000
    for _ in range(2):
        fleet.hit(one, 50)
        fleet.call(one)
        fleet.now += 1000
    fleet.hit(one, fleet.left(one) - 19)
    call = fleet.send(one)
    assert call is not None
    held = one.leases.by_key.get(KEY)
    assert held is not None
    assert held.lease.left == 19
    fleet.now = START + SECOND + 150_000
    fleet.execute(call)
    fleet.deliver(one, call)
    _, (others,) = fleet.store.run(rule, [], [Ask(held, 0, 0, 20, 20)], fleet.now)
    fleet.drain(0)
    fleet.execute(fleet.last_calls.pop())
    fleet.now = others.term_end - 1
    fleet.allowed.append(Allowed(fleet.now, others.units))
    fleet.exhaust(other)
    return excess(rule, fleet.allowed)


@pytest.mark.parametrize("name", ["fixed_window", "token_bucket"])
def test_the_rests_of_two_terms_are_not_given_back_as_of_one(name: str) -> None:
    assert rests_of_two_terms(Leases, name) <= 0
    assert rests_of_two_terms(Mixing, name) > 0
