"""Processes forked from one that has imported torch, which takes longer than most tests."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

MAX_BYTES = 4096  # of an argument


class ForkServer:
    """A script that calls `serve_forks`, in a process of its own.

    Args:
        script: The script; the last of its arguments is for `serve_forks`.
        environment: Environment of all processes.
        prefix: Command that runs the server, before the server's own.
    """

    def __init__(
        self, script: Path, environment: Mapping[str, str], prefix: Sequence[str] = ()
    ) -> None:
        self._socket, theirs = socket.socketpair()
        fd = theirs.fileno()
        self._process = subprocess.Popen(
            [*prefix, sys.executable, script, str(fd)], env=environment, pass_fds=[fd]
        )
        theirs.close()

    def start(self, argument: str) -> "ForkedProcess":
        """Fork a process, which calls the script's function with an argument."""
        stdin, stdout = os.pipe(), os.pipe()
        ends = [stdin[0], stdout[1]]
        socket.send_fds(self._socket, [argument.encode()], ends)
        for fd in ends:
            os.close(fd)
        pid = int(self._socket.recv(MAX_BYTES))
        return ForkedProcess(pid, stdin[1], stdout[0])

    def close(self) -> None:
        """Wait for the end of the server; its processes must have ended."""
        self._socket.close()
        self._process.wait()


class ForkedProcess:
    """A forked process, with what the tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, stdin: int, stdout: int) -> None:
        self.pid = pid
        self.stdin, self.stdout = open(stdin, "wb"), open(stdout, "rb")  # noqa: SIM115
        self._pidfd = os.pidfd_open(pid)

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def end(self) -> None:
        """Kill it, and wait for its end."""
        self.send_signal(signal.SIGKILL)
        select.select([self._pidfd], [], [])
        os.close(self._pidfd)
        for pipe in (self.stdin, self.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def serve_forks(fd: int, run: Callable[[str], None]) -> None:
    """Fork a process for each argument that is received, until the other end is closed."""
    server = socket.socket(fileno=fd)
    while True:
        argument, fds, _, _ = socket.recv_fds(server, MAX_BYTES, 2)
        if not argument:
            break
        pid = os.fork()
        if pid == 0:
            server.close()
            _run(argument.decode(), fds, run)
        for each in fds:
            os.close(each)
        server.send(str(pid).encode())
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _run(argument: str, fds: list[int], run: Callable[[str], None]) -> None:
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    try:
        run(argument)
    except BaseException:  # noqa: BLE001 - the edge of the process
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)
