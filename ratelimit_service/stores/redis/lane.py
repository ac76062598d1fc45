"""Hits on their way to one server: at most two calls under way, and what comes meanwhile waits for the next. Hot path.

A lane is open while it has a link and its breaker is closed. When it loses its server, all that is under way and all
that waits is answered by policy, and so is what comes, until the server is found again: one attempt at a time, with
growing pauses. Only a lane that has just begun, or whose connection was closed by the other side, lets hits wait for
its first attempt: most often the server is there, and nobody notices.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, Final

import hiredis

from ratelimit_service.stores.redis.faults import Fault, code_of, fault_of_reply
from ratelimit_service.stores.redis.link import Link
from ratelimit_service.stores.redis.orders import Order, Part, in_orders
from ratelimit_service.stores.redis.outage import Outage
from ratelimit_service.stores.redis.seeker import Seeker
from ratelimit_service.stores.redis.waiting import WaitingRoom
from ratelimit_service.verdict import Hit

MOST_IN_FLIGHT: Final = 2
"""One that Redis works on while the other one is on the wire."""

MOST_HITS: Final = 1000
"""In one call, so that one call never keeps Redis from others for more than a few milliseconds."""

MOST_WAITING: Final = 10_000
"""Requests that may wait for a call: what 100,000 a second leave in a tenth of a second. Beyond it they are answered
by policy at once: were there no bound, a server that hangs under full load would fill the memory."""


class _Call:
    """What is sent in one go: an order for each group."""

    __slots__ = ("left", "sent")

    def __init__(self, left: int, sent: float) -> None:
        self.left = left
        self.sent = sent


MOST_TRIES: Final = 4
"""Of one order: once by name, once in full, and twice elsewhere in a cluster whose slots move."""

Redirect = Callable[[Order, str, str], bool]
"""Takes an order that belongs elsewhere: (order, `MOVED` or `ASK`, where); says whether it has."""


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
        self.learn: Callable[[Sequence[Hit], float], None] = _nothing
        self._room = room
        self._deadline = deadline
        self._link: Link | None = None
        self._queue: list[Part] = []
        self._calls: dict[_Call, None] = {}
        self._orders: dict[Order, _Call] = {}
        self._scheduled = False
        self._patient = True
        self._fault = Fault("unreachable")
        self._outage = Outage(name, policy)
        self._heard = monotonic()
        self._seeker = Seeker(open_link, self._outage, self._found, self._open)
        self._counters = 0
        self._counted = 0.0

    @property
    def healthy(self) -> bool:
        """It can decide hits now."""
        return self._link is not None

    @property
    def counters(self) -> int:
        """Keys of the server, as it said a moment ago."""
        return self._counters

    @property
    def waiting(self) -> int:
        """Parts that wait to be sent, or for an answer."""
        return len(self._queue) + sum(len(order.parts) for order in self._orders)

    def start(self) -> None:
        """Look for the server, if nobody does."""
        if self._link is None:
            self._seeker.start()

    def put(self, part: Part) -> None:
        """Send it with the next call, or answer it by policy."""
        link = self._link
        if link is None:
            if not self._patient:
                self._fail(part, self._fault)
                return
            self.start()
        if len(self._queue) >= MOST_WAITING:
            self._fail(part, _OVERLOAD)
            return
        self._queue.append(part)
        if not self._scheduled and len(self._calls) < MOST_IN_FLIGHT and link is not None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send)

    def adopt(self, order: Order, *, asking: bool) -> bool:
        """Send an order that another node has turned away; says whether it could be."""
        link = self._link
        if link is None:
            return False
        if asking:
            link.call(("ASKING",), _ignore)
        call = _Call(1, monotonic())
        self._calls[call] = None
        self._order(link, call, order, order.by_name())
        return True

    def look(self, now: float) -> None:
        """Give up a server that has left a call unanswered for twice the deadline; ask one that was long silent."""
        link = self._link
        if link is None:
            return
        oldest = next(iter(self._calls), None)
        if oldest is not None:
            if now - oldest.sent > 2 * self._deadline:
                self._lose(Fault("timeout"))
        elif now - self._heard > _SILENT:
            self._heard = now
            call = _Call(1, now)
            self._calls[call] = None
            link.call(("PING",), lambda reply: self._pong(call, reply))
        if now - self._counted > _COUNT:
            self._counted = now
            link.call(("DBSIZE",), self._count)

    def leave(self) -> None:
        """Its server is not the right one any more: look for the other one; what is under way is lost."""
        link = self._link
        if link is not None:
            link.abort()
            self._lost(Fault("reset"))

    async def close(self) -> None:
        """Close the connection; whoever waits is answered by policy."""
        await self._seeker.close()
        link, self._link = self._link, None
        if link is not None:
            link.abort()
        self._patient = False
        self._answer_all(Fault("stopping"))

    def _send(self) -> None:
        """One call for what waits, a command for each group in it."""
        self._scheduled = False
        link = self._link
        queue = self._queue
        if link is None or not queue or len(self._calls) >= MOST_IN_FLIGHT:
            return
        parts: list[Part] = []
        taken = hits = 0
        for part in queue:
            taken += 1
            if not part.waiting.answered:
                parts.append(part)
                hits += len(part.hits)
                if hits >= MOST_HITS:
                    break
        if taken == len(queue):
            self._queue = []
        else:
            del queue[:taken]
        if not parts:
            return
        orders = in_orders(parts)
        call = _Call(len(orders), monotonic())
        self._calls[call] = None
        for order in orders:
            self._order(link, call, order, order.by_name())

    def _order(self, link: Link, call: _Call, order: Order, command: Sequence[str | bytes | int]) -> None:
        order.tries += 1
        self._orders[order] = call
        link.call(command, lambda reply: self._reply(order, reply))

    def _reply(self, order: Order, reply: Any) -> None:
        call = self._orders.pop(order, None)
        if call is None:
            return
        if isinstance(reply, hiredis.ReplyError):
            self._error(call, order, reply)
            return
        order.group.script.decode(reply, [part.hits for part in order.parts])
        learn, sent = self.learn, call.sent
        for part in order.parts:
            learn(part.hits, sent)
            part.waiting.settle()
        self._end(call)

    def _error(self, call: _Call, order: Order, error: Exception) -> None:
        """An order was not carried out: what can be healed is sent again, the rest is answered by policy."""
        code = code_of(error)
        link = self._link
        if order.tries < MOST_TRIES and link is not None:
            if code == "NOSCRIPT":
                self._order(link, call, order, order.in_full())
                return
            if code in {"MOVED", "ASK"} and self.redirect(order, code, str(error).rpartition(" ")[2]):
                self._end(call)
                return
            if code == "TRYAGAIN" and self._try_again(order):
                self._end(call)
                return
        fault = fault_of_reply(error)
        for part in order.parts:
            self._fail(part, fault)
        if fault.cause in _NOT_THIS_ONE or (fault.cause != "moved" and self._outage.breaker.fail()):
            self._lose(fault)
        else:
            self._end(call, well=False)

    def _try_again(self, order: Order) -> bool:
        """Its keys lie at both ends of a move. Those of one request may not; if they do, it comes again."""
        if len(order.parts) > 1:
            return all(self.adopt(Order(order.group, [part]), asking=False) for part in order.parts)
        pause = self._deadline / _MOVING
        (part,) = order.parts
        if monotonic() + pause >= part.waiting.deadline:
            return False
        asyncio.get_running_loop().call_later(pause, self.put, part)
        return True

    def _end(self, call: _Call, *, well: bool = True) -> None:
        """One order less to wait for; after the last one the next call goes out."""
        call.left -= 1
        if call.left or call not in self._calls:
            return
        del self._calls[call]
        now = self._heard = monotonic()
        if now - call.sent > self._deadline:
            if self._outage.breaker.fail():
                self._lose(Fault("timeout"))
                return
        elif well:
            self._outage.breaker.succeed()
        if self._queue and not self._scheduled:
            self._send()

    def _pong(self, call: _Call, reply: Any) -> None:
        fault = fault_of_reply(reply) if isinstance(reply, hiredis.ReplyError) else None
        if fault is None or fault.cause not in _NOT_THIS_ONE:
            self._end(call)  # also a user who may not PING is told so by a server that is there
        elif call in self._calls:
            self._lose(fault)

    def _count(self, reply: Any) -> None:
        if isinstance(reply, int):
            self._counters = reply

    def _fail(self, part: Part, fault: Fault) -> None:
        self._room.fail(part.waiting, part.hits, fault)

    def _lost(self, fault: Fault) -> None:
        """The connection is gone."""
        self._link = None
        if not self._outage.lasts and fault.cause == "reset" and not self._outage.breaker.fail():
            # Restarted, failed over, or idle for too long: hits that are not under way may wait for one attempt.
            self._patient = True
            self._answer_orders(fault)
            self.start()
            self.on_lost()
        else:
            self._lose(fault)

    def _lose(self, fault: Fault) -> None:
        """Stop asking the server, and look for it."""
        link, self._link = self._link, None
        if link is not None:
            link.abort()
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
        self._answer_orders(fault)
        for part in queue:
            self._fail(part, fault)

    def _answer_orders(self, fault: Fault) -> None:
        orders, self._orders = self._orders, {}
        self._calls.clear()
        for order in orders:
            for part in order.parts:
                self._fail(part, fault)

    def _found(self, link: Link) -> None:
        link.on_lost = self._lost
        self._link = link
        self._patient = True
        self._heard = monotonic()
        self._send()


_SILENT: Final = 1.0
"""Seconds without a reply, after which a server is asked whether it is there: better now than by the next request."""

_COUNT: Final = 5.0
"""Seconds between two questions how many keys there are."""

_MOVING: Final = 4
"""Times that a request looks within its deadline whether its slot has moved."""

_NOT_THIS_ONE: Final = frozenset({"readonly", "loading", "noauth", "wrongpass"})
"""The server will not do at all, or not in this connection: there is nothing to be gained by four more calls."""

_OVERLOAD: Final = Fault("overload")


def _ignore(_: Any) -> None:
    """ASKING is answered with OK; what matters is the answer to what it precedes."""


def _nothing(*_: object) -> None:
    """Nobody wants to hear of it."""


def _nowhere(_order: Order, _code: str, _where: str) -> bool:
    return False
