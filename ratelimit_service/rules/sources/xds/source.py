"""The source of rules that a control plane sends: one stream of xDS (aggregated, state of the world).

A stream goes through these steps; what ends it leads back to the first, after a pause:

    dial        the certificates are read anew, a connection of its own is opened
    ask         the first request: no version and no nonce, so that every control plane answers with all it has
    receive     each response is a whole snapshot; of those that come while one is loaded, the newest is next
    load        the same rules as before (by digest) are not loaded again
    answer      ACK once the rules are in force; NACK with every fault, and the version in force

Laws:

1. Whatever the control plane does, the rules in force stay until it has sent better ones. Only an empty snapshot, which
   it may mean, ends them.
2. Work is bounded: snapshots are loaded `_LOAD_SECONDS` apart, and up to ten times as far while they are wrong; a NACK
   of what was refused before waits a second, twice as long each time: a control plane answers one with the same again.
3. Decoding runs in a thread.
"""

import asyncio
import logging
import random
from pathlib import Path
from time import monotonic
from typing import Final

from ratelimit_service.api.generated.ratelimit.v1.discovery_pb2 import DiscoveryError, DiscoveryRequest
from ratelimit_service.errors import Problem
from ratelimit_service.rules.problems import shortened
from ratelimit_service.rules.sources.source import Documents, Given, SourceConnection
from ratelimit_service.rules.sources.xds.dial import ControlPlane
from ratelimit_service.rules.sources.xds.kept import keep, read_kept
from ratelimit_service.rules.sources.xds.snapshot import TYPE_URL, XdsSnapshot, decode
from ratelimit_service.rules.sources.xds.stream import ReceivedResponse, StreamEnded, XdsStream
from ratelimit_service.settings.fields import SourceKind
from ratelimit_service.system.background import DaemonExecutor
from ratelimit_service.system.clock import system_clock
from ratelimit_service.telemetry.logs import about

log = logging.getLogger(__name__)

_LOAD_SECONDS: Final = 0.1
_MAX_LOAD_SECONDS: Final = 1.0
_FIRST_HOLD: Final = 1.0
_MAX_HOLD: Final = 60.0
_START_SECONDS: Final = 1.0
"""Seconds for which a start waits for the control plane, when it may go on without it."""
_MAX_DETAIL: Final = 4000
"""Characters of the faults in a NACK."""
_INVALID_ARGUMENT: Final = 3


