"""How many threads should compute: one for each physical core that this process may use.

Two threads on one core share its arithmetic units and gain nothing. A container's quota counts,
which neither torch nor OpenMP knows: more threads than it has CPUs wait most of each period.
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
    """Return on how many logical CPUs this process may run."""
    return len(_allowed())


def usable_cores() -> tuple[int, str]:
    """Return how many physical cores this process may use, and what sets the number."""
    cores, quota = physical_cores(_allowed(), CPUS), cpu_quota()
    if quota is not None and math.ceil(quota) < cores:
        return max(1, math.ceil(quota)), f"a quota of {quota:g} CPUs"
    return cores, "one a physical core"


def physical_cores(cpus: Iterable[int], folder: Path) -> int:
    """Return how many cores these logical CPUs are; each counts as one where nobody tells."""
    return len({_siblings(cpu, folder) for cpu in cpus})


def cpu_quota(groups: Path = CGROUPS, own: Path = OWN_CGROUPS) -> float | None:
    """Return how many CPUs' time the control groups above this process grant; None: all."""
    if not own.is_file():
        return None
    quotas = [
        _quota(folder) for line in own.read_text().splitlines() for folder in _above(line, groups)
    ]
    return min((quota for quota in quotas if quota is not None), default=None)


def _allowed() -> set[int]:
    if "sched_getaffinity" in vars(os):  # Linux
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _siblings(cpu: int, folder: Path) -> str:
    try:
        return (folder / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _above(line: str, groups: Path) -> list[Path]:
    """Return the folders of a control group, given as in /proc/self/cgroup, and of those above."""
    _, controllers, path = line.split(":", 2)
    if controllers and "cpu" not in controllers.split(","):
        return []
    mounts = (groups / controllers, groups / "cpu") if controllers else (groups, groups / "unified")
    own = Path(path.lstrip("/"))
    return [mount / part for mount in mounts for part in (own, *own.parents)]


def _quota(folder: Path) -> float | None:
    """Return the CPUs that one group may use, by version 2 or 1 of the interface."""
    for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError):
            words = [word for name in files for word in (folder / name).read_text().split()]
            return _share(*words) if len(words) == 2 else None
    return None


def _share(limit: str, period: str) -> float | None:
    """Return the quotient of two whole numbers above zero; None for others: there is no limit."""
    is_share = limit.isdecimal() and period.isdecimal() and int(limit) and int(period)
    return int(limit) / int(period) if is_share else None
