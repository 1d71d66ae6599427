"""Shared memory without a name: a memfd of one process, which others of the same user open.

It is freed with the last process that has it mapped, however that ends, and it is not limited by
the size of /dev/shm.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from quire.errors import CapacityError, SettingsError

IDENTITY = struct.Struct("<16Q")  # at the start of a segment: magic number, key, layout
LAYOUT_SIZE = 14  # numbers
MAGIC = 0x3165726975710A1A
NAME = "quire-ranks"


@dataclass(frozen=True, slots=True)
class SegmentHandle:
    """Address of a segment for other processes, which they are sent as plain numbers.

    Attributes:
        pid: Process that created it, which keeps it open until it closes the segment.
        fd: File descriptor in that process.
        key: Random number at the start of the segment.
    """

    pid: int
    fd: int
    key: int


class SharedSegment:
    """A mapped segment.

    Attributes:
        handle: Address of the segment.
        memory: The mapped bytes.
        layout: Numbers that its creator gave, which say what is where.
    """

    def __init__(
        self, handle: SegmentHandle, memory: mmap.mmap, layout: Sequence[int], fd: int | None = None
    ) -> None:
        self.handle = handle
        self.memory = memory
        self.layout = tuple(layout)
        self._fd = fd

    @classmethod
    def create(cls, num_bytes: int, layout: Sequence[int]) -> Self:
        """Create a segment of zeros.

        Raises:
            CapacityError: The system has too little memory, or too many files are open.
        """
        try:
            fd = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            memory = _allocate(fd, num_bytes)
        except OSError as error:
            raise CapacityError(
                f"{num_bytes:,} bytes of memory to share between ranks cannot be allocated: "
                f"{error.strerror}"
            ) from error
        key = secrets.randbits(63)
        numbers = (MAGIC, key, *layout, *(0,) * (LAYOUT_SIZE - len(layout)))
        IDENTITY.pack_into(memory, 0, *numbers)
        return cls(SegmentHandle(os.getpid(), fd, key), memory, layout, fd)

    @classmethod
    def open(cls, handle: SegmentHandle) -> Self:
        """Map the segment of another process of this user, on this machine.

        Raises:
            SettingsError: The process is not there, or its segment may not be opened.
        """
        path = f"/proc/{handle.pid}/fd/{handle.fd}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise SettingsError(
                f"the memory of process {handle.pid} cannot be shared ({path}: {error.strerror}); "
                "ranks of one machine must run as one user, in one container"
            ) from error
        try:
            memory = mmap.mmap(fd, os.fstat(fd).st_size)
            magic, key, *layout = IDENTITY.unpack_from(memory)
        except (OSError, ValueError, struct.error) as error:
            raise _not_a_segment(handle) from error
        finally:
            os.close(fd)
        if (magic, key) != (MAGIC, handle.key):
            raise _not_a_segment(handle)
        return cls(handle, memory, layout)

    def close(self) -> None:
        """Let no other process open it, and unmap it if nothing else here refers to its bytes."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        with suppress(BufferError):  # tensors over it; it is unmapped with the last of them
            self.memory.close()


def _allocate(fd: int, num_bytes: int) -> mmap.mmap:
    """Give a file its size for good, and map it; a failure closes it."""
    try:
        os.truncate(fd, num_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return mmap.mmap(fd, num_bytes)
    except OSError:
        os.close(fd)
        raise


def _not_a_segment(handle: SegmentHandle) -> SettingsError:
    return SettingsError(
        f"file {handle.fd} of process {handle.pid} is not the shared memory that the ranks agreed "
        "on; was the process restarted? Start all ranks again"
    )
