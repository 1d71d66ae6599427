"""Free memory of the host, and the part of it that the KV cache may take; no torch.

The worker calls it after it has loaded the weights. `quire explain` calls it before, and subtracts
the weights.
"""

import math
from pathlib import Path

MEMORY_INFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")  # a container's limits, version 2
CACHE_SHARE = 0.4  # a host is shared with other programs
UNKNOWN_BYTES = 2 * 2**30


def cache_bytes(free_bytes: float, num_ranks: int = 1) -> int:
    """Return the bytes for the cache of each rank, of the host memory that the weights leave free.

    Args:
        free_bytes: Free memory beside the weights of all ranks.
        num_ranks: Number of ranks that share the host's memory.
    """
    return int(max(0.0, free_bytes) * CACHE_SHARE) // num_ranks


def free_host_bytes(memory_info: Path = MEMORY_INFO, cgroup: Path = CGROUP) -> float:
    """Return the bytes that this process can still allocate, limited by system and container."""
    if not memory_info.is_file():
        return UNKNOWN_BYTES
    return min(_free_by_system(memory_info), _free_by_container(cgroup))


def _free_by_container(cgroup: Path) -> float:
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if not limit.is_file() or not used.is_file():
        return math.inf
    text = limit.read_text().strip()
    if text == "max":
        return math.inf
    return max(0, int(text) - int(used.read_text()) + _reclaimable_bytes(cgroup / "memory.stat"))


def _reclaimable_bytes(statistics: Path) -> int:
    """Return the bytes of cached files that the system drops before it refuses memory."""
    if not statistics.is_file():
        return 0
    fields = dict(line.split() for line in statistics.read_text().splitlines())
    return int(fields.get("inactive_file", 0))


def _free_by_system(memory_info: Path) -> float:
    lines = dict(line.split(":", 1) for line in memory_info.read_text().splitlines() if ":" in line)
    return int(lines["MemAvailable"].split()[0]) * 1024
