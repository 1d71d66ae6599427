"""The engine's process as its parent holds it: it is seen to die by its pidfd.

It has a process group of its own, so that a terminal's Ctrl-C is for the parent alone, and so that
nothing which it started outlives it.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from quire.errors import SettingsError
from quire.process.python_child import child_environment

MAX_SOCKET_PATH = 100  # bytes; the system's own limit for a socket's path is a little more
KILL_TIMEOUT_S = 10.0


class SocketFolder:
    """A fresh folder that only this user may enter, for the short time in which a socket needs it.

    At the end of its `with` it is gone; who is connected stays so.

    Raises:
        SettingsError: No folder can be had whose path is short enough for a socket.
    """

    def __init__(self) -> None:
        self.path = _fresh_folder()

    @property
    def address(self) -> str:
        """Where to listen in it."""
        return f"ipc://{self.path}/engine"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        story: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class ChildProcess:
    """Python in a process of its own. One thread uses it, but for `kill`.

    Args:
        arguments: What follows `python`.
        config: The bytes on its standard input.

    Raises:
        SettingsError: This system cannot tell when a process dies.
    """

    def __init__(self, arguments: Sequence[str], config: bytes) -> None:
        if sys.platform != "linux":
            raise SettingsError("engine_process needs Linux; start without it")
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env=child_environment(),
        )
        self._owner_pid = os.getpid()
        try:
            self._death_fd = os.pidfd_open(self._process.pid)
        except BaseException:
            _kill(self._process, self._owner_pid)
            raise
        # Also at the end of the program, and when the last one who knows it forgets it.
        self._finalizer = weakref.finalize(
            self, _kill, self._process, self._owner_pid, self._death_fd
        )
        self._lock = threading.RLock()  # so that nobody kills an id that was given back
        self._give(config)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def fileno(self) -> int:
        """File descriptor that becomes readable when it dies."""
        return self._death_fd

    def end(self, timeout_s: float) -> str:
        """Wait for its end, so long; then kill it. May be called twice; in a fork it does nothing.

        Returns:
            How it ended, for people.
        """
        if self._finalizer.alive and os.getpid() == self._owner_pid:
            _wait_unreaped(self._death_fd, timeout_s)
            with self._lock:
                self._finalizer()
        return _story(self._process.returncode)

    def kill(self) -> None:
        """Kill it, and let `end` find it dead; from any thread."""
        with self._lock:
            if self._finalizer.alive:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._death_fd, signal.SIGKILL)

    def _give(self, config: bytes) -> None:
        """Write its config; if it dies before it has read all of that, its end will tell."""
        if self._process.stdin is None:
            raise RuntimeError("the process has no standard input")
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(config)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


def _fresh_folder() -> Path:
    """Make a folder of mode 0700, preferably where the system clears up at logout."""
    places = [
        place for place in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir()) if place
    ]
    for place in places:
        with contextlib.suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix="quire-", dir=place))
            if len(os.fsencode(folder)) <= MAX_SOCKET_PATH - len("/engine"):
                return folder
            folder.rmdir()
    raise SettingsError(
        f"the engine's process needs a folder for its socket, of at most {MAX_SOCKET_PATH} bytes, "
        f"and none can be made in {' or '.join(places)}; set TMPDIR to another folder"
    )


def _kill(process: subprocess.Popen[bytes], owner_pid: int, death_fd: int | None = None) -> None:
    """Kill a process and its group; nothing happens in a fork of the one that started it.

    It was not reaped before, so the group's id is still its own.
    """
    if os.getpid() != owner_pid:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_TIMEOUT_S)
    if death_fd is not None:
        os.close(death_fd)


def _wait_unreaped(death_fd: int, timeout_s: float) -> None:
    """Wait until a process has ended; its id stays taken."""
    poller = select.poll()
    poller.register(death_fd, select.POLLIN)
    poller.poll(timeout_s * 1000)


def _story(code: int | None) -> str:
    if code is None:
        return "does not end"
    if code >= 0:
        return f"ended with exit code {code}; its own messages are in the log"
    name = _signal_name(-code)
    hint = ", by somebody or by the system as memory ran out" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"
