"""Anonymous memory mappings for large, long-lived buffers, in huge pages if possible."""

import contextlib
import mmap
import sys


def own_pages(num_bytes: int) -> mmap.mmap:
    """Map zeroed memory, whose pages are allocated on first use, as huge pages if possible.

    Huge pages make reads of many megabytes faster, because they need fewer TLB entries. Allocators
    rarely return huge pages, because they reuse memory that was freed in small pieces.

    Raises:
        OSError: The system has too little memory.
    """
    if sys.platform == "win32":
        return mmap.mmap(-1, num_bytes)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # optional: some Linux kernels have no huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
