"""Connection of the parent to the engine process: messages, and detection of its death.

Once the engine is dead, every method raises `EngineDeadError`; it cannot be restarted.
"""

import os
import threading
import weakref
from typing import Any, NoReturn

from quire.errors import EngineDeadError
from quire.launch.engine_process.engine_wire import Failed, ToEngine
from quire.process.child_process import ChildProcess
from quire.process.ipc import Channel

EXIT_GRACE_S = 1.0  # time for a failed process to exit by itself
FLUSH_S = 0.1  # time for the last messages of a dead process to arrive


class EngineLink:
    """Connection to one engine in another process.

    It is used by one thread, except `wake` and `kill`, which any thread may call.

    Args:
        channel: Channel to the engine.
        process: Process of the engine.
    """

    def __init__(self, channel: Channel, process: ChildProcess) -> None:
        self._channel = channel
        self._process = process
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # So that `wake` never writes to a closed descriptor. Reentrant: a finalizer may run inside.
        self._wake_lock = threading.RLock()
        self._release = weakref.finalize(self, os.close, self._wake_fd)
        self._release.atexit = False
        self._owner_pid = os.getpid()
        self._death: EngineDeadError | None = None
        self.num_sent = 0
        channel.watch(process.fileno())
        channel.watch(self._wake_fd)

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._process.pid

    def send(self, command: ToEngine) -> None:
        """Send a command without blocking.

        Raises:
            EngineDeadError: The engine is dead.
        """
        self._check_alive()
        try:
            self._channel.send(command)
        except EngineDeadError:
            self._raise_process_death()
        self.num_sent += 1

    def receive(self, *, can_wake: bool = False) -> Any:
        """Wait for the next message.

        Args:
            can_wake: Whether to return None when `wake` is called.

        Raises:
            EngineDeadError: The engine is dead, so there will be no message.
        """
        self._check_alive()
        while True:
            message = self._take()
            if message is not None:
                return message
            ready = self._channel.wait()
            if self._process.fileno() in ready:
                if (message := self._take(FLUSH_S)) is not None:
                    return message
                self._raise_process_death()
            if can_wake and self._wake_fd in ready:
                os.eventfd_read(self._wake_fd)
                return None

    def wake(self) -> None:
        """Make a `receive` with `can_wake` return; from any thread."""
        with self._wake_lock:
            if self._release.alive and self._is_owner:
                os.eventfd_write(self._wake_fd, 1)

    def kill(self) -> None:
        """Kill the process, so that `receive` finds it dead; from any thread."""
        if self._is_owner:
            self._process.kill()

    def check(self) -> None:
        """Check that the process is alive.

        Raises:
            EngineDeadError: The process is dead.
        """
        self._check_alive()
        if self._process.fileno() in self._channel.wait(0.0):
            self._raise_process_death()

    def check_owner(self) -> None:
        """Check that this process started the engine.

        Raises:
            EngineDeadError: This process is a fork of it; both would read the same messages.
        """
        if not self._is_owner:
            raise EngineDeadError(
                f"the engine belongs to process {self._owner_pid}, and cannot be used in its fork "
                f"{os.getpid()}; start another engine here"
            )

    def die(self, death: EngineDeadError, patience_s: float = 0.0) -> NoReturn:
        """End the process and raise an error, which later calls raise again.

        Args:
            death: Error that says why.
            patience_s: Time for the process to exit by itself, before it is killed.
        """
        self.close(death, patience_s)
        raise death

    def close(self, death: EngineDeadError, patience_s: float = 0.0) -> None:
        """End the process and all its children; a no-op on a second call, and in a fork.

        Args:
            death: Error for later calls.
            patience_s: Time for the process to exit by itself, before it is killed.
        """
        with self._wake_lock:
            if not (self._release.alive and self._is_owner):
                return
            self._release()
        self._death = death
        self._process.end(patience_s)
        self._channel.close()

    def _take(self, timeout_s: float = 0.0) -> Any:
        """Return the next message, None if there is none; a `Failed` is raised."""
        try:
            message = self._channel.take(timeout_s)
        except EngineDeadError as error:
            self.die(error)
        if isinstance(message, Failed):
            self.die(EngineDeadError(message.error.message), EXIT_GRACE_S)
        return message

    def _raise_process_death(self) -> NoReturn:
        """Raise the reason of the process's death: its last message, or how it ended."""
        while self._take(FLUSH_S) is not None:
            pass  # drop messages before the last one, which `_take` raises if it is a `Failed`
        self.die(EngineDeadError(f"the engine process {self._process.end(EXIT_GRACE_S)}"))

    @property
    def _is_owner(self) -> bool:
        return os.getpid() == self._owner_pid

    def _check_alive(self) -> None:
        self.check_owner()
        if self._death is not None:
            raise EngineDeadError(str(self._death)) from self._death
