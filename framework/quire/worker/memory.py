"""How much memory the KV cache may take."""

import math
from pathlib import Path

import torch

MEMORY_INFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")  # a container's limits, version 2
CPU_SHARE = 0.4  # of what is free once the weights are loaded: other programs live here too
CUDA_SHARE = 0.9
UNKNOWN_BYTES = 2 * 2**30


def available_bytes(device: torch.device) -> int:
    """Return the bytes that the cache may take on a device, now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * CUDA_SHARE)
    return int(_free_host_bytes() * CPU_SHARE)


def _free_host_bytes() -> float:
    if not MEMORY_INFO.is_file():
        return UNKNOWN_BYTES
    return min(_free_by_system(), _free_by_container())


def _free_by_container() -> float:
    limit, used = CGROUP / "memory.max", CGROUP / "memory.current"
    if not limit.is_file() or not used.is_file():
        return math.inf
    text = limit.read_text().strip()
    return math.inf if text == "max" else max(0, int(text) - int(used.read_text()))


def _free_by_system() -> float:
    lines = dict(line.split(":", 1) for line in MEMORY_INFO.read_text().splitlines() if ":" in line)
    return int(lines["MemAvailable"].split()[0]) * 1024
