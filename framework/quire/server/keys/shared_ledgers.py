"""Counts of accounts in memory that several processes share.

Each account has a row, found by a digest. Changes are made under a lock of the memory's file, which
the kernel releases when its holder dies. The requests at present are counted by process, so that
those of a process that died can be taken away.

    row: | digest | usage, 5 numbers | 2 levels, each of debt and time | running, one a process |
"""

import fcntl
import logging
import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from quire.server.keys.ledger import KeyUsage, LocalLedger

MAX_ACCOUNTS = 4096  # since the start of the server
LOCK_WAIT_S = 0.1  # for a holder that was stopped; then without the lock
_RETRY_S = 0.0002
_DIGEST_BYTES = 32
_USAGE = struct.Struct("=5q")
_LEVEL = struct.Struct("=2d")
_RUNNING = struct.Struct("=q")
_USAGE_AT = _DIGEST_BYTES
_LEVELS_AT = _USAGE_AT + _USAGE.size
_RUNNING_AT = _LEVELS_AT + 2 * _LEVEL.size

logger = logging.getLogger(__name__)


class SharedLedgers:
    """The ledgers of all accounts, as one of the processes has them.

    Args:
        fd: File descriptor of the memory, from `new_memory`.
        num_processes: Number of processes that serve, which are numbered from 1 on; 0 is their
            parent.
        number: Number of this process.
    """

    def __init__(self, fd: int, num_processes: int, number: int) -> None:
        self.fd = fd
        self.number = number
        self.num_processes = num_processes
        self._row_bytes = _RUNNING_AT + (num_processes + 1) * _RUNNING.size
        self.memory = mmap.mmap(fd, self._row_bytes * MAX_ACCOUNTS)

    @classmethod
    def new(cls, num_processes: int) -> "SharedLedgers":
        """Make the memory, for the parent of the processes."""
        fd = os.memfd_create("quire-accounts")
        os.ftruncate(fd, MAX_ACCOUNTS * (_RUNNING_AT + (num_processes + 1) * _RUNNING.size))
        return cls(fd, num_processes, 0)

    def of(self, digest: bytes) -> "SharedLedger | LocalLedger":
        """Return the ledger of an account, by a digest of its key and its name."""
        with self.lock():
            for start in range(0, len(self.memory), self._row_bytes):
                found = self.memory[start : start + _DIGEST_BYTES]
                if found == digest:
                    return SharedLedger(self, start)
                if not any(found):
                    self.memory[start : start + _DIGEST_BYTES] = digest
                    return SharedLedger(self, start)
        logger.error(
            "there were %d keys since the start: each process counts further ones by itself, so "
            "their limits are %d times as high; restart the server",
            MAX_ACCOUNTS,
            self.num_processes,
        )
        return LocalLedger()

    def clear(self, number: int) -> None:
        """Take away the requests at present of a process that has died."""
        with self.lock():
            for start in range(0, len(self.memory), self._row_bytes):
                if not any(self.memory[start : start + _DIGEST_BYTES]):
                    return
                _RUNNING.pack_into(self.memory, _running_at(start, number), 0)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock; it is never waited for long."""
        is_locked = self._lock()
        try:
            yield
        finally:
            if is_locked:
                fcntl.lockf(self.fd, fcntl.LOCK_UN)

    def _lock(self) -> bool:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except (BlockingIOError, PermissionError):
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_RETRY_S)


class SharedLevel:
    """How much of a bucket is gone, in shared memory."""

    __slots__ = ("_at", "_memory")

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._memory = memory
        self._at = at

    @property
    def debt(self) -> float:
        """What is gone."""
        debt: float = _LEVEL.unpack_from(self._memory, self._at)[0]
        return debt

    @debt.setter
    def debt(self, value: float) -> None:
        _LEVEL.pack_into(self._memory, self._at, value, self.then_s)

    @property
    def then_s(self) -> float:
        """When that was known."""
        then_s: float = _LEVEL.unpack_from(self._memory, self._at)[1]
        return then_s

    @then_s.setter
    def then_s(self, value: float) -> None:
        _LEVEL.pack_into(self._memory, self._at, self.debt, value)


class SharedLedger:
    """The counts of one account in shared memory; reading them needs no lock.

    Args:
        ledgers: All ledgers.
        start: Offset of its row.
    """

    keeps_levels = True

    def __init__(self, ledgers: SharedLedgers, start: int) -> None:
        self._ledgers = ledgers
        self._memory = ledgers.memory
        self._start = start
        self.lock = ledgers.lock
        self.requests = SharedLevel(self._memory, start + _LEVELS_AT)
        self.tokens = SharedLevel(self._memory, start + _LEVELS_AT + _LEVEL.size)

    @property
    def usage(self) -> KeyUsage:
        """The counts of all processes since the start."""
        return KeyUsage(*_USAGE.unpack_from(self._memory, self._start + _USAGE_AT))

    @property
    def num_running(self) -> int:
        """Number of requests at present, of all processes."""
        row = struct.unpack_from(
            f"={self._ledgers.num_processes + 1}q", self._memory, _running_at(self._start, 0)
        )
        return sum(row)

    def add(self, more: KeyUsage) -> None:
        """Add to the counts; the lock is held."""
        own = self.usage
        _USAGE.pack_into(
            self._memory,
            self._start + _USAGE_AT,
            own.num_requests + more.num_requests,
            own.num_refused + more.num_refused,
            own.num_prompt_tokens + more.num_prompt_tokens,
            own.num_cached_tokens + more.num_cached_tokens,
            own.num_completion_tokens + more.num_completion_tokens,
        )

    def run(self, change: int) -> None:
        """Add to the number of requests at present of this process; the lock is held."""
        at = _running_at(self._start, self._ledgers.number)
        (num,) = _RUNNING.unpack_from(self._memory, at)
        _RUNNING.pack_into(self._memory, at, num + change)


def _running_at(start: int, number: int) -> int:
    return start + _RUNNING_AT + number * _RUNNING.size
