"""Work in a thread that the process does not wait for at its end, and an end that waits for no thread."""

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
"""For an interpreter to end when all that the service does has ended."""


class DaemonExecutor(Executor):
    """One daemon thread, which lives as long as this object.

    The threads of asyncio and of concurrent.futures are joined at the process's end: one that hangs in a read, on a
    file system that does not answer, would keep the process for ever.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=_work, args=(self._work,), daemon=True).start()
        weakref.finalize(self, self._work.put, None)

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run it in the thread, after all that was submitted before."""
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    result = function(*args, **kwargs)
                except BaseException as error:  # noqa: BLE001 - whatever it is, it is the future's
                    future.set_exception(error)
                else:
                    future.set_result(result)

        self._work.put(run)
        return future


def _work(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    while (run := queue.get()) is not None:
        run()
        del run  # what it holds is not held while the next is waited for


def exit_within(seconds: float, code: int, last: Callable[[], None] = lambda: None) -> None:
    """End the process after so long at the latest, whatever its threads wait for; then `last` is called before.

    A name that is looked up cannot be given up: the resolver's thread is joined when the loop is closed.
    """

    def leave() -> None:
        try:
            last()
        finally:
            os._exit(code)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
