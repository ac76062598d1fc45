"""Hits on their way to one server: at most two calls under way, and what comes meanwhile waits for the next. Hot path.

A lane is open while it has a connection and its breaker is closed. When it loses its server, all that is under way and
all that waits is answered by policy, and so is what comes, until the server is found again: one attempt at a time, with
growing pauses. Only a lane that has just begun, or whose connection was closed by the other side, lets hits wait for
its first attempt: most often the server is there, and nobody notices.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from time import monotonic
from typing import Any, Final

from ratelimit_service.stores.redis.calls import UNFIT, Calls, Learn, Redirect
from ratelimit_service.stores.redis.faults import Fault
from ratelimit_service.stores.redis.link import Link
from ratelimit_service.stores.redis.orders import MOST_IN_CALL, MOST_IN_PART, Group, Order, Part
from ratelimit_service.stores.redis.outage import Outage
from ratelimit_service.stores.redis.seeker import Seeker
from ratelimit_service.stores.redis.waiting import WaitingRoom
from ratelimit_service.stores.store import Lost

MOST_IN_FLIGHT: Final = 2
"""One that Redis works on while the other one is on the wire."""

COMMAND: Final = 4
"""Hits that take Redis as long as it takes to begin a command, of which there is one for each slot of a Cluster."""

MOST_WAITING: Final = 10_000
"""Requests that may wait for a call: what 100,000 a second leave in a tenth of a second. Beyond it they are answered
by policy at once: were there no bound, a server that hangs under full load would fill the memory."""


class Lane:
    """The way to one server."""

    def __init__(
        self,
        name: str,
        open_link: Callable[[], Awaitable[Link]],
        room: WaitingRoom,
        *,
        deadline: float,
        policy: str,
    ) -> None:
        self.name = name
        self.redirect: Redirect = _nowhere
        self.on_lost: Callable[[], None] = _nothing
        self.learn: Learn = _nothing
        self.forget: Callable[[], None] = _nothing
        self.resets_key = ""
        """Where the server says when counters were last reset; empty when nobody wants to know."""
        self._room = room
        self._deadline = deadline
        self._calls: Calls | None = None
        self._queue: list[Part] = []
        self._scheduled = False
        self._patient = True
        self._fault = Fault("unreachable")
        self._outage = Outage(name, policy)
        self._heard = monotonic()
        self._seeker = Seeker(open_link, self._outage, self._found, self._open)
        self._counters = 0
        self._counted = 0.0
        self._reset = b""

    @property
    def healthy(self) -> bool:
        """It can decide hits now."""
        return self._calls is not None

    @property
    def lost(self) -> Lost | None:
        """What is wrong with the server, if it is lost."""
        return self._outage.lost

    @property
    def counters(self) -> int:
        """Keys of the server, as it said a moment ago."""
        return self._counters

    @property
    def waiting(self) -> int:
        """Parts that wait to be sent, or for an answer."""
        return len(self._queue) + (0 if self._calls is None else self._calls.parts)

    def start(self) -> None:
        """Look for the server, if nobody does."""
        if self._calls is None:
            self._seeker.start()

    def put(self, part: Part) -> None:
        """Send it with the next call, or answer it by policy."""
        calls = self._calls
        if calls is None:
            if not self._patient:
                self._fail(part, self._fault)
                return
            self.start()
        if len(self._queue) >= MOST_WAITING:
            self._fail(part, _OVERLOAD)
            return
        self._queue.append(part)
        if not self._scheduled and calls is not None and len(calls.under_way) < MOST_IN_FLIGHT:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send)

    def put_all(self, parts: Iterator[Part]) -> None:
        """Send parts of one request: some with the next call, and the others after what has come meanwhile."""
        weight = 0
        for part in parts:
            weight += part.weight + COMMAND
            if weight > MOST_IN_PART:
                self.put(part._replace(rest=parts))
                return
            self.put(part)

    def adopt(self, order: Order, *, asking: bool) -> bool:
        """Send an order that another node has turned away; says whether it could be."""
        if self._calls is None:
            return False
        self._calls.adopt(order, asking=asking)
        return True

    def try_again(self, order: Order) -> bool:
        """Its keys lie at both ends of a move, or at the one that is not known yet; those of one request may not.

        If they do, it comes again.
        """
        if len(order.parts) > 1:
            return all(self.adopt(Order(order.group, [part]), asking=False) for part in order.parts)
        pause = self._deadline / _MOVING
        (part,) = order.parts
        if monotonic() + pause >= part.waiting.deadline:
            return False
        asyncio.get_running_loop().call_later(pause, self.put, part)
        return True

    def look(self, now: float) -> None:
        """Give up a server that has left a call unanswered for twice the deadline; ask one that was long silent."""
        calls = self._calls
        if calls is None:
            return
        oldest = calls.oldest
        if oldest is not None:
            if now - oldest > 2 * self._deadline:
                self._lose(Fault("timeout"))
                return
        elif now - self._heard > _SILENT:
            self._heard = now
            calls.ping()
        if now - self._counted > _COUNT:
            self._counted = now
            calls.link.call(("DBSIZE",), self._count)
            if self.resets_key:
                calls.link.call(("GET", self.resets_key), self._look_at_reset)

    def leave(self) -> None:
        """Its server is not the right one any more: look for the other one; what is under way is lost."""
        if self._calls is not None:
            self._lost(Fault("reset"))

    async def close(self) -> None:
        """Close the connection; whoever waits is answered by policy."""
        await self._seeker.close()
        self._patient = False
        self._answer_all(Fault("stopping"))

    def failed(self, fault: Fault) -> bool:
        """Give up a server that will not do, and one that has failed too often; an order's own error is only logged."""
        if fault.cause == "error":
            self._outage.complain(fault)
        elif fault.cause in UNFIT or (fault.cause != "moved" and self._outage.breaker.fail()):
            self._lose(fault)
            return True
        return False

    def ended(self, *, well: bool, in_time: bool) -> None:
        """Send the next call; give up a server that was late too often."""
        self._heard = monotonic()
        if not in_time and well:
            if self._outage.breaker.fail():
                self._lose(Fault("timeout"))
                return
        elif well:
            self._outage.breaker.succeed()
        if self._queue and not self._scheduled:
            self._send()

    def _send(self) -> None:
        """One call for what waits, a command for each group in it; the parts of a group stay in order of arrival."""
        self._scheduled = False
        calls, queue = self._calls, self._queue
        if calls is None or not queue or len(calls.under_way) >= MOST_IN_FLIGHT:
            return
        groups: dict[Group, list[Part]] = {}
        rests: list[Iterator[Part]] = []
        taken = weight = 0
        for part in queue:
            taken += 1
            if not part.waiting.answered:
                part.waiting.sent = True
                members = groups.get(part.group)
                if members is None:
                    members = groups[part.group] = []
                    weight += COMMAND
                if part.rest:
                    rests.append(iter(part.rest))
                    members.append(part._replace(rest=()))
                else:
                    members.append(part)
                weight += part.weight
                if weight >= MOST_IN_CALL:
                    break
        if taken == len(queue):
            self._queue = []
        else:
            del queue[:taken]
        for rest in rests:
            self.put_all(rest)
        if groups:
            calls.send([Order(group, parts) for group, parts in groups.items()])

    def _count(self, reply: Any) -> None:
        if isinstance(reply, int):
            self._counters = reply

    def _look_at_reset(self, reply: Any) -> None:
        """What was refused before a reset may be allowed now. In a Cluster one node tells, the others say MOVED."""
        if isinstance(reply, bytes) and reply != self._reset:
            self._reset = reply
            self.forget()

    def _fail(self, part: Part, fault: Fault) -> None:
        for each in (part, *part.rest):
            self._room.fail(each.waiting, each.hits, fault)

    def _found(self, link: Link) -> None:
        link.on_lost = self._lost
        self._calls = Calls(link, self._room, self)
        self._patient = True
        self._heard = monotonic()
        self._send()

    def _lost(self, fault: Fault) -> None:
        """The connection is gone."""
        if not self._outage.lasts and fault.cause == "reset" and not self._outage.breaker.fail():
            # Restarted, failed over, or idle for too long: hits that are not under way may wait for one attempt.
            self._patient = True
            self._answer_calls(fault)
            self.start()
            self.on_lost()
        else:
            self._lose(fault)

    def _lose(self, fault: Fault) -> None:
        """Stop asking the server, and look for it."""
        self._open(fault)
        self.start()
        self.on_lost()

    def _open(self, fault: Fault) -> None:
        self._fault = fault
        self._patient = False
        self._outage.begin(fault)
        self._answer_all(fault)

    def _answer_all(self, fault: Fault) -> None:
        queue, self._queue = self._queue, []
        self._answer_calls(fault)
        for part in queue:
            self._fail(part, fault)

    def _answer_calls(self, fault: Fault) -> None:
        """Answer all that is under way, on a connection that is of no use any more."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.link.abort()
            calls.fail(fault)


_SILENT: Final = 1.0
"""Seconds without a reply, after which a server is asked whether it is there: better now than by the next request."""

_COUNT: Final = 5.0
"""Seconds between two questions how many keys there are, and whether counters were reset."""

_MOVING: Final = 4
"""Times that a request looks within its deadline whether its slot has moved."""

_OVERLOAD: Final = Fault("overload")


def _nothing(*_: object) -> None:
    """Nobody wants to hear of it."""


def _nowhere(_order: Order, _error: str) -> bool:
    return False
