"""How much memory the KV cache may take, and what becomes of memory that a step gives back."""

import ctypes
import math
import platform
from pathlib import Path

import torch

MEMORY_INFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")  # a container's limits, version 2
CPU_SHARE = 0.4  # of what is free once the weights are loaded: other programs live here too
CUDA_SHARE = 0.9
UNKNOWN_BYTES = 2 * 2**30
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT_BYTES = 2**30


def available_bytes(device: torch.device) -> int:
    """Return the bytes that the cache may take on a device, now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * CUDA_SHARE)
    return int(_free_host_bytes() * CPU_SHARE)


def keep_freed_memory() -> None:
    """Let freed memory stay in this process, up to `KEPT_BYTES`, where the C library allows it.

    A step allocates and frees the same large tensors each time. glibc hands blocks of that size
    back to the system and takes new ones, which are cleared page by page: a tenth of a prefill.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


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