class XdsRules:
    """The rules of a control plane."""

    kind = SourceKind.XDS
    noun = "resource"

    def __init__(
        self,
        plane: ControlPlane,
        *,
        kept: Path | None = None,
        start_seconds: float = _START_SECONDS,
        first_hold: float = _FIRST_HOLD,
    ) -> None:
        self.name = plane.address
        self._plane = plane
        self._kept = kept
        self._kept_digest = ""
        self._start_seconds = start_seconds
        self._hold = _Hold(first_hold)
        self._state = SourceConnection(plane.address, since=system_clock())
        self._arrived = asyncio.Event()
        """There is a newer snapshot, or `refresh` was called."""
        self._newest: ReceivedResponse | None = None
        """What came last, until it is decoded."""
        self._refresh = False
        self._given: XdsSnapshot | None = None
        self._received: ReceivedResponse | None = None
        """That of `_given`; None if it is the one that was kept."""
        self._problems: tuple[Problem, ...] = ()
        """Those of `_given`, once it is loaded."""
        self._next_load = 0.0
        self._load_seconds = _LOAD_SECONDS
        self._idle = asyncio.Event()
        """What was given is loaded: until then nothing else is looked at."""
        self._thread = DaemonExecutor()
        self._certificates = DaemonExecutor()
        self._disk = DaemonExecutor()
        self._to_keep: bytes | None = None
        self._keeping = False
        self._following: asyncio.Task[None] | None = None
        self._pending: asyncio.Task[Given] | None = None
        """What `read` has begun to wait for."""
        self._lost = False
        """It is lost, which was logged."""
        self._connected_before = False
        self._fruitless = False
        """The last stream was open, and nothing came over it."""

    @property
    def connection(self) -> SourceConnection:
        """As RuleSource says."""
        return self._state

    async def read(self, *, required: bool = False) -> Given:
        """Wait for the first snapshot; without `required`, or with one that was kept, for a moment only."""
        self._following = asyncio.create_task(self._follow())
        kept = await self._read_kept()
        if required and kept is None:
            log.info("waiting for the first rules from the control plane %s", self.name)
        self._idle.set()
        self._pending = asyncio.create_task(self._next())
        await asyncio.wait([self._pending], timeout=None if required and kept is None else self._start_seconds)
        if self._pending.done():
            return await self.changed()
        if kept is None:
            log.warning("no rules yet from the control plane %s: calls are refused until it has sent some", self.name)
            return ()
        log.warning("the control plane %s is away: its last snapshot is in force, from %s", self.name, self._kept)
        self._state = self._state._replace(kept=str(self._kept))
        return self._give(kept, None)

    async def changed(self) -> Given:
        """As RuleSource says."""
        self._idle.set()
        pending, self._pending = self._pending or asyncio.create_task(self._next()), None
        return await pending

    async def _next(self) -> Given:
        while True:
            await self._arrived.wait()
            await self._idle.wait()
            await asyncio.sleep(self._next_load - monotonic())
            self._next_load = monotonic() + self._load_seconds
            self._arrived.clear()
            received, self._newest = self._newest, None
            if received is not None:
                snapshot = await self._decode(received)
                if snapshot is not None and self._is_new(snapshot, received):
                    return self._give(snapshot, received)
            if self._refresh and self._given is not None:
                self._refresh = False
                return self._give(self._given, self._received)

    def loaded(self, version: str, problems: tuple[Problem, ...]) -> None:
        """As RuleSource says: answer the control plane."""
        self._idle.set()
        self._problems = problems
        if problems:
            self._load_seconds = min(2 * self._load_seconds, _MAX_LOAD_SECONDS)
        else:
            self._load_seconds = _LOAD_SECONDS
            if self._given is not None and not self._given.resources:
                log.warning("the control plane %s sent no rules: nothing is limited", self.name)
        self._next_load = monotonic() + self._load_seconds
        self._answer()

    def refresh(self) -> None:
        """As RuleSource says: load what was sent last again."""
        self._refresh = True
        self._arrived.set()

    def close(self) -> None:
        """As RuleSource says."""
        for task in (self._following, self._pending):
            if task is not None:
                task.cancel()

    # What was received

    async def _decode(self, received: ReceivedResponse) -> XdsSnapshot | None:
        """The snapshot of a response. One that is not a response ends its stream."""
        in_thread = asyncio.get_running_loop().run_in_executor
        try:
            return await in_thread(self._thread, decode, received.response, self.name)
        except ValueError as error:
            received.stream.end(f"it sent what is not a DiscoveryResponse: {error}")
            return None

    def _is_new(self, snapshot: XdsSnapshot, received: ReceivedResponse) -> bool:
        """Whether these are other rules than those given last; if they are not, answer as before."""
        if self._given is None or snapshot.digest != self._given.digest:
            return True
        self._given, self._received = snapshot, received
        self._answer()
        return False

    def _give(self, snapshot: XdsSnapshot, received: ReceivedResponse | None) -> Given:
        self._given, self._received = snapshot, received
        if snapshot.problems:
            self.loaded(snapshot.digest, snapshot.problems)
            return snapshot.problems
        self._idle.clear()
        return Documents(snapshot.resources, snapshot.digest)

    def _answer(self) -> None:
        """ACK or NACK what was given last, and count it."""
        given, received, problems = self._given, self._received, self._problems
        if given is None or received is None or received.stream.answered is received:
            return
        received.stream.answered = received
        state = self._state
        if problems:
            self._state = state._replace(rejected=state.rejected + 1)
        else:
            self._state = state._replace(accepted=state.accepted + 1, version=shortened(given.version), kept="")
            received.stream.accepted = given.version
            self._keep(received.response, given.digest)
        request = DiscoveryRequest(
            node=self._plane.node(),
            type_url=TYPE_URL,
            version_info=received.stream.accepted,
            response_nonce=given.nonce,
        )
        if problems:
            request.error_detail.MergeFrom(DiscoveryError(code=_INVALID_ARGUMENT, message=_detail(problems)))
        delay = self._hold.delay(given.digest) if problems else self._hold.reset()
        received.stream.answer(request.SerializeToString(), delay)

    # The snapshot on disk

    async def _read_kept(self) -> XdsSnapshot | None:
        path, most = self._kept, self._plane.max_bytes
        if path is None:
            return None

        def read() -> XdsSnapshot | None:
            found = read_kept(path, most)
            return None if found is None else decode(found, str(path))

        reading = asyncio.get_running_loop().run_in_executor(self._disk, read)
        try:
            async with asyncio.timeout(self._start_seconds):
                found = await reading
        except (OSError, ValueError) as error:  # TimeoutError too: a file system that does not answer
            log.warning("the snapshot in %s cannot be read: %s", path, str(error) or "its file system does not answer")
            return None
        self._kept_digest = "" if found is None else found.digest
        return found

    def _keep(self, response: bytes, digest: str) -> None:
        """Write the snapshot, unless it has what is on disk: at once, or the newest after one that is being written."""
        if self._kept is not None and digest != self._kept_digest:
            self._kept_digest, self._to_keep = digest, response
            if not self._keeping:
                self._write(self._kept)

    def _write(self, path: Path) -> None:
        """Write what is to be kept, in a thread: a file system that does not answer delays nothing."""
        if (response := self._to_keep) is None:
            return

        def on_written(writing: asyncio.Future[None]) -> None:
            self._keeping = False
            if not writing.cancelled() and (error := writing.exception()) is not None:
                self._kept_digest = ""
                log.warning("the snapshot cannot be kept in %s: %s", path, error)
            self._write(path)

        self._keeping, self._to_keep = True, None
        asyncio.get_running_loop().run_in_executor(self._disk, keep, path, response).add_done_callback(on_written)

    # The stream

    async def _follow(self) -> None:
        """Keep a stream open until cancelled."""
        plane, in_thread = self._plane, asyncio.get_running_loop().run_in_executor
        first = DiscoveryRequest(node=plane.node(), type_url=TYPE_URL).SerializeToString()
        pause = plane.first_pause
        while True:
            stream = XdsStream()
            try:
                credentials = await in_thread(self._certificates, plane.read_credentials)
                await stream.run(plane, credentials, first, self._on_open, self._on_response)
            except (StreamEnded, OSError) as error:
                self._on_lost(str(error))
            except Exception as error:
                log.exception("the stream to the control plane failed")
                self._on_lost(str(error))
            self._fruitless = stream.opened and not stream.received
            if stream.received:
                pause = plane.first_pause
            await asyncio.sleep(pause * random.uniform(1 - plane.jitter, 1 + plane.jitter))  # noqa: S311 - no secret
            pause = min(2 * pause, plane.longest_pause)

    def _on_open(self) -> None:
        self._state = self._state._replace(connected=True, since=system_clock(), why="")
        if not self._fruitless:  # one that ends again and again would be logged as often
            self._log_connected()

    def _on_response(self, received: ReceivedResponse) -> None:
        if not received.stream.received:
            self._log_connected()
        self._state = self._state._replace(received=self._state.received + 1)
        self._newest = received
        self._arrived.set()

    def _log_connected(self) -> None:
        if self._lost or not self._connected_before:
            words = " again" if self._lost else ""
            fields = about("control_plane_connected", server=self.name)
            log.info("connected to the control plane %s%s", self.name, words, extra=fields)
        self._lost, self._connected_before = False, True

    def _on_lost(self, why: str) -> None:
        """Log what ended a stream, once until there is another."""
        since = system_clock() if self._state.connected or not self._lost else self._state.since
        self._state = self._state._replace(connected=False, since=since, why=why)
        if not self._lost:
            self._lost = True
            log.warning(
                "the control plane %s is lost: %s; rules in force stay, and it is dialled again and again",
                *(self.name, why),
                extra=about("control_plane_lost", server=self.name, why=why),
            )


class _Hold:
    """How long a NACK is held back: not at all, but when what it refuses was refused just before."""

    def __init__(self, first: float) -> None:
        self._first = first
        self._delay = 0.0
        self._digest = ""
        self._due = 0.0
        """When the last NACK was due."""

    def delay(self, digest: str) -> float:
        """The seconds for which the NACK of these resources is held back."""
        now = monotonic()
        again = digest == self._digest or now < self._due + self._first
        self._delay = min(max(2 * self._delay, self._first), _MAX_HOLD) if again else 0.0
        self._digest, self._due = digest, now + self._delay
        return self._delay

    def reset(self) -> float:
        """No NACK any more: an ACK, which is sent at once."""
        self._delay, self._digest, self._due = 0.0, "", 0.0
        return 0.0


def _detail(problems: tuple[Problem, ...]) -> str:
    """All faults, a line each, as far as they fit."""
    lines, length = [], 0
    for number, problem in enumerate(problems):
        line = str(problem)
        length += len(line) + 1
        if length > _MAX_DETAIL:
            lines.append(f"and {len(problems) - number:,} more" if number else shortened(line))
            break
        lines.append(line)
    return "\n".join(lines)
