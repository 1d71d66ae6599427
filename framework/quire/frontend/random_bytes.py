"""Random bytes of the operating system, read in blocks.

Each read of the system's bytes lets another thread take the interpreter, which on a busy server
costs a request more than all else that an id needs.
"""

import os
import sys
import threading

BLOCK_BYTES = 4096


class RandomBytes:
    """Bytes for ids and seeds, from any thread; none is given twice, also not to a fork."""

    def __init__(self) -> None:
        self._block = b""
        self._start = 0
        self._lock = threading.Lock()
        if sys.platform != "win32":
            os.register_at_fork(after_in_child=self._renew)

    def take(self, num_bytes: int) -> bytes:
        """Return unpredictable bytes, at most `BLOCK_BYTES`."""
        with self._lock:
            end = self._start + num_bytes
            if end > len(self._block):
                self._block, end = os.urandom(BLOCK_BYTES), num_bytes
                self._start = 0
            taken = self._block[self._start : end]
            self._start = end
            return taken

    def hex(self, num_bytes: int) -> str:
        """Return two hexadecimal digits for each of some bytes."""
        return self.take(num_bytes).hex()

    def bits(self, num_bits: int) -> int:
        """Return a number of so many random bits."""
        number = int.from_bytes(self.take(-(-num_bits // 8)), "little")
        return number >> -num_bits % 8

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._block = b""


random_bytes = RandomBytes()
