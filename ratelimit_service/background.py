"""Work in a thread that the process does not wait for at its end."""

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


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
