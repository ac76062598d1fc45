"""Regions that share a limit: each leases from home what it spends, and has a floor by itself.

The counter of a region is a *lease* (`lease.py`) of units that home has granted, and a *floor*, which the rule's
algorithm counts. A hit is charged to the lease as far as it goes, and to the floor beyond that. What fits neither is
denied as long as it is known that home has nothing; otherwise it *waits*: it is not decided, and is to be sent again
after a deposit.

After the hits of a script call `ask` says what to ask of home, if something waits or the lease runs low. One process
asks at a time; `asked_until` is when another one may, should that one have died. It brings what home has granted by
`deposit`. When a lease has ended, `collect` takes out what is left of it, for home. The clock of the holder is that of
the region's Redis.

State: `RegionCounter`. The Lua twin is `leased.lua`, and `deposit.lua` in `stores/redis` for deposits and collections.
"""

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ratelimit_service.algorithms.algorithm import Algorithm, expiry
from ratelimit_service.algorithms.lease import LEAST_TERM, Lease, Wanted, leasing, length_of_term
from ratelimit_service.model import NEVER, PLAIN, Decision, Kind, Limit, RegionMode, Regions, State
from ratelimit_service.system.clock import SECOND

ASK_LIFE: Final = SECOND
"""Within that an ask is answered, or another process may ask. Home is asked so often while it cannot be reached."""

LEAST_DENY: Final = SECOND // 50
"""Microseconds for which a region remembers that home had too little: longer than its processes pause before they send
again what waits. A tenth of a term if that is more, and a second at most: a bucket at home has a token again at once,
and regions that ask for each take five times the messages for 1 % of the limit."""


@dataclass(frozen=True, slots=True)
class Leased(Kind):
    """Its `regions` have what home may grant, and the floor."""

    twin = "leased"
    asks_home = 4
    waits_for_home = True
    moved_by_denials = False
    longest_denial = SECOND // 20
    """Home may have room again before the wait is over. Of a flood 20 hits a second reach the region's Redis, and a
    twentieth of a second is lost at most."""
    why_not_settled = "regions: leased: a region cannot spend what home has not granted; take central or synced"
    why_not_leased = "regions: leased: processes do not lease from what regions share"

    def counted(self, limit: Limit) -> Limit:
        """The floor, or what home may grant; of a run of hits that wait all are asked for."""
        own = limit.floor or home_of(limit)
        return replace(own, first_request=False, count_refused=True, crossing_only=False, exceed=0)

    def numbers(self, limit: Limit, algorithm: Algorithm, interval: int) -> tuple[int, ...]:
        """Whether there is a floor, what may be charged in all, and the length of home's terms."""
        return int(limit.floor is not None), most_of(algorithm, limit), term(algorithm, limit)

    def share(self, limit: Limit, part: Callable[[int], int], whole: Callable[[int], int]) -> Kind:
        """An instance counts by itself."""
        return PLAIN

    def key_suffix(self, algorithm: str, limit: Limit) -> str:
        """The state is another one."""
        return f"|{algorithm}/leased/{limit.window}"


def member(limit: Limit, number: int, percent: int) -> Limit:
    """The limit as so many regions share it: each has so much of it by itself, and leases of the rest."""
    regions = Regions(RegionMode.LEASED, number, limit.requests, percent)
    return shared(replace(limit, regions=regions, kind=Leased()), [percent] * number, percent)


