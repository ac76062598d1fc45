"""The watchdog: other workers get the connections that wait for a slow one, and one that hangs for good is killed.

Silence is not enough to kill a worker. One that computes for long, or gets little of a busy machine, sends nothing
either, and its clients would lose calls that it is about to answer. The proof is that it makes no progress: a process
that is stopped, or waits for what never comes, uses no CPU.

::

    nothing sent for 5 s    it gets no new connections, and the others get those that it has not received
    and it uses CPU         nothing more; logged after 30 s, and killed after 300 s
    and it uses none        killed after 30 s

The connections that it has received end with it: what is known of them is in its memory alone (open streams, tables of
headers, keys of TLS).
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

from ratelimit_service.server.workers.dispatch import Dispatcher
from ratelimit_service.server.workers.slot import WorkerSlot
from ratelimit_service.system.cpus import cpu_ticks

log = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 0.1
"""Seconds between two checks of workers: whether connections wait too long."""

_SILENCE_SECONDS: Final = 5.0
"""A worker reports every second; one that sends nothing for this time hangs, or is busy."""

_HUNG_SECONDS: Final = 30.0
"""A worker without progress for this time, also at its start, hangs for good: its clients should connect anew.
gunicorn's default is the same."""

_MAX_SECONDS: Final = 300.0
"""A worker that is busy for this time never ends: calls take milliseconds, and rules, the longest, are parsed in a
thread."""

_STOPPED_SECONDS: Final = 1.0
"""A check that comes this late says nothing about the workers: this process did not run, perhaps nor did they."""


@dataclass(slots=True)
class _Progress:
    """The last sign of life of a silent worker."""

    cpu_ticks: int | None
    """CPU that it had used at the last check."""
    last: float
    """When it was last known to make progress: its last message, or the last check at which it had used more CPU."""
    warned: bool = False
    """The log says that it is busy."""


class Watchdog:
    """Checks all workers, ten times a second."""

    def __init__(self, slots: Sequence[WorkerSlot], dispatcher: Dispatcher) -> None:
        self._slots = slots
        self._dispatcher = dispatcher
        self._silent: dict[WorkerSlot, _Progress] = {}

    async def run(self) -> None:
        """Check again and again, until cancelled."""
        checked = monotonic()
        while True:
            await asyncio.sleep(_PERIOD_SECONDS)
            now = monotonic()
            for slot in self._slots:
                if not slot.alive:
                    self._silent.pop(slot, None)
                elif now - checked > _STOPPED_SECONDS:
                    slot.restart_silence(now)
                else:
                    self._check(slot, now)
            checked = now

    def _check(self, slot: WorkerSlot, now: float) -> None:
        silence = now - slot.last_message
        if silence > _SILENCE_SECONDS:
            self._check_silent(slot, now, silence)
        else:
            self._silent.pop(slot, None)
        if slot.keeps_waiting(now):
            slot.mark_slow()
            self._dispatcher.redistribute(slot)

    def _check_silent(self, slot: WorkerSlot, now: float, silence: float) -> None:
        ticks = cpu_ticks(slot.pid)
        progress = self._silent.setdefault(slot, _Progress(ticks, slot.last_message))
        if ticks != progress.cpu_ticks:
            progress.cpu_ticks, progress.last = ticks, now
        if why := why_kill(silence, now - progress.last):
            log.error("killing worker %d: it %s", slot.number, why)
            slot.restart_silence(now)
            slot.kill()
        elif slot.ready and not slot.silent:
            log.warning(
                "no message from worker %d for %g s: new connections go to the others", slot.number, _SILENCE_SECONDS
            )
            slot.mark_silent()
        elif silence > _HUNG_SECONDS and not progress.warned:
            progress.warned = True
            log.warning("no message from worker %d for %g s, it is busy: its calls wait", slot.number, _HUNG_SECONDS)


def why_kill(silence: float, still: float) -> str:
    """The reason to kill a worker that sent nothing for `silence` seconds and used no CPU for `still`; or empty."""
    if still > _HUNG_SECONDS:
        return f"sent no message and used no CPU for {_HUNG_SECONDS:g} s"
    if silence > _MAX_SECONDS:
        return f"sent no message for {_MAX_SECONDS:g} s, though it is busy"
    return ""
