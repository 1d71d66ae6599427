"""How much memory the KV cache may take, and what becomes of memory that a step gives back."""

import ctypes
import platform

import torch

from quire.free_memory import cache_bytes, free_host_bytes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT_BYTES = 2**30


def available_bytes(device: torch.device) -> int:
    """Return the bytes that the cache may take on a device, now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return cache_bytes("cuda", free)
    return cache_bytes("cpu", free_host_bytes())


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
