"""The way to one server: a queue of parts, a few pipelines in flight, and the connection itself. Hot path.

`breaker.py` decides whether a part is sent, waits or is answered by policy, and what becomes of the connection; the
lane acts on it. The breaker's state says what a lane has:

===========  ============  ============  =================  ===============================
state        connection    connector     queue              pipelines in flight
===========  ============  ============  =================  ===============================
CONNECTING   none          runs          parts wait         none
ANSWERING    open          idle          sent when one of   at most two, a heartbeat among
                                         two has ended      them; of a far server 32
SILENT       open, kept    after 1 s     parts wait         at least one, unanswered
LOST         none          runs          empty              none
===========  ============  ============  =================  ===============================

=======================================  =================================================================
event                                    what the lane does
=======================================  =================================================================
a part comes                             queues it, or answers it by policy where the breaker does not admit it
all of a pipeline is answered            sends the next one
a reply has hits that wait for home,     hands them to `home.py`, and counts only the others as decided
or says what to ask of it
error reply NOSCRIPT                     sends the script call again, with the script's text
error reply MOVED, ASK                   hands the script call to the node that the error names
error reply TRYAGAIN                     sends the parts again, a little later
a reply of another shape                 answers its parts by policy: the connection is lost
an ask of a lease comes                  queues it beside the parts, or says that it is not sent
another error reply                      answers its parts by policy; too many in a row: the server is lost
a connection is open                     answers what was in flight on the old one by policy; sends the queue
an attempt to connect fails              answers all parts by policy, unless a silent server may still come back
the connection is lost                   answers what is in flight by policy, and connects again; if the connection was
                                         too short to count, it answers the queue too
the server is lost (it refuses to        answers all parts by policy, and connects again
decide, or is a replica)
=======================================  =================================================================
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from time import monotonic, time_ns
from typing import Any, Final, NamedTuple

import hiredis

from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.breaker import PROVEN, QUICK, SILENCE, Breaker, ServerState
from ratelimit_service.stores.redis.checks import Checks
from ratelimit_service.stores.redis.connector import Connector
from ratelimit_service.stores.redis.denied import DeniedCache
from ratelimit_service.stores.redis.faults import UNSERVED, Fault, Outage, code_of, fault_of_reply
from ratelimit_service.stores.redis.leases import Ask, Leases
from ratelimit_service.stores.redis.link import Link, noop
from ratelimit_service.stores.redis.policy import Policy
from ratelimit_service.stores.redis.replies import read_time
from ratelimit_service.stores.redis.requests import CLOSE, PendingRequest, PendingRequests
from ratelimit_service.stores.redis.script import MAX_IN_PART, MAX_IN_PIPELINE, Answer, Group, Part, ScriptCall, cut
from ratelimit_service.stores.store import LostServer
from ratelimit_service.system.clock import SECOND

log = logging.getLogger(__name__)

MAX_IN_FLIGHT: Final = 2
"""Pipelines: one that Redis works on while the other one is on the wire."""

COMMAND: Final = 4
"""Hits that take Redis as long as it takes to begin a command, of which there is one for each slot of a Cluster."""

MAX_WAITING: Final = 10_000
"""Parts in the queue: what 100,000 a second leave in a tenth of a second. More are answered by policy at once: without
a bound, a server that hangs under full load would fill the memory."""

MAX_ASKS: Final = 100
"""The asks of leases in one pipeline: a millisecond of Redis."""

MAX_TRIES: Final = 4
"""The tries of one script call: once by name, once with its text, and twice on other nodes of a Cluster whose slots
move."""

HEARTBEAT: Final = 0.1
"""Seconds for the reply to a heartbeat."""

_FAR_HEARTBEAT: Final = 0.5
"""The same where the server is in another region: twice round the earth."""

_FAR_IN_FLIGHT: Final = 32
"""Pipelines to such a server: a way of 140 ms has room for one every 4 ms, which is what the largest takes Redis."""

Redirect = Callable[[ScriptCall, str], bool]
"""Called with a script call that belongs to another node, and the error that names the node, `MOVED …` or `ASK …`;
returns whether the other node took it."""


WaitForHome = Callable[["Lane", ScriptCall, Answer], Sequence[Part]]
"""Called when a reply has hits that wait for the home Redis, or names what to ask of it; returns what does not wait."""


class LaneContext(NamedTuple):
    """The parts that all lanes of a store share."""

    pending: PendingRequests
    denied: DeniedCache | None
    checks: Checks
    policy: Policy
    leases: Leases
    wait_for_home: WaitForHome | None = None
    """None without a home Redis."""
    at_home: bool = False
    """The servers are those of the home of all regions, which may be far away."""

    def outage(self, name: str) -> Outage:
        """The outage of the server with this name."""
        return Outage(f"{name} (home)" if self.at_home else name, self.policy.name, at_home=self.at_home)


def home_context(context: LaneContext) -> LaneContext:
    """The context of the lanes to the home Redis of all regions.

    Nothing is leased from it by an instance: so its loss costs none of the leases of this region.
    """
    return context._replace(leases=Leases(deny=0), at_home=True)


class Lane:
    """The way to one server; its parts are decided, or answered by policy through `context.pending`."""

    def __init__(
        self,
        name: str,
        open_link: Callable[[], Awaitable[Link]],
        context: LaneContext,
        *,
        reset_keys: Callable[[], Sequence[str]],
        redirect: Redirect | None = None,
        on_lost: Callable[[], None] = noop,
    ) -> None:
        at_home = context.at_home
        self._outage = context.outage(name)
        self.name = self._outage.name
        self._pending = context.pending
        self._denied = context.denied
        self._leases = context.leases
        self._checks = context.checks
        self._wait_for_home = context.wait_for_home
        self._reset_keys = reset_keys
        """Names of keys that say when counters were reset, and that are gone when the server was flushed."""
        self._redirect = redirect
        self._on_lost = on_lost
        self._breaker = Breaker(monotonic())
        self._in_flight = _FAR_IN_FLIGHT if at_home else MAX_IN_FLIGHT
        self._heartbeat = _FAR_HEARTBEAT if at_home else HEARTBEAT
        self._connector = Connector(open_link, self._breaker.backoff, self._on_link, self._on_attempt_failed)
        self._fault = Fault("unreachable")
        """Why hits are answered by policy while there is no connection."""
        self._link: Link | None = None
        self._queue: list[Part] = []
        self._asks: list[tuple[Group, Ask]] = []
        """To be sent with the queue."""
        self._scheduled = False
        self._pipelines: dict[Pipeline, None] = {}
        """In flight, the oldest first."""
        self._script_calls: dict[ScriptCall, Pipeline] = {}
        """In flight, and the pipeline that each is in."""
        self._loading: set[ScriptCall] = set()
        """Script calls with the text of the script, by which Redis learns it again."""
        self._heartbeat_sent = 0.0
        self._counters = 0
        self._polled = 0.0
        self._seen: dict[str, bytes] = {}
        """The values of the reset keys."""

    @property
    def healthy(self) -> bool:
        """It can decide hits now."""
        return self._link is not None and (self._outage.lost is None or self._breaker.serves)

    @property
    def connects(self) -> bool:
        """It has no connection, for the first time or for a moment, and is not known to be lost."""
        return self._link is None and self._outage.lost is None

    @property
    def answers(self) -> bool:
        """It has a connection, and was not silent for too long. It may be so in an outage, before that is over."""
        return self._breaker.state is ServerState.ANSWERING

    @property
    def lost(self) -> LostServer | None:
        """The fault of the server, if it is lost."""
        return self._outage.lost

    @property
    def counters(self) -> int:
        """Keys of the server, as it answered a few seconds ago."""
        return self._counters

    @property
    def waiting(self) -> int:
        """Parts in the queue and in flight."""
        return len(self._queue) + self.in_flight

    @property
    def in_flight(self) -> int:
        """Parts that are sent and not answered."""
        return sum(len(call.parts) for call in self._script_calls)

    def start(self) -> None:
        """Connect to the server, unless it is connected or connecting."""
        if self._link is None:
            self._connector.start()

    def put_hits(self, group: Group, request: PendingRequest, hits: Sequence[Hit]) -> None:
        """Send hits of a request, all of this group."""
        if len(hits) <= MAX_IN_PART:
            request.parts_left += 1
            self.put(Part(request, hits, group))
        else:
            parts = [Part(request, piece, group) for piece in cut(hits)]
            request.parts_left += len(parts)
            self.put_all(iter(parts))

    def put(self, part: Part) -> None:
        """Send it with the next pipeline, or answer it by policy."""
        if not self._breaker.calm and not self._admits(part):
            return
        if len(self._queue) >= MAX_WAITING and not self._drop_answered():
            self._fail(part, _OVERLOAD)
            return
        self._queue.append(part)
        # Not at once: what else comes in this iteration of the loop goes in the same pipeline.
        if not self._scheduled and self._link is not None and len(self._pipelines) < self._in_flight:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send)

    def put_ask(self, group: Group, ask: Ask) -> None:
        """Send it with the next pipeline, if the server answers."""
        if self._link is None or self._breaker.state is not ServerState.ANSWERING:
            self._leases.unsent(ask)
            return
        # In front, so that MAX_ASKS cannot leave it behind the hit that is sent now.
        self._asks.insert(0 if ask.before_hit else len(self._asks), (group, ask))
        if not self._scheduled and len(self._pipelines) < self._in_flight:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send)

    def put_all(self, parts: Iterator[Part]) -> None:
        """Send parts of one request: some with the next pipeline, the others behind what has come meanwhile."""
        weight = 0
        for part in parts:
            weight += len(part.hits) + COMMAND
            if weight > MAX_IN_PART:
                part.rest = parts
                self.put(part)
                return
            self.put(part)

    def resend(self, call: ScriptCall, *, asking: bool) -> bool:
        """Send a script call that another node has turned away; False: not possible now."""
        if self._link is None or self._breaker.state is not ServerState.ANSWERING:
            return False
        call.asking = asking
        self._send_calls(self._link, (call,))
        return True

    def retry(self, call: ScriptCall) -> bool:
        """Send the parts again whose keys lie on both nodes of a move, or on a node that is not known yet.

        Each goes alone, since only the keys of one request may belong together; a part that is alone goes a little
        later. False: there is no time for it.
        """
        self._drop_asks(call)
        if len(call.parts) != 1:
            return all(self.resend(ScriptCall(call.group, [part]), asking=False) for part in call.parts)
        (part,) = call.parts
        pause = part.request.queue.granted / _MOVING
        if monotonic() + pause >= part.request.deadline:
            return False
        asyncio.get_running_loop().call_later(pause, self.put, part)
        return True

    def execute(self, *command: str | bytes | int) -> Awaitable[Any]:
        """The server's reply to a command of another kind. Raises Fault."""
        if self._link is None:
            raise self._fault
        return self._link.execute(*command)

    def refused(self, fault: Fault) -> None:
        """The server has answered a command with this error, after which it could not do what a script call does."""
        self._judge_error(fault)

    def check_server(self, now: float) -> None:
        """Judge the server by what is unanswered, and send a heartbeat if needed. The sockets have just been read."""
        link, breaker = self._link, self._breaker
        if link is None:
            return
        oldest = next(iter(self._pipelines), None)
        if oldest is not None and breaker.state is ServerState.ANSWERING:
            granted = self._overdue(oldest, now)
            if granted is not None:
                breaker.overdue(oldest.sent, granted, now)
        if breaker.state is ServerState.SILENT:
            if breaker.is_mute(now) and not self._connector.runs:
                self._outage.begin(Fault("timeout"), now - breaker.since)
                self._connector.start()
                self._on_lost()
            return
        if breaker.is_late(now):
            self._outage.begin(Fault("timeout", "answers come, but later than callers wait"), SILENCE)
        elif breaker.recovered:
            self._outage.end()
        pause = SILENCE if breaker.proven else PROVEN
        if oldest is None and (now - breaker.last_reply > pause or breaker.late_requests):
            self._send_heartbeat(now)
        if now - self._polled > _POLL_SECONDS:
            self._polled = now
            link.send(("DBSIZE",), self._on_dbsize)
            self._checks.compare_clocks(link, self.name)
            if self._denied is not None or self._leases.by_key:
                for key in self._reset_keys():
                    self._read_reset_key(link, key)

    def disconnect(self) -> None:
        """Connect again, since another server is the primary now; what is in flight is lost."""
        if self._link is not None:
            self._on_link_lost(Fault("reset"))

    async def close(self) -> None:
        """Close the connection; all parts are answered by policy."""
        await self._connector.close()
        self._fail_all(Fault("stopping"))

    async def retire(self) -> None:
        """Close the connection to a server that is not used any more."""
        await self.close()
        self._outage.retire()

    # Parts on their way

    def _admits(self, part: Part) -> bool:
        """Whether the part may be sent or wait; otherwise it is answered by policy."""
        now = monotonic()
        if self._breaker.admits(part.request.queue.granted, now):
            self.start()
            return True
        if self._link is None:
            self._fail(part, self._fault)
        else:
            self._fail(part, _LATE)
            if not self._pipelines and now - self._heartbeat_sent > _HEARTBEAT_PAUSE:
                self._send_heartbeat(now)
        return False

    def _drop_answered(self) -> bool:
        """Remove requests from the queue that were answered meanwhile; returns whether there is room then."""
        self._queue = [part for part in self._queue if not part.request.answered]
        return len(self._queue) < MAX_WAITING

    def _send(self) -> None:
        """Send the queue as one pipeline, a script call for each group; parts of a group stay in order of arrival."""
        self._scheduled = False
        link, queue = self._link, self._queue
        if (
            link is None
            or not (queue or self._asks)
            or len(self._pipelines) >= self._in_flight
            or self._breaker.state is not ServerState.ANSWERING
        ):
            return
        groups: dict[Group, list[Part]] = {}
        rests: list[Iterator[Part]] = []
        taken = weight = 0
        for part in queue:
            taken += 1
            if not part.request.answered:
                part.request.sent = True
                members = groups.get(part.group)
                if members is None:
                    members = groups[part.group] = []
                    weight += COMMAND
                members.append(part)
                if part.rest:
                    rests.append(part.rest)
                    part.rest = ()
                weight += len(part.hits)
                if weight >= MAX_IN_PIPELINE:
                    break
        if taken == len(queue):
            self._queue = []
        else:
            del queue[:taken]
        for rest in rests:  # behind what came meanwhile: one large request must not hold up the others
            self.put_all(rest)
        calls = self._calls_with_asks(groups) if self._asks else list(starmap(ScriptCall, groups.items()))
        if calls:
            self._send_calls(link, calls)

    def _calls_with_asks(self, groups: dict[Group, list[Part]]) -> list[ScriptCall]:
        asks: dict[Group, dict[str, Ask]] = {}
        later = []
        for group, ask in self._asks[:MAX_ASKS]:
            if asks.setdefault(group, {}).setdefault(ask.counter.key, ask) is not ask:
                later.append((group, ask))  # of a lease that was dropped or has made way, and is there again
        self._asks[:MAX_ASKS] = later
        return [
            ScriptCall(group, groups.get(group, ()), [*asks.get(group, {}).values()])
            for group in dict.fromkeys((*groups, *asks))
        ]

    def _send_calls(
        self, link: Link, calls: Sequence[ScriptCall], pipeline: "Pipeline | None" = None, *, with_text: bool = False
    ) -> None:
        """Send calls as a pipeline of their own, or again in the one that they belong to."""
        if pipeline is None:
            pipeline = Pipeline(monotonic(), len(calls))
            self._pipelines[pipeline] = None
        for call in calls:
            call.tries += 1
            call.sent = pipeline.sent if call.tries == 1 else monotonic()
            self._script_calls[call] = pipeline
            if call.asking:
                link.send(("ASKING",), call.on_asking)
            script = call.group.script
            keys, arguments, call.runs = script.encode(call.parts, call.asks)
            head = ("EVAL", script.text) if with_text else ("EVALSHA", script.sha)
            try:
                link.send((*head, len(keys), *keys, *arguments), partial(self._on_reply, call))
            except ValueError:
                log.exception("a command could not be written")
                del self._script_calls[call]
                self._fail_call(call, Fault("error", "its command could not be written"))
                self._end_call(pipeline)

    # Replies

    def _on_reply(self, call: ScriptCall, reply: Any) -> None:
        pipeline = self._script_calls.pop(call, None)
        if pipeline is None:  # it was answered by policy meanwhile
            return
        if self._loading:
            self._loading.discard(call)
        if isinstance(reply, hiredis.ReplyError):
            self._on_error(pipeline, call, reply)
            return
        try:
            answer = call.group.script.decode(reply, call.runs, call.asks)
        except Fault as fault:
            self._fail_call(call, fault)
            raise
        parts = call.parts
        pipeline.decided = True
        now = monotonic()
        if parts:
            if not parts[-1].request.answered:
                pipeline.in_time = True
            first = parts[0].request
            if now > first.deadline - first.queue.granted * CLOSE:
                self._pending.close_calls += sum(part.request.is_close(now) for part in parts)
        if call.asks or self._leases.by_key:
            self._learn(call, answer, now)
        if answer.changed and self._denied is not None:
            self._denied.learn(answer.changed, call.sent)
        if self._wait_for_home is not None and (answer.asked or answer.waiting):
            parts = self._wait_for_home(self, call, answer)
        for part in parts:
            part.request.complete()
        self._end_call(pipeline, now)

    def _learn(self, call: ScriptCall, answer: Answer, now: float) -> None:
        """Tell the leases what was answered, to asks and to hits."""
        leases, sent = self._leases, int(call.sent * SECOND)
        for ask, granted in zip(call.asks, answer.granted, strict=True):
            leases.answered(ask, granted, sent)
        leases.called(int((now - call.sent) * SECOND))
        leases.learn(answer.changed, answer.now, sent)

    def _on_error(self, pipeline: "Pipeline", call: ScriptCall, error: Exception) -> None:
        """Send again what can be healed, and answer the rest by policy."""
        waiting = call.without_answered()
        if waiting is None:
            self._end_call(pipeline)
            return
        if waiting.asking_error is not None:
            error = waiting.asking_error  # the node turned the call away because it could not ask
        elif waiting.tries < MAX_TRIES and self._recover(pipeline, waiting, error):
            return
        fault = fault_of_reply(error)
        self._fail_call(waiting, fault)
        if not self._judge_error(fault):
            self._end_call(pipeline)

    def _recover(self, pipeline: "Pipeline", call: ScriptCall, error: Exception) -> bool:
        """Whether the call is on its way again, here or to another node."""
        match code_of(error):
            case "NOSCRIPT" if self._link is not None:
                # One call brings the text; the others go by name behind it, since a connection keeps their order.
                known = any(each.group.script is call.group.script for each in self._loading)
                if not known:
                    self._loading.add(call)
                self._send_calls(self._link, (call,), pipeline, with_text=not known)
                return True
            case "MOVED" | "ASK":
                sent = self._redirect is not None and self._redirect(call, str(error))
            case "TRYAGAIN":
                sent = self.retry(call)
            case _:
                sent = False
        if sent:
            self._end_call(pipeline)
        return sent

    def _end_call(self, pipeline: "Pipeline", now: float = 0.0) -> None:
        """One call of the pipeline is answered; after the last one send the next pipeline."""
        pipeline.unanswered -= 1
        if pipeline.unanswered or pipeline not in self._pipelines:
            return
        del self._pipelines[pipeline]
        now = now or monotonic()
        breaker = self._breaker
        breaker.last_reply = now
        took = now - pipeline.sent
        if not (pipeline.in_time and breaker.calm and took < QUICK):
            was_silent = breaker.state is ServerState.SILENT
            breaker.replied(now, took, decided=pipeline.decided, in_time=pipeline.in_time)
            if was_silent:
                self._connector.stop()
                if not self._queue:
                    self._send_heartbeat(now)  # how quickly does it answer now?
            if breaker.recovered:
                self._outage.end()
        if (self._queue or self._asks) and not self._scheduled:
            self._send()

    def _judge_error(self, fault: Fault) -> bool:
        """Act on an error reply; returns whether the server is lost: it cannot decide, or refused too often."""
        if fault.cause == "error":
            self._outage.log_error(fault)  # of this call alone
        elif fault.cause == "protocol":
            self._on_link_lost(fault)
            return True
        elif fault.detail == UNSERVED:
            self._on_lost()
        elif fault.cause in _UNFIT or (fault.cause != "moved" and self._breaker.refused()):
            self._lose(fault)
            return True
        return False

    # Heartbeats, and what is read of the server now and then

    def _overdue(self, oldest: "Pipeline", now: float) -> float | None:
        """The seconds that were granted to a request that waited in vain, if the server is silent for too long."""
        took = now - oldest.sent
        if took >= SILENCE:
            return SILENCE
        if oldest.is_heartbeat:
            return self._heartbeat if took >= self._heartbeat else None
        requests = (part.request for call in self._script_calls for part in call.parts)
        return next((request.queue.granted for request in requests if request.answered), None)

    def _send_heartbeat(self, now: float) -> None:
        """TIME: every user who may run our script may send it, and it is answered while no other command is."""
        if self._link is not None:
            self._heartbeat_sent = now
            pipeline = Pipeline(monotonic(), 1, is_heartbeat=True)
            self._pipelines[pipeline] = None
            self._link.send(("TIME",), partial(self._on_heartbeat, pipeline))

    def _on_heartbeat(self, pipeline: "Pipeline", reply: Any) -> None:
        if pipeline not in self._pipelines:
            return
        if isinstance(reply, hiredis.ReplyError):
            fault = fault_of_reply(reply)
            if fault.cause in _UNFIT and self._judge_error(fault):
                return
        else:
            read_time(reply)
        self._end_call(pipeline)

    def _on_dbsize(self, reply: Any) -> None:
        if isinstance(reply, int):
            self._counters = reply

    def _read_reset_key(self, link: Link, key: str) -> None:
        link.send(("GETEX", key, "PX", _RESET_KEY_LIFE), partial(self._on_reset_key, link, key))

    def _on_reset_key(self, link: Link, key: str, reply: Any) -> None:
        """Forget what is held and what was denied, after a reset or a flush."""
        if isinstance(reply, bytes):
            if self._seen.get(key) != reply:
                self._seen[key] = reply
                self._forget()
        elif reply is None:
            self._forget()
            value = self._seen[key] = str(time_ns()).encode()
            link.send(("SET", key, value, "NX", "PX", _RESET_KEY_LIFE), noop)
            self._read_reset_key(link, key)

    def _forget(self) -> None:
        """The server may count anew: what was denied may be allowed now, and what is held was charged before."""
        self._leases.drop_all()
        if self._denied is not None:
            self._denied.clear()

    # The connection

    def _on_link(self, link: Link) -> None:
        """A connection is open, the first one or another one in place of a silent one."""
        self._drop_link(_LATE)
        link.on_lost = self._on_link_lost
        self._link = link
        self._breaker.connected(monotonic())
        self._forget()  # the server may have been restarted, and be empty
        for key in self._reset_keys():  # before anything is held, which would be dropped with the first reply
            self._read_reset_key(link, key)
        self._polled = 0.0
        if self._breaker.recovered:
            self._outage.end()
        self._send()

    def _on_attempt_failed(self, fault: Fault) -> None:
        if self._breaker.state is ServerState.SILENT and fault.cause in _INCONCLUSIVE:
            return
        self._breaker.attempt_failed()
        self._fail_all(fault)

    def _on_link_lost(self, fault: Fault) -> None:
        if fault.cause not in _BROKEN:
            self._lose(fault)
            return
        pause = self._breaker.disconnected(monotonic())
        if self._breaker.state is ServerState.CONNECTING:
            # Restarted, failed over, or idle for too long: what is not in flight waits for the next connection.
            if fault.cause == "protocol":
                self._outage.log_error(fault)
            self._fault = fault
            self._drop_link(fault)
        else:
            self._fail_all(fault)
        self._connector.start(pause)
        self._on_lost()

    def _lose(self, fault: Fault) -> None:
        """Send nothing more to the server, and connect again."""
        pause = self._breaker.lose()
        self._fail_all(fault)
        self._connector.start(pause)
        self._on_lost()

    def _fail_all(self, fault: Fault) -> None:
        """Answer the queue, and what is in flight, by policy."""
        self._fault = fault
        if fault.cause != "stopping":
            self._outage.begin(fault)
        queue, self._queue = self._queue, []
        self._drop_link(fault)
        for part in queue:
            self._fail(part, fault)

    def _drop_link(self, fault: Fault) -> None:
        """Close the connection, and answer what is in flight by policy."""
        link, self._link = self._link, None
        if link is not None:
            link.abort()
        calls, self._script_calls = self._script_calls, {}
        self._pipelines.clear()
        self._loading.clear()
        for call in calls:
            self._fail_call(call, fault)
        asks, self._asks = self._asks, []
        for _, ask in asks:
            self._leases.unsent(ask)

    def _drop_asks(self, call: ScriptCall) -> None:
        """They were turned away."""
        for ask in call.asks:
            self._leases.unsent(ask)
        call.asks = ()

    def _fail_call(self, call: ScriptCall, fault: Fault) -> None:
        for ask in call.asks:
            self._leases.failed(ask)
        for part in call.parts:
            self._pending.fail(part.request, part.hits, fault)

    def _fail(self, part: Part, fault: Fault) -> None:
        for each in (part, *part.rest):
            self._pending.fail(each.request, each.hits, fault)


