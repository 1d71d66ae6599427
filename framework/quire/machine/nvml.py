"""Properties of the first visible GPU from NVML, without torch and without a CUDA context.

NVML orders GPUs by PCI bus, and CUDA puts the fastest one first. So an index means the same GPU
for both only if CUDA_DEVICE_ORDER is PCI_BUS_ID, or if all GPUs are alike.
"""

import ctypes
import os
from collections.abc import Callable
from typing import NamedTuple, TypeVar

T = TypeVar("T")

LIBRARY = "libnvidia-ml.so.1"


class DeviceMemory(NamedTuple):
    """Memory of a GPU, in bytes."""

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
    """Return the memory of the first visible device; None if it is unknown."""
    return _query(library, _memory)


def cuda_compute_capability(library: str = LIBRARY) -> int | None:
    """Return the compute capability of the first visible device, 90 for 9.0; None if unknown."""
    return _query(library, _compute_capability)


def visible_devices(library: str = LIBRARY) -> list[str]:
    """Return the indices or UUIDs of the devices that this process may use; [] without a driver."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [device.strip() for device in given.split(",") if device.strip()]
    count = _query(library, _device_count)
    return [str(index) for index in range(count or 0)]


def _query(library: str, read: Callable[[ctypes.CDLL, ctypes.c_void_p], T | None]) -> T | None:
    """Read a property of the first visible device, which is given by its index or its UUID.

    Returns:
        None without a driver, or if CUDA_VISIBLE_DEVICES hides all devices.
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
        return None if status else read(nvml, handle)
    finally:
        nvml.nvmlShutdown()


def _memory(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> DeviceMemory | None:
    memory = _NVMLMemory()
    if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        return None
    return DeviceMemory(memory.total, memory.free)


def _device_count(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> int | None:
    del handle
    count = ctypes.c_uint()
    return None if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) else count.value


def _compute_capability(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> int | None:
    major, minor = ctypes.c_int(), ctypes.c_int()
    if nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)):
        return None
    return 10 * major.value + minor.value
