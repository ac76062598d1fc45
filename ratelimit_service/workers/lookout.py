"""Notices workers that hang: the others get what waits for them, and those that hang for good are killed."""

import asyncio
import logging
from collections.abc import Sequence
from time import monotonic
from typing import Final

from ratelimit_service.workers.post import Post
from ratelimit_service.workers.sharing import Sharing

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.1
"""How often it is looked whether connections wait too long."""

_SILENCE_SECONDS: Final = 5.0
"""A worker reports every second; one that says nothing for so long hangs."""

_HUNG_SECONDS: Final = 30.0
"""One that hangs for so long, or does not begin to speak, hangs for good: its clients had better connect anew. So
long waits gunicorn, too."""

_STOOD_STILL_SECONDS: Final = 1.0
"""A look that comes so late finds nothing out about the workers: this process did not run, nor perhaps did they."""


async def look_out(posts: Sequence[Post], sharing: Sharing) -> None:
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
                _look_at(post, now, sharing)
        looked = now


def _look_at(post: Post, now: float, sharing: Sharing) -> None:
    silence = now - post.heard
    if silence > _HUNG_SECONDS:
        log.error("worker %d has said nothing for %g s: it is killed", post.number, _HUNG_SECONDS)
        post.heard = now
        post.kill()
    elif post.ready and not post.silent and silence > _SILENCE_SECONDS:
        log.warning(
            "worker %d has said nothing for %g s: new connections go to the others", post.number, _SILENCE_SECONDS
        )
        post.passed_over = post.silent = True
    if post.is_slow(now):
        post.passed_over = True
        sharing.hand_on(post)
