"""Device memory: meters, allocation of zeroed bytes, and out-of-memory errors."""

import contextlib
import ctypes
import errno
import gc
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch

from quire.errors import CapacityError
from quire.machine.free_memory import cache_bytes, free_host_bytes
from quire.machine.pages import own_pages

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT_BYTES, OLDER_KEPT_BYTES = 2**30, 2**25  # the second is the maximum of glibc before 2.35
CPU_ALLOCATOR = "DefaultCPUAllocator"  # as named in its error messages


class MemoryMeter(ABC):
    """Memory statistics of a device."""

    @abstractmethod
    def total_bytes(self) -> int:
        """Return the total memory of the device."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Return the memory that no process holds."""

    @abstractmethod
    def held_bytes(self) -> int:
        """Free unused memory, and return the bytes that this process holds for tensors."""

    @abstractmethod
    def peak_bytes(self, run: Callable[[], object]) -> int:
        """Return the peak of held bytes during a run, above the bytes held before it."""


class CudaMeter(MemoryMeter):
    """Memory statistics of a GPU, from the driver and from torch's caching allocator.

    Counts reserved bytes, not allocated ones, so that fragmentation is included.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def total_bytes(self) -> int:
        """Return the total memory as the driver reports it."""
        return torch.cuda.mem_get_info(self._device)[1]

    def free_bytes(self) -> int:
        """Return the free memory as the driver reports it."""
        return torch.cuda.mem_get_info(self._device)[0]

    def held_bytes(self) -> int:
        """Collect garbage, empty torch's cache, and return the reserved bytes."""
        torch.cuda.synchronize(self._device)
        free_unused_memory(self._device)
        return torch.cuda.memory_reserved(self._device)

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """Return the growth of the peak of reserved bytes."""
        before = self.held_bytes()
        torch.cuda.reset_peak_memory_stats(self._device)
        run()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_reserved(self._device) - before


def host_cache_bytes(num_ranks: int) -> int:
    """Return the bytes of host memory available for the KV cache of a rank at this moment.

    Args:
        num_ranks: Number of ranks that share the host's memory. Of those that have loaded their
            weights, the last one to call this returns the smallest number, which is right for all.
    """
    return cache_bytes(free_host_bytes(), num_ranks)


def zeroed_bytes(num_bytes: int, device: torch.device) -> torch.Tensor:  # uint8 [num_bytes]
    """Allocate zeroed bytes; on a CPU, memory pages are committed only on their first use.

    Raises:
        RuntimeError: The device has not enough memory.
        OSError: The host has not enough memory.
    """
    if device.type != "cpu" or not num_bytes:
        return torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    return torch.frombuffer(own_pages(num_bytes), dtype=torch.uint8)


@contextlib.contextmanager
def enough_memory(what: str, device: torch.device, remedy: str) -> Iterator[None]:
    """Turn an out-of-memory error into a CapacityError.

    Args:
        what: Subject of the error message: the part that did not fit.
        device: Device whose memory is used.
        remedy: Advice for the user on how to make it fit.

    Raises:
        CapacityError: The device ran out of memory.
    """
    try:
        yield
    except (RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        raise CapacityError(
            f"{what} does not fit on {device}; {remedy}, use a smaller dtype, or split the layers "
            f"over more devices (tensor_parallel_size). The device reported: {error}"
        ) from error


def is_out_of_memory(error: RuntimeError | OSError) -> bool:
    """Whether an error is an out-of-memory error; torch has no exception type for it on a CPU."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, torch.OutOfMemoryError) or CPU_ALLOCATOR in str(error)


def free_unused_memory(device: torch.device) -> None:
    """Collect garbage, and free unused memory that torch's or libc's allocator holds."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def keep_freed_memory() -> None:
    """Make glibc keep freed allocations of up to `KEPT_BYTES` in this process.

    A step allocates and frees the same large tensors each time. By default glibc returns
    allocations of that size to the system and maps new ones, which the kernel clears page by page:
    a tenth of the time of a prefill.
    """
    libc = _glibc()
    if libc is None:
        return
    for threshold in (KEPT_BYTES, OLDER_KEPT_BYTES):
        if libc.mallopt(M_MMAP_THRESHOLD, threshold):  # 0: refused
            libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
            return


def _glibc() -> ctypes.CDLL | None:
    """Return the process's libc if it is glibc, whose allocator is configurable."""
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
