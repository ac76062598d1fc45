"""Allowed requests that wait for their turns: the queues of limits with `queue`, as far as this process has them.

The store gives each hit its turn, in the order in which all instances ask. Here the answers wait: one heap and one
timer for all, no task and no connection. Laws:

1. No answer is early by the store's clock, and none is later than its wait after the store's reply came.
2. Requests of one counter are answered in the order in which they joined, if they cost the same.
3. A turn belongs to the process, not to the request that asked for it. When a caller goes away, every request behind it
   takes the turn before its own, without a message. The last turn is then unused: it goes back to the store, or, if
   later ones were given meanwhile, to the request that joins next.

A turn and a request are apart for that: a line has requests in order, the heap has turns. A turn that comes is used by
the first request of its line that still waits. A request that costs more than the turn is long waits for
its own, which is always still to come.

All requests together take at most `MAX_BYTES`, and those of one caller at most `SHARE` times as much as is left free
(dynamic thresholds: Choudhury and Hahne, 1998). So some room is free for others, however many callers take all they
can. A request for which there is no room is allowed only if its turn has come.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple, Protocol

from ratelimit_service.model import Queued
from ratelimit_service.stores.hit import Hit
from ratelimit_service.system.clock import SECOND, Clock, steady_clock
from ratelimit_service.telemetry.gauges import Measured
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.metric import Metric, counter, gauge, histogram

log = logging.getLogger(__name__)

MAX_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of all requests that wait, as their plans estimate them: 30,000 with one descriptor. A client that
asks for a long queue and opens many streams would fill the memory otherwise."""

SHARE: Final = 4
"""One caller, such as an Envoy, may have four fifths of all, each of two four ninths. A hundred that take all they can
leave 160 KB to others."""

MAX_TURNS: Final = 200_000
"""The most turns in the heap. Turns that no request waits for are in it too."""

MARGIN: Final = 2_000
"""Microseconds for the way back to the caller, beside the store's answers. Envoy lets a request pass when the answer
comes after its timeout: a queue that answers late is not a limit."""

_SLACK: Final = 1000
"""What has gone stays in a list until as much of it is left, and so much more. A client may ask and go away again and
again: the turn is given back each time, so no limit stops it."""

_OFFSET_SECONDS: Final = SECOND
"""The time for which the smallest offset counts. Clocks drift apart by 0.1 ms in this time, at most."""

_CLOCK_STEP: Final = SECOND // 10
"""Offsets that differ by more are those of two clocks, or of one that was set."""


class Timer(Protocol):
    """Calls back once, at a moment of the steady clock."""

    def set(self, moment: int) -> None:
        """Call back then, and at no moment that was set before."""

    def close(self) -> None:
        """Call back no more."""


class Waiting:
    """A request on its way through the store and through its turns; `answer` is called when the last of these comes.

    It is called with True; with False if the request is refused instead, because the process stops.
    """

    __slots__ = ("answer", "caller", "lines", "size")

    def __init__(self, answer: Callable[[bool], None], size: int, caller: bytes) -> None:
        self.answer: Callable[[bool], None] | None = answer
        """None when it was answered, or its caller has gone."""
        self.size = size
        self.caller = caller
        self.lines: list[_Line] = []
        """One for each turn that has not come."""


class Turn(NamedTuple):
    """A part of the outflow of one counter."""

    due: int
    number: int
    line: "_Line"
    hit: Hit
    """That it was given to."""
    end: int
    """By the clock of the store."""


class _Line:
    """The requests that wait for turns of one counter, and the offset between its store's clock and ours."""

    __slots__ = ("alive", "best", "best_before", "cost", "measured", "since", "turns", "waiting")

    def __init__(self, measured: Measured, seen: int, now: int) -> None:
        self.measured = measured
        """Of the rule."""
        self.waiting: deque[tuple[Waiting, int]] = deque()
        """In order of arrival, each with its cost; those that are not answered from here are skipped."""
        self.alive = 0
        """How many of them are to be answered."""
        self.turns: dict[int, Turn] = {}
        """Those of it that are in the heap, by number; the last one is the latest, unless one was restored."""
        self.cost = 0
        """What all its requests cost; 0 if that differs."""
        self.best = self.best_before = seen
        self.since = now

    def add_alive(self, number: int) -> None:
        """So many more are to be answered."""
        self.alive += number
        self.measured.waiting += number

    def offset(self, seen: int, now: int) -> int:
        """Microseconds to add to a time of the store: the smallest recent offset, as its reply had the least delay."""
        if seen - self.best_before > _CLOCK_STEP:
            self.best = self.best_before = seen
        elif now - self.since > _OFFSET_SECONDS:
            self.best_before, self.best, self.since = self.best, seen, now
        elif seen < self.best:
            self.best = seen
        return self.best if self.best < self.best_before else self.best_before


class TurnQueues:
    """All requests of the process that wait; `open_timer` makes the timer when the first one does.

    Without a timer `run` has to be called, as in a simulation, where `clock` is none of the machine's.
    """

    def __init__(
        self,
        open_timer: Callable[[Callable[[], None]], Timer] | None = None,
        clock: Clock = steady_clock,
        *,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.clock = clock
        self.bytes = 0
        self.waited = Latency()
        self.expired = 0
        """Requests refused because their caller's deadline is sooner than their turn."""
        self.full = 0
        """Requests that could not wait because too much waits."""
        self.abandoned = 0
        """Requests whose caller went away while they waited."""
        self._open_timer = open_timer
        self._timer: Timer | None = None
        self._set_for = 0
        self._max_bytes = max_bytes
        self._bytes_of: dict[bytes, int] = {}
        """By caller."""
        self._store_time = 0
        """How long the store takes, on average."""
        self._lines: dict[str, _Line] = {}
        self._heap: list[Turn] = []
        """The next one first. What was given back is in it too."""
        self._number = 0
        self._given_back = 0
        """Turns in the heap at most that are given back."""
        self._waiting: set[Waiting] = set()
        self._stopped = False

    @property
    def requests(self) -> int:
        """The number of requests that wait for their turn."""
        return len(self._waiting)

    @property
    def due(self) -> int | None:
        """The time when the next turn comes."""
        return self._heap[0].due if self._heap else None

    def begin(self, answer: Callable[[bool], None], size: int, caller: bytes) -> Waiting | None:
        """Room for a request of this caller that may wait; None if there is none."""
        if self._stopped:
            return None
        of_caller = self._bytes_of.get(caller, 0) + size
        if of_caller > SHARE * (self._max_bytes - self.bytes - size):
            self.full += 1
            return None
        self.bytes += size
        self._bytes_of[caller] = of_caller
        return Waiting(answer, size, caller)

    def longest_wait(self, timeout: int) -> int:
        """The time that a request whose caller gives it that long may wait for its turn, behind the store's answer."""
        return max(0, timeout - MARGIN - 2 * self._store_time)

    def decided(self, asked: int) -> int:
        """The present time, when the store has answered what it was asked at that moment."""
        now = self.clock()
        self._store_time += (now - asked - self._store_time) // 8
        return now

    def join(self, request: Waiting, hits: Iterable[Hit], now: int) -> None:
        """Answer the request when the last turn of these hits comes."""
        self._add(hits, now, request)
        if request.lines:
            self._waiting.add(request)
            self._set_timer()
        else:
            self._answer(request)

    def offer(self, hits: Iterable[Hit], now: int) -> None:
        """Let others have the turns of hits whose request is refused."""
        self._add(hits, now, None)
        self._set_timer()

    def end(self, request: Waiting) -> None:
        """The request is over; the turns that it waited for are for those behind it."""
        if request.answer is not None:
            request.answer = None
            self.bytes -= request.size
            self._bytes_of[request.caller] -= request.size
            if not self._bytes_of[request.caller]:
                del self._bytes_of[request.caller]
            self._waiting.discard(request)
            for line in request.lines:
                line.add_alive(-1)

    def abandon(self, request: Waiting) -> Sequence[Turn]:
        """Its caller has gone. Returns the last turn of each of its lines, to be given back, or to `restore`."""
        self.abandoned += 1
        self.end(request)
        unused = []
        for line in dict.fromkeys(request.lines):
            # Of turns that are not equally long, those behind may need the last one.
            if line.cost and len(line.turns) > line.alive:
                _, turn = line.turns.popitem()
                unused.append(turn)
                self._given_back += 1
                self._forget_if_empty(turn)
            if len(line.waiting) > 2 * line.alive + _SLACK:
                line.waiting = deque(entry for entry in line.waiting if entry[0].answer is not None)
        if self._given_back > len(self._heap) // 2 + _SLACK:
            self._heap[:] = [turn for turn in self._heap if turn.number in turn.line.turns]
            heapify(self._heap)
            self._given_back = 0
        return unused

    def restore(self, turn: Turn) -> None:
        """A turn could not be given back: let others have it."""
        if turn.due > self.clock() and self._lines.setdefault(turn.hit.key, turn.line) is turn.line:
            self._push(turn.line, turn.due, turn.hit, turn.end)
            self._set_timer()

    def catch_up(self, now: int) -> None:
        """Answer those whose turn has come, if the timer is late: a request that comes now must not overtake them."""
        if self._heap and self._heap[0].due <= now:
            self.run()

    def run(self) -> None:
        """Answer the requests whose turns have come, and set the timer for the next."""
        heap, now = self._heap, self.clock()
        self._set_for = 0  # a timer that wakes too early is set again
        while heap and heap[0].due <= now:
            turn = heappop(heap)
            line = turn.line
            if line.turns.pop(turn.number, None) is None:
                continue  # given back
            self._forget_if_empty(turn)
            waiting = line.waiting
            while waiting:
                request, cost = waiting[0]
                if request.answer is None:
                    waiting.popleft()
                    continue
                if cost <= turn.hit.cost:
                    waiting.popleft()
                    line.add_alive(-1)
                    request.lines.remove(line)
                    if not request.lines:
                        self._answer(request)
                break
        self._set_timer()

    def refuse_all(self) -> None:
        """Refuse the requests that wait, and let no other one wait: the process is about to stop."""
        self._stopped = True
        for request in tuple(self._waiting):
            self._answer(request, in_turn=False)
        self._heap.clear()
        self._lines.clear()

    def close(self) -> None:
        """Release the timer; nothing waits any more."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def metrics(self) -> Sequence[Metric]:
        """Metrics of requests that wait, of how long they did, and of those that did not."""
        return (
            gauge("ratelimit_queue_requests", "Requests that wait in queues for their turn.", self.requests),
            gauge("ratelimit_queue_bytes", "Estimated size of the requests that wait, or may have to.", self.bytes),
            histogram(
                "ratelimit_queue_wait_seconds", "Time that requests waited in queues for their turn.", self.waited
            ),
            counter(
                "ratelimit_queue_expired_total",
                "Requests refused because their caller's deadline came before their turn in a queue.",
                self.expired,
            ),
            counter(
                "ratelimit_queue_full_total",
                "Requests that could not wait, because their caller, or all, had used up the memory for it.",
                self.full,
            ),
            counter(
                "ratelimit_queue_abandoned_total",
                "Requests whose caller went away while they waited in a queue.",
                self.abandoned,
            ),
        )

    def _add(self, hits: Iterable[Hit], now: int, request: Waiting | None) -> None:
        """Put the turns of these hits into the heap, and the request into their lines."""
        for hit in hits:
            decision, key = hit.decision, hit.key
            if not isinstance(decision, Queued):
                continue
            asked = decision.turn - decision.wait
            line = self._lines.get(key)
            if line is None:
                if request is None:
                    continue  # nothing waits for it
                assert hit.rule.measured is not None, "it has a queue"
                line = self._lines[key] = _Line(hit.rule.measured, now - asked, now)
                line.cost = hit.cost
            elif request is None and len(self._heap) >= MAX_TURNS:
                continue
            if line.cost != hit.cost:
                line.cost = 0
            due = decision.turn + line.offset(now - asked, now)
            if line.turns:  # a reply that came sooner than the one before must not overtake it
                due = max(due, next(reversed(line.turns.values())).due)
            self._push(line, due, hit, asked + decision.reset_after)
            if request is not None:
                line.waiting.append((request, hit.cost))
                line.add_alive(1)
                line.measured.longest_wait.note(decision.wait)
                request.lines.append(line)

    def _push(self, line: _Line, due: int, hit: Hit, end: int) -> None:
        self._number += 1
        turn = line.turns[self._number] = Turn(due, self._number, line, hit, end)
        heappush(self._heap, turn)

    def _forget_if_empty(self, turn: Turn) -> None:
        if not turn.line.turns:
            del self._lines[turn.hit.key]

    def _answer(self, request: Waiting, *, in_turn: bool = True) -> None:
        answer = request.answer
        self.end(request)
        if answer is not None:
            try:
                answer(in_turn)
            except Exception:  # the callback of one request must not harm those behind it
                log.exception("a request could not be answered")

    def _set_timer(self) -> None:
        if not self._heap or self._open_timer is None:
            return
        if self._timer is None:
            self._timer = self._open_timer(self.run)
        due = self._heap[0].due
        if due != self._set_for:
            self._set_for = due
            self._timer.set(due)