def shared(limit: Limit, kept: Iterable[int], percent: int) -> Limit:
    """The same where so much is kept free for regions, and this one has so much of it."""
    assert limit.regions is not None, "regions share the limit"
    floors = [_part(limit, each) for each in kept]
    window, fill = limit.window, limit.burst * limit.window // max(1, limit.requests)
    longest = max(SECOND, window // 10)
    home = replace(
        limit,
        requests=limit.requests - sum(requests for requests, _ in floors),
        burst=limit.burst - sum(burst for _, burst in floors),
        count_refused=False,
        longest_term=length_of_term(fill, fill, min(longest, fill // 4)) if fill else longest,
        regions=None,
        kind=PLAIN,
    )
    requests, burst = _part(limit, percent)
    own = (
        replace(limit, requests=requests, burst=burst, count_refused=False, regions=None, kind=PLAIN)
        if requests
        else None
    )
    return replace(limit, regions=replace(limit.regions, home=home, floor=own))


def _part(limit: Limit, percent: int) -> tuple[int, int]:
    """So many percent of the requests and of the burst; nothing if it is not one of both."""
    requests, burst = limit.requests * percent // 100, limit.burst * percent // 100
    return (requests, burst) if requests and (burst or not limit.burst) else (0, 0)


def lapse(algorithm: Algorithm, limit: Limit) -> int:
    """The time until nothing counts that was granted or allowed before."""
    bucket = limit.burst * limit.window // max(1, limit.requests)
    windows = 1 if algorithm.name == "fixed_window" else 2  # of others some of the last window, or its last part
    return max(bucket, windows * limit.window) + 2 * term(algorithm, limit)


def problem(algorithm: Algorithm, limit: Limit) -> str | None:
    """The reason why such a limit cannot be leased to regions."""
    length = term(algorithm, limit)
    if length >= LEAST_TERM:
        return None
    return f"it would be leased for {length // 1000} ms at a time, which is too short to ask another region"


def home_of(limit: Limit) -> Limit:
    """The limit by which home grants."""
    assert limit.regions is not None, "regions share the limit"
    assert limit.regions.home is not None, "it is leased to them"
    return limit.regions.home


def term(algorithm: Algorithm, limit: Limit) -> int:
    """The length of a term of home."""
    return leasing(algorithm).term(home_of(limit))


def most_of(algorithm: Algorithm, limit: Limit) -> int:
    """The most that a hit may cost: of a bucket what it regains in the shortest term is never granted."""
    home = home_of(limit)
    regained = -(-home.requests * LEAST_TERM // home.window) if leasing(algorithm).leased_from else 0
    return sum(part.capacity for part in (home, limit.floor) if part is not None) - regained


class RegionCounter(NamedTuple):
    """The counter of a region."""

    expiry: int
    lease: Lease
    floor: State | None = None


class Deposit(NamedTuple):
    """The units that an ask has brought."""

    asked: int
    """When the region's script asked. All moments are by the clock of the region's store, but for `term_end`."""
    units: int
    end: int
    term_end: int
    deny_until: int
    """0 if home had what was needed."""
    retry_at: int
    reset_at: int


def hit(
    algorithm: Algorithm, state: RegionCounter | None, limit: Limit, cost: int, now: int
) -> tuple[RegionCounter | None, Decision | None]:
    """Charge `cost` to the lease and the floor: the new state, and the decision, or None if the hit waits for home."""
    length = term(algorithm, limit)
    _, lease, own = _present(state, length, now)
    floor = limit.floor
    room, reset = lease.left, max(0, lease.reset_at - now)
    if floor is not None:
        _, look = algorithm.hit(own, floor, 0, now)
        room += look.remaining
        reset = max(reset, look.reset_after)

    if cost == 0:
        return state, Decision(True, room, 0, reset, 0)
    if cost < 0:
        back = lease.refund(-cost)
        room += back
        if floor is not None and own is not None and -cost > back:
            own, look = algorithm.hit(own, floor, cost + back, now)
            room = lease.left + look.remaining
        elif not back:
            return state, Decision(True, room, 0, reset, 0)
        return _kept(lease, own, length), Decision(True, room, 0, reset, 0)

    if cost <= room:
        rest = cost - lease.spend(cost)
        if rest and floor is not None:
            own, look = algorithm.hit(own, floor, rest, now)
            reset = max(reset, look.reset_after)
    elif cost > most_of(algorithm, limit):
        return state, Decision(False, room, cost - room, reset, NEVER)
    elif now >= lease.deny_until:
        return _kept(lease, own, length), None
    lease.demand = min(lease.demand + cost, _MOST_DEMAND)
    if cost <= room:
        return _kept(lease, own, length), Decision(True, room - cost, 0, reset, 0)
    retry = max(lease.retry_at, lease.deny_until) - now
    if floor is not None:
        _, look = algorithm.hit(own, floor, cost - lease.left, now)
        retry = retry if look.retry_after == NEVER else min(retry, look.retry_after)
    return _kept(lease, own, length), Decision(False, room, cost - room, reset, retry)


def ask(
    algorithm: Algorithm, state: RegionCounter | None, limit: Limit, waiting: int, now: int
) -> tuple[RegionCounter | None, Wanted | None]:
    """The ask for home, after hits of which so many units wait; the new state."""
    if state is None or now < max(state.lease.asked_until, state.lease.deny_until):
        return state, None
    length, floor = term(algorithm, limit), limit.floor
    _, lease, own = _present(state, length, now)
    lease.measure(now, length, length // 2)
    rate = lease.rate // 1000
    low = lease.low(rate, lease.round_trip, length)
    if not waiting and lease.left >= low:
        if floor is None or lease.left:
            return state, None
        _, look = algorithm.hit(own, floor, 0, now)
        if 2 * look.remaining >= floor.capacity:
            return state, None
    needed = max(1, waiting - lease.left, min(max(low, rate // 10), rate - lease.left))
    wanted = lease.ask(needed, rate, now + ASK_LIFE)
    return _kept(lease, own, length), wanted


def deposit(state: RegionCounter | None, length: int, found: Deposit, now: int) -> RegionCounter:
    """Add what home has granted in terms of that length, or note that it had too little: the new state."""
    _, lease, own = _present(state, length, now)
    if now < found.end <= now + length:
        lease.deposit(found.units, found.end, found.term_end)
    else:
        lease.put_back(found.units, found.term_end)
    if lease.asked_until == found.asked + ASK_LIFE:
        lease.asked_until = 0
    lease.deny_until = found.deny_until and max(found.deny_until, now + max(LEAST_DENY, min(length // 10, SECOND)))
    lease.retry_at, lease.reset_at = found.retry_at, found.reset_at
    lease.round_trip = min(max(0, now - found.asked), ASK_LIFE)
    return _kept(lease, own, length)


def collect(state: RegionCounter | None, length: int, now: int) -> tuple[RegionCounter | None, int, int]:
    """Take out what is left of an ended lease: the new state, the units, and the end of the term by home's clock."""
    _, lease, own = _present(state, length, now)
    back, lease.back = lease.back, 0
    return (_kept(lease, own, length), back, lease.back_end) if back else (state, 0, 0)


_MOST_DEMAND: Final = 2**31
"""The most demand, in units, that is counted."""


def _present(state: RegionCounter | None, length: int, now: int) -> RegionCounter:
    """A copy of the counter at that moment: demand is forgotten that was not asked about for two terms."""
    if state is None or state.expiry <= now:
        return RegionCounter(0, Lease(since=now))
    lease = copy(state.lease)
    if lease.since + 2 * length <= now:
        lease.demand, lease.since, lease.rate = 0, now, 0
    # One that seems to last longer than a term was counted by another clock.
    if not now < lease.end <= now + length:
        lease.expire()
    return state._replace(lease=lease)


def _kept(lease: Lease, own: State | None, length: int) -> RegionCounter:
    """The counter with its expiry; what is left of a lease can be given back for another term."""
    end = max(
        lease.end + (length if lease.left or lease.back else 0),
        lease.asked_until,
        lease.deny_until,
        lease.since + 2 * length,
        0 if own is None else expiry(own),
    )
    return RegionCounter(end, lease, own)
