"""Memory that the processes of a server share, made by their parent."""

from typing import Self

from quire.server.group.connection_counts import ConnectionCounts
from quire.server.keys.shared_ledgers import SharedLedgers


class SharedMemory:
    """The shared memory, as one process has it.

    Args:
        ledgers: Where keys are counted.
        counts: Connections of each process.
    """

    def __init__(self, ledgers: SharedLedgers, counts: ConnectionCounts) -> None:
        self.ledgers = ledgers
        self.counts = counts

    @classmethod
    def new(cls, num_processes: int) -> Self:
        """Make it, for the parent of the processes."""
        return cls(SharedLedgers.new(num_processes), ConnectionCounts.new(num_processes))

    @classmethod
    def inherited(cls, fds: tuple[int, int], num_processes: int, number: int) -> Self:
        """Use what the parent has made, in the process of a number."""
        ledgers = SharedLedgers(fds[0], num_processes, number)
        return cls(ledgers, ConnectionCounts(fds[1], num_processes))

    @property
    def fds(self) -> tuple[int, int]:
        """File descriptors that the processes inherit."""
        return self.ledgers.fd, self.counts.fd

    def clear(self, number: int) -> None:
        """Take away what a process that has ended had at the time."""
        self.ledgers.clear(number)
        self.counts.clear(number)
