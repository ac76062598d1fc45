"""Many callers at once, each in a process of its own."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.processes import ROOT

_CALLER = Path(__file__).with_name("redis_caller.py")


class Callers:
    """At work; each makes so many calls of each kind, KEY:COST, those of one kind all together."""

    def __init__(self, processes: "Sequence[subprocess.Popen[str]]") -> None:
        self._processes = processes

    @property
    def busy(self) -> bool:
        """Some have not ended."""
        return any(process.poll() is None for process in self._processes)

    def allowed(self) -> Counter[str]:
        """How many calls of each kind were, in the end."""
        total: Counter[str] = Counter()
        for process in self._processes:
            total.update(json.loads(process.communicate(timeout=300)[0]))
        return total


@contextmanager
def call(ports: Sequence[int], calls: int, kinds: Sequence[str]) -> Iterator[Callers]:
    """A caller for each port; all begin together."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(_CALLER), str(port), str(calls), *kinds],
                    env={"PYTHONPATH": str(ROOT)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for port in ports
        ]
        for process in processes:
            stack.callback(process.kill)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        yield Callers(processes)
