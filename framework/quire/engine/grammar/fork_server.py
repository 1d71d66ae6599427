"""The engine's handle on the nursery: started with the first grammar, started again if it dies."""

import os
import socket
import subprocess
import sys
import tempfile
from typing import BinaryIO

import msgspec

from quire.engine.grammar.grammar_wire import Fell, Setup, Sprout, send
from quire.errors import GrammarError
from quire.process.python_child import child_environment, python_arguments

MODULE = "quire.engine.grammar.grammar_process"
SEND_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0


class GrammarForkServer:
    """Starts and ends grammar processes.

    Args:
        setup: What they inherit.
        masks_fd: The shared table of masks.
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
        """Whether the nursery runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Its process id, if it was started."""
        return None if self._process is None else self._process.pid

    def sprout(self, order: Sprout) -> socket.socket:
        """Start a process for a grammar and return the socket to it, at once.

        Raises:
            GrammarError: The order is too long.
            OSError: The nursery cannot be started, or does not listen.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._send(order, [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        return ours

    def fell(self, grammar: int) -> None:
        """End the process of a grammar, whatever it is doing; nothing happens if it is gone."""
        if not self.is_alive:
            return  # and all its children went with it
        try:
            self._send(Fell(grammar), [])
        except OSError:
            self.shutdown()  # it does not listen any more: end it, and with it its children

    def shutdown(self) -> None:
        """End the nursery and all grammar processes. A later `sprout` starts it again."""
        self._hang_up()
        if self._process is not None:
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def close(self) -> None:
        """Shut down for good."""
        self.shutdown()
        self._setup_file.close()

    def _send(self, order: Sprout | Fell, fds: list[int]) -> None:
        try:
            self._send_once(order, fds)
        except BrokenPipeError:  # it died a moment ago; a fresh one knows the order as well
            self._send_once(order, fds)

    def _send_once(self, order: Sprout | Fell, fds: list[int]) -> None:
        """Send an order whole, or hang up: after half of one, no other would be understood."""
        if self._control is None or not self.is_alive:
            self.shutdown()
            self._control = self._start()
        try:
            send(self._control, order, fds)
        except GrammarError:
            raise  # nothing was sent
        except BaseException:
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._control = ours  # at once: an interrupt below must not keep it open
        ours.settimeout(SEND_TIMEOUT_S)
        fds = (theirs.fileno(), self._setup_file.fileno(), self._masks_fd)
        with theirs:
            arguments = python_arguments(MODULE, [str(os.getpid()), *map(str, fds)])
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is for the engine
                env=child_environment(),
            )
        return ours


def anonymous_file(name: str) -> BinaryIO:
    """Open a file without a place in the file system; in memory where the system can."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create(name), "w+b")
    return tempfile.TemporaryFile()
