"""What a device says of its memory, and what becomes of memory that a step gives back."""

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
KEPT_BYTES, OLDER_KEPT_BYTES = 2**30, 2**25  # glibc before 2.35 grants no more than the second
CPU_ALLOCATOR = "DefaultCPUAllocator"  # as it signs its errors


class MemoryMeter(ABC):
    """What a device says of its memory."""

    @abstractmethod
    def total_bytes(self) -> int:
        """Return what the device has."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Return what no program holds."""

    @abstractmethod
    def held_bytes(self) -> int:
        """Give back what is not in use, and return what this process holds for tensors."""

    @abstractmethod
    def peak_bytes(self, run: Callable[[], object]) -> int:
        """Return how much more than before is held at the peak of a run."""


class CudaMeter(MemoryMeter):
    """What the driver says of a GPU, and torch of its own share.

    What is held counts, not what is allocated: what lies unused between tensors is lost as well.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def total_bytes(self) -> int:
        """Return what the driver says."""
        return torch.cuda.mem_get_info(self._device)[1]

    def free_bytes(self) -> int:
        """Return what the driver says."""
        return torch.cuda.mem_get_info(self._device)[0]

    def held_bytes(self) -> int:
        """Collect garbage, empty torch's cache, and return what is reserved."""
        torch.cuda.synchronize(self._device)
        give_back(self._device)
        return torch.cuda.memory_reserved(self._device)

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """Return the growth of what is reserved."""
        before = self.held_bytes()
        torch.cuda.reset_peak_memory_stats(self._device)
        run()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_reserved(self._device) - before


def host_cache_bytes() -> int:
    """Return the bytes of the host's memory that the cache may take, now."""
    return cache_bytes(free_host_bytes())


def zeroed_bytes(num_bytes: int, device: torch.device) -> torch.Tensor:  # uint8 [num_bytes]
    """Allocate zeros, on a host such that a page costs time and memory only when it is first used.

    Raises:
        RuntimeError: The device does not have so much.
        OSError: The host does not.
    """
    if device.type != "cpu" or not num_bytes:
        return torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    return torch.frombuffer(own_pages(num_bytes), dtype=torch.uint8)


@contextlib.contextmanager
def enough_memory(what: str, device: torch.device, way_out: str) -> Iterator[None]:
    """Say in an error of ours what a device has no room for.

    Raises:
        CapacityError: It has none.
    """
    try:
        yield
    except (RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        raise CapacityError(
            f"{what} does not fit on {device}; {way_out}, take a smaller dtype, or share the "
            f"layers (tensor_parallel_size). The device says: {error}"
        ) from error


def is_out_of_memory(error: RuntimeError | OSError) -> bool:
    """Whether a device had no room; for the CPU torch has no type of error for that."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, torch.OutOfMemoryError) or CPU_ALLOCATOR in str(error)


def give_back(device: torch.device) -> None:
    """Free what only garbage holds, and give back what torch, or libc, keeps unused."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def keep_freed_memory() -> None:
    """Let freed memory stay in this process, blocks up to `KEPT_BYTES`, where libc allows it.

    A step allocates and frees the same large tensors each time. glibc hands blocks of that size
    back to the system and takes new ones, which are cleared page by page: a tenth of a prefill.
    """
    libc = _glibc()
    if libc is None:
        return
    for threshold in (KEPT_BYTES, OLDER_KEPT_BYTES):
        if libc.mallopt(M_MMAP_THRESHOLD, threshold):  # 0: refused
            libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
            return


def _glibc() -> ctypes.CDLL | None:
    """Return the process's libc, if it is one whose allocator can be told what to do."""
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
