"""The quotas of Envoys: their streams, which bucket is of which rule, and what is sent when. No I/O.

A bucket of an Envoy has an id, an unordered map of strings. In the order in which rules match all of its entries it is
a descriptor: its counter is that of ShouldRateLimit for this descriptor, so callers of both have one limit together.

Work is done in slices, so that a report of thousands of buckets holds up no call: `work` does one, at the moment that
it has set its timer to.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from heapq import heappop, heappush
from typing import Final, NamedTuple

from ratelimit_service.algorithms.lease import Granted
from ratelimit_service.errors import RpcError, Status, TooLongError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.quota import Holding, Quota
from ratelimit_service.limiter.turns import Timer
from ratelimit_service.model import Descriptor, Limit, Request
from ratelimit_service.rules.leasing import why_no_quota
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.system.clock import HOUR, MINUTE, SECOND, Clock, steady_clock
from ratelimit_service.telemetry.logs import ThrottledLog
from ratelimit_service.telemetry.metric import Metric, counter, gauge

log = logging.getLogger(__name__)

MAX_STREAMS: Final = 1000
"""Streams at once; an Envoy has one for each domain. A client could open streams that cost nothing to keep."""

MAX_WAITING: Final = 4 * 1024 * 1024
"""Bytes of the reports of one stream that wait to be read: a client that floods them would fill the memory."""

_USAGE_BYTES: Final = 400
"""Bytes of a bucket's usage in such a report, beside its id."""

_SLICE: Final = 100
"""Buckets in a slice of work: two milliseconds at most."""

_PAUSE: Final = 1000
"""Microseconds between two slices, for calls."""

_INTERVAL: Final = 5 * SECOND
"""Between two reports of an Envoy, until they are measured."""

_LONGEST_INTERVAL: Final = MINUTE

_IDLE: Final = MINUTE
"""Microseconds without requests after which a bucket is abandoned: an Envoy forgets none by itself."""

_LONG: Final = HOUR
"""Microseconds that all requests of a bucket are allowed, or denied, where no counter decides."""

_WITHOUT_STORE: Final = 5 * SECOND
"""The same while the store is away."""

_LONGEST_WAIT: Final = MINUTE
"""Microseconds that an entry stays in the heap at most: it keeps a bucket whose stream has ended."""

_MOST: Final = 2**32
"""The most requests that one report counts."""


class QuotaBounds(NamedTuple):
    """The most of all buckets. A stream has half of what is free at most: header values of clients make them."""

    buckets: int = 100_000
    """150 MB."""
    id_bytes: int = 64 * 1024 * 1024
    """Of their ids: one may be as long as a message."""


DEFAULT_QUOTA_BOUNDS: Final = QuotaBounds()


class Verb(Enum):
    """What an Envoy is to do with a bucket."""

    ALLOW = auto()
    DENY = auto()
    LEASE = auto()
    """Have a fresh bucket of tokens."""
    RENEW = auto()
    """Have the same one for longer."""
    ABANDON = auto()


class Action(NamedTuple):
    """What an Envoy is told of a bucket."""

    bucket_id: bytes
    verb: Verb
    ttl: int = 0
    """Seconds."""
    units: int = 0


class Usage(NamedTuple):
    """A bucket in a report."""

    bucket_id: bytes
    allowed: int
    denied: int
    elapsed: int
    """Microseconds, as the Envoy says."""


Send = Callable[[Sequence[Action]], None]
ReadId = Callable[[bytes], Mapping[str, str]]


class EnvoyBucket:
    """A bucket of one Envoy."""

    __slots__ = (
        "blanket",
        "bucket_id",
        "domain",
        "due",
        "edition",
        "holding",
        "lasts_until",
        "reported_at",
        "starts_at",
        "stream",
        "used_at",
    )

    def __init__(self, stream: "QuotaStream", domain: str, bucket_id: bytes) -> None:
        self.stream = stream
        self.domain = domain
        self.bucket_id = bucket_id
        self.edition: object = None
        self.holding: Holding | None = None
        """None if no counter decides."""
        self.blanket: Verb | None = None
        """ALLOW or DENY; None if it gets no assignment."""
        self.lasts_until = 0
        """Of that."""
        self.due = 0
        """When it is looked at beside reports."""
        self.starts_at = 0
        """When the window after the one begins of which it has got units, or has got none."""
        self.reported_at = 0
        self.used_at = 0


