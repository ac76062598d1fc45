"""Leases of one instance: it keeps them in memory, and allows hits by them without a call. Pure. Hot path.

A counter is leased while the demand for it is worth it: at least `LEAST` units in a term. Before that, and whenever a
lease is used up, a hit is sent as ever, and the same script call may ask for a lease: an *ask* says what to give back
before the hits of the call, and what to take after them. `algorithms/lease.py` has the states of a lease, what becomes
of its units, and the laws. Beside that, of an instance:

===========  ===================================  ==================================================================
a lease is   when                                 a hit on its counter
===========  ===================================  ==================================================================
empty        `left` is 0                          is sent; the counter joins the next asks
asked for    an ask is under way                  is sent; or allowed, as long as `left` lasts (asked for in advance)
live         `left` is enough                     is allowed at once; below `low` the counter joins the next asks
live         `left` is not enough; a look, a      is sent, behind an ask that gives back all that is held: it is
             refund, or by a limit that came      answered as without leases; a look and a refund end a denial
             with the request
denied       `now` < `deny_until`                 is denied at once, if it costs at least what was denied
ended        `now` >= `end`                       as empty
===========  ===================================  ==================================================================

=============================  =======================================================================================
event                          what becomes of the lease
=============================  =======================================================================================
an ask was answered            a deposit; in a bucket a little shorter than the term. Without any room: denied
a hit was denied by the store  denied for its retry; but no longer than the term, at whose end others give back
an ask has failed              what it was to take or to give back is lost: what the store did is not known
an ask could not be sent       what it was to give back is to be given back again
a sweep                        ended: joins the next asks, to give back; without hits for a while: forgotten
there are MAX_LEASES           the one that saves fewest calls makes way for a counter that is hit more often, and all
                               it holds joins the next asks, to be given back
the rule was changed           what is held is lost, since it was charged to another limit
a server was lost              all that is held is lost: another server may have counted without it
=============================  =======================================================================================
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final
from zlib import crc32

from ratelimit_service.algorithms.lease import Granted, Lease, leasing, next_term
from ratelimit_service.model import NEVER, Decision, Limit
from ratelimit_service.rules.leasing import LEAST
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.store import OnTaken
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.gauges import Gauges
from ratelimit_service.telemetry.metric import Metric, counter, counter_by, gauge
from ratelimit_service.telemetry.tally import Tally

MAX_LEASES: Final = 20_000
"""The most counters with a lease: 10 MB."""

_SWEEP: Final = 2000
"""Leases that one sweep looks at: less than a millisecond."""

_EARLY: Final = 16
"""A lease of a bucket is shorter than its term by one in so many parts: what is given back later is lost in part."""

_LONGEST_EARLY: Final = SECOND // 5
"""The most microseconds by which it is shorter: within these a sweep finds it."""

_CHANCE: Final = 2
"""Standard deviations of the demand that are asked for above its average while half of the limit is left: else every
second lease is used up before its term ends."""

_MEMORY: Final = SECOND // 20
"""Microseconds over which the rate is measured: half of the shortest usual term."""

_ROUND_TRIPS: Final = 10
"""The round trips in a term, at least: in shorter ones half of the hits would wait for the next lease."""

_FORGET: Final = 10 * SECOND
"""A lease without a hit is kept for so long: a burst then leases from its first hit on."""

_CELLS: Final = 1 << 18
"""Bytes that count the requests on counters without a lease: of 100,000 a second on as many, one in 1,000 looks hot."""

_MOST_SEEN: Final = 255
"""The most requests that a cell counts."""

_LOOKED_AT: Final = 8
"""Leases that are looked at for one to evict, when there are MAX_LEASES."""

_MOST_LEAVING: Final = 1000
"""Leases that have made way and still give back."""

_UNTIL_ANSWERED: Final = 2**62
"""A moment that never comes: an ask is under way until it is known how it has ended."""

_SMOOTHING: Final = 8
"""One in so many parts of the average round trip is the last one."""


@dataclass(slots=True, eq=False)
class LeasedCounter:
    """One counter of this instance, and what is leased of it."""

    rule: Rule
    limit: Limit
    key: str
    term: int
    cap: int
    """Units, the most to hold."""
    lease: Lease = field(default_factory=Lease)
    """By the local clock."""
    phase: int = 0
    """Of its terms, by which those of instances do not end all at once."""
    joined: bool = False
    wanted: bool = False
    """A hit has come that could not be allowed here, or the lease is low."""
    before_hit: bool = False
    """What its next ask says."""
    low: int = 0
    """In units."""
    room: int = 0
    """What the store could still charge, as it answered last."""
    deny_cost: int = 0
    hits: int = 0
    """Allowed by the lease since the last look of a sweep."""
    saved: int = 0
    """Calls that it saves between two looks, about a second apart where there are many leases."""


@dataclass(slots=True, eq=False)
class Ask:
    """The ask of a script call, which gives back and takes of one counter: `Wanted` of its lease."""

    counter: LeasedCounter
    back: int
    back_end: int
    least: int
    extra: int
    before_hit: bool = False
    """A hit that is sent now has to find all that is held given back; in a call without it nothing is taken."""
    done: OnTaken | None = None
    """Called with the answer, if the units are for a holder who is not in this process."""


class Leases:
    """All leases of one instance, `most` at once; it remembers a denial for `deny` at least.

    Instances with other seeds have terms that end at other moments.
    """

    def __init__(self, *, deny: int, most: int = MAX_LEASES, seed: int = 0) -> None:
        self._seed = seed
        self.by_key: dict[str, LeasedCounter] = {}
        """By the counter's key."""
        self.joined: list[LeasedCounter] = []
        """Those that want the next `asks`."""
        self.asking = 0
        """Asks that are not answered yet."""
        self.round_trip = 0
        """The average of the calls."""
        self._deny = deny
        self._most = most
        self._seen = bytearray(_CELLS)
        """Requests lately, by the hash of the counter: with less than LEAST of them in a second it has no lease."""
        self._seen_since = 0
        self._to_sweep: list[LeasedCounter] = []
        self._hand = 0
        """Where in these the next lease is sought that makes way."""
        self._leaving: set[LeasedCounter] = set()
        """Those that have made way, until they have given back what they held."""
        self.granted = self.spent = self.returned = self.lost = 0
        """Units."""
        self.denied = self.sent = 0
        """Hits on counters of rules that lease."""
        self._allowed = 0
        """Those that were counted by a sweep, or by leases that are gone."""
        self.asked = 0
        """Asks until now."""

    @property
    def held(self) -> int:
        """Units that are held now, dead ones too."""
        return sum(leased.lease.held for leased in (*self.by_key.values(), *self._leaving))

    @property
    def allowed(self) -> int:
        """Hits that were decided by what is held."""
        return self._allowed + sum(leased.hits for leased in self.by_key.values())

    def charge(self, hits: Sequence[Hit], now: int) -> bool:
        """Decide all hits of a request, or do nothing."""
        by_key = self.by_key
        if len(hits) == 1:  # almost all: a third less than below
            hit = hits[0]
            leased = by_key.get(hit.key)
            if leased is None or leased.limit is not hit.limit:
                return False
            lease, cost = leased.lease, hit.cost
            if 0 < cost <= lease.left and now < lease.end:
                lease.demand += cost
                hit.decision = self._spend(leased, lease, cost, now)
                return True
        elif len({hit.key for hit in hits}) < len(hits):
            return False
        for hit in hits:
            leased = by_key.get(hit.key)
            cost = hit.cost
            if leased is None or leased.limit is not hit.limit or cost <= 0:
                return False
            lease = leased.lease
            if (cost > lease.left or now >= lease.end) and (now >= lease.deny_until or cost < leased.deny_cost):
                return False
        return not self.answer(hits, now)

    def answer(self, hits: Sequence[Hit], now: int) -> Sequence[Hit]:
        """Decide the hits for which units are held, or that are known to be denied; returns the others."""
        left: list[Hit] = []
        cold: set[str] = set()
        for hit in hits:
            if hit.rule.lease:
                if hit.key not in cold:
                    decision = self.hit(hit.rule, hit.limit, hit.key, hit.cost, now)
                    if decision is not None:
                        hit.decision = decision
                        hit.tally.over_limit_with_local_cache += decision.over
                        continue
                    if hit.key not in self.by_key:
                        cold.add(hit.key)  # a request counts once, however often it names the counter
                self.sent += 1
            elif (leased := self.by_key.get(hit.key)) is not None:  # of a limit that came with the request
                self._give_before_hit(leased)
            left.append(hit)
        return left

    def is_cold(self, key: str) -> bool:
        """Count a request on a counter that has no lease, and is hit too seldom for one."""
        if key in self.by_key:
            return False
        cell = hash(key) % _CELLS
        seen = self._seen[cell]
        if seen < LEAST:
            self._seen[cell] = seen + 1
            return True
        if len(self.by_key) < self._most:
            return False
        if seen < _MOST_SEEN:
            self._seen[cell] = seen = seen + 1
        is_power_of_two = not seen & (seen - 1)  # seldom, or each hit of a flood would look for a lease that makes way
        return not (is_power_of_two and self._make_way(seen))

    def learn(self, changed: Sequence[Hit], store_now: int, sent: int) -> None:
        """Remember what the store has denied, of the hits of a call that was sent at that moment."""
        for hit in changed:
            if hit.rule.lease and not hit.decision.allowed:
                self.denied_by_store(hit.key, hit.cost, hit.decision, store_now, sent)

    def called(self, took: int) -> None:
        """A call was answered after that time."""
        self.round_trip += (took - self.round_trip) // _SMOOTHING

    def hit(self, rule: Rule, limit: Limit, key: str, cost: int, now: int) -> Decision | None:
        """The decision on a hit; None: it has to be sent."""
        leased = self.by_key.get(key)
        if leased is None:
            if limit.owes or self.is_cold(key):
                return None
            algorithm = leasing(rule.algorithm)
            term = algorithm.term(limit)
            phase = crc32(key.encode(), self._seed) % term if algorithm.staggered(limit) else 0
            leased = self.by_key[key] = LeasedCounter(rule, limit, key, term, rule.lease, Lease(since=now), phase)
            leased.saved = self._seen[hash(key) % _CELLS]
        elif leased.limit is not limit:
            if limit.owes:
                self._give_before_hit(leased)
                return None
            if leased.limit != limit:
                self._drop(leased)
                return None
            leased.rule, leased.limit, leased.cap = rule, limit, rule.lease  # of a new book
        lease = leased.lease
        if cost <= 0:
            lease.deny_until = 0  # there may be room again, and a caller that looks charges by the answer
            self._give_before_hit(leased)
            return None
        lease.demand += cost
        if cost <= lease.left and now < lease.end:
            return self._spend(leased, lease, cost, now)
        if now < lease.deny_until and cost >= leased.deny_cost:
            self.denied += 1
            leased.saved += 1
            room = leased.room + lease.left if now < lease.end else leased.room
            wait = NEVER if cost > limit.capacity else max(lease.retry_at, lease.deny_until) - now
            return Decision(False, room, max(1, cost - room), max(lease.reset_at - now, wait), wait)
        if cost > lease.left:
            self._give_before_hit(leased)
        if not lease.asked_until:
            leased.wanted = True
            self._join(leased)
        return None

    def asks(self, now: int) -> list[Ask]:
        """The asks of all counters that have joined; each is to be sent with the hits on its counter, or alone."""
        joined, self.joined = self.joined, []
        found = []
        for leased in joined:
            leased.joined = False
            if not leased.lease.asked_until and (self.by_key.get(leased.key) is leased or leased in self._leaving):
                ask = self._ask(leased, now)
                if ask is not None:
                    self.asking += 1
                    self.asked += 1
                    found.append(ask)
        return found

    def answered(self, ask: Ask, granted: Granted, sent: int) -> None:
        """The store has done what was asked, in a call that was sent at that moment."""
        if ask.done is not None:
            ask.done(granted)
            return
        leased = self._end(ask)
        self.granted += granted.units
        self.returned += ask.back
        if self.by_key.get(leased.key) is not leased:
            self.lost += granted.units
            return
        lease = leased.lease
        leased.room = granted.room
        lease.reset_at = sent + granted.reset_after
        rest = granted.term_end - granted.store_now
        if granted.units:
            is_bucket = leasing(leased.rule.algorithm).leased_from is not None
            end = granted.end(sent, min(rest // _EARLY, _LONGEST_EARLY) if is_bucket else 0)
            self.lost += lease.deposit(granted.units, end, granted.term_end)
        elif not granted.room and not leased.limit.crossing_only:  # else the first denied hit has to reach the store
            self._remember(leased, 1, granted.retry_after, rest, sent)

    def denied_by_store(self, key: str, cost: int, decision: Decision, store_now: int, sent: int) -> None:
        """The store has denied a hit of this cost."""
        leased = self.by_key.get(key)
        if leased is not None:
            leased.room = decision.remaining
            leased.lease.reset_at = sent + decision.reset_after
            rest = next_term(leased.term, store_now, leased.phase) - store_now
            self._remember(leased, cost, decision.retry_after, rest, sent)

    def failed(self, ask: Ask) -> None:
        """It is not known what the store has done."""
        if ask.done is not None:
            ask.done(None)
            return
        self._end(ask)
        self.granted += ask.extra
        self.lost += ask.extra + ask.back

    def unsent(self, ask: Ask) -> None:
        """The store has not seen it."""
        if ask.done is not None:
            ask.done(None)
            return
        leased = self._end(ask)
        known = self.by_key.get(leased.key) is leased
        self.lost += leased.lease.put_back(ask.back, ask.back_end) if known else ask.back

    def drop_all(self) -> None:
        """A server was lost: hold nothing any more."""
        for leased in (*self.by_key.values(), *self._leaving):
            self._drop(leased)

    def sweep(self, now: int) -> None:
        """Have dead leases join the next asks, and forget those without hits; of many, some at a time."""
        if now - self._seen_since >= SECOND:
            self._seen_since = now
            self._seen = bytearray(_CELLS)
        if not self._to_sweep:
            self._to_sweep = list(self.by_key.values())
        swept = self._to_sweep[-_SWEEP:]
        del self._to_sweep[-_SWEEP:]
        for leased in swept:
            self._allowed += leased.hits
            leased.saved = max(leased.hits, leased.saved // 2)
            leased.hits = 0
            lease = leased.lease
            if lease.asked_until or self.by_key.get(leased.key) is not leased:
                continue
            if lease.back or (lease.left and now >= lease.end):
                self._join(leased)
            elif not lease.left and now - lease.since > _FORGET:
                if lease.demand:
                    lease.measure(now, leased.term, _MEMORY)
                else:
                    self._forget(leased)

    def give_all(self) -> None:
        """Have all that is held join the next asks, to be given back: the instance stops."""
        for leased in self.by_key.values():
            self.lost += leased.lease.expire()
            leased.cap = 0
            self._join(leased)

    def by_rule(self) -> Mapping[Tally, Gauges]:
        """The counters and units that are leased of each rule, by its tally."""
        found: dict[Tally, list[int]] = {}
        for leased in self.by_key.values():
            if units := leased.lease.held:
                sums = found.setdefault(leased.rule.tally, [0, 0])
                sums[0] += leased.lease.left > 0
                sums[1] += units
        return {tally: Gauges(*sums) for tally, sums in found.items()}

    def metrics(self) -> Sequence[Metric]:
        """Metrics of the units that are leased, and of what has become of others."""
        hits = {"lease": self.allowed, "denied": self.denied, "redis": self.sent}
        return (
            gauge(
                "ratelimit_leases_held",
                "Counters in Redis of which this process holds units.",
                sum(1 for leased in self.by_key.values() if leased.lease.left),
            ),
            gauge(
                "ratelimit_lease_units_held",
                "Units of these counters, charged in Redis and not spent yet.",
                self.held,
            ),
            counter(
                "ratelimit_lease_asks_total", "Operations on Redis that took units, or gave some back.", self.asked
            ),
            counter("ratelimit_lease_units_granted_total", "Units charged in Redis in advance.", self.granted),
            counter("ratelimit_lease_units_returned_total", "Units given back, unspent.", self.returned),
            counter(
                "ratelimit_lease_units_burnt_total",
                "Units lost with a failure of Redis: neither spent nor given back.",
                self.lost,
            ),
            counter_by(
                "ratelimit_lease_hits_total",
                "Hits on limits that lease: allowed by units that were held (lease), denied from memory (denied), or "
                "sent to Redis (redis).",
                "decided_by",
                hits.items(),
            ),
        )

    def _end(self, ask: Ask) -> LeasedCounter:
        ask.counter.lease.asked_until = 0
        self.asking -= 1
        self._leaving.discard(ask.counter)
        return ask.counter

    def _spend(self, leased: LeasedCounter, lease: Lease, cost: int, now: int) -> Decision:
        """Allow a hit by what is held."""
        lease.left = left = lease.left - cost
        self.spent += cost
        leased.hits += 1
        if left < leased.low and not lease.asked_until:
            leased.wanted = True
            self._join(leased)
        return Decision(True, leased.room + left, 0, max(0, lease.reset_at - now), 0)

    def _give_before_hit(self, leased: LeasedCounter) -> None:
        """Have all that is held given back before the hit that is sent now; of two terms what is of the earlier one.

        While an ask is under way the hit goes without.
        """
        lease = leased.lease
        if not lease.asked_until and lease.held:
            if not lease.back:
                lease.expire()
            leased.before_hit = leased.wanted = True
            self._join(leased)

    def _make_way(self, seen: int) -> bool:
        """End the lease of some that saves fewest calls, if it saves fewer than that."""
        if len(self._leaving) >= _MOST_LEAVING:
            return False
        if not self._to_sweep:
            self._to_sweep = list(self.by_key.values())
        start = self._hand % len(self._to_sweep)
        self._hand = start + _LOOKED_AT
        looked_at = self._to_sweep[start : self._hand]
        found = [each for each in looked_at if not each.lease.asked_until and self.by_key.get(each.key) is each]
        if not found:
            return False
        leased = min(found, key=attrgetter("saved"))
        if leased.saved >= seen:
            return False
        self.lost += leased.lease.expire()
        self._forget(leased)
        if leased.lease.back:
            leased.wanted = False
            self._leaving.add(leased)
            self._join(leased)
        return True

    def _join(self, leased: LeasedCounter) -> None:
        if not leased.joined:
            leased.joined = True
            self.joined.append(leased)

    def _ask(self, leased: LeasedCounter, now: int) -> Ask | None:
        lease, term = leased.lease, leased.term
        if now >= lease.end:
            self.lost += lease.expire()
        before = lease.rate
        if now > lease.since:  # else the first hit of a counter would ask for a lease
            lease.measure(now, term, _MEMORY)
        # After a pause the rate that was before it counts once more: the hits that end it would be sent for nothing.
        demand = max(before, lease.rate) / 1000
        if leased.room > leased.limit.requests // 2:
            demand += _CHANCE * demand**0.5
        extra = min(int(demand), leased.cap)
        if extra < LEAST or term < _ROUND_TRIPS * self.round_trip or not leased.wanted:
            extra = 0
        leased.wanted = False
        leased.low = lease.low(extra, self.round_trip, term)
        if extra <= lease.left and not lease.back:
            return None
        before_hit, leased.before_hit = leased.before_hit, False
        least = min(lease.rate * self._deny // (1000 * term), max(0, extra - lease.left))
        return Ask(leased, *lease.ask(least, extra, _UNTIL_ANSWERED), before_hit)

    def _remember(self, leased: LeasedCounter, cost: int, retry: int, rest: int, sent: int) -> None:
        """Deny such hits for a while. Shortages end when others give back, which they do when terms end."""
        lease = leased.lease
        if retry == NEVER or (sent < lease.deny_until and cost > leased.deny_cost):
            return
        leased.deny_cost = cost
        lease.retry_at = sent + retry
        lease.deny_until = sent + min(max(retry, self._deny), max(rest, self._deny) + 1000)

    def _drop(self, leased: LeasedCounter) -> None:
        self.lost += leased.lease.held
        leased.lease.left = leased.lease.back = 0
        self._forget(leased)

    def _forget(self, leased: LeasedCounter) -> None:
        self._allowed += leased.hits
        leased.hits = 0
        self._leaving.discard(leased)
        if self.by_key.get(leased.key) is leased:
            del self.by_key[leased.key]
