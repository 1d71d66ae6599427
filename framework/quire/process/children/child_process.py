"""Start and end of the engine process by its parent, which detects its death by a pidfd.

The process has its own process group. So a terminal's Ctrl-C reaches only the parent, and all
children of the process can be killed with it.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from quire.errors import SettingsError
from quire.process.children.python_child import child_environment

MAX_SOCKET_PATH = 100  # bytes; the system's limit for the path of a socket is 107
KILL_TIMEOUT_S = 10.0


class SocketFolder:
    """Temporary folder for a socket, which only this user may access.

    The end of its `with` block removes it; processes that are connected stay connected.

    Raises:
        SettingsError: No folder with a path short enough for a socket can be made.
    """

    def __init__(self) -> None:
        self.path = _fresh_folder()

    @property
    def address(self) -> str:
        """Address in the folder to listen on."""
        return f"unix://{self.path}/engine"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder. May be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)


class ChildProcess:
    """A Python child process.

    It is used by one thread, except `kill`, which any thread may call.

    Args:
        arguments: Command line after `python`.
        config: Bytes for its standard input; None: they follow (`configure`).
        environment: Variables to set, beside those of this process.
        fds: File descriptors that the process inherits.

    Raises:
        SettingsError: The system is not Linux, which has the pidfds needed.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        config: bytes | None,
        environment: Mapping[str, str] | None = None,
        fds: Sequence[int] = (),
    ) -> None:
        if sys.platform != "linux":
            raise SettingsError("engine_process needs Linux; start without it")
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env=child_environment() | dict(environment or {}),
            pass_fds=tuple(fds),
        )
        self._owner_pid = os.getpid()
        try:
            self._death_fd = os.pidfd_open(self._process.pid)
        except BaseException:
            _kill(self._process, self._owner_pid)
            raise
        # Also runs at interpreter exit, and when this object is collected.
        self._finalizer = weakref.finalize(
            self, _kill, self._process, self._owner_pid, self._death_fd
        )
        self._lock = threading.RLock()  # so that `kill` never uses a closed descriptor
        if config is not None:
            self.configure(config)

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None until `end` was called."""
        return self._process.returncode

    def configure(self, config: bytes) -> None:
        """Write to the standard input and close it; `end` reports a process that dies meanwhile."""
        if self._process.stdin is None:
            raise RuntimeError("the process has no standard input")
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(config)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when the process dies."""
        return self._death_fd

    def end(self, timeout_s: float) -> str:
        """Wait for the process to exit, then kill it; a no-op on a second call, and in a fork.

        Args:
            timeout_s: Time for the process to exit by itself.

        Returns:
            Description of its end, for people.
        """
        if self._finalizer.alive and os.getpid() == self._owner_pid:
            _wait_unreaped(self._death_fd, timeout_s)
            with self._lock:
                self._finalizer()
        return _exit_description(self._process.returncode)

    def kill(self) -> bool:
        """Kill the process, so that `end` finds it dead; from any thread. Returns True."""
        with self._lock:
            if self._finalizer.alive:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._death_fd, signal.SIGKILL)
        return True


def _fresh_folder() -> Path:
    """Make a folder of mode 0700, preferably in one that the system removes at logout."""
    parents = [
        parent for parent in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir()) if parent
    ]
    for parent in parents:
        with contextlib.suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix="quire-", dir=parent))
            if len(os.fsencode(folder)) <= MAX_SOCKET_PATH - len("/engine"):
                return folder
            folder.rmdir()
    raise SettingsError(
        "the engine process needs a folder for its socket with a path of at most "
        f"{MAX_SOCKET_PATH} bytes, and none can be made in {' or '.join(parents)}; set TMPDIR to "
        "another folder"
    )


def _kill(process: subprocess.Popen[bytes], owner_pid: int, death_fd: int | None = None) -> None:
    """Kill a process and its group; a no-op in a fork of the process that started it.

    The process was not reaped before, so its group id was not reused.
    """
    if os.getpid() != owner_pid:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_TIMEOUT_S)
    if process.stdin is not None:  # still open if it was never configured
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    if death_fd is not None:
        os.close(death_fd)


def _wait_unreaped(death_fd: int, timeout_s: float) -> None:
    """Wait until a process has ended, without reaping it."""
    poller = select.poll()
    poller.register(death_fd, select.POLLIN)
    poller.poll(timeout_s * 1000)


def _exit_description(code: int | None) -> str:
    if code is None:
        return "does not exit"
    if code >= 0:
        return f"ended with exit code {code}; see the log for its own messages"
    name = _signal_name(-code)
    hint = " (by a user, or by the system because memory ran out)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"