class QuotaStream:
    """A stream of one Envoy."""

    def __init__(self, quotas: "Quotas", send: Send) -> None:
        self.buckets: dict[tuple[str, bytes], EnvoyBucket] = {}
        self.interval = _INTERVAL
        self.soft = False
        """Requests pass without an assignment."""
        self.actions: list[Action] = []
        self.waiting_bytes = self.id_bytes = 0
        self.open = True
        self.send = send
        self._quotas = quotas

    def report(self, domain: str, usages: Sequence[Usage]) -> None:
        """Read a report, now or soon; raises RpcError if too many wait."""
        self._quotas.put(self, domain, usages)

    def close(self) -> None:
        """It has ended."""
        self._quotas.close_stream(self)


class Quotas:
    """The quotas of all Envoys whose streams this process has.

    `policy` is the failure policy of rules without their own. `open_timer` makes the timer for `work`.
    """

    def __init__(
        self,
        limiter: Limiter,
        read_id: ReadId,
        *,
        policy: str = "error",
        bounds: QuotaBounds = DEFAULT_QUOTA_BOUNDS,
        clock: Clock = steady_clock,
        open_timer: Callable[[Callable[[], None]], Timer] | None = None,
    ) -> None:
        self._limiter = limiter
        self._read_id = read_id
        self._policy = policy
        self._bounds = bounds
        self._id_bytes = 0
        self._clock = clock
        self._open_timer = open_timer
        self._timer: Timer | None = None
        self._streams: set[QuotaStream] = set()
        self._quotas: dict[str, Quota] = {}
        """By the counter's key."""
        self._reports: deque[tuple[QuotaStream, str, Iterator[Usage], int]] = deque()
        self._due: list[tuple[int, int, EnvoyBucket]] = []
        """A heap. An entry whose moment is not the bucket's is void."""
        self._numbered = 0
        self._dirty: dict[QuotaStream, None] = {}
        self._warnings = ThrottledLog(log, clock)
        self._working = False
        self.buckets = 0
        self.assigned = self.allowed = self.denied = self.lost = self.refused = self.abandoned = 0

    def open(self, send: Send) -> QuotaStream:
        """Begin a stream; raises RpcError if there are too many."""
        if len(self._streams) >= MAX_STREAMS:
            raise RpcError(Status.RESOURCE_EXHAUSTED, f"there are {MAX_STREAMS} streams, the maximum")
        stream = QuotaStream(self, send)
        self._streams.add(stream)
        return stream

    def put(self, stream: QuotaStream, domain: str, usages: Sequence[Usage]) -> None:
        """Read a report, now or soon."""
        size = sum(len(usage.bucket_id) + _USAGE_BYTES for usage in usages)
        if stream.waiting_bytes and stream.waiting_bytes + size > MAX_WAITING:
            raise RpcError(Status.RESOURCE_EXHAUSTED, f"more than {MAX_WAITING} bytes of reports wait to be read")
        stream.waiting_bytes += size
        at_once = not self._reports
        self._reports.append((stream, domain, iter(usages), size))
        if at_once:
            self.work()

    def work(self) -> None:
        """Do a slice of what is due, send what comes of it, and set the timer."""
        now = self._clock()
        self._working = True
        try:
            self._work(now)
        finally:
            self._working = False
        self._flush()
        self._set_timer(now)

    def _work(self, now: int) -> None:
        left = _SLICE
        while left and self._due and self._due[0][0] <= now:
            due, _, bucket = heappop(self._due)
            if bucket.due == due and bucket.stream.open:
                bucket.due = 0
                left -= 1
                self._on_time(bucket, now)
        while left and self._reports:
            stream, domain, usages, size = self._reports[0]
            usage = next(usages, None) if stream.open else None
            if usage is None:
                stream.waiting_bytes -= size
                self._reports.popleft()
                continue
            left -= 1
            self._on_usage(stream, domain, usage, now)

    def sweep(self) -> None:
        """Do what is due, where there is no timer."""
        if self._reports or self._dirty or (self._due and self._due[0][0] <= self._clock()):
            self.work()

    def close_stream(self, stream: QuotaStream) -> None:
        """Forget its buckets; what they hold is lost."""
        if stream.open:
            stream.open = False
            self._streams.discard(stream)
            self._dirty.pop(stream, None)
            for bucket in stream.buckets.values():
                self._drop_holding(bucket)
            self.buckets -= len(stream.buckets)
            self._id_bytes -= stream.id_bytes
            stream.buckets = {}

    def close(self) -> None:
        """Do no more."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def metrics(self) -> Sequence[Metric]:
        """Metrics of streams, buckets and units."""
        name = "ratelimit_quota"
        return (
            gauge(f"{name}_streams", "Open streams of Envoys that get quotas (RLQS).", len(self._streams)),
            gauge(f"{name}_buckets", "Buckets that these Envoys report.", self.buckets),
            counter(f"{name}_units_assigned_total", "Units of limits that Envoys were given to spend.", self.assigned),
            counter(f"{name}_requests_allowed_total", "Requests that Envoys have reported as allowed.", self.allowed),
            counter(f"{name}_requests_denied_total", "Requests that Envoys have reported as denied.", self.denied),
            counter(
                f"{name}_units_lost_total",
                "Units assigned that were neither reported as used nor given back: their stream or their window ended.",
                self.lost,
            ),
            counter(
                f"{name}_buckets_refused_total",
                "Reports of buckets that got no assignment: there are too many, or their rule cannot be assigned.",
                self.refused,
            ),
            counter(
                f"{name}_buckets_abandoned_total",
                "Buckets without requests that Envoys were told to forget.",
                self.abandoned,
            ),
        )

    # A bucket in a report.

    def _on_usage(self, stream: QuotaStream, domain: str, usage: Usage, now: int) -> None:
        allowed, denied = min(usage.allowed, _MOST), min(usage.denied, _MOST)
        self.allowed += allowed
        self.denied += denied
        bucket = stream.buckets.get((domain, usage.bucket_id))
        if bucket is None:
            size = len(domain) + len(usage.bucket_id)
            free, free_bytes = self._bounds.buckets - self.buckets, self._bounds.id_bytes - self._id_bytes
            if len(stream.buckets) >= free or stream.id_bytes + size > free_bytes:
                self.refused += 1
                self._warnings.warn(f"an Envoy gets no quotas for more buckets: there are {self.buckets}")
                return
            bucket = stream.buckets[domain, usage.bucket_id] = EnvoyBucket(stream, domain, usage.bucket_id)
            self.buckets += 1
            self._id_bytes += size
            stream.id_bytes += size
            # An Envoy that denies where there is no assignment has allowed nothing yet.
            stream.soft = stream.soft or (not usage.elapsed and allowed > 0)
        else:
            _measure(stream, now - bucket.reported_at)
        bucket.reported_at = now
        if bucket.edition is not self._limiter.edition:
            self._assign_rule(bucket, now)
        if allowed or denied or not bucket.used_at:
            bucket.used_at = now
        holding = bucket.holding
        if holding is None:
            self._on_blanket(bucket, now)
            return
        tally = holding.quota.tally
        tally.total_hits += allowed + denied
        tally.within_limit += allowed
        tally.over_limit += denied
        lost = holding.lost
        holding.report(allowed, denied, usage.elapsed, now, soft=stream.soft)
        self.lost += holding.lost - lost
        if holding.is_idle(now, _IDLE):
            self._abandon(bucket)
            return
        self._decide(bucket, holding, now)

    def _on_blanket(self, bucket: EnvoyBucket, now: int) -> None:
        if now - bucket.used_at >= _IDLE:
            self._abandon(bucket)
        elif bucket.blanket is None:
            self.refused += 1
        elif bucket.lasts_until <= now + 3 * bucket.stream.interval:
            bucket.lasts_until = now + _LONG
            self._tell(bucket, bucket.blanket, _LONG // SECOND)

    def _abandon(self, bucket: EnvoyBucket) -> None:
        self.abandoned += 1
        self._tell(bucket, Verb.ABANDON)
        self._drop_holding(bucket)
        bucket.due = 0
        del bucket.stream.buckets[bucket.domain, bucket.bucket_id]
        self.buckets -= 1
        size = len(bucket.domain) + len(bucket.bucket_id)
        self._id_bytes -= size
        bucket.stream.id_bytes -= size

    def _decide(self, bucket: EnvoyBucket, holding: Holding, now: int, *, start: bool = False) -> None:
        """Take units, or renew what the Envoy has, or have it deny."""
        if holding.lease.asked_until:
            return
        interval = bucket.stream.interval
        units = holding.wanted(now, interval, start=start)
        if units or holding.debt or holding.lease.back:
            self._take(bucket, holding, units, now)
        elif (renewal := holding.renewal(now, interval)) is not None:
            self._tell(bucket, Verb.RENEW, renewal.ttl, renewal.units)
        elif holding.quota.empty_until > now:
            self._deny(bucket, holding, now)
        if holding.lease.end > now:
            self._schedule_next(bucket, holding, now)

    def _take(self, bucket: EnvoyBucket, holding: Holding, units: int, now: int) -> None:
        def done(granted: Granted | None) -> None:
            self._on_granted(bucket, holding, granted, now, asked_for=units)

        self._limiter.store.take(holding.quota, holding.ask(units), done)

    def _on_granted(
        self, bucket: EnvoyBucket, holding: Holding, granted: Granted | None, asked: int, *, asked_for: int
    ) -> None:
        now, lost = self._clock(), holding.lost
        grant = holding.answered(granted, asked, now, bucket.stream.interval)
        if not bucket.stream.open or bucket.holding is not holding:
            holding.lease.put_back(holding.lease.left, holding.lease.term_end)  # it was never sent
            holding.lease.left = 0
        self.lost += holding.lost - lost
        if holding.lease.back and granted is not None:
            self._take(bucket, holding, 0, now)
        if not bucket.stream.open or bucket.holding is not holding:
            return
        if granted is None:
            self._without_store(bucket, holding, now)
        elif grant is not None:
            self.assigned += grant.units
            self._tell(bucket, Verb.LEASE, grant.ttl, grant.units)
            bucket.starts_at = holding.quota.end
            self._schedule_next(bucket, holding, now)
        elif asked_for:
            bucket.starts_at = holding.quota.end
            self._schedule(bucket, bucket.starts_at)
            if not granted.units:
                self._deny(bucket, holding, now)

    def _deny(self, bucket: EnvoyBucket, holding: Holding, now: int) -> None:
        """Have it deny until the window's end, and a little longer, unless it still has units."""
        bucket.starts_at = holding.quota.end
        self._schedule(bucket, bucket.starts_at)
        if not holding.lease.left and holding.denied_until <= now:
            ttl = -(-(min(holding.quota.end - now, _LONG) + bucket.stream.interval) // SECOND)
            holding.denied_until = now + ttl * SECOND
            self._tell(bucket, Verb.DENY, ttl)

    def _without_store(self, bucket: EnvoyBucket, holding: Holding, now: int) -> None:
        """By the policy of the rule; without one of these two it is as the Envoy's configuration says."""
        policy = holding.quota.rule.on_store_failure or self._policy
        ttl = _WITHOUT_STORE + bucket.stream.interval
        if policy == "open":
            self._tell(bucket, Verb.ALLOW, ttl // SECOND)
        elif policy == "closed" and not holding.lease.left:
            self._tell(bucket, Verb.DENY, ttl // SECOND)

    # Beside reports.

    def _on_time(self, bucket: EnvoyBucket, now: int) -> None:
        holding = bucket.holding
        if holding is None:
            return
        if holding.lease.end > now:
            if now >= holding.last_renewal_at and (renewal := holding.last_renewal(now)) is not None:
                self._tell(bucket, Verb.RENEW, renewal.ttl, renewal.units)
            self._decide(bucket, holding, now)
        elif now < bucket.starts_at:
            self._schedule(bucket, bucket.starts_at)
        elif 0 < holding.quota.end - now < SECOND:  # it was measured again, a little later
            bucket.starts_at = holding.quota.end
            self._schedule(bucket, bucket.starts_at)
        else:
            # Without this a window would begin with denials until the next report.
            self._decide(bucket, holding, now, start=True)

    def _schedule_next(self, bucket: EnvoyBucket, holding: Holding, now: int) -> None:
        """Look at it when its units are low, its lease ends, or the next window begins."""
        low = holding.low_at(now)
        if low is not None:
            self._schedule(bucket, low)
        self._schedule(bucket, holding.last_renewal_at if now < holding.last_renewal_at else bucket.starts_at)

    def _schedule(self, bucket: EnvoyBucket, due: int) -> None:
        """Look at it then, or earlier."""
        if not bucket.due or due < bucket.due:
            now = self._clock()
            bucket.due = min(max(due, now + _PAUSE), now + _LONGEST_WAIT)
            self._numbered += 1
            heappush(self._due, (bucket.due, self._numbered, bucket))

    # Rules.

    def _assign_rule(self, bucket: EnvoyBucket, now: int) -> None:
        """Find what decides about the bucket, by the rules in force."""
        edition = self._limiter.edition
        blanket, hit = self._look_up(bucket)
        before, holding = bucket.edition, bucket.holding
        bucket.edition = edition
        if before is not None and holding is not None and hit is not None:
            quota = holding.quota
            if hit.key == quota.key and _termed(hit) == quota.limit:
                quota.rule, quota.tally = hit.rule, hit.tally
                return
        self._drop_holding(bucket)
        bucket.lasts_until = 0
        bucket.blanket = blanket
        if hit is not None:
            bucket.holding = Holding(self._quota_of(hit), now)

    def _look_up(self, bucket: EnvoyBucket) -> tuple[Verb | None, Hit | None]:
        """What a bucket always is told, or the hit on its counter; neither if it gets no assignment."""
        limiter = self._limiter
        if limiter.book is None:
            return None, None
        try:
            entries = limiter.book.ordered(bucket.domain, self._read_id(bucket.bucket_id), limiter.pattern_bounds)
            plan = limiter.plan(Request(bucket.domain, [Descriptor(entries)]))
        except (RpcError, TooLongError, ValueError) as error:
            self._warnings.warn(f"a bucket of an Envoy gets no quota: {error}")
            return None, None
        if plan.refused and not limiter.shadow_mode:
            return Verb.DENY, None
        if limiter.shadow_mode or not plan.charged or all(hit.rule.shadow for hit in plan.charged):
            return Verb.ALLOW, None
        hit = plan.charged[0]
        why = why_no_quota(hit.rule) if len(plan.charged) == 1 else "it has several limits"
        if why:
            self._warnings.warn(f"{_named(hit.rule)} gives no quotas to Envoys: {why}")
            return None, None
        return None, hit

    def _quota_of(self, hit: Hit) -> Quota:
        quota = self._quotas.get(hit.key)
        limit = _termed(hit)
        if quota is None or quota.limit != limit:
            quota = self._quotas[hit.key] = Quota(hit.rule, limit, hit.key, hit.tally)
        return quota

    def _drop_holding(self, bucket: EnvoyBucket) -> None:
        holding, bucket.holding = bucket.holding, None
        if holding is None:
            return
        lost = holding.lost
        holding.close()
        self.lost += holding.lost - lost
        quota = holding.quota
        if not quota.holders and self._quotas.get(quota.key) is quota:
            del self._quotas[quota.key]

    # Sending.

    def _tell(self, bucket: EnvoyBucket, verb: Verb, ttl: int = 0, units: int = 0) -> None:
        stream = bucket.stream
        stream.actions.append(Action(bucket.bucket_id, verb, ttl, units))
        self._dirty[stream] = None
        if not self._working and len(self._dirty) == 1:
            self._set_timer(self._clock())

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for stream in dirty:
            actions, stream.actions = stream.actions, []
            stream.send(actions)

    def _set_timer(self, now: int) -> None:
        if self._open_timer is None:
            return
        if self._dirty:
            due = now
        elif self._reports or (self._due and self._due[0][0] <= now):
            due = now + _PAUSE
        elif self._due:
            due = self._due[0][0]
        else:
            return
        if self._timer is None:
            self._timer = self._open_timer(self.work)
        self._timer.set(due)


def _measure(stream: QuotaStream, gap: int) -> None:
    """Rises at once, and falls slowly: a new bucket reports at once, and others with it do not."""
    gap = min(gap, _LONGEST_INTERVAL)
    if gap >= stream.interval:
        stream.interval = gap
    elif gap >= SECOND // 10:
        stream.interval -= (stream.interval - gap) // 8


def _termed(hit: Hit) -> Limit:
    """The limit with terms as long as its windows, or their parts."""
    return replace(hit.limit, longest_term=hit.limit.window)


def _named(rule: Rule) -> str:
    return f"the rule at {rule.place}" if rule.place is not None else "a rule"
