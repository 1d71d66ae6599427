"""A process that an executor needs beside the workers, and its entry point.

It runs a module of the executor's package, and its watchdog kills it when the engine dies.
"""

import importlib
import os
import signal
import socket
import threading
import weakref

from quire.errors import EngineDeadError
from quire.interfaces.executor import HelperProcess
from quire.process.children.child_process import ChildProcess
from quire.process.children.python_child import python_arguments
from quire.process.children.stack_dump import enable_stack_dumps
from quire.process.children.watchdog import die_with, leave_to_parent

ENTRY = "quire.launch.workers.placing.helper_process"
MAX_FRAME_BYTES = 64 * 1024
EXIT_TIMEOUT_S = 5.0  # of a process that has closed its socket


class LocalHelper(HelperProcess):
    """A child process that runs a module.

    Args:
        module: Name of the module, whose `main` takes the socket.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        # Keeps the bounds of frames, and shows the end of the other side.
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        weakref.finalize(self, self._socket.close)
        with theirs:
            arguments = [str(os.getpid()), str(theirs.fileno()), module]
            command = python_arguments(ENTRY, arguments)
            self._process = ChildProcess(command, b"", fds=[theirs.fileno()])

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def send(self, frame: bytes) -> None:
        """Send a frame.

        Raises:
            EngineDeadError: The process has ended.
        """
        try:
            self._socket.send(frame)
        except OSError as error:
            raise self._death() from error

    def receive(self) -> bytes:
        """Wait for a frame, and return it.

        Raises:
            EngineDeadError: The process has ended.
        """
        try:
            frame = self._socket.recv(MAX_FRAME_BYTES)
        except OSError as error:
            raise self._death() from error
        if not frame:
            raise self._death()
        return frame

    def end(self, timeout_s: float) -> str:
        """Wait for the process to exit, then kill it and its group."""
        with self._lock:
            return self._process.end(timeout_s)

    def _death(self) -> EngineDeadError:
        pid = self._process.pid
        return EngineDeadError(f"process {pid} of {self._module} {self.end(EXIT_TIMEOUT_S)}")


def main(arguments: list[str]) -> int:
    """Run a module until it returns or the engine dies; return the exit status.

    Args:
        arguments: Process id of the engine, file descriptor of the socket, and name of the module.
    """
    leave_to_parent(signal.SIGINT, signal.SIGTERM)
    enable_stack_dumps()
    die_with(int(arguments[0])).guard()
    with socket.socket(fileno=int(arguments[1])) as channel:
        importlib.import_module(arguments[2]).main(channel)
    return 0
