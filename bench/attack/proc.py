"""What Linux tells of a process and its children: processor time, memory, whether it is still there."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TICK = 1 / os.sysconf("SC_CLK_TCK")
GONE = (FileNotFoundError, ProcessLookupError)


class Seen(NamedTuple):
    """A process and all below it, at one moment."""

    pids: frozenset[int]
    seconds: float
    """Of processor time."""
    memory: int
    """KiB, resident."""
    peak: int
    """KiB: the most since `reset_peak`, or since the start where that is not permitted."""


def family(pid: int) -> Iterator[int]:
    """It and all below it that run."""
    if runs(pid):
        yield pid
        for child in children(pid):
            yield from family(child)


def children(pid: int) -> set[int]:
    """Those of a process; its threads may have some too."""
    found = set()
    with suppress(*GONE):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(*GONE):
                found |= {int(child) for child in (task / "children").read_text().split()}
    return found


def runs(pid: int) -> bool:
    """Whether it is there and has not ended."""
    try:
        return _stat(pid)[0] != "Z"
    except GONE:
        return False


def look(pid: int) -> Seen:
    """What there is to see."""
    pids, seconds, memory, peak = set(), 0.0, 0, 0
    for one in family(pid):
        with suppress(*GONE):
            fields, status = _stat(one), Path(f"/proc/{one}/status").read_text()
            pids.add(one)
            seconds += (int(fields[11]) + int(fields[12])) * TICK
            memory += _kib(status, "VmRSS:")
            peak += _kib(status, "VmHWM:")
    return Seen(frozenset(pids), seconds, memory, peak)


def reset_peak(pid: int) -> None:
    """The most memory counts from now on."""
    for one in family(pid):
        with suppress(OSError):
            Path(f"/proc/{one}/clear_refs").write_text("5")


def pin(pid: int, *, server: bool) -> None:
    """All threads of a process and of those below it: a server to a core of its own, all else to the others."""
    first, *others = sorted(os.sched_getaffinity(0))
    for one in family(pid) if others else ():
        with suppress(*GONE):
            for task in Path(f"/proc/{one}/task").iterdir():
                with suppress(*GONE):
                    os.sched_setaffinity(int(task.name), [first] if server else others)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: the name before them may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _kib(status: str, name: str) -> int:
    after = status.partition(name)[2].split(maxsplit=1)
    return int(after[0]) if after else 0
