"""Properties of the visible GPUs from NVML, without torch and without a CUDA context.

NVML orders GPUs by PCI bus, and CUDA puts the fastest one first. So an index means the same GPU
for both only if CUDA_DEVICE_ORDER is PCI_BUS_ID, or if all GPUs are alike.
"""

import ctypes
import os
from collections.abc import Callable
from itertools import count
from typing import NamedTuple, TypeVar

T = TypeVar("T")

LIBRARY = "libnvidia-ml.so.1"
MAX_UUID_BYTES = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE


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


def cuda_memory(library: str = LIBRARY, index: int = 0) -> DeviceMemory | None:
    """Return the memory of a visible device by its index among them; None if it is unknown."""
    return _query(library, lambda nvml: _read(nvml, index, _memory))


def cuda_compute_capability(library: str = LIBRARY) -> int | None:
    """Return the compute capability of the first visible device, 90 for 9.0; None if unknown."""
    return _query(library, lambda nvml: _read(nvml, 0, _compute_capability))


def visible_devices(library: str = LIBRARY) -> list[str]:
    """Return the indices or UUIDs of the visible devices, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    number = cuda_device_count(library) or 0
    names = map(str, range(number)) if visible is None else visible.split(",")[:number]
    return [name.strip() for name in names]


def visible_device_ids(library: str = LIBRARY) -> list[str] | None:
    """Return the UUIDs of the visible devices in their order; None if they are unknown.

    A UUID is the same for every process of the machine, also where a container or a cgroup hides
    other GPUs and numbers the rest anew.
    """
    return _query(library, _uuids)


def cuda_device_count(library: str = LIBRARY) -> int | None:
    """Return the number of visible devices; None without a driver.

    As for CUDA, a device that does not exist hides all that CUDA_VISIBLE_DEVICES names after it.
    """
    return _query(library, _count)


def _query(library: str, read: Callable[[ctypes.CDLL], T | None]) -> T | None:
    """Read properties from the driver's library; None without a driver."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        return read(nvml)
    finally:
        nvml.nvmlShutdown()


def _count(nvml: ctypes.CDLL) -> int:
    return next(index for index in count() if _handle(nvml, index) is None)


def _uuids(nvml: ctypes.CDLL) -> list[str] | None:
    uuids = [_read(nvml, index, _uuid) for index in range(_count(nvml))]
    known = [uuid for uuid in uuids if uuid is not None]
    return known if len(known) == len(uuids) else None


def _read(
    nvml: ctypes.CDLL, index: int, read: Callable[[ctypes.CDLL, ctypes.c_void_p], T | None]
) -> T | None:
    """Read a property of a visible device; None if there is no such device."""
    handle = _handle(nvml, index)
    return None if handle is None else read(nvml, handle)


def _handle(nvml: ctypes.CDLL, index: int) -> ctypes.c_void_p | None:
    """Return the handle of a visible device; CUDA_VISIBLE_DEVICES has indices or UUIDs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = None if visible is None else [name.strip() for name in visible.split(",")]
    if names is not None and index >= len(names):
        return None
    name = str(index) if names is None else names[index]
    handle = ctypes.c_void_p()
    if not name:
        return None
    if name.isdecimal():
        status = nvml.nvmlDeviceGetHandleByIndex_v2(int(name), ctypes.byref(handle))
    else:
        status = nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
    return None if status else handle


def _uuid(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> str | None:
    text = ctypes.create_string_buffer(MAX_UUID_BYTES)
    if nvml.nvmlDeviceGetUUID(handle, text, MAX_UUID_BYTES):
        return None
    return text.value.decode()


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
