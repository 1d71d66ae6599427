"""Anonymous memory mappings for large, long-lived buffers, in huge pages if possible."""

import contextlib
import ctypes
import mmap
import sys
import threading
import time
from pathlib import Path

HUGE_BYTES = 2**21
SLOW_S = 1.5e-3  # CPU time to clear a huge page; up to 0.3 ms is usual, small pages take 1 ms
MERGE_DELAY_S = 1.0
HUGE_PAGE_MODES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MADV_COLLAPSE = 25  # Linux 6.1


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


def has_huge_pages() -> bool:
    """Return whether the system gives huge pages to mappings that ask for them."""
    try:
        modes = HUGE_PAGE_MODES.read_text(encoding="ascii")
    except OSError:
        return False
    return "[never]" not in modes


class PreparedPages:
    """Memory whose pages a thread allocates before they are used.

    The system clears pages when they are first written, which for the weights of a model takes
    about as long as to fill them. Meanwhile a process can import its code.

    A virtual machine may have returned large pieces of free memory to its host, and gets them back
    slowly. Huge pages then take longer than small ones, so the rest of the memory gets small ones,
    which are merged to huge ones in the background after `close`.

    Args:
        slow_s: CPU time in s of a huge page, from which on small pages are faster.
        merge_delay_s: Time in s from `close` until pages are merged.
    """

    def __init__(self, slow_s: float = SLOW_S, merge_delay_s: float = MERGE_DELAY_S) -> None:
        self._slow_s = slow_s
        self._merge_delay_s = merge_delay_s
        self._lock = threading.Lock()
        self._memory: mmap.mmap | None = None
        self._end = 0  # end of the part that was taken
        self._small_from: int | None = None  # begin of the part with small pages
        self._thread: threading.Thread | None = None
        self._merging: threading.Thread | None = None

    def prepare(self, num_bytes: int) -> None:
        """Map memory, and let a thread allocate its pages; a second call does nothing until close.

        Memory that cannot be mapped is left to the use of it.
        """
        with self._lock, contextlib.suppress(OSError):
            if self._memory is None and num_bytes and sys.platform == "linux":
                memory = self._memory = own_pages(num_bytes)
                self._end, self._small_from = 0, None
                self._thread = threading.Thread(
                    target=self._populate, args=(memory,), name="prepare pages", daemon=True
                )
                self._thread.start()

    def take(self, num_bytes: int) -> memoryview | None:
        """Return the next part, page-aligned; None if so much is not left.

        The memory is freed once no part of it is used, and it is closed.
        """
        with self._lock:
            if self._memory is None or self._end + num_bytes > len(self._memory):
                return None
            part = memoryview(self._memory)[self._end : self._end + num_bytes]
            self._end += -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
            return part

    def close(self) -> None:
        """Stop allocating, and give the pages of the part that was not taken back."""
        with self._lock:
            memory, end, thread = self._memory, self._end, self._thread
            self._memory = self._thread = None
        if thread is not None:
            thread.join()
        if memory is None:
            return
        if end < len(memory):
            memory.madvise(mmap.MADV_DONTNEED, end)
        if self._small_from is not None and self._small_from < end:
            self._merging = threading.Thread(
                target=self._merge,
                args=(memory, self._small_from, end),
                name="merge pages",
                daemon=True,
            )
            self._merging.start()

    def _populate(self, memory: mmap.mmap) -> None:
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        done, is_wanted = 0, True
        while is_wanted:
            with self._lock:  # what was taken may hold data
                done = max(done, -(-self._end // HUGE_BYTES) * HUGE_BYTES)
                size = min(HUGE_BYTES, len(memory) - done)
                is_wanted = self._memory is memory and size > 0
                if is_wanted:
                    begun = time.thread_time()
                    ctypes.memset(start + done, 0, size)
                    took = time.thread_time() - begun
                    if took >= self._slow_s:
                        self._take_small_pages(memory, done + size)
            done += size

    def _take_small_pages(self, memory: mmap.mmap, begin: int) -> None:
        if self._small_from is None and begin < len(memory) and has_huge_pages():
            self._small_from = begin
            memory.madvise(mmap.MADV_NOHUGEPAGE, begin)

    def _merge(self, memory: mmap.mmap, begin: int, end: int) -> None:
        """Merge small pages, one huge page at a time; what cannot be merged stays as it is."""
        time.sleep(self._merge_delay_s)
        madvise = ctypes.CDLL(None).madvise  # that of `mmap` would hold the interpreter's lock
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        first = -(-(start + begin) // HUGE_BYTES) * HUGE_BYTES
        memory.madvise(mmap.MADV_HUGEPAGE, begin, end - begin)
        for address in range(first, start + end - HUGE_BYTES + 1, HUGE_BYTES):
            madvise(address, HUGE_BYTES, MADV_COLLAPSE)


WEIGHT_PAGES = PreparedPages()
