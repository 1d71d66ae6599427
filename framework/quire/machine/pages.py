"""Anonymous memory mappings for large, long-lived buffers, in huge pages if possible."""

import contextlib
import ctypes
import mmap
import sys
import threading

WRITTEN_BYTES = 2**21  # at a time


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


class PreparedPages:
    """Memory whose pages a thread allocates before they are used.

    The system clears pages when they are first written, which for the weights of a model takes
    about as long as to fill them. Meanwhile a process can import its code.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: mmap.mmap | None = None
        self._end = 0  # end of the part that was taken
        self._thread: threading.Thread | None = None

    def prepare(self, num_bytes: int) -> None:
        """Map memory, and let a thread allocate its pages; a second call does nothing until close.

        Memory that cannot be mapped is left to the use of it.
        """
        with self._lock, contextlib.suppress(OSError):
            if self._memory is None and num_bytes and sys.platform == "linux":
                memory = self._memory = own_pages(num_bytes)
                self._end = 0
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
        if memory is not None and end < len(memory):
            memory.madvise(mmap.MADV_DONTNEED, end)

    def _populate(self, memory: mmap.mmap) -> None:
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        done, is_wanted = 0, True
        while is_wanted:
            with self._lock:  # what was taken may hold data
                done = max(done, -(-self._end // WRITTEN_BYTES) * WRITTEN_BYTES)
                size = min(WRITTEN_BYTES, len(memory) - done)
                is_wanted = self._memory is memory and size > 0
                if is_wanted:
                    ctypes.memset(start + done, 0, size)
            done += size


WEIGHT_PAGES = PreparedPages()
