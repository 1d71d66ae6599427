"""How much memory is free on this machine, and which share of it the KV cache may take; no torch.

The worker asks when the weights are loaded, `quire explain` before: it takes them off.
"""

import ctypes
import math
import os
from pathlib import Path

MEMORY_INFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")  # a container's limits, version 2
CACHE_SHARES = {"cpu": 0.4, "cuda": 0.9}  # a host is shared with other programs
UNKNOWN_BYTES = 2 * 2**30
NVML = "libnvidia-ml.so.1"


class _NVMLMemory(ctypes.Structure):
    """`nvmlMemory_t`: bytes of one device."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def cache_bytes(device: str, free_bytes: float) -> int:
    """Return the bytes that the cache may take of those that are free beside the weights.

    Args:
        device: "cpu" or "cuda".
        free_bytes: On that device.
    """
    return int(max(0.0, free_bytes) * CACHE_SHARES[device])


def free_bytes(device: str) -> float | None:
    """Return the bytes that are free on a device; None if that cannot be told without torch."""
    return free_cuda_bytes() if device == "cuda" else free_host_bytes()


def free_host_bytes(memory_info: Path = MEMORY_INFO, cgroup: Path = CGROUP) -> float:
    """Return the bytes that this process can still take, by the system and by its container."""
    if not memory_info.is_file():
        return UNKNOWN_BYTES
    return min(_free_by_system(memory_info), _free_by_container(cgroup))


def free_cuda_bytes(library: str = NVML) -> float | None:
    """Return what the driver says of the first visible device; None where there is no driver."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        return _free_by_driver(nvml, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    finally:
        nvml.nvmlShutdown()


def _free_by_driver(nvml: ctypes.CDLL, visible: str) -> float | None:
    """Ask for the device that CUDA would call 0: visible ones are named by number or by UUID."""
    handle, memory = ctypes.c_void_p(), _NVMLMemory()
    first = visible.split(",")[0].strip()
    if first and not first.isdecimal():
        status = nvml.nvmlDeviceGetHandleByUUID(first.encode(), ctypes.byref(handle))
    else:
        status = nvml.nvmlDeviceGetHandleByIndex_v2(int(first or 0), ctypes.byref(handle))
    if status or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        return None
    return float(memory.free)


def _free_by_container(cgroup: Path) -> float:
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if not limit.is_file() or not used.is_file():
        return math.inf
    text = limit.read_text().strip()
    return math.inf if text == "max" else max(0, int(text) - int(used.read_text()))


def _free_by_system(memory_info: Path) -> float:
    lines = dict(line.split(":", 1) for line in memory_info.read_text().splitlines() if ":" in line)
    return int(lines["MemAvailable"].split()[0]) * 1024
