"""Memory of its own for what is large and stays: the system clears a page when it is first used."""

import contextlib
import mmap
import sys


def own_pages(num_bytes: int) -> mmap.mmap:
    """Return zeros that take memory as they are used, in large pages where the system grants them.

    Memory of many megabytes is read faster through large pages: fewer addresses are looked up.
    Allocators rarely get them, because they give out again what was freed in small ones.

    Raises:
        OSError: The system has not so much.
    """
    if sys.platform == "win32":
        return mmap.mmap(-1, num_bytes)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # it is advice, and some kernels know no large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
