"""Calls under way on one connection: the orders that each carries, and what becomes of their replies. Hot path."""

import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final, Protocol

import hiredis

from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.breaker import SILENCE
from ratelimit_service.stores.redis.faults import Fault, code_of, fault_of_reply
from ratelimit_service.stores.redis.link import Link
from ratelimit_service.stores.redis.orders import Order
from ratelimit_service.stores.redis.waiting import Waiting, WaitingRoom

log = logging.getLogger(__name__)

MOST_TRIES: Final = 4
"""Of one order: once by name, once in full, and twice elsewhere in a cluster whose slots move."""

HEARTBEAT: Final = 0.1
"""Seconds for the answer to one."""

CLOSE: Final = 0.2
"""Part of the time that is granted, which an answer that comes in it has nearly missed."""

Redirect = Callable[[Order, str], bool]
"""Takes an order that belongs elsewhere, and the error that says where, `MOVED …` or `ASK …`; says whether it has."""

Learn = Callable[[Sequence[Hit], float], None]
"""Hears which hits were refused, or have given back, and when they were sent."""


class Owner(Protocol):
    """Whose calls they are: it judges the server by them."""

    redirect: Redirect
    learn: Learn

    def try_again(self, order: Order) -> bool:
        """Take an order whose keys lie at both ends of a move; says whether there is time for it."""

    def failed(self, fault: Fault) -> bool:
        """An order was answered with an error; says whether the server is given up, and this connection with it."""

    def ended(self, sent: float, now: float, *, decided: bool, in_time: bool) -> None:
        """A call that was sent then is answered: hits were decided or not, and in time for some request or for none."""


class _Call:
    """What is sent in one go: an order for each group, or a heartbeat."""

    __slots__ = ("decided", "in_time", "left", "sent")

    def __init__(self, left: int) -> None:
        self.decided = False
        self.in_time = False
        """Some request waited for its answer."""
        self.left = left
        """Orders that are not answered yet; 0 for a heartbeat."""
        self.sent = monotonic()


class Calls:
    """The calls on a link; when that is lost, `fail` answers whoever was in them."""

    def __init__(self, link: Link, room: WaitingRoom, owner: Owner) -> None:
        self.link = link
        self._room = room
        self._owner = owner
        self.under_way: dict[_Call, None] = {}
        """The oldest first."""
        self._orders: dict[Order, _Call] = {}
        self._loading: dict[Order, str] = {}
        """Orders that carry their script, by which Redis learns it again, and its name."""

    @property
    def parts(self) -> int:
        """How many parts of requests are in them."""
        return sum(len(order.parts) for order in self._orders)

    @property
    def oldest(self) -> float | None:
        """When the first of them was sent."""
        call = next(iter(self.under_way), None)
        return None if call is None else call.sent

    def send(self, orders: Sequence[Order]) -> None:
        """One more."""
        call = self._begin(len(orders))
        for order in orders:
            self._order(call, order, order.by_name())

    def adopt(self, order: Order, *, asking: bool) -> None:
        """One with an order that another node has turned away."""
        order.asking = asking
        self.send((order,))

    def overdue(self, now: float) -> float | None:
        """If the server is silent for too long, what was granted to one that waited in vain, in seconds."""
        oldest = next(iter(self.under_way))
        took = now - oldest.sent
        if took >= SILENCE:
            return SILENCE
        if not oldest.left:
            return HEARTBEAT if took >= HEARTBEAT else None
        waited = (part.waiting for order in self._orders for part in order.parts)
        return next((waiting.granted for waiting in waited if waiting.answered), None)

    def ask(self) -> None:
        """A heartbeat. TIME is allowed to whoever may run our script, and is answered while nothing else is."""
        call = self._begin(0)
        self.link.call(("TIME",), lambda reply: self._told(call, reply))

    def fail(self, fault: Fault) -> None:
        """Answer all that are under way by policy."""
        orders, self._orders = self._orders, {}
        self.under_way.clear()
        for order in orders:
            self._fail_order(order, fault)

    def _begin(self, left: int) -> _Call:
        call = _Call(left)
        self.under_way[call] = None
        return call

    def _order(self, call: _Call, order: Order, command: Sequence[str | int]) -> None:
        order.tries += 1
        order.sent = call.sent if order.tries == 1 else monotonic()
        self._orders[order] = call
        if order.asking:
            self.link.call(("ASKING",), order.asked)
        try:
            self.link.call(command, lambda reply: self._reply(order, reply))
        except ValueError:
            log.exception("a command could not be written")
            del self._orders[order]
            self._fail_order(order, Fault("error", "its command could not be written"))
            self._end(call)

    def _reply(self, order: Order, reply: Any) -> None:
        call = self._orders.pop(order, None)
        if call is None:
            return
        if self._loading:
            self._loading.pop(order, None)
        if isinstance(reply, hiredis.ReplyError):
            self._error(call, order, reply)
            return
        parts = order.parts
        if not parts[-1].waiting.answered:
            call.in_time = True
        call.decided = True
        now = monotonic()
        first = parts[0].waiting
        if now > first.deadline - first.granted * CLOSE:
            self._room.close_calls += sum(_is_close(part.waiting, now) for part in parts)
        told = order.decode(reply)
        if told:
            self._owner.learn(told, order.sent)
        for part in parts:
            part.waiting.settle()
        self._room.dismiss()
        self._end(call, now)

    def _error(self, call: _Call, order: Order, error: Exception) -> None:
        """An order was not carried out: what can be healed is sent again, the rest is answered by policy."""
        code = code_of(error)
        waited_for = order.waited_for()
        if waited_for is None:
            self._end(call)
            return
        order = waited_for
        if order.denied is not None:
            error = order.denied  # it was turned away because it could not ask
        elif order.tries < MOST_TRIES:
            if code == "NOSCRIPT":
                self._load(call, order)
                return
            if code in {"MOVED", "ASK"} and self._owner.redirect(order, str(error)):
                self._end(call)
                return
            if code == "TRYAGAIN" and self._owner.try_again(order):
                self._end(call)
                return
        fault = fault_of_reply(error)
        self._fail_order(order, fault)
        if not self._owner.failed(fault):
            self._end(call)

    def _load(self, call: _Call, order: Order) -> None:
        """Send the script with one order; the others go by name behind it, for a connection keeps their order."""
        sha = order.group.script.sha
        if sha in self._loading.values():
            self._order(call, order, order.by_name())
        else:
            self._loading[order] = sha
            self._order(call, order, order.in_full())

    def _told(self, call: _Call, reply: Any) -> None:
        if call not in self.under_way:
            return
        fault = fault_of_reply(reply) if isinstance(reply, hiredis.ReplyError) else None
        if fault is None or fault.cause not in UNFIT or not self._owner.failed(fault):
            del self.under_way[call]
            self._owner.ended(call.sent, monotonic(), decided=False, in_time=False)

    def _end(self, call: _Call, now: float | None = None) -> None:
        """One order less to wait for."""
        call.left -= 1
        if call.left == 0 and call in self.under_way:
            del self.under_way[call]
            self._owner.ended(call.sent, now or monotonic(), decided=call.decided, in_time=call.in_time)

    def _fail_order(self, order: Order, fault: Fault) -> None:
        for part in order.parts:
            self._room.fail(part.waiting, part.hits, fault)


UNFIT: Final = frozenset({"readonly", "loading", "noauth", "wrongpass"})
"""The server will not do at all, or not in this connection: there is nothing to be gained by four more calls."""


def _is_close(waiting: Waiting, now: float) -> bool:
    return not waiting.answered and now > waiting.deadline - waiting.granted * CLOSE
