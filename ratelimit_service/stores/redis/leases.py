"""Leases of one instance: units of hot counters, charged in advance, which allow hits without a call. Pure. Hot path.

A counter is leased while the demand for it is worth it: at least `LEAST` units in a term. Before that, and whenever a
lease is used up, a hit is sent as ever, and the same script call may ask for a lease: an *ask* says what to give back
before the hits of the call, and what to take after them (`algorithms/leasing.py`).

===========  ===================================  ==================================================================
a lease is   when                                 a hit on its counter
===========  ===================================  ==================================================================
cold         `left` is 0                          is sent; the counter joins the next asks
asking       `asked_for`, an ask is under way     is sent; or allowed, as long as `left` lasts (asked for in advance)
holding      `left` is enough, and `now` < `end`  is allowed at once; below `low` the counter joins the next asks
holding      `left` is not enough; a look, or a   is sent, behind an ask that gives back all that is held: it is
             refund                               answered as without leases; a look and a refund end a denial
denied       `now` < `deny_until`                 is denied at once, if it costs at least what was denied
dead         `now` >= `end`                       as cold; what is left becomes `spare`
===========  ===================================  ==================================================================

=============================  =======================================================================================
event                          what becomes of the lease
=============================  =======================================================================================
an ask was answered            `left` grows, until `end`: the term's end, counted from when the ask was *sent*; in a
                               bucket a little earlier. Units of another term become `spare`. Without any room: denied
a hit was denied by the store  denied for its retry; but no longer than the term, at whose end others give back
an ask has failed              what it was to take or to give back is burnt: what the store did is not known
an ask could not be sent       what it was to give back is `spare` again
a sweep                        dead: joins the next asks, to give `spare` back; without hits for a while: forgotten
there are MAX_LEASES           the one that saves fewest calls makes way for a counter that is hit more often, and all
                               it holds joins the next asks, to be given back
the rule was changed           what is held is burnt, since it was charged to another limit
a server was lost              all that is held is burnt: another server may have counted without it
=============================  =======================================================================================

Laws: a unit is spent before the end of the term in which it was charged, by the store's clock. Units of two terms are
never mixed. Units are conserved: granted = spent + returned + burnt + held.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple, cast
from zlib import crc32

from ratelimit_service.algorithms import leasing
from ratelimit_service.model import NEVER, Decision, Limit
from ratelimit_service.rules.leasing import LEAST
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.gauges import Gauges
from ratelimit_service.telemetry.metric import Metric, counter, counter_by, gauge
from ratelimit_service.telemetry.tally import Tally

MAX_LEASES: Final = 20_000
"""Counters: 10 MB."""

_SWEEP: Final = 2000
"""Leases that one sweep looks at: less than a millisecond."""

_EARLY: Final = 16
"""By one in so many parts a lease of a bucket is shorter than its term: what is given back later is lost in part."""

_LONGEST_EARLY: Final = SECOND // 5
"""In which a sweep finds it."""

_CHANCE: Final = 2
"""Standard deviations of the demand that are asked for above its average while half of the limit is left: else every
second lease is used up before its term ends."""

_MEMORY: Final = SECOND // 20
"""Of the rate: half of the shortest usual term."""

_ROUND_TRIPS: Final = 10
"""In a term, at least: in shorter ones half of the hits would wait for the next lease."""

_FORGET: Final = 10 * SECOND
"""Without a hit: what comes in bursts leases from the first hit of the next one on."""

_CELLS: Final = 1 << 18
"""Bytes that count the requests on counters without a lease: of 100,000 a second on as many, one in 1,000 looks hot."""

_MOST_SEEN: Final = 255
"""In a cell."""

_LOOKED_AT: Final = 8
"""Leases of which one may make way, when there are as many as there may be."""

_MOST_LEAVING: Final = 1000
"""Leases that have made way and still give back."""

_SMOOTHING: Final = 8
"""One in so many parts of the average round trip is the last one."""


@dataclass(slots=True, eq=False)
class Ask:
    """What a script call gives back and takes of one counter."""

    lease: "Lease"
    back: int
    back_end: int
    least: int
    extra: int
    before_hit: bool = False
    """A hit that is sent now has to find all that is held given back; in a call without it nothing is taken."""


class Granted(NamedTuple):
    """The answer to an ask."""

    units: int
    room: int
    term_end: int
    """By the store's clock, as `store_now`."""
    reset_after: int
    retry_after: int
    store_now: int


