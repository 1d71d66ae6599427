"""The number of connections of each process of a server, in memory that all of them share.

All processes accept from one socket, and the first one awake would take a whole burst. So one that
has more connections than another waits for a moment before it accepts, and the other comes first.
Each process writes its own number, so there is no lock.
"""

import mmap
import os
import struct

_COUNT = struct.Struct("=q")
_GONE = -1


class ConnectionCounts:
    """Connections by process; processes are numbered from 1 on.

    Args:
        fd: File descriptor of the memory.
        num_processes: Number of processes.
    """

    def __init__(self, fd: int, num_processes: int) -> None:
        self.fd = fd
        self._row = struct.Struct(f"={num_processes}q")
        self._memory = mmap.mmap(fd, self._row.size)

    @classmethod
    def new(cls, num_processes: int) -> "ConnectionCounts":
        """Make the memory; all processes are gone at first."""
        fd = os.memfd_create("quire-connections")
        os.ftruncate(fd, num_processes * _COUNT.size)
        counts = cls(fd, num_processes)
        for number in range(1, num_processes + 1):
            counts.clear(number)
        return counts

    def clear(self, number: int) -> None:
        """Note that a process accepts nothing."""
        self._write(number, _GONE)

    def gives_way(self, number: int, own: int) -> bool:
        """Note the number of connections of a process; return whether another one has fewer."""
        self._write(number, own)
        counts: tuple[int, ...] = self._row.unpack_from(self._memory)
        return any(count != _GONE and count < own for count in counts)

    def _write(self, number: int, count: int) -> None:
        _COUNT.pack_into(self._memory, (number - 1) * _COUNT.size, count)
