"""Number of processes for the suite: what cores and free memory allow; `make test` asks.

A process of the suite holds torch, models and caches of its own, and its tests start engines,
servers and C++ compilers.
"""

from quire.machine.cores import cpu_quota, usable_cpus
from quire.machine.free_memory import free_host_bytes

PROCESS_BYTES = 3 * 2**30  # at most, with what its tests start
MAX_PROCESSES = 8  # the longest tests set the time; more processes only share them


def num_processes(num_cpus: float, free_bytes: float) -> int:
    """Number of processes: one a CPU as far as memory lasts, and one at least."""
    return max(1, min(int(num_cpus), int(free_bytes // PROCESS_BYTES), MAX_PROCESSES))


if __name__ == "__main__":
    quota = cpu_quota()
    num_cpus = usable_cpus() if quota is None else min(usable_cpus(), quota)
    print(num_processes(num_cpus, free_host_bytes()))
