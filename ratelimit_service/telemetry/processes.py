"""CPU, memory and files of the service's processes as Prometheus reads them: of the only one, or of all together.

And how many files they may have. What is told is read from the system, so nothing is lost with a worker that is killed.
"""

import resource
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

from ratelimit_service.telemetry.metric import Labels, head, line

_CPU: Final = "process_cpu_seconds_total"
_SUMMED: Final = {_CPU, "process_virtual_memory_bytes", "process_resident_memory_bytes", "process_open_fds"}
"""When this process started, and how many files one may open, are not summed."""


_OTHER_FILES: Final = 100
"""Of a process, besides its clients' connections: what it listens on, Redis, rules."""


def allow_files(grpc: int, http: int) -> str:
    """Let this process, and those it starts, have all the files that the system lets it; or why they are too few.

    What shells and containers begin with, often 1,024, is for the sake of select(2), which nobody here uses.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # macOS has fewer than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    least = grpc + http + _OTHER_FILES
    if most == resource.RLIM_INFINITY or least <= most:
        return ""
    return f"{grpc} gRPC and {http} HTTP connections take {least} files, the process may have {most}: raise ulimit -Hn"


def share_of_files(most: int) -> int:
    """As many HTTP connections as `most`, where a quarter of the files that the process may have is enough for them."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if files == resource.RLIM_INFINITY else max(1, min(most, files // 4))


class Worker(Protocol):
    """A worker at work."""

    @property
    def number(self) -> int:
        """From 1; whoever replaces it has the same."""

    @property
    def pid(self) -> int:
        """Of its process."""

    @property
    def ready(self) -> bool:
        """It answers, or will as soon as there are rules."""

    @property
    def load(self) -> int:
        """Connections that it has or is about to take."""


class Death(NamedTuple):
    """A worker that ended without being told to."""

    number: int
    when: int
    """Microseconds since the epoch."""
    how: str
    """Its pid and its exit code or signal, in words."""


class Workers(Protocol):
    """All workers."""

    @property
    def alive(self) -> Iterable[Worker]:
        """Those that run."""

    @property
    def deaths(self) -> int:
        """How many ended without being told to."""

    @property
    def last_deaths(self) -> Sequence[Death]:
        """The last of them, in order."""

    async def refresh(self) -> None:
        """Gather what they have counted until now."""


class Processes:
    """This process, and those of the workers if there are any."""

    def __init__(self, label_text: Callable[[Labels], str], workers: Workers | None) -> None:
        self._label_text = label_text
        self._workers = workers
        self._registry = CollectorRegistry()
        self._own = ProcessCollector(registry=self._registry)
        GCCollector(self._registry)
        self._cpu = 0.0

    def text(self) -> str:
        """All metrics."""
        more = self._of_workers()
        blocks = []
        for metric in self._registry.collect():
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            blocks.append(head(name, metric.type, metric.documentation))
            blocks += [
                line(each.name, self._label_text(each.labels.items()), more.get(each.name, 0.0) + each.value)
                for each in metric.samples
            ]
        return "".join(blocks)

    def _of_workers(self) -> dict[str, float]:
        if self._workers is None:
            return {}
        more = dict.fromkeys(_SUMMED, 0.0)
        for worker in tuple(self._workers.alive):
            for metric in ProcessCollector(pid=_always(worker.pid), registry=None).collect():
                for sample in metric.samples:
                    if sample.name in _SUMMED:
                        more[sample.name] += sample.value
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        # One that ends between the two looks would be in neither or in both, and a counter must not go back.
        self._cpu = max(self._cpu, more[_CPU] + ended.ru_utime + ended.ru_stime)
        more[_CPU] = self._cpu
        return more


def _always(pid: int) -> Callable[[], int]:
    return lambda: pid
