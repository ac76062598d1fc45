"""Regions that share a limit: each borrows from home what it spends, and has a floor by itself.

The counter of a region is a *loan* of units that were charged at home in advance, by `leasing.take`, and a *floor*,
which the rule's algorithm counts. A hit is charged to the loan as far as it goes, and to the floor beyond that. What
fits neither is denied as long as it is known that home has nothing; otherwise it *waits*: it is not decided, and is to
be sent again after a deposit.

After the hits of a script call `ask` says what to ask of home, if something waits or the loan runs low: units to give
back, which are left of an ended loan, and units to take. One process asks at a time; `asked_until` is when another one
may, should that one have died. It brings what home has lent by `deposit`. When a loan has ended, `collect` takes out
what is left of it, for home.

Laws: home debits before it lends, and the region before it allows; so all regions together never allow more than the
limit, whatever dies, is lost or is late. A loan ends, by the clock of the region's store, before its term does by the
clock of home: it is counted from the moment of the ask, which is earlier than what home did. A unit that is given back
is given into the term in which it was lent. Units are conserved: deposited = spent + given back + burnt + held.

State: `RegionCounter`. The Lua twin is `leased.lua`, and `region.lua` in `stores/redis` for deposits and collections.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, cast

from ratelimit_service.algorithms import leasing
from ratelimit_service.algorithms.algorithm import Algorithm, expiry
from ratelimit_service.model import NEVER, PLAIN, Decision, Kind, Limit, RegionMode, Regions, State
from ratelimit_service.system.clock import SECOND

ASK_LIFE: Final = SECOND
"""Within that an ask is answered, or another process may ask. Home is asked so often while it cannot be reached."""

LEAST_DENY: Final = SECOND // 50
"""For which a region remembers that home had too little: longer than its processes pause before they send again what
waits. A tenth of a term if that is more, and a second at most: a bucket at home has a token again at once, and regions
that ask for each take five times the messages for 1 % of the limit."""


@dataclass(frozen=True, slots=True)
class Leased(Kind):
    """Its `regions` have what home may lend, and the floor."""

    twin = "leased"
    asks_home = 4
    waits_for_home = True
    moved_by_denials = False
    longest_denial = SECOND // 20
    """Home may have room again before the wait is over. Of a flood 20 hits a second reach the region's Redis, and a
    twentieth of a second is lost at most."""
    why_not_leased = "regions: leased: processes do not lease from what regions share"

    def counted(self, limit: Limit) -> Limit:
        """The floor, or what home may lend; of a run of hits that wait all are asked for."""
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
    """The limit as so many regions share it: each has so much of it by itself, and borrows of the rest."""
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
        longest_term=leasing.length_of_term(fill, fill, min(longest, fill // 4)) if fill else longest,
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


def settles(algorithm: Algorithm, limit: Limit) -> int:
    """The time until nothing counts that was lent or allowed before."""
    bucket = limit.burst * limit.window // max(1, limit.requests)
    windows = 1 if algorithm.name == "fixed_window" else 2  # of others some of the last window, or its last part
    return max(bucket, windows * limit.window) + 2 * term(algorithm, limit)


def problem(algorithm: Algorithm, limit: Limit) -> str | None:
    """Why such a limit cannot be leased to regions."""
    length = term(algorithm, limit)
    if length >= leasing.LEAST_TERM:
        return None
    return f"it would be lent for {length // 1000} ms at a time, which is too short to ask another region"


def home_of(limit: Limit) -> Limit:
    """By which home lends."""
    assert limit.regions is not None, "regions share the limit"
    assert limit.regions.home is not None, "it is leased to them"
    return limit.regions.home


def term(algorithm: Algorithm, limit: Limit) -> int:
    """How long a term of home is."""
    return cast("leasing.Leasing", algorithm).term(home_of(limit))


def most_of(algorithm: Algorithm, limit: Limit) -> int:
    """What a hit may cost: of a bucket what it regains in the shortest term is never lent."""
    home = home_of(limit)
    regained = -(-home.requests * leasing.LEAST_TERM // home.window) if hasattr(algorithm, "lent_from") else 0
    return sum(part.burst or part.requests for part in (home, limit.floor) if part is not None) - regained


class RegionCounter(NamedTuple):
    """The counter of a region."""

    expiry: int
    left: int = 0
    """Units of the loan."""
    lent: int = 0
    """With those that were spent."""
    end: int = 0
    """Of the loan, by the clock of the region's store; never later than `term_end` is in truth."""
    term_end: int = 0
    """The same by the clock of home."""
    spare: int = 0
    """Units of an ended loan, to give back."""
    spare_end: int = 0
    """As `term_end`."""
    asked_until: int = 0
    deny_until: int = 0
    retry_at: int = 0
    """When home may have a unit again, as it answered last."""
    reset_at: int = 0
    round_trip: int = 0
    """From an ask to its deposit."""
    demand: int = 0
    """Units of hits that were decided since then."""
    since: int = 0
    rate: int = 0
    """Thousandths of a unit that are demanded in a term."""
    floor: State | None = None


class Wanted(NamedTuple):
    """What is to be asked of home."""

    back: int
    back_end: int
    least: int
    extra: int


