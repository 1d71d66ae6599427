"""Process of a rank on this machine, as a child of the engine's process."""

import socket
from collections.abc import Sequence

from quire.interfaces.executor import WorkerProcess
from quire.process.children.child_process import ChildProcess
from quire.process.children.python_child import python_arguments
from quire.process.children.stack_dump import process_state

MODULE = "quire.launch.workers.worker_process"


class LocalProcess(WorkerProcess):
    """A child process that runs one rank.

    Args:
        arguments: Arguments of the worker process.
        config: Bytes for its standard input.
    """

    def __init__(self, arguments: Sequence[str], config: bytes) -> None:
        self.node = socket.gethostname()
        self._process = ChildProcess(python_arguments(MODULE, arguments), config)
        self.pid: int = self._process.pid
        self._description: str | None = None

    @property
    def has_succeeded(self) -> bool:
        """Whether it has exited with code 0, once it was ended."""
        return self._process.exit_code == 0

    def fileno(self) -> int | None:
        """Return the pidfd of the process; None once it was ended."""
        return self._process.fileno() if self._description is None else None

    def kill(self) -> None:
        """Kill the process; its watchdog kills its descendants."""
        self._process.kill()

    def end(self, timeout_s: float) -> str:
        """Wait for the process to exit, then kill it and its group."""
        if self._description is None:
            self._description = self._process.end(timeout_s)
        return self._description

    def state(self, stack_fd: int | None) -> str:
        """Describe what the process is doing: stopped by a signal, or its Python stack."""
        return process_state(self._process.pid, stack_fd)
