"""Hits on their way to one server: at most two calls under way, and what comes meanwhile waits for the next. Hot path.

`breaker.py` says when a hit is sent, waits, or is answered by policy, and what becomes of a connection. The lane does
it: it sends, seeks and keeps connections, and asks a server that was long silent whether it is there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from time import monotonic, time_ns
from typing import Any, Final

from ratelimit_service.stores.redis.breaker import QUICK, SILENCE, Breaker, State
from ratelimit_service.stores.redis.calls import UNFIT, Calls, Learn, Redirect
from ratelimit_service.stores.redis.faults import UNSERVED, Fault
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
