"""One event loop for all tests of a process that have grpc.aio in it.

grpc.aio shares one queue of events among all loops of a process: what it still has for a loop that was closed raises
in the next one, and takes that one's events with it. A service has one loop for its whole life; so have the tests.
"""

import asyncio
import atexit
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

_T = TypeVar("_T")


def run(story: Coroutine[Any, Any, _T]) -> _T:
    """As `asyncio.run`, on that loop."""
    return _runner().run(story)


@cache
def _runner() -> asyncio.Runner:
    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner
