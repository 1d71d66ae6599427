"""Engine-side handle of the grammar fork server, which is started on demand and restarted."""

import os
import socket
import subprocess
import sys
import tempfile
from typing import BinaryIO

import msgspec

from quire.engine.grammar.grammar_wire import (
    Ended,
    Explain,
    Kill,
    Setup,
    Spawn,
    SpawnMatcher,
    receive,
    send,
)
from quire.errors import GrammarError
from quire.process.children.python_child import child_environment, python_arguments

MODULE = "quire.engine.grammar.grammar_process"
SEND_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
EXPLAIN_TIMEOUT_S = 3.0  # the fork server may be building a backend


class GrammarForkServer:
    """Starts and kills grammar processes.

    Args:
        setup: Plugins, vocabulary and limits that they inherit.
        masks_fd: File descriptor of the shared table of masks.
    """

    def __init__(self, setup: Setup, masks_fd: int) -> None:
        self._masks_fd = masks_fd
        self._setup_file = anonymous_file("quire-grammar-setup")
        self._setup_file.write(msgspec.msgpack.encode(setup))
        self._setup_file.flush()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the fork server is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Process id of the fork server; None: it was not started."""
        return None if self._process is None else self._process.pid

    def spawn(self, command: Spawn | SpawnMatcher) -> socket.socket:
        """Start a process and return the socket to it, without waiting for it.

        Raises:
            GrammarError: The message is too long.
            OSError: The fork server cannot be started, or does not read.
        """
        parent_end, child_end = socket.socketpair()
        try:
            with child_end:
                self._send(command, [child_end.fileno()])
        except BaseException:
            parent_end.close()
            raise
        return parent_end

    def kill(self, process: int) -> None:
        """Kill a process by its number, if it is still running."""
        if not self.is_alive:
            return  # its children died with it
        try:
            self._send(Kill(process), [])
        except OSError:
            self.shutdown()  # it does not read any more: end it, and with it its children

    def exit_status(self, process: int) -> int | None:
        """Return the exit status of a process that has ended, negative for a signal; or None."""
        if not self.is_alive:
            return None
        ours, theirs = socket.socketpair()
        with ours:
            try:
                with theirs:
                    self._send(Explain(process), [theirs.fileno()])
                ours.settimeout(EXPLAIN_TIMEOUT_S)
                return receive(ours, Ended).status
            except (OSError, EOFError, msgspec.DecodeError):
                return None

    def shutdown(self) -> None:
        """End the fork server and all grammar processes. A later `spawn` starts it again."""
        self._disconnect()
        if self._process is not None:
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def close(self) -> None:
        """Shut down and release the setup file; `spawn` must not be called afterwards."""
        self.shutdown()
        self._setup_file.close()

    def _send(self, command: Spawn | SpawnMatcher | Kill | Explain, fds: list[int]) -> None:
        try:
            self._send_once(command, fds)
        except BrokenPipeError:  # the fork server just died: start a new one and send again
            self._send_once(command, fds)

    def _send_once(self, command: Spawn | SpawnMatcher | Kill | Explain, fds: list[int]) -> None:
        """Send a whole message, or disconnect: a partial one would corrupt the stream."""
        if self._control is None or not self.is_alive:
            self.shutdown()
            self._control = self._start()
        try:
            send(self._control, command, fds)
        except GrammarError:
            raise  # nothing was sent
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    def _start(self) -> socket.socket:
        parent_end, child_end = socket.socketpair()
        self._control = parent_end  # set first, so that it is closed after an interrupt below
        parent_end.settimeout(SEND_TIMEOUT_S)
        fds = (child_end.fileno(), self._setup_file.fileno(), self._masks_fd)
        with child_end:
            arguments = python_arguments(MODULE, [str(os.getpid()), *map(str, fds)])
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                # Ctrl-C in a terminal must only reach the engine. A session of its own would make
                # idle work count as much: Linux may share CPU time among sessions first.
                process_group=0,
                env=child_environment(),
            )
        return parent_end


def anonymous_file(name: str) -> BinaryIO:
    """Open a file without a name in the file system; in memory where the system supports it."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create(name), "w+b")
    return tempfile.TemporaryFile()
