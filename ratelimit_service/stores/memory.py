"""Counters in the memory of this process: the default store. Hot path.

Bounded and swept. The counters are divided into segments by their key's hash. Each is an ordinary dictionary, so small
that neither its growth, nor a sweep, nor the search for the least recently used counter takes long: with a single
dictionary of a million counters each of the three would stop all calls for tens of milliseconds.

Law: from three quarters full on (the segment, or the store in bytes) a counter that is hit moves to the end of its
segment, so the first ones are those that were not hit since then. Before that a counter stays where it is: nothing has
to be evicted yet, and moving takes a quarter more memory, since a dictionary grows with each insertion, even after as
many deletions.

Bounded by number, because most counters are small; and in bytes, because some are not: a name may have 600 bytes, a
sliding log as many entries as its limit.

A counter that is used up makes way after those that are not, and so does a block: a client that it refuses would be
allowed again when others, or the client itself by made-up names, fill the memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, islice
from operator import attrgetter
from types import MappingProxyType

from ratelimit_service.algorithms import State, expiry
from ratelimit_service.algorithms.first import Alternative, choose
from ratelimit_service.algorithms.kinds import ENDINGS
from ratelimit_service.algorithms.lease import Wanted, leasing, take
from ratelimit_service.model import Decision
from ratelimit_service.rules.bans import MAX_BANS, Ban, Bans, too_many
from ratelimit_service.rules.rule import FIRST, Rule
from ratelimit_service.stores.hit import Hit, OnCounter, second_key
from ratelimit_service.stores.store import Done, LostServer, OnTaken
from ratelimit_service.system.clock import Clock, system_clock
from ratelimit_service.telemetry.gauges import Gauges
from ratelimit_service.telemetry.metric import Metric
from ratelimit_service.telemetry.tally import Tally

SEGMENT = 1024
"""Counters in a full segment: about 0.2 ms to sweep."""

MAX_BYTES = 512 * 1024 * 1024
"""The most bytes of all counters: a million of them take 250 MiB, with names of 100 characters."""

_LOOKED_AT = 8
"""The counters at the front that are searched for one that has expired."""

_USED_UP = 8
"""One in so many of the counters is known to be used up at most: 12 MB at the default."""

_CHECKED = 500
"""The number of these that one sweep looks at."""

_BESIDES = 110
"""Bytes of a counter without its name and its state: its slot in a dictionary, which is half empty at times."""

_INTEGERS = 100
"""Bytes of a state that is a tuple, with an integer or two of its own."""

States = dict[str, State | None]
"""New states by key; None for a counter that there is no more."""


class MemoryStore:
    """At most `most` counters and `max_bytes`; evicts expired counters first, then the least recently used."""

    name = "memory"
    healthy = True
    errors: Mapping[str, int] = MappingProxyType({})
    lost: Sequence[LostServer] = ()

    def __init__(self, most: int, clock: Clock = system_clock, *, max_bytes: int = MAX_BYTES) -> None:
        count = 1
        while count * SEGMENT < most:
            count *= 2
        self._segments: list[dict[str, State]] = [{} for _ in range(count)]
        self._mask = count - 1
        self._room = -(-most // count)
        self._crowded = self._room * 3 // 4
        self._clock = clock
        self._next = 0
        self._max_bytes = max_bytes
        self._crowded_bytes = max_bytes * 3 // 4
        self._next_victim = 0
        self._used_up: dict[str, State] = {}
        """Counters of which nothing was left, with their states then: one that has another state now is forgotten."""
        self._most_used_up = -(-most // _USED_UP)
        self._to_check: list[str] = []
        self.bytes = 0
        """The size of all counters, as `_size` estimates it."""
        self.warnings: Sequence[str] = ()
        self.evicted = 0
        """Live counters that were evicted; the next hit on one finds a full allowance."""

    def hit(self, hits: Sequence[Hit], done: Done, timeout: int | None = None) -> None:
        """Charge all hits, and call `done` at once."""
        if not self.charge(hits):
            self._charge_bundles(hits, self._clock())
        done(None)

    def charge(self, hits: Sequence[Hit]) -> bool:
        """Charge all hits, one after the other, at one moment; none if their request may have to wait for its turn."""
        now = self._clock()
        segments = self._segments
        mask = self._mask
        crowded = self._crowded if self.bytes < self._crowded_bytes else 0
        for hit in hits:
            if hit.together:
                if hit.may_wait:
                    return False  # so are all others of it
                self._charge_bundles(hits[hits.index(hit) :], now)
                return True
            limit = hit.limit
            if limit.composite:
                self._charge_alone(hit, now)
                continue
            key = hit.key
            segment = segments[hash(key) & mask]
            before = segment.get(key)
            state, decision = hit.rule.algorithm.hit(before, limit, hit.cost, now)
            hit.decision = decision
            if not decision.remaining and state is not None:
                self._note_used_up(key, state)
            if state is None or len(segment) >= crowded:
                self._keep(segment, key, before, state, now)
            elif before is None:
                segment[key] = state
                # As _size does, without the call: almost all counters come here.
                self.bytes += (
                    _BESIDES + key.__sizeof__() + (state.__sizeof__() if state.__class__ is bytes else _INTEGERS)
                )
            elif state.__class__ is bytes and len(state) != len(before):
                self._keep(segment, key, before, state, now)
            else:
                segment[key] = state
        return True

    def _charge_bundles(self, hits: Sequence[Hit], now: int) -> None:
        """Charge hits with bundles among them."""
        for together, members in groupby(hits, attrgetter("together")):
            if together:
                self._charge_bundle(list(members), now)
            else:
                for hit in members:
                    self._charge_alone(hit, now)

    def _charge_alone(self, hit: Hit, now: int) -> None:
        states: States = {}
        hit.decision = self._run(hit, hit.cost, states, now)
        self._keep_all(states, now)
        self._end(hit)

    def _charge_bundle(self, hits: Sequence[Hit], now: int) -> None:
        """Charge all hits, or only the denied ones whose limit counts denied hits."""
        if hits[0].rule.together == FIRST:
            self._charge_first(hits, now)
            return
        states: States = {}
        for hit in hits:
            hit.decision = self._run(hit, hit.cost, states, now)
        if not all(hit.decision.allowed for hit in hits):
            states = {}
            for hit in hits:
                if hit.decision.allowed:
                    hit.decision = self._run(hit, 0, states, now)
                else:
                    self._charge_denied(hit, states, now)
        self._keep_all(states, now)
        for hit in hits:
            self._end(hit)

    def _charge_first(self, hits: Sequence[Hit], now: int) -> None:
        """Charge the first limit that has room."""
        states: States = {}
        members = [
            Alternative(
                hit.rule.algorithm,
                hit.limit,
                self._state(hit.key, states),
                self._state(second_key(hit), states) if hit.limit.kind.has_second else None,
                hit.cost,
            )
            for hit in hits
        ]
        chosen, decisions = choose(members, now)
        for index, (hit, decision) in enumerate(zip(hits, decisions, strict=True)):
            hit.spared = chosen is not None and index != chosen
            hit.decision = self._run(hit, hit.cost, states, now) if index == chosen else decision
        self._keep_all(states, now)
        for hit in hits:
            self._end(hit)

    def _end(self, hit: Hit) -> None:
        """Note what its decision says of its counter."""
        if hit.limit.composite:
            _count_found(hit)
        state = self._segment(hit.key).get(hit.key)
        if not hit.decision.remaining and state is not None:
            self._note_used_up(hit.key, state)

    def _note_used_up(self, key: str, state: State) -> None:
        if len(self._used_up) < self._most_used_up or key in self._used_up:
            self._used_up[key] = state

    def _charge_denied(self, hit: Hit, states: States, now: int) -> None:
        """Charge a denied hit, which may have been denied only because of hits that are not charged after all."""
        key, limit = hit.key, hit.limit
        cost = hit.cost if limit.count_refused else 0
        if limit.kind.has_second:
            second = second_key(hit)
            states[second], cost = limit.kind.deny(self._state(second, states), limit, hit.cost, cost, now)
        if cost or not limit.composite:
            states[key], _ = hit.rule.algorithm.hit(self._state(key, states), limit, cost, now)
        else:
            states[key], _, _ = limit.kind.hit(hit.rule.algorithm.hit, self._state(key, states), None, limit, 0, now)

    def _run(self, hit: Hit, cost: int, states: States, now: int) -> Decision:
        """Charge `cost`, and put the new states of the counter, and of its second one, into `states`."""
        key, limit, algorithm = hit.key, hit.limit, hit.rule.algorithm
        state = self._state(key, states)
        if not limit.composite:
            states[key], decision = algorithm.hit(state, limit, cost, now)
            return decision
        kind = limit.kind
        second = second_key(hit) if kind.has_second else ""
        before = self._state(second, states) if second else None
        if limit.owes:
            states[key], after, decision = kind.owe(algorithm, state, before, limit, cost, now)
        else:
            states[key], after, decision = kind.hit(algorithm.hit, state, before, limit, cost, now)
        if second:
            states[second] = after
        return decision

    def _state(self, key: str, states: States) -> State | None:
        return states[key] if key in states else self._segment(key).get(key)

    def _keep_all(self, states: States, now: int) -> None:
        for key, state in states.items():
            segment = self._segment(key)
            self._keep(segment, key, segment.get(key), state, now)

    def _segment(self, key: str) -> dict[str, State]:
        return self._segments[hash(key) & self._mask]

    def _keep(self, segment: dict[str, State], key: str, before: State | None, state: State | None, now: int) -> None:
        """Replace the state by the new one; in a crowded segment the counter moves to the end."""
        if before is not None:
            self.bytes -= _size(key, before)
            if state is None or len(segment) >= self._crowded or self.bytes >= self._crowded_bytes:
                del segment[key]
        if state is not None:
            if before is None and len(segment) >= self._room:
                self._evict(segment, now, key)
            segment[key] = state
            self.bytes += _size(key, state)
            while self.bytes > self._max_bytes:
                self._evict(self._victim(segment), now, key)

    def _victim(self, segment: dict[str, State]) -> dict[str, State]:
        """The segment to evict from: this one, or, if it has only the new counter, the next one that is not empty."""
        if len(segment) > 1:
            return segment
        for _ in range(len(self._segments)):
            other = self._segments[self._next_victim]
            self._next_victim = (self._next_victim + 1) & self._mask
            if other and other is not segment:
                return other
        return segment

    def _evict(self, segment: dict[str, State], now: int, new: str) -> None:
        """Evict an expired counter of the first few, else the first that does not refuse; `new` only if it is alone."""
        # Only a few: a flood of new counters must not pay for a long search each time, and `sweep` finds the others.
        oldest = [key for key in islice(segment, _LOOKED_AT) if key != new]
        victim = next((key for key in oldest if expiry(segment[key]) <= now), None)
        if victim is None:
            for key in oldest:
                if self._used_up.get(key) is not segment[key] and not key.endswith(ENDINGS):
                    victim = key
                    break
                segment[key] = segment.pop(key)
            else:
                victim = next((key for key in segment if key != new), new)
            self.evicted += 1
        self.bytes -= _size(victim, segment.pop(victim))

    def sweep(self) -> None:
        """Evict the expired counters of the next segments; at most 256 calls go round the whole store."""
        now = self._clock()
        for _ in range(-(-len(self._segments) // 256)):
            self._evict_expired(self._segments[self._next], now)
            self._next = (self._next + 1) & self._mask
        if not self._to_check:
            self._to_check = list(self._used_up)
        for key in self._to_check[-_CHECKED:]:
            if self._segment(key).get(key) is not self._used_up[key]:
                del self._used_up[key]
        del self._to_check[-_CHECKED:]

    async def reset(self, hits: Sequence[Hit]) -> int:
        """As Store says."""
        return sum([self._remove(hit.key) | self._remove(hit.key + hit.limit.kind.ending) for hit in hits])

    def held(self, key: str) -> int:
        """As Store says: nothing."""
        return 0

    def leased(self) -> Mapping[Tally, Gauges]:
        """As Store says: nothing."""
        return {}

    def take(self, counter: OnCounter, wanted: Wanted, done: OnTaken) -> None:
        """As Store says, at once."""
        now, key, limit = self._clock(), counter.key, counter.limit
        algorithm, segment = leasing(counter.rule.algorithm), self._segment(key)
        before = state = segment.get(key)
        if wanted.back:
            state = algorithm.give(state, limit, wanted.back, wanted.back_end, now)
        state, granted = take(algorithm, state, limit, wanted.least, wanted.extra, now)
        self._keep(segment, key, before, state, now)
        if not granted.room and state is not None:
            self._note_used_up(key, state)
        done(granted)

    def use(self, rules: Iterable[Rule]) -> None:
        """Nothing is to be prepared."""

    def keep_bans(self, bans: Bans) -> "MemoryBans":
        """As Store says."""
        return MemoryBans(bans)

    def metrics(self) -> Sequence[Metric]:
        """None: the limiter counts all that there is."""
        return ()

    def _remove(self, key: str) -> bool:
        state = self._segment(key).pop(key, None)
        if state is not None:
            self.bytes -= _size(key, state)
        return state is not None

    def _evict_expired(self, segment: dict[str, State], now: int) -> None:
        for key in [key for key, state in segment.items() if expiry(state) <= now]:
            self.bytes -= _size(key, segment.pop(key))

    @property
    def counters(self) -> int:
        """The number of counters, with expired ones that are not swept yet."""
        return sum(map(len, self._segments))

    async def close(self) -> None:
        """Nothing is open."""


class MemoryBans:
    """Bans in the memory of this process, which end with it."""

    def __init__(self, bans: Bans) -> None:
        self._bans = bans

    async def now(self) -> int:
        """The time of this machine."""
        return self._bans.clock()

    async def put(self, ban: Ban) -> None:
        """As BanStore says."""
        if len(self._bans) >= MAX_BANS and self._bans.get(ban.key) is None:
            raise too_many()
        self._bans.put(ban)

    async def lift(self, key: str, who: str) -> Ban | None:
        """As BanStore says."""
        return self._bans.drop(key, f"lifted by {who}")


def _count_found(hit: Hit) -> None:
    kind = hit.limit.kind
    if found := kind.found(hit.decision):
        hit.tally.add(kind.tallied[0], found)


def _size(key: str, state: State) -> int:
    """Bytes of a counter, to within 10 %."""
    return _BESIDES + key.__sizeof__() + (state.__sizeof__() if state.__class__ is bytes else _INTEGERS)
