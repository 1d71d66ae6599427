"""What NVIDIA's management library says of the first visible GPU: no torch, and no CUDA context.

Which one is first depends on CUDA_DEVICE_ORDER: a number means the same GPU here and for CUDA where
that is PCI_BUS_ID, or where all GPUs are alike. CUDA's own default puts the fastest one first.
"""

import ctypes
import os
from collections.abc import Callable
from typing import NamedTuple, TypeVar

T = TypeVar("T")

LIBRARY = "libnvidia-ml.so.1"


class DeviceMemory(NamedTuple):
    """Bytes of a GPU."""

    total: int
    free: int


class _NVMLMemory(ctypes.Structure):
    """`nvmlMemory_t`."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def cuda_memory(library: str = LIBRARY) -> DeviceMemory | None:
    """Return the memory of the first visible device; None where there is no driver."""
    return _ask(library, _memory)


def cuda_compute_capability(library: str = LIBRARY) -> int | None:
    """Return 90 for compute capability 9.0, of the first visible device; None if nobody says."""
    return _ask(library, _compute_capability)


def _ask(library: str, question: Callable[[ctypes.CDLL, ctypes.c_void_p], T | None]) -> T | None:
    """Ask of the first visible device, named by its number on the bus or by its UUID.

    CUDA_VISIBLE_DEVICES may hide all devices; then nobody answers.
    """
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if not first:
        return None
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        handle = ctypes.c_void_p()
        if first.isdecimal():
            status = nvml.nvmlDeviceGetHandleByIndex_v2(int(first), ctypes.byref(handle))
        else:
            status = nvml.nvmlDeviceGetHandleByUUID(first.encode(), ctypes.byref(handle))
        return None if status else question(nvml, handle)
    finally:
        nvml.nvmlShutdown()


def _memory(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> DeviceMemory | None:
    memory = _NVMLMemory()
    if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        return None
    return DeviceMemory(memory.total, memory.free)


def _compute_capability(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> int | None:
    major, minor = ctypes.c_int(), ctypes.c_int()
    if nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)):
        return None
    return 10 * major.value + minor.value