@dataclass(slots=True, eq=False)
class Lease:
    """One counter of this instance."""

    rule: Rule
    limit: Limit
    key: str
    term: int
    cap: int
    """Units, the most to hold."""
    since: int
    """When the rate was computed."""
    phase: int = 0
    """Of its terms, by which those of instances do not end all at once."""
    left: int = 0
    end: int = 0
    """Of `left`, by the local clock; never later than `term_end` is in truth."""
    term_end: int = 0
    """The same by the store's clock."""
    spare: int = 0
    """Units of an earlier term, to give back."""
    spare_end: int = 0
    asked_for: bool = False
    joined: bool = False
    wanted: bool = False
    """A hit has come that could not be allowed here, or the lease is low."""
    before_hit: bool = False
    """What its next ask says."""
    low: int = 0
    """In units."""
    rate: float = 0.0
    """Units per microsecond that were demanded, denied ones too."""
    demand: int = 0
    """Units since then."""
    deny_until: int = 0
    deny_cost: int = 0
    retry_at: int = 0
    room: int = 0
    """What the store could still charge, as it answered last."""
    reset_at: int = 0
    hits: int = 0
    """Allowed by it since the last look of a sweep."""
    saved: int = 0
    """Calls that it saves between two looks, about a second apart where there are many leases."""


