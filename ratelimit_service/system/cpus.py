"""CPUs that this process may use, and CPU time that a process has used."""

import os
from pathlib import Path


def usable_cpus(own_cgroup: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> int:
    """The CPUs of its affinity, or fewer if the quota of its cgroup, or of one above it, is less: at least 1.

    A part of a CPU is not counted: the kernel stops a process that exceeds its quota for a part of every 100 ms.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _folders(own_cgroup, mount):
        quota = _quota(folder / "cpu.max")
        if quota is not None:
            cpus = min(cpus, quota)
    return max(1, cpus)


def _folders(own_cgroup: Path, mount: Path) -> list[Path]:
    """The folder of the process's cgroup (version 2), then those above it."""
    try:
        lines = own_cgroup.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        if line.startswith("0::/"):
            # Where a container has no namespace of its own, the path is the host's: what is not there has no bound.
            own = mount.joinpath(*Path(line.removeprefix("0::/")).parts)
            return [own, *(folder for folder in own.parents if folder.is_relative_to(mount))]
    return []


def _quota(file: Path) -> int | None:
    """Whole CPUs' worth of time; None when there is no bound. The file says `MICROSECONDS PERIOD`, or `max PERIOD`."""
    try:
        quota, period = file.read_text().split()
        return None if quota == "max" else int(quota) // int(period)
    except (OSError, ValueError):
        return None


def cpu_ticks(pid: int) -> int | None:
    """CPU that all threads of a process used, in ticks of 10 ms; None where the system does not say."""
    try:
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except (OSError, ValueError):
        return None
    return int(user) + int(system)


def cpu_seconds(pid: int) -> float | None:
    """As `cpu_ticks`, in seconds."""
    ticks = cpu_ticks(pid)
    return None if ticks is None else ticks / os.sysconf("SC_CLK_TCK")
