"""Counters in Redis, shared by all instances: the shell that joins the parts. Hot path.

A request's hits are handed to the lanes of the servers that have their counters; each lane sends what has come in one
call. `hit` never waits, and makes no task, no future and no timer: one timer answers whoever has waited too long.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from math import inf
from time import monotonic
from typing import Final

from ratelimit_service.errors import TooHeavyError
from ratelimit_service.model import Cancel
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.checks import Checks
from ratelimit_service.stores.redis.faults import Fault
from ratelimit_service.stores.redis.grants import Grants
from ratelimit_service.stores.redis.lane import Lane
from ratelimit_service.stores.redis.orders import MOST_IN_CALL, Script, largest_bundle
from ratelimit_service.stores.redis.policy import Policy
from ratelimit_service.stores.redis.refusals import Refusals
from ratelimit_service.stores.redis.servers import Servers
from ratelimit_service.stores.redis.target import is_per_second
from ratelimit_service.stores.redis.upstream import is_upstreams
from ratelimit_service.stores.redis.waiting import Waiting, WaitingRoom
from ratelimit_service.stores.store import Done, Lost
from ratelimit_service.telemetry.metric import Metric, MetricType

_COARSE: Final = 0.001
"""Seconds between two looks at which requests have waited too long, at the least."""

_ONE_POLL: Final = 0.001
"""Seconds after which the event loop has read its sockets at least once. Nothing is judged by the clock before: if this
process was not running (throttled, stopped, starved), then what looks late lies there unread."""

_STALLED: Final = 0.005
"""Seconds by which that may come late. If it does, the process was not running meanwhile either, and polls again."""

_MOST_POLLS: Final = 4
"""Before it is judged all the same."""


class RedisStore:
    """Counters in the servers of `main`, those of `is_per_second` rules in `per_second` if there is such a Redis.

    `upstream` is the script for the rules that count under upstream's names, if any shall.
    """

    name = "redis"
    evicted = 0
    """Redis never forgets a counter that is alive, if its maxmemory-policy is as it should be."""

    def __init__(  # noqa: PLR0913 - the parts are made by open.py
        self,
        main: Servers,
        script: Script,
        policy: Policy,
        room: WaitingRoom,
        checks: Checks,
        refusals: Refusals | None,
        *,
        grants: Grants,
        per_second: Servers | None = None,
        upstream: Script | None = None,
    ) -> None:
        self._main = main
        self._script = script
        self._policy = policy
        self._room = room
        self._checks = checks
        self._refusals = refusals
        self.charge = None if refusals is None else self._refuse
        self._grants = grants
        self._granted = grants.known.get
        self._per_second = per_second
        self._upstream = upstream
        self._alike = per_second is None and upstream is None
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf
        """When the timer is about to look which requests have waited too long."""
        self._all = [main] if per_second is None else [main, per_second]
        self._started = False
        self._closed = False

    @property
    def healthy(self) -> bool:
        """Every server can decide hits."""
        return all(servers.healthy for servers in self._all)

    @property
    def counters(self) -> int:
        """How many keys the servers have, whoever made them, as they said a few seconds ago."""
        return sum(lane.counters for lane in self.lanes)

    @property
    def errors(self) -> Mapping[str, int]:
        """Requests answered by policy, by cause."""
        return self._room.errors

    @property
    def lost(self) -> Sequence[Lost]:
        """Each server that cannot decide hits now."""
        return [lost for servers in self._all for lost in servers.lost]

    def metrics(self) -> Sequence[Metric]:
        """As StoreStatus says."""
        meaning = "Requests that the store decided in the last fifth of the time that it was given."
        late = Metric("ratelimit_store_late_answers_total", MetricType.COUNTER, meaning, [((), self._room.close_calls)])
        return (*self._grants.metrics(), late)

    @property
    def lanes(self) -> list[Lane]:
        """The ways to all servers."""
        return [lane for servers in self._all for lane in servers.lanes]

    def hit(self, hits: Sequence[Hit], done: Done, timeout: int | None = None) -> Cancel | None:
        """Send the hits; `done` is called when the last is decided, or when the time is over that `Grants` say."""
        now = monotonic()
        refusals = self._refusals
        if refusals is not None and refusals.known:
            left = refusals.answer(hits, now)
            if not left:
                done(None)
                return None
            hits = left
        if len(hits) > MOST_IN_CALL and (together := largest_bundle(hits)) > MOST_IN_CALL:
            done(_too_heavy(together))
            return None
        grant = self._granted(timeout) or self._grants.of(timeout)
        grant.requests += 1
        granted = grant.seconds
        deadline = now + granted
        waiting = Waiting(hits, done, deadline, granted)
        grant.enter(waiting)
        if deadline < self._due:
            self._arm(deadline)
        if self._alike:
            self._main.put(waiting, hits, self._script)
        else:
            self._put_by_kind(waiting, hits)
        return None if waiting.answered else waiting.cancel

    def sweep(self) -> None:
        """Look after the servers; the first time, begin to look for them."""
        if not self._started:
            self._started = True
            for servers in self._all:
                servers.start()
        self._after_poll(self._look)
        self._policy.sweep()
        if self._refusals is not None:
            self._refusals.sweep(monotonic())

    async def close(self) -> None:
        """Close all connections; whoever waits is answered by policy."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._checks.close()
        for servers in self._all:
            await servers.close()
        self._room.clear(Fault("stopping"))

    def _refuse(self, hits: Sequence[Hit]) -> bool:
        """Decide a single hit that is known to be refused: a flood of those pays for nothing else."""
        refusals = self._refusals
        assert refusals is not None
        return len(hits) == 1 and hits[0].key in refusals.known and not refusals.answer(hits, monotonic())

    def _put_by_kind(self, waiting: Waiting, hits: Sequence[Hit]) -> None:
        """The same, when not all hits go to the same servers by the same script; their order stays within each."""
        kinds: dict[tuple[Servers, Script], list[Hit]] = {}
        for hit in hits:
            kinds.setdefault(self._kind(hit.rule), []).append(hit)
        waiting.left += 1  # for all to be on their way, whatever is answered at once
        for (servers, script), some in kinds.items():
            servers.put(waiting, some, script)
        waiting.settle()

    def _kind(self, rule: Rule) -> tuple[Servers, Script]:
        servers = self._per_second if self._per_second is not None and is_per_second(rule) else self._main
        script = self._upstream if self._upstream is not None and is_upstreams(rule) else self._script
        return servers, script

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = deadline
        loop = asyncio.get_running_loop()
        pause = max(_COARSE, deadline - monotonic() - _ONE_POLL)
        self._timer = loop.call_later(pause, self._wait_for_poll)

    def _wait_for_poll(self) -> None:
        self._timer, self._due = None, -inf
        self._after_poll(self._expire)

    def _after_poll(self, judge: Callable[[], None], polls: int = _MOST_POLLS) -> None:
        """Call it when all is read that has come until now."""
        asyncio.get_running_loop().call_later(_ONE_POLL, self._polled, monotonic() + _ONE_POLL, judge, polls - 1)

    def _polled(self, due: float, judge: Callable[[], None], polls: int) -> None:
        if self._closed:
            return
        if polls and monotonic() - due > _STALLED:
            self._after_poll(judge, polls)
        else:
            judge()

    def _expire(self) -> None:
        self._due = inf
        deadline = self._room.expire(monotonic())
        self._look()
        if deadline is not None and deadline < self._due:
            self._arm(deadline)

    def _look(self) -> None:
        now = monotonic()
        for servers in self._all:
            servers.look(now)


def _too_heavy(together: int) -> TooHeavyError:
    return TooHeavyError(f"{together} limits are to be charged together, the most is {MOST_IN_CALL}")