class Leases:
    """All leases of one instance, `most` at once; it remembers a denial for `deny` at least.

    Instances with other seeds have terms that end at other moments.
    """

    def __init__(self, *, deny: int, most: int = MAX_LEASES, seed: int = 0) -> None:
        self._seed = seed
        self.by_key: dict[str, Lease] = {}
        """By the counter's key."""
        self.joined: list[Lease] = []
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
        self._to_sweep: list[Lease] = []
        self._hand = 0
        """Where in these the next lease is sought that makes way."""
        self._leaving: set[Lease] = set()
        """Those that have made way, until they have given back what they held."""
        self.granted = self.spent = self.returned = self.burnt = 0
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
        return sum(lease.left + lease.spare for lease in (*self.by_key.values(), *self._leaving))

    @property
    def allowed(self) -> int:
        """Hits that were decided by what is held."""
        return self._allowed + sum(lease.hits for lease in self.by_key.values())

    def charge(self, hits: Sequence[Hit], now: int) -> bool:
        """Decide all hits of a request, or do nothing."""
        by_key = self.by_key
        if len(hits) == 1:  # almost all: a third less than below
            hit = hits[0]
            lease = by_key.get(hit.key)
            if lease is None or lease.limit is not hit.limit:
                return False
            cost = hit.cost
            if 0 < cost <= lease.left and now < lease.end:
                lease.demand += cost
                hit.decision = self._spend(lease, cost, now)
                return True
        elif len({hit.key for hit in hits}) < len(hits):
            return False
        for hit in hits:
            lease = by_key.get(hit.key)
            cost = hit.cost
            if (
                lease is None
                or lease.limit is not hit.limit
                or cost <= 0
                or ((cost > lease.left or now >= lease.end) and (now >= lease.deny_until or cost < lease.deny_cost))
            ):
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
        lease = self.by_key.get(key)
        if lease is None:
            if self.is_cold(key):
                return None
            term = _term(rule, limit)
            is_bucket = hasattr(rule.algorithm, "lent_from")
            phase = 0 if is_bucket else crc32(key.encode(), self._seed) % term
            lease = self.by_key[key] = Lease(rule, limit, key, term, rule.lease, now, phase)
            lease.saved = self._seen[hash(key) % _CELLS]
        elif lease.limit is not limit:
            if lease.limit != limit:
                self._drop(lease)
                return None
            lease.rule, lease.limit, lease.cap = rule, limit, rule.lease  # of a new book
        if cost <= 0:
            lease.deny_until = 0  # there may be room again, and a caller that looks charges by the answer
            self._give_before_hit(lease)
            return None
        lease.demand += cost
        if cost <= lease.left and now < lease.end:
            return self._spend(lease, cost, now)
        if now < lease.deny_until and cost >= lease.deny_cost:
            self.denied += 1
            lease.saved += 1
            room = lease.room + lease.left if now < lease.end else lease.room
            wait = NEVER if cost > (limit.burst or limit.requests) else max(lease.retry_at, lease.deny_until) - now
            return Decision(False, room, max(1, cost - room), max(lease.reset_at - now, wait), wait)
        if cost > lease.left:
            self._give_before_hit(lease)
        if not lease.asked_for:
            lease.wanted = True
            self._join(lease)
        return None

    def asks(self, now: int) -> list[Ask]:
        """The asks of all counters that have joined; each is to be sent with the hits on its counter, or alone."""
        joined, self.joined = self.joined, []
        found = []
        for lease in joined:
            lease.joined = False
            if not lease.asked_for and (self.by_key.get(lease.key) is lease or lease in self._leaving):
                ask = self._ask(lease, now)
                if ask is not None:
                    lease.asked_for = True
                    self.asking += 1
                    self.asked += 1
                    found.append(ask)
        return found

    def answered(self, ask: Ask, granted: Granted, sent: int) -> None:
        """The store has done what was asked, in a call that was sent at that moment."""
        lease = self._end(ask)
        self.granted += granted.units
        self.returned += ask.back
        if self.by_key.get(lease.key) is not lease:
            self.burnt += granted.units
            return
        lease.room = granted.room
        lease.reset_at = sent + granted.reset_after
        if granted.units:
            if lease.term_end != granted.term_end:
                self._retire(lease)
            lease.left += granted.units
            lease.term_end = granted.term_end
            # The script ran after `sent`: so counted, the lease ends no later than the term does. A thousandth is for
            # clocks that are being adjusted: Linux lets them run up to 500 ppm fast or slow.
            rest = granted.term_end - granted.store_now
            is_bucket = hasattr(lease.rule.algorithm, "lent_from")
            lease.end = sent + rest - (min(rest // _EARLY, _LONGEST_EARLY) if is_bucket else rest // 1000)
        elif not granted.room and not lease.limit.crossing_only:  # else the first denied hit has to reach the store
            self._remember(lease, 1, granted.retry_after, granted.term_end - granted.store_now, sent)

    def denied_by_store(self, key: str, cost: int, decision: Decision, store_now: int, sent: int) -> None:
        """The store has denied a hit of this cost."""
        lease = self.by_key.get(key)
        if lease is not None:
            lease.room = decision.remaining
            lease.reset_at = sent + decision.reset_after
            rest = leasing.next_term(lease.term, store_now, lease.phase) - store_now
            self._remember(lease, cost, decision.retry_after, rest, sent)

    def failed(self, ask: Ask) -> None:
        """It is not known what the store has done."""
        self._end(ask)
        self.granted += ask.extra
        self.burnt += ask.extra + ask.back

    def unsent(self, ask: Ask) -> None:
        """The store has not seen it."""
        lease = self._end(ask)
        if self.by_key.get(lease.key) is lease and not lease.spare:
            lease.spare, lease.spare_end = ask.back, ask.back_end
        else:
            self.burnt += ask.back

    def drop_all(self) -> None:
        """A server was lost: hold nothing any more."""
        for lease in (*self.by_key.values(), *self._leaving):
            self._drop(lease)

    def sweep(self, now: int) -> None:
        """Have dead leases join the next asks, and forget those without hits; of many, some at a time."""
        if now - self._seen_since >= SECOND:
            self._seen_since = now
            self._seen = bytearray(_CELLS)
        if not self._to_sweep:
            self._to_sweep = list(self.by_key.values())
        swept = self._to_sweep[-_SWEEP:]
        del self._to_sweep[-_SWEEP:]
        for lease in swept:
            self._allowed += lease.hits
            lease.saved = max(lease.hits, lease.saved // 2)
            lease.hits = 0
            if lease.asked_for or self.by_key.get(lease.key) is not lease:
                continue
            if lease.spare or (lease.left and now >= lease.end):
                self._join(lease)
            elif not lease.left and now - lease.since > _FORGET:
                if lease.demand:
                    _measure(lease, now)
                else:
                    self._forget(lease)

    def give_all(self) -> None:
        """Have all that is held join the next asks, to be given back: the instance stops."""
        for lease in self.by_key.values():
            self._retire(lease)
            lease.cap = 0
            self._join(lease)

    def by_rule(self) -> Mapping[Tally, Gauges]:
        """What is held of counters of each rule, by its tally."""
        found: dict[Tally, list[int]] = {}
        for lease in self.by_key.values():
            if units := lease.left + lease.spare:
                sums = found.setdefault(lease.rule.tally, [0, 0])
                sums[0] += lease.left > 0
                sums[1] += units
        return {tally: Gauges(*sums) for tally, sums in found.items()}

    def metrics(self) -> Sequence[Metric]:
        """What is held, and what has become of what was."""
        hits = {"lease": self.allowed, "denied": self.denied, "redis": self.sent}
        return (
            gauge(
                "ratelimit_leases_held",
                "Counters in Redis of which this process holds units.",
                sum(1 for lease in self.by_key.values() if lease.left),
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
                "Units neither spent nor given back, because Redis was lost or its answer did not come.",
                self.burnt,
            ),
            counter_by(
                "ratelimit_lease_hits_total",
                "Hits on limits that lease: allowed by units that were held (lease), denied from memory (denied), or "
                "sent to Redis (redis).",
                "decided_by",
                hits.items(),
            ),
        )

    def _end(self, ask: Ask) -> Lease:
        lease = ask.lease
        lease.asked_for = False
        self.asking -= 1
        self._leaving.discard(lease)
        return lease

    def _spend(self, lease: Lease, cost: int, now: int) -> Decision:
        """Allow a hit by what is held."""
        lease.left = left = lease.left - cost
        self.spent += cost
        lease.hits += 1
        if left < lease.low and not lease.asked_for:
            lease.wanted = True
            self._join(lease)
        return Decision(True, lease.room + left, 0, max(0, lease.reset_at - now), 0)

    def _give_before_hit(self, lease: Lease) -> None:
        """Have all that is held given back before the hit that is sent now; of two terms what is of the earlier one.

        While an ask is under way the hit goes without.
        """
        if not lease.asked_for and (lease.left or lease.spare):
            if not lease.spare:
                self._retire(lease)
            lease.before_hit = lease.wanted = True
            self._join(lease)

    def _make_way(self, seen: int) -> bool:
        """End the lease of some that saves fewest calls, if it saves fewer than that."""
        if len(self._leaving) >= _MOST_LEAVING:
            return False
        if not self._to_sweep:
            self._to_sweep = list(self.by_key.values())
        start = self._hand % len(self._to_sweep)
        self._hand = start + _LOOKED_AT
        looked_at = self._to_sweep[start : self._hand]
        found = [lease for lease in looked_at if not lease.asked_for and self.by_key.get(lease.key) is lease]
        if not found:
            return False
        lease = min(found, key=attrgetter("saved"))
        if lease.saved >= seen:
            return False
        self._retire(lease)
        self._forget(lease)
        if lease.spare:
            lease.wanted = False
            self._leaving.add(lease)
            self._join(lease)
        return True

    def _join(self, lease: Lease) -> None:
        if not lease.joined:
            lease.joined = True
            self.joined.append(lease)

    def _ask(self, lease: Lease, now: int) -> Ask | None:
        if now >= lease.end:
            self._retire(lease)
        before = lease.rate
        _measure(lease, now)
        # After a pause the rate that was before it counts once more: the hits that end it would be sent for nothing.
        demand = max(before, lease.rate) * lease.term
        if lease.room > lease.limit.requests // 2:
            demand += _CHANCE * demand**0.5
        extra = min(int(demand), lease.cap)
        if extra < LEAST or lease.term < _ROUND_TRIPS * self.round_trip or not lease.wanted:
            extra = 0
        lease.wanted = False
        least = min(int(lease.rate * self._deny), extra)
        lease.low = min(int(lease.rate * 2 * self.round_trip), extra // 2)
        extra = max(0, extra - lease.left)
        back, lease.spare = lease.spare, 0
        if not extra and not back:
            return None
        before_hit, lease.before_hit = lease.before_hit, False
        return Ask(lease, back, lease.spare_end, min(least, extra), extra, before_hit)

    def _retire(self, lease: Lease) -> None:
        """What is left is to be given back; what is left of a still earlier term is burnt, since an ask has one end."""
        if lease.left:
            self.burnt += lease.spare
            lease.spare, lease.spare_end = lease.left, lease.term_end
            lease.left = 0

    def _remember(self, lease: Lease, cost: int, retry: int, rest: int, sent: int) -> None:
        """Deny such hits for a while. Shortages end when others give back, which they do when terms end."""
        if retry == NEVER or (sent < lease.deny_until and cost > lease.deny_cost):
            return
        lease.deny_cost = cost
        lease.retry_at = sent + retry
        lease.deny_until = sent + min(max(retry, self._deny), max(rest, self._deny) + 1000)

    def _drop(self, lease: Lease) -> None:
        self.burnt += lease.left + lease.spare
        lease.left = lease.spare = 0
        self._forget(lease)

    def _forget(self, lease: Lease) -> None:
        self._allowed += lease.hits
        lease.hits = 0
        self._leaving.discard(lease)
        if self.by_key.get(lease.key) is lease:
            del self.by_key[lease.key]


def _measure(lease: Lease, now: int) -> None:
    """The rate, by what was demanded since it was measured last."""
    elapsed = now - lease.since
    if elapsed > 0:
        lease.rate += (lease.demand / elapsed - lease.rate) * elapsed / (elapsed + _MEMORY)
        lease.demand = 0
        lease.since = now


def _term(rule: Rule, limit: Limit) -> int:
    return cast("leasing.Leasing", rule.algorithm).term(limit)
