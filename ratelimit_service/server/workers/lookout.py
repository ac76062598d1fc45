"""Notices workers that hang: the others get what waits for them, and those that hang for good are killed.

Silence is not enough to kill one, for a worker that computes for long, or gets little of a busy machine, says nothing
either, and its clients would lose calls that it is about to answer. Proof is that it does not move: a process that is
stopped, or waits for what never comes, uses no CPU.

::

    silent for 5 s       it gets no new connections, and the others get those that wait at its door
    and uses CPU         nothing more; told after 30 s, and killed after 300 s
    and uses none        killed after 30 s

What it has taken ends with it, for what is known of a connection is in its memory alone: the streams that are open, the
tables of headers, the keys of TLS.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Final

from ratelimit_service.server.workers.dispatch import Dispatcher
from ratelimit_service.server.workers.post import Post

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.1
"""How often it is looked whether connections wait too long."""

_SILENCE_SECONDS: Final = 5.0
"""A worker reports every second; one that says nothing for so long hangs, or is busy."""

_HUNG_SECONDS: Final = 30.0
"""One that does not move for so long, at its start too, hangs for good: its clients had better connect anew. So long
waits gunicorn, too."""

_LONGEST_SECONDS: Final = 300.0
"""One that is busy for so long computes for ever: calls take milliseconds, and rules, the longest, are parsed in a
thread."""

_STOOD_STILL_SECONDS: Final = 1.0
"""A look that comes so late finds nothing out about the workers: this process did not run, nor perhaps did they."""


async def look_out(posts: Sequence[Post], dispatcher: Dispatcher) -> None:
    """Look at all of them again and again, until cancelled."""
    looked = monotonic()
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        now = monotonic()
        for post in posts:
            if not post.alive:
                continue
            if now - looked > _STOOD_STILL_SECONDS:
                post.heard = now
            else:
                _look_at(post, now, dispatcher)
        looked = now


def _look_at(post: Post, now: float, dispatcher: Dispatcher) -> None:
    silence = now - post.heard
    if silence > _SILENCE_SECONDS:
        _look_at_silent(post, now, silence)
    else:
        post.used = None
    if post.is_slow(now):
        post.passed_over = True
        dispatcher.redistribute(post)


def _look_at_silent(post: Post, now: float, silence: float) -> None:
    used = _cpu_used(post.pid)
    if used != post.used and post.used is not None:
        post.moved = now
    post.used = used
    if why := why_kill(silence, now - max(post.heard, post.moved)):
        log.error("worker %d %s: it is killed", post.number, why)
        post.heard = now
        post.kill()
    elif post.ready and not post.silent:
        log.warning(
            "worker %d has said nothing for %g s: new connections go to the others", post.number, _SILENCE_SECONDS
        )
        post.passed_over = post.silent = True
    elif silence > _HUNG_SECONDS and not post.busy:
        post.busy = True
        log.warning("worker %d has said nothing for %g s and is busy: its calls wait", post.number, _HUNG_SECONDS)


def why_kill(silence: float, still: float) -> str:
    """Why a worker is killed that has said nothing, and used no CPU, for so many seconds; empty when it is not."""
    if still > _HUNG_SECONDS:
        return f"has said nothing and used no CPU for {_HUNG_SECONDS:g} s"
    if silence > _LONGEST_SECONDS:
        return f"has said nothing for {_LONGEST_SECONDS:g} s, though it is busy"
    return ""


def _cpu_used(pid: int) -> int | None:
    """Of all its threads, in ticks, most often of 10 ms; None where the system does not say: then silence is proof."""
    try:
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except (OSError, ValueError):
        return None
    return int(user) + int(system)
