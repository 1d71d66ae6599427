"""The parent's end of the engine's process: messages, and its death, whichever comes first.

Once the engine is dead, everything says so: there is no way back.
"""

import os
import threading
import weakref
from typing import Any, NoReturn

from quire.errors import EngineDeadError
from quire.launch.engine_process.engine_wire import Failed, ToEngine
from quire.process.child_process import ChildProcess
from quire.process.ipc import Channel

LAST_WORD_S = 1.0  # for a process that failed to end by itself
FLUSH_S = 0.1  # for what a dead process had sent to arrive


class EngineLink:
    """One engine in another process. One thread uses it, but for `wake` and `kill`.

    Args:
        channel: The way to the engine.
        process: Where it runs.
    """

    def __init__(self, channel: Channel, process: ChildProcess) -> None:
        self._channel = channel
        self._process = process
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # So that nobody writes to a number that was given back; a finalizer may come in between.
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
        """The engine's process."""
        return self._process.pid

    def send(self, command: ToEngine) -> None:
        """Send a command; never waits.

        Raises:
            EngineDeadError: Its end was seen.
        """
        self._check_life()
        try:
            self._channel.send(command)
        except EngineDeadError:
            self._die_of_its_end()
        self.num_sent += 1

    def receive(self, *, can_wake: bool = False) -> Any:
        """Wait for the next message.

        Args:
            can_wake: Return None as soon as somebody calls `wake`.

        Raises:
            EngineDeadError: There will be none.
        """
        self._check_life()
        while True:
            message = self._take()
            if message is not None:
                return message
            ready = self._channel.wait()
            if self._process.fileno() in ready:
                if (message := self._take(FLUSH_S)) is not None:
                    return message
                self._die_of_its_end()
            if can_wake and self._wake_fd in ready:
                os.eventfd_read(self._wake_fd)
                return None

    def wake(self) -> None:
        """Let a `receive` that may be woken return; from any thread."""
        with self._wake_lock:
            if self._release.alive and self._is_owner:
                os.eventfd_write(self._wake_fd, 1)

    def kill(self) -> None:
        """Kill the process, and let `receive` find it dead; from any thread."""
        if self._is_owner:
            self._process.kill()

    def check(self) -> None:
        """Return if the process lives.

        Raises:
            EngineDeadError: It does not.
        """
        self._check_life()
        if self._process.fileno() in self._channel.wait(0.0):
            self._die_of_its_end()

    def check_owner(self) -> None:
        """Return if this process started the engine.

        Raises:
            EngineDeadError: It is a fork of that one: both would read the same messages.
        """
        if not self._is_owner:
            raise EngineDeadError(
                f"the engine belongs to process {self._owner_pid}, and this is a fork of it, "
                f"{os.getpid()}; start another engine here"
            )

    def die(self, death: EngineDeadError, patience_s: float = 0.0) -> NoReturn:
        """Let nothing of the engine remain, and say why, now and whenever somebody asks again.

        Args:
            death: Why.
            patience_s: How long the process gets to end by itself.
        """
        self.close(death, patience_s)
        raise death

    def close(self, death: EngineDeadError, patience_s: float = 0.0) -> None:
        """End the process and all that it started. Only the first call counts, and none in a fork.

        Args:
            death: What to say to who comes later.
            patience_s: How long the process gets to end by itself.
        """
        with self._wake_lock:
            if not (self._release.alive and self._is_owner):
                return
            self._release()
        self._death = death
        self._process.end(patience_s)
        self._channel.close()

    def _take(self, timeout_s: float = 0.0) -> Any:
        """Return the next message, None if there is none; the engine's last one is raised."""
        try:
            message = self._channel.take(timeout_s)
        except EngineDeadError as error:
            self.die(error)
        if isinstance(message, Failed):
            self.die(EngineDeadError(message.error.message), LAST_WORD_S)
        return message

    def _die_of_its_end(self) -> NoReturn:
        """Say why the process died: in its own words, or how its end looked."""
        while self._take(FLUSH_S) is not None:
            pass  # what comes before the last word has no reader any more
        self.die(EngineDeadError(f"the engine's process {self._process.end(LAST_WORD_S)}"))

    @property
    def _is_owner(self) -> bool:
        return os.getpid() == self._owner_pid

    def _check_life(self) -> None:
        self.check_owner()
        if self._death is not None:
            raise EngineDeadError(str(self._death)) from self._death
