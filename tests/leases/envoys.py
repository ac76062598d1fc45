"""A fleet of Envoys that get quotas of one counter, as Envoy 1.40 was seen to do it; no time passes by itself.

Messages take their time on the way, and the store may be slow or away. What was let through is counted by windows.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from ratelimit_service.algorithms.lease import Granted, Wanted
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.quotas import Action, Quotas, QuotaStream, Usage, Verb
from ratelimit_service.model import Descriptor, Request
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.stores.hit import OnCounter
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.store import OnTaken
from ratelimit_service.system.clock import SECOND
from tests.clocks import Clock

MILLISECOND = SECOND // 1000
EPOCH = 1_800_000_000 * SECOND
"""Of the store's clock, when that of the service is 0: at the beginning of a minute."""


class Fleet:
    """A store, a service that may be restarted, and Envoys."""

    def __init__(self, book: RuleBook, seed: int = 0, *, latency: int = 100 * MILLISECOND) -> None:
        self.random = Random(seed)  # noqa: S311 - no secret
        self.clock = Clock(10 * SECOND)
        self.book = book
        self.latency = latency
        self.memory = MemoryStore(1000, lambda: EPOCH + self.clock.now)
        self.store_away = False
        self.store_delay = 0
        self.allowed: Counter[int] = Counter()
        """By the second in which they were."""
        self.called: Counter[int] = Counter()
        """By callers of ShouldRateLimit."""
        self.wanted: Counter[int] = Counter()
        self.envoys: list[Envoy] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self.restart()

    def restart(self) -> None:
        """The service ends, with all streams, and another one begins."""
        for envoy in self.envoys:
            envoy.stream = None
        self.limiter = Limiter(self)
        self.limiter.book = self.book
        self.quotas = Quotas(self.limiter, lambda bucket: {"user": bucket.decode()}, clock=self.clock)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)

    def take(self, counter: OnCounter, wanted: Wanted, done: OnTaken) -> None:
        """As a store that takes its time, or is away: then it may have done what was asked all the same."""
        if self.store_away:
            if self.random.random() < 0.5:
                self.memory.take(counter, wanted, lambda _: None)
            self.later(self.store_delay, lambda: done(None))
            return
        there = self.random.randint(0, self.store_delay)

        def answer(granted: Granted | None) -> None:
            self.later(self.random.randint(0, self.store_delay), lambda: done(granted))

        self.later(there, lambda: self.memory.take(counter, wanted, answer))

    def call(self, user: str, cost: int) -> int:
        """The requests of callers of ShouldRateLimit that are allowed, one after the other."""
        allowed = 0
        for _ in range(cost):
            plan = self.limiter.plan(Request("shop", [Descriptor((("user", user),))]))
            allowed += self.limiter.decide_now(plan, lambda verdict, _: verdict.allowed, b"") is True
        self.called[self.clock.now // SECOND] += allowed
        return allowed

    def later(self, delay: int, then: Callable[[], None]) -> None:
        """Do it after that time."""
        heappush(self._events, (self.clock.now + delay, next(self._numbers), then))

    def run(self, duration: int) -> None:
        """Let time pass; the service looks every 10 ms at what is due."""
        end = self.clock.now + duration
        self._tick(end)
        while self._events and self._events[0][0] <= end:
            self.clock.now, _, then = heappop(self._events)
            then()
        self.clock.now = end

    def _tick(self, end: int) -> None:
        self.quotas.sweep()
        if self.clock.now + 10 * MILLISECOND < end:
            self.later(10 * MILLISECOND, lambda: self._tick(end))

    def by_window(self, seconds: int) -> list[int]:
        """What was allowed in each window of so many seconds."""
        by: Counter[int] = Counter()
        for second, number in self.allowed.items():
            by[second // seconds] += number
        return [by[window] for window in sorted(by)]


class Envoy:
    """One that denies where it has no assignment, unless it is soft, and where that has expired."""

    def __init__(
        self, fleet: Fleet, rate: float, *, user: str = "ada", soft: bool = False, interval: int = 5 * SECOND
    ) -> None:
        self.fleet = fleet
        self.rate = rate
        self.user = user.encode()
        self.soft = soft
        self.interval = interval
        self.stream: QuotaStream | None = None
        self.running = True
        self.known = False
        self.verb: Verb | None = None
        self.tokens = self.size = self.until = self.allowed = self.denied = self.counted_since = 0
        self._last = {"report": 0, "answer": 0}
        fleet.envoys.append(self)
        fleet.later(0, self._request)

    def kill(self) -> None:
        """It ends, and its stream with it."""
        self.running = False
        self.break_stream()

    def break_stream(self) -> None:
        """The service sees the end of the stream; what the Envoy has is enforced until it expires."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None

    def _request(self) -> None:
        if not self.running:
            return
        fleet, now = self.fleet, self.fleet.clock.now
        if self.rate:
            fleet.wanted[now // SECOND] += 1
            if self._allows(now):
                fleet.allowed[now // SECOND] += 1
                self.allowed += 1
            else:
                self.denied += 1
            if not self.known:
                self.known = True
                self._report(first=True)
                fleet.later(self.interval, self._on_timer)
        fleet.later(int(fleet.random.expovariate(self.rate or 1) * SECOND), self._request)

    def _allows(self, now: int) -> bool:
        if self.verb is None:
            return self.soft
        if now >= self.until or self.verb is Verb.DENY:
            return False
        if self.verb is Verb.ALLOW:
            return True
        self.tokens -= 1
        if self.tokens < 0:
            self.tokens = 0
            return False
        return True

    def _on_timer(self) -> None:
        if self.running and self.known:
            self._report()
            self.fleet.later(self.interval, self._on_timer)

    def _report(self, *, first: bool = False) -> None:
        fleet, now = self.fleet, self.fleet.clock.now
        if self.stream is None:
            self.stream = stream = fleet.quotas.open(lambda actions: self._send(stream, actions))
        stream = self.stream
        elapsed = 0 if first else (now - self.counted_since) // SECOND * SECOND
        usage = Usage(self.user, self.allowed, self.denied, elapsed)
        self.allowed, self.denied, self.counted_since = 0, 0, now
        self._deliver("report", lambda: self._arrive(stream, usage))

    def _arrive(self, stream: QuotaStream, usage: Usage) -> None:
        if stream.open and self.stream is stream:
            stream.report("shop", [usage])

    def _send(self, stream: QuotaStream, actions: Sequence[Action]) -> None:
        self._deliver("answer", lambda: self._apply(actions))

    def _deliver(self, way: str, then: Callable[[], None]) -> None:
        """In order, on each of the two ways."""
        fleet = self.fleet
        at = max(self._last[way], fleet.clock.now + fleet.random.randint(0, fleet.latency))
        self._last[way] = at
        fleet.later(at - fleet.clock.now, then)

    def _apply(self, actions: Sequence[Action]) -> None:
        # What was sent before the stream broke may still arrive.
        if not self.running:
            return
        now = self.fleet.clock.now
        for action in actions:
            expired = self.verb is not Verb.LEASE or now >= self.until
            match action.verb:
                case Verb.ABANDON:
                    self.verb, self.known = None, False
                    continue
                case Verb.LEASE:
                    self.tokens = self.size = action.units
                case Verb.RENEW if expired:
                    self.tokens = self.size = action.units
                case Verb.RENEW if action.units != self.size:
                    self.tokens, self.size = action.units * self.tokens // self.size, action.units
            self.verb = Verb.LEASE if action.verb is Verb.RENEW else action.verb
            self.until = now + action.ttl * SECOND
