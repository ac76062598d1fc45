"""CPU, memory and open files of the service's processes, as metrics: of the only one, or of all added up.

They are read from the system, so nothing is lost with a worker that is killed.
"""

import resource
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

from ratelimit_service.telemetry.metric import Metric, MetricType

_CPU: Final = "process_cpu_seconds_total"
_ADDED: Final = {_CPU, "process_virtual_memory_bytes", "process_resident_memory_bytes", "process_open_fds"}
"""The others are this process's own: when it started, how many files one process may open, its garbage collector."""


class ProcessMetrics:
    """The metrics of this process; those with a sum include the processes that `worker_pids` gives."""

    def __init__(self, worker_pids: Callable[[], Iterable[int]] | None) -> None:
        self._worker_pids = worker_pids
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(self._registry)
        self._cpu = 0.0

    def metrics(self) -> Iterator[Metric]:
        """All of them. Counting open files takes long when there are many: not for the event loop."""
        of_workers = self._of_workers()
        for found in self._registry.collect():
            name = f"{found.name}_total" if found.type == "counter" else found.name
            samples = [
                (tuple(sample.labels.items()), of_workers.get(name, 0.0) + sample.value) for sample in found.samples
            ]
            yield Metric(name, MetricType(found.type), found.documentation, samples)

    def _of_workers(self) -> dict[str, float]:
        if self._worker_pids is None:
            return {}
        sums = dict.fromkeys(_ADDED, 0.0)
        for pid in self._worker_pids():
            for metric in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                for sample in metric.samples:
                    if sample.name in _ADDED:
                        sums[sample.name] += sample.value
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        # A worker that ends between the two looks would be in neither or in both, and a counter must not decrease.
        self._cpu = max(self._cpu, sums[_CPU] + ended.ru_utime + ended.ru_stime)
        sums[_CPU] = self._cpu
        return sums
