"""Hits on their way to one server: at most two calls under way, and what comes meanwhile waits for the next. Hot path.

`breaker.py` says when a hit is sent, waits, or is answered by policy, and what becomes of a connection. The lane does
it: it sends, seeks and keeps connections, and asks a server that was long silent whether it is there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from time import monotonic, time_ns
from typing import Any, Final, Protocol

import hiredis

from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.breaker import QUICK, SILENCE, Breaker, Pauses, State
from ratelimit_service.stores.redis.faults import UNSERVED, Fault, Outage, code_of, fault_of_reply
from ratelimit_service.stores.redis.link import Link
from ratelimit_service.stores.redis.requests import Waiting, WaitingRoom
from ratelimit_service.stores.redis.script import MOST_IN_CALL, MOST_IN_PART, Group, Order, Part
from ratelimit_service.stores.store import Lost

log = logging.getLogger(__name__)


class Seeker:
    """Calls `missed` after each attempt that failed, and `found` with the link at the end."""

    def __init__(
        self,
        open_link: Callable[[], Awaitable[Link]],
        pauses: Pauses,
        found: Callable[[Link], None],
        missed: Callable[[Fault], None],
    ) -> None:
        self._open_link = open_link
        self._pauses = pauses
        self._found = found
        self._missed = missed
        self._task: asyncio.Task[None] | None = None
        self._unexpected = False

    @property
    def seeks(self) -> bool:
        """It has begun, and not found anything yet."""
        return self._task is not None

    def start(self, pause: float = 0.0) -> None:
        """Begin after so many seconds, unless it has begun."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._seek(pause))

    def stop(self) -> None:
        """Give up; nothing is called."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self) -> None:
        """Give up, and wait until that is done."""
        task = self._task
        self.stop()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    async def _seek(self, pause: float) -> None:
        link: Link | None = None
        while link is None:
            await asyncio.sleep(pause)
            try:
                link = await self._open_link()
            except Fault as fault:
                pause = self._miss(fault)
            except Exception:
                if not self._unexpected:
                    self._unexpected = True
                    log.exception("looking for Redis")
                pause = self._miss(Fault("error"))
        self._task = None
        self._unexpected = False
        self._found(link)

    def _miss(self, fault: Fault) -> float:
        """Tell of it; says after how many seconds to try again."""
        self._missed(fault)
        return self._pauses.next()


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


MOST_IN_FLIGHT: Final = 2
"""One that Redis works on while the other one is on the wire."""

COMMAND: Final = 4
"""Hits that take Redis as long as it takes to begin a command, of which there is one for each slot of a Cluster."""

MOST_WAITING: Final = 10_000
"""Requests that may wait for a call: what 100,000 a second leave in a tenth of a second. Beyond it they are answered
by policy at once: were there no bound, a server that hangs under full load would fill the memory."""


class Lane:
    """The way to one server."""

    def __init__(self, name: str, open_link: Callable[[], Awaitable[Link]], room: WaitingRoom, *, policy: str) -> None:
        self.name = name
        self.redirect: Redirect = _nowhere
        self.on_lost: Callable[[], None] = _nothing
        self.learn: Learn = _nothing
        self.forget: Callable[[], None] = _nothing
        self.compare_clocks: Callable[[Link], None] = _nothing
        self.watched: Callable[[], Sequence[str]] = tuple
        """Names of keys that say when counters were reset, and that are gone when the server was flushed."""
        self._room = room
        self._breaker = Breaker(monotonic())
        self._outage = Outage(name, policy)
        self._seeker = Seeker(open_link, self._breaker.pauses, self._found, self._missed)
        self._fault = Fault("unreachable")
        """Why hits are answered by policy while there is no connection."""
        self._calls: Calls | None = None
        self._queue: list[Part] = []
        self._scheduled = False
        self._asked = 0.0
        """When a heartbeat was sent last."""
        self._counters = 0
        self._counted = 0.0
        self._seen: dict[str, bytes] = {}
        """What was under the names that are watched."""

    @property
    def healthy(self) -> bool:
        """It can decide hits now."""
        return self._calls is not None and (self._outage.lost is None or self._breaker.serves)

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
        """Seek the server, if it has not begun."""
        if self._calls is None:
            self._seeker.start()

    def put(self, part: Part) -> None:
        """Send it with the next call, or answer it by policy."""
        calls = self._calls
        if not self._breaker.calm and not self._admits(part):
            return
        if len(self._queue) >= MOST_WAITING and not self._make_room():
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
            weight += len(part.hits) + COMMAND
            if weight > MOST_IN_PART:
                part.rest = parts
                self.put(part)
                return
            self.put(part)

    def adopt(self, order: Order, *, asking: bool) -> bool:
        """Send an order that another node has turned away; says whether it can be now."""
        if self._calls is None or self._breaker.state is not State.ANSWERING:
            return False
        self._calls.adopt(order, asking=asking)
        return True

    def try_again(self, order: Order) -> bool:
        """Its keys lie at both ends of a move, or at the one that is not known yet; those of one request may not.

        If they do, it comes again.
        """
        if len(order.parts) > 1:
            return all(self.adopt(Order(order.group, [part]), asking=False) for part in order.parts)
        (part,) = order.parts
        pause = part.waiting.granted / _MOVING
        if monotonic() + pause >= part.waiting.deadline:
            return False
        asyncio.get_running_loop().call_later(pause, self.put, part)
        return True

    def ask(self, *command: str) -> Awaitable[Any]:
        """The server's answer to a question of another kind. Raises Fault."""
        if self._calls is None:
            raise self._fault
        return self._calls.link.ask(*command)

    def look(self, now: float) -> None:
        """Judge the server by what is unanswered, and ask it whether it is there. The sockets have just been read."""
        calls, breaker = self._calls, self._breaker
        if calls is None:
            return
        oldest = calls.oldest
        if oldest is not None and breaker.state is State.ANSWERING:
            granted = calls.overdue(now)
            if granted is not None:
                breaker.overdue(oldest, granted, now)
        if breaker.state is State.SILENT:
            if breaker.is_mute(now) and not self._seeker.seeks:
                self._outage.begin(Fault("timeout"), now - breaker.since)
                self._seeker.start()
                self.on_lost()
            return
        if breaker.is_late(now):
            self._outage.begin(Fault("timeout", "answers come, but later than callers wait"), SILENCE)
        elif breaker.recovered:
            self._outage.end()
        if oldest is None and (now - breaker.heard > SILENCE or breaker.unserved):
            self._ask(now)
        if now - self._counted > _COUNT:
            self._counted = now
            calls.link.call(("DBSIZE",), self._count)
            self.compare_clocks(calls.link)
            for name in self.watched():
                self._watch(calls.link, name)

    def leave(self) -> None:
        """Its server is not the right one any more: seek the other one; what is under way is lost."""
        if self._calls is not None:
            self._hung_up(Fault("reset"))

    async def close(self) -> None:
        """Close the connection; what waits is answered by policy."""
        await self._seeker.close()
        self._give_up(Fault("stopping"))

    def failed(self, fault: Fault) -> bool:
        """Give up a server that will not do, or has refused too often; an error of an order alone is only logged."""
        if fault.cause == "error":
            self._outage.complain(fault)
        elif fault is UNSERVED:
            self.on_lost()
        elif fault.cause in UNFIT or (fault.cause != "moved" and self._breaker.fail()):
            self._lose(fault)
            return True
        return False

    def ended(self, sent: float, now: float, *, decided: bool, in_time: bool) -> None:
        """Send the next call."""
        breaker = self._breaker
        breaker.heard = now
        if not (in_time and breaker.calm and now - sent < QUICK):
            was_silent = breaker.state is State.SILENT
            breaker.replied(now, now - sent, decided=decided, in_time=in_time)
            if was_silent:
                self._seeker.stop()
                if not self._queue:
                    self._ask(now)  # how quickly does it answer now?
            if breaker.recovered:
                self._outage.end()
        if self._queue and not self._scheduled:
            self._send()

    def _admits(self, part: Part) -> bool:
        """Whether it may be sent, or wait; otherwise it is answered by policy."""
        now = monotonic()
        if self._breaker.admits(part.waiting.granted, now):
            self.start()
            return True
        if self._calls is None:
            self._fail(part, self._fault)
        else:
            self._fail(part, _LATE)
            if self._calls.oldest is None and now - self._asked > _ASKED_AGAIN:
                self._ask(now)
        return False

    def _ask(self, now: float) -> None:
        """A heartbeat."""
        if self._calls is not None:
            self._asked = now
            self._calls.ask()

    def _send(self) -> None:
        """One call for what waits, a command for each group in it; the parts of a group stay in order of arrival."""
        self._scheduled = False
        calls, queue = self._calls, self._queue
        if (
            calls is None
            or not queue
            or len(calls.under_way) >= MOST_IN_FLIGHT
            or self._breaker.state is not State.ANSWERING
        ):
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
                members.append(part)
                if part.rest:
                    rests.append(part.rest)
                    part.rest = ()
                weight += len(part.hits)
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

    def _make_room(self) -> bool:
        """Forget what has been answered by policy while it waited; says whether there is room then."""
        self._queue = [part for part in self._queue if not part.waiting.answered]
        return len(self._queue) < MOST_WAITING

    def _count(self, reply: Any) -> None:
        if isinstance(reply, int):
            self._counters = reply

    def _watch(self, link: Link, name: str) -> None:
        link.call(("GETEX", name, "PX", _WATCHED), partial(self._watched, link, name))

    def _watched(self, link: Link, name: str, reply: Any) -> None:
        """What was refused before a reset or a flush may be allowed now."""
        if isinstance(reply, bytes):
            if self._seen.get(name) != reply:
                self._seen[name] = reply
                self.forget()
        elif reply is None:
            self.forget()
            self._seen.pop(name, None)
            link.call(("SET", name, time_ns(), "NX", "PX", _WATCHED), _nothing)
            self._watch(link, name)

    def _fail(self, part: Part, fault: Fault) -> None:
        for each in (part, *part.rest):
            self._room.fail(each.waiting, each.hits, fault)

    def _found(self, link: Link) -> None:
        """There is a connection, the first one or another one in place of one that is mute."""
        self._answer_calls(_LATE)
        link.on_lost = self._hung_up
        self._calls = Calls(link, self._room, self)
        self._breaker.found(monotonic())
        self.forget()  # it may have been restarted, and be empty
        self._counted = 0.0
        if self._breaker.recovered:
            self._outage.end()
        self._send()

    def _missed(self, fault: Fault) -> None:
        """An attempt has failed."""
        if self._breaker.state is State.SILENT and fault.cause in _TELLS_NOTHING:
            return
        self._breaker.missed()
        self._give_up(fault)

    def _hung_up(self, fault: Fault) -> None:
        """The connection is gone."""
        if fault.cause != "reset":
            self._lose(fault)
            return
        pause = self._breaker.hung_up(monotonic())
        if self._breaker.state is State.SEEKING:
            # Restarted, failed over, or idle for too long: what is not under way waits for the next connection.
            self._fault = fault
            self._answer_calls(fault)
        else:
            self._give_up(fault)
        self._seeker.start(pause)
        self.on_lost()

    def _lose(self, fault: Fault) -> None:
        """Stop asking the server, and seek it."""
        pause = self._breaker.lose()
        self._give_up(fault)
        self._seeker.start(pause)
        self.on_lost()

    def _give_up(self, fault: Fault) -> None:
        self._fault = fault
        if fault.cause != "stopping":
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


_COUNT: Final = 5.0
"""Seconds between two questions how many keys there are, what the time is, and whether counters were reset."""

_WATCHED: Final = 24 * 3600 * 1000
"""Milliseconds that a watched key lives after it was looked at last."""

_MOVING: Final = 4
"""Times that a request looks within its deadline whether its slot has moved."""

_ASKED_AGAIN: Final = 0.01
"""Seconds between two heartbeats while requests are refused because the server is too slow for them."""

_TELLS_NOTHING: Final = frozenset({"timeout", "unreachable", "sentinel", "maxclients", "error"})
"""Of an attempt beside a connection that is silent: the server may stand still, and be there when it goes on."""

_OVERLOAD: Final = Fault("overload")
_LATE: Final = Fault("timeout")


def _nothing(*_: object) -> None:
    """No-op."""


def _nowhere(_order: Order, _error: str) -> bool:
    return False
