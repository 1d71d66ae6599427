"""One rank as the engine sees it: its process, and the reason when it ends or hangs."""

import contextlib
import os
import socket
import time
from pathlib import Path

from quire.interfaces.executor import WorkerGrid, WorkerProcess
from quire.launch.workers.worker_wire import Joined
from quire.process.hub import Peer
from quire.process.stack_dump import STACK_SIGNAL

STACK_WAIT_S = 0.3  # time for a process to write its stack
MAX_STACK_BYTES = 8 * 1024
STOPPED_STATES = ("T", "t")
IS_STOPPED = "it is stopped by a signal (SIGSTOP or a debugger)"


class RankLink:
    """Connection to the process of one rank.

    Args:
        rank: Rank of the worker.
        grid: Grid of all ranks.
        process: Process that the executor has placed.

    Attributes:
        peer: Id of the process at the hub; None until it has joined.
        joined: What the process said of itself; None until it has joined.
    """

    def __init__(self, rank: int, grid: WorkerGrid, process: WorkerProcess) -> None:
        self.rank = rank
        self.process = process
        self.stage, self.tp_rank = grid.place(rank)
        self.joined: Joined | None = None
        self.peer: Peer | None = None
        self._grid = grid
        self._child_pid = _pid_of(process.fileno())

    def __str__(self) -> str:
        """Return the name of the rank for people, with its process and machine if known."""
        role = []
        if self._grid.tp_size > 1:
            role.append(f"tensor-parallel rank {self.tp_rank}")
        if self._grid.pp_size > 1:
            role.append(f"stage {self.stage}")
        if (pid := self.pid) is not None:
            role.append(f"process {pid}")
        role.append(f"on {self.node}")
        return f"worker {self.rank} of {self._grid.size} ({', '.join(role)})"

    @property
    def pid(self) -> int | None:
        """Process id on its machine; None if it has not joined, and is no child of this process."""
        return self._child_pid if self.joined is None else self.joined.pid

    @property
    def node(self) -> str:
        """Name of the machine of the rank."""
        return self.process.node if self.joined is None else self.joined.node

    @property
    def is_local(self) -> bool:
        """Whether the process runs on this machine, where its state can be read."""
        return self.joined is not None and self.joined.node == socket.gethostname()

    def state(self) -> str:
        """Describe what a process that does not answer is doing, for people.

        Returns:
            That it is stopped by a signal, or its Python stack, or that neither can be read.
        """
        if self._child_pid is not None and _is_stopped(self._child_pid):
            return IS_STOPPED
        if self.joined is None:
            return f"it has not joined; look at the log on {self.node}"
        if not self.is_local:
            return f"its state cannot be read from here; look at the log on {self.node}"
        if _is_stopped(self.joined.pid):
            return IS_STOPPED
        stack = _stack(self.joined)
        return f"its stack is\n{stack}" if stack else "its stack cannot be read"


def _pid_of(pidfd: int | None) -> int | None:
    """Return the process of a pidfd; None if the file descriptor is something else."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "Pid" and int(value) > 0:
                return int(value)
    return None


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text()
        return text.rpartition(")")[2].split()[0] in STOPPED_STATES
    return False


def _stack(joined: Joined) -> str:
    """Make a process write its stack, and return what it has written."""
    with contextlib.suppress(OSError):
        os.kill(joined.pid, STACK_SIGNAL)
        time.sleep(STACK_WAIT_S)
        text = Path(f"/proc/{joined.pid}/fd/{joined.stack_fd}").read_bytes()
        return text[-MAX_STACK_BYTES:].decode("utf-8", "replace").strip()
    return ""