@dataclass(slots=True, eq=False)
class Pipeline:
    """Commands that are sent in one go: script calls, or a heartbeat."""

    sent: float
    """Seconds of the monotonic clock."""
    unanswered: int
    """Commands without a reply."""
    is_heartbeat: bool = False
    decided: bool = False
    in_time: bool = False
    """Some request waited for the reply."""


_POLL_SECONDS: Final = 5.0
"""Seconds between two polls of how many keys there are, what the time is, and whether counters were reset."""

_RESET_KEY_LIFE: Final = 24 * 3600 * 1000
"""Milliseconds that a reset key lives after it was read last."""

_MOVING: Final = 4
"""A request tries so often within its time whether its slot has moved."""

_HEARTBEAT_PAUSE: Final = 0.01
"""Seconds between two heartbeats while requests are answered by policy because the server is too slow for them."""

_UNFIT: Final = frozenset({"readonly", "loading", "noauth", "wrongpass"})
"""The server cannot decide at all, or not on this connection: four more tries would gain nothing."""

_BROKEN: Final = frozenset({"reset", "protocol"})
"""The connection is lost; the server may decide hits on another one."""

_INCONCLUSIVE: Final = frozenset({"timeout", "unreachable", "sentinel", "maxclients", "protocol", "error"})
"""Faults of an attempt to connect beside a silent connection: the server may be paused, and still have it when it goes
on."""

_OVERLOAD: Final = Fault("overload")
_LATE: Final = Fault("timeout")
