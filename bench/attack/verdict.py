"""What came of an attack, and the verdict on it: the same rules for every server.

- `broken`: a healthy call failed or had no answer within healthy.PATIENCE, a process of the server ended, or the attack
  saw for itself that something is wrong (`Attacker.harm`)
- `weak`: calls of the healthy client's own connection had a 99th percentile over SLOW_MS and over SLOWER times the one
  before the attack, or a median over SLOW_MS; fresh connections or HTTP requests the same with SLOW_FRESH_MS; or memory
  of the server grew by more than FAIR_MIB, and what settings grant to the attack beside that
- `held`: none of these

An attack that is weak is run up to run.RUNS times: it is broken if one of them is, otherwise the best counts.

Processor time is shown and decides nothing: work that others do not wait for is no harm.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attack.catalogue import Attack

SLOW_MS = 20.0
"""Envoy waits as long for a rate-limit service by default, and then goes on without."""
SLOW_FRESH_MS = 100.0
"""Connections and HTTP requests are rare, and their clients wait for seconds."""
SLOWER = 5
FAIR_MIB = 300
"""256 that all connections may hold together, and what an allocator needs beside them."""

KINDS = {"own": ("calls", SLOW_MS), "fresh": ("fresh connections", SLOW_FRESH_MS), "http": ("HTTP", SLOW_FRESH_MS)}
MIB = 1024
"""In KiB."""


@dataclass(frozen=True)
class Row:
    """One attack on one server."""

    attack: Attack
    server: str
    verdict: str = "not tried"
    why: tuple[str, ...] = ()
    """What the verdict rests on; of one that was not tried, what the server lacks."""
    healthy: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None
    """Of each phase and kind of call, as the healthy client prints it."""
    counts: Mapping[str, Any] | None = None
    """What all attackers have counted, together."""
    cpu: float = 0.0
    """Per cent of a core during the attack."""
    memory: tuple[float, float, float] = (0, 0, 0)
    """MiB before, at the peak, and after."""

    def times(self, phase: str, kind: str = "own") -> tuple[float | None, float | None]:
        """The 50th and 99th percentile, in milliseconds."""
        of_kind = self.healthy[phase][kind] if self.healthy else {}
        return of_kind.get("p50"), of_kind.get("p99")

    def badness(self) -> tuple[bool, bool, float]:
        """To choose among runs: one that broke calls counts before all others, then the best."""
        return self.verdict != "broken", self.verdict != "held", self.times("during")[1] or 0

    def calls(self) -> tuple[int, Counter[str]]:
        """How many healthy calls were answered during the attack and after it, and how the others ended."""
        answered, lost = 0, Counter[str]()
        for phase in ("during", "after"):
            for of_kind in (self.healthy or {}).get(phase, {}).values():
                answered += of_kind["answered"]
                lost.update(of_kind["lost"])
        return answered, lost


def together(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The counts of several attackers as one."""
    whole: dict[str, Any] = {name: sum(report[name] for report in reports) for name in ("sent", "opened", "refused")}
    for name in ("ended", "answers"):
        whole[name] = Counter[str]()
        for report in reports:
            whole[name].update(report[name])
    for name in ("harm", "notes"):
        whole[name] = list(dict.fromkeys(text for report in reports for text in report[name]))
    return whole


def judged(row: Row, died: int) -> tuple[str, tuple[str, ...]]:
    """The verdict on a complete row, and the reasons; `died` processes of the server have ended."""
    assert row.counts is not None
    broken = [*row.counts["harm"], *([f"{died} of its processes ended"] if died else [])]
    answered, lost = row.calls()
    if lost:
        names = ", ".join(f"{name} {times}" for name, times in lost.most_common(3))
        broken.append(f"{lost.total()} of {answered + lost.total()} healthy calls lost: {names}")
    if broken:
        return "broken", tuple(broken)
    weak = _slow(row)
    if (grown := row.memory[1] - row.memory[0]) > FAIR_MIB + row.attack.memory:
        weak.append(f"{grown:.0f} MiB more")
    return ("weak" if weak else "held"), tuple(weak)


def _slow(row: Row) -> list[str]:
    slow = []
    for kind, (name, most) in KINDS.items():
        (_, before), (p50, p99) = row.times("before", kind), row.times("during", kind)
        if p50 and p99 and p99 > most and (p50 > most or p99 > SLOWER * (before or 0)):
            slow.append(f"{name}: p50 {p50:.0f} ms, p99 {p99:.0f} ms")
    return slow
