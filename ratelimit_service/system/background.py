"""A daemon thread for work that may hang, and an exit that waits for no thread."""

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

EXIT_SECONDS: Final = 2.0
"""Seconds that the interpreter may take to exit after the service has stopped."""


class DaemonExecutor(Executor):
    """One daemon thread, which lives as long as this object.

    The threads of asyncio and of concurrent.futures are joined when the process exits: one that hangs in a read, on a
    file system that does not answer, would keep the process alive for ever.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=_work, args=(self._work,), daemon=True).start()
        weakref.finalize(self, self._work.put, None)

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run the function in the thread, after those that were submitted before."""
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    result = function(*args, **kwargs)
                except BaseException as error:  # noqa: BLE001 - the future carries every error
                    future.set_exception(error)
                else:
                    future.set_result(result)

        self._work.put(run)
        return future


def _work(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    while (run := queue.get()) is not None:
        run()
        del run  # or what it refers to would stay alive until the next one comes


def exit_within(seconds: float, code: int, last: Callable[[], None] = lambda: None) -> None:
    """Exit after this time at the latest, whatever the threads of the process wait for; `last` is called before.

    A resolver's thread that hangs is one: it is joined when the loop is closed, and its look-up cannot be cancelled.
    """

    def end() -> None:
        try:
            last()
        finally:
            os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
