"""Requests that wait for their hits to be decided. Pure. Hot path.

Law: each that is not taken back is answered exactly once: by its last decision, or when its time is over by policy,
whichever comes first. What comes later is dropped.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ratelimit_service.errors import StoreError
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.faults import CAUSES, Fault
from ratelimit_service.stores.redis.policy import Policy
from ratelimit_service.stores.store import Done

log = logging.getLogger(__name__)


class Waiting:
    """A request; its hits travel in `left` parts, to one server each."""

    __slots__ = ("answered", "deadline", "done", "error", "failed", "granted", "hits", "left", "sent")

    def __init__(self, hits: Sequence[Hit], done: Done, deadline: float, granted: float) -> None:
        self.hits = hits
        self.done = done
        self.deadline = deadline
        """Seconds of the monotonic clock."""
        self.granted = granted
        """Seconds that it had when it came."""
        self.left = 0
        self.answered = False
        self.sent = False
        """Some part of it is on its way, or was."""
        self.failed = False
        """Some part of it was decided by policy."""
        self.error: StoreError | None = None

    def settle(self) -> None:
        """One more part has its decisions; the last one answers the request."""
        self.left -= 1
        if self.left <= 0 and not self.answered:
            self.answer()

    def cancel(self) -> bool:
        """As Cancel says: as long as no part of it is sent, or decided."""
        if self.sent or self.failed or self.answered:
            return False
        self.answered = True
        return True

    def answer(self) -> None:
        """Now. Whatever the caller does with it harms no other request of the batch."""
        self.answered = True
        try:
            self.done(self.error)
        except Exception:
            log.exception("a request could not be answered")


class WaitingRoom:
    """All requests that wait, a queue for each time that is granted: in each the first has the first deadline."""

    def __init__(self, policy: Policy) -> None:
        self.errors: dict[str, int] = {}
        """Requests of which some part was answered by policy, by the first cause."""
        self.close_calls = 0
        """Requests that were decided in the last fifth of their time."""
        self._policy = policy
        self._queues: dict[int, deque[Waiting]] = {}

    def __len__(self) -> int:
        """How many wait, or have been answered while one before them in their queue waits."""
        return sum(map(len, self._queues.values()))

    def queue(self, granted: int) -> Callable[[Waiting], None]:
        """Puts requests that are granted so many microseconds where they wait."""
        return self._queues.setdefault(granted, deque()).append

    def fail(self, waiting: Waiting, hits: Sequence[Hit], fault: Fault) -> None:
        """Decide a part of a request by policy."""
        if waiting.answered:
            return
        cause = fault.cause
        if not waiting.failed:
            waiting.failed = True
            self.errors[cause] = self.errors.get(cause, 0) + 1
        error = self._policy.answer(hits, CAUSES[cause].words)
        waiting.error = waiting.error or error
        waiting.settle()

    def dismiss(self) -> None:
        """Forget those at the heads of the queues that have been answered.

        Were they kept until their deadline, the garbage collector would go through them again and again: 20 µs a
        request with a deadline of a second.
        """
        for queue in self._queues.values():
            while queue and queue[0].answered:
                queue.popleft()

    def expire(self, now: float) -> float | None:
        """Answer what has waited too long; says when the next one's time is over, None when none waits."""
        soonest: float | None = None
        for queue in tuple(self._queues.values()):  # what is answered may ask again
            while queue:
                waiting = queue[0]
                if not waiting.answered:
                    if waiting.deadline > now:
                        if soonest is None or waiting.deadline < soonest:
                            soonest = waiting.deadline
                        break
                    self._give_up(waiting, _LATE)
                queue.popleft()
        return soonest

    def clear(self, fault: Fault) -> None:
        """Answer all."""
        for queue in tuple(self._queues.values()):
            for waiting in tuple(queue):
                if not waiting.answered:
                    self._give_up(waiting, fault)
            queue.clear()

    def _give_up(self, waiting: Waiting, fault: Fault) -> None:
        """Answer what is decided as it is, and the rest by policy."""
        waiting.left = 0
        self.fail(waiting, [hit for hit in waiting.hits if not hasattr(hit, "decision")], fault)


_LATE: Final = Fault("timeout")
