"""Number of compute threads: one per physical core that this process may use.

Two threads on one core share its arithmetic units and gain nothing. The CPU quota of a container
limits the number too, because threads beyond it are throttled; torch and OpenMP ignore it.
"""

import math
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def usable_cpus() -> int:
    """Return the number of logical CPUs that this process may run on."""
    return len(_allowed_cpus())


def usable_cores() -> tuple[int, str]:
    """Return the number of physical cores that this process may use, and the reason for it."""
    cores, quota = physical_cores(_allowed_cpus(), CPUS), cpu_quota()
    if quota is not None and math.ceil(quota) < cores:
        return max(1, math.ceil(quota)), f"a quota of {quota:g} CPUs"
    return cores, "one per physical core"


def physical_cores(cpus: Iterable[int], folder: Path) -> int:
    """Return the number of cores of logical CPUs; each counts as one if siblings are unknown."""
    return len({_siblings(cpu, folder) for cpu in cpus})


def cpu_quota(groups: Path = CGROUPS, own: Path = OWN_CGROUPS) -> float | None:
    """Return the CPU quota of this process's control groups, in CPUs; None: no limit."""
    if not own.is_file():
        return None
    quotas = [
        _quota(folder) for line in own.read_text().splitlines() for folder in _folders(line, groups)
    ]
    return min((quota for quota in quotas if quota is not None), default=None)


def _allowed_cpus() -> set[int]:
    if "sched_getaffinity" in vars(os):  # Linux
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _siblings(cpu: int, folder: Path) -> str:
    try:
        return (folder / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _folders(line: str, groups: Path) -> list[Path]:
    """Return the folders of a line of /proc/self/cgroup: the control group and its parents."""
    _, controllers, path = line.split(":", 2)
    if controllers and "cpu" not in controllers.split(","):
        return []
    mounts = (groups / controllers, groups / "cpu") if controllers else (groups, groups / "unified")
    own = Path(path.lstrip("/"))
    return [mount / part for mount in mounts for part in (own, *own.parents)]


def _quota(folder: Path) -> float | None:
    """Return the quota of one control group in CPUs, by version 2 or 1 of the interface."""
    for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError):
            words = [word for name in files for word in (folder / name).read_text().split()]
            return _quotient(*words) if len(words) == 2 else None
    return None


def _quotient(limit: str, period: str) -> float | None:
    """Return the quotient of two positive whole numbers; None for others, which mean no limit."""
    is_limited = limit.isdecimal() and period.isdecimal() and int(limit) and int(period)
    return int(limit) / int(period) if is_limited else None