class Deposit(NamedTuple):
    """What an ask has brought."""

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
    """Charge `cost` to the loan and the floor: the new state, and the decision, or None if the hit waits for home."""
    length = term(algorithm, limit)
    counter = _present(state, length, now)
    floor = limit.floor
    room, reset = counter.left, max(0, counter.reset_at - now)
    if floor is not None:
        _, look = algorithm.hit(counter.floor, floor, 0, now)
        room += look.remaining
        reset = max(reset, look.reset_after)

    if cost == 0:
        return state, Decision(True, room, 0, reset, 0)
    if cost < 0:
        back = min(-cost, counter.lent - counter.left)
        rest = -cost - back
        if floor is not None and counter.floor is not None and rest:
            own, look = algorithm.hit(counter.floor, floor, -rest, now)
            room = counter.left + look.remaining
            counter = counter._replace(floor=own)
        elif not back:
            return state, Decision(True, room, 0, reset, 0)
        return _kept(counter._replace(left=counter.left + back), length), Decision(True, room + back, 0, reset, 0)

    decided = counter._replace(demand=min(counter.demand + cost, _MOST_DEMAND))
    if cost <= room:
        lent = min(cost, counter.left)
        own = counter.floor
        if cost > lent and floor is not None:
            own, look = algorithm.hit(own, floor, cost - lent, now)
            reset = max(reset, look.reset_after)
        decided = decided._replace(left=counter.left - lent, floor=own)
        return _kept(decided, length), Decision(True, room - cost, 0, reset, 0)
    if cost > most_of(algorithm, limit):
        return state, Decision(False, room, cost - room, reset, NEVER)
    if now >= counter.deny_until:
        return _kept(counter, length), None
    retry = max(counter.retry_at, counter.deny_until) - now
    if floor is not None:
        _, look = algorithm.hit(counter.floor, floor, cost - counter.left, now)
        retry = retry if look.retry_after == NEVER else min(retry, look.retry_after)
    return _kept(decided, length), Decision(False, room, cost - room, reset, retry)


def ask(
    algorithm: Algorithm, state: RegionCounter | None, limit: Limit, waiting: int, now: int
) -> tuple[RegionCounter | None, Wanted | None]:
    """What is to be asked of home, after hits of which so many units wait; the new state."""
    if state is None or now < max(state.asked_until, state.deny_until):
        return state, None
    length = term(algorithm, limit)
    memory = length // 2
    measured = max(0, now - state.since) + memory
    thousandths = 1000 * state.demand * length // measured + state.rate * memory // measured
    rate = thousandths // 1000
    # Two round trips: one more ask may be under way before what is demanded meanwhile is lent.
    low = min(2 * rate * state.round_trip // length, rate // 2)
    if not waiting and state.left >= low:
        floor = limit.floor
        if floor is None or state.left:
            return state, None
        _, look = algorithm.hit(state.floor, floor, 0, now)
        if 2 * look.remaining >= (floor.burst or floor.requests):
            return state, None
    extra = max(0, rate - state.left)
    wanted = Wanted(state.spare, state.spare_end, max(1, waiting - state.left, min(max(low, rate // 10), extra)), extra)
    asked = state._replace(spare=0, asked_until=now + ASK_LIFE, demand=0, since=now, rate=thousandths)
    return _kept(asked, length), wanted


def deposit(state: RegionCounter | None, length: int, lent: Deposit, now: int) -> RegionCounter:
    """Add what home has lent for terms of that length, or note that it had too little: the new state."""
    counter = _present(state, length, now)
    if now < lent.end <= now + length:
        if lent.term_end != counter.term_end:
            counter = _ended(counter)._replace(end=0)
        counter = counter._replace(
            left=counter.left + lent.units,
            lent=counter.lent + lent.units,
            end=max(counter.end, lent.end),
            term_end=lent.term_end,
        )
    else:
        counter = _put_aside(counter, lent.units, lent.term_end)
    counter = counter._replace(
        asked_until=0 if counter.asked_until == lent.asked + ASK_LIFE else counter.asked_until,
        deny_until=lent.deny_until and max(lent.deny_until, now + max(LEAST_DENY, min(length // 10, SECOND))),
        retry_at=lent.retry_at,
        reset_at=lent.reset_at,
        round_trip=min(max(0, now - lent.asked), ASK_LIFE),
    )
    return _kept(counter, length)


def collect(state: RegionCounter | None, length: int, now: int) -> tuple[RegionCounter | None, int, int]:
    """Take out what is left of an ended loan: the new state, the units, and the end of the term by home's clock."""
    counter = _present(state, length, now)
    if not counter.spare:
        return state, 0, 0
    return _kept(counter._replace(spare=0), length), counter.spare, counter.spare_end


_MOST_DEMAND: Final = 2**31
"""That is counted."""


def _present(state: RegionCounter | None, length: int, now: int) -> RegionCounter:
    """The counter at that moment: demand is forgotten that was not asked about for two terms."""
    if state is None or state.expiry <= now:
        return RegionCounter(0, since=now)
    if state.since + 2 * length <= now:
        state = state._replace(demand=0, since=now, rate=0)
    # A loan that seems to last longer than a term was counted by another clock.
    return state if now < state.end <= now + length else _ended(state)


def _ended(counter: RegionCounter) -> RegionCounter:
    return _put_aside(counter, counter.left, counter.term_end)._replace(left=0, lent=0)


def _put_aside(counter: RegionCounter, units: int, term_end: int) -> RegionCounter:
    """Keep units to be given back; of two terms only those of the later one, since an ask has one end."""
    if not units or (counter.spare and term_end < counter.spare_end):
        return counter
    same = counter.spare if term_end == counter.spare_end else 0
    return counter._replace(spare=same + units, spare_end=term_end)


def _kept(counter: RegionCounter, length: int) -> RegionCounter:
    """The counter with its expiry; what is left of a loan can be given back for another term."""
    end = max(
        counter.end + (length if counter.left or counter.spare else 0),
        counter.asked_until,
        counter.deny_until,
        counter.since + 2 * length,
        0 if counter.floor is None else expiry(counter.floor),
    )
    return counter._replace(expiry=end)
