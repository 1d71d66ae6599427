"""The parent's end of the engine's process: messages, and its death, whichever comes first.

Once the engine is dead, everything says so: there is no way back.
"""

import os
import threading
from typing import Any, NoReturn

from quire.errors import EngineDeadError
from quire.ipc import Channel
from quire.launch.child_process import ChildProcess
from quire.launch.engine_wire import Failed, ToEngine

LAST_WORD_S = 1.0  # for a process that failed to end by itself
FLUSH_S = 0.1  # for what a dead process had sent to arrive


class EngineLink:
    """One engine in another process. One thread uses it, but for `wake`.

    Args:
        channel: The way to the engine.
        process: Where it runs.
    """

    def __init__(self, channel: Channel, process: ChildProcess) -> None:
        self._channel = channel
        self._process = process
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wake_lock = threading.Lock()  # so that nobody writes to a number that was given back
        self._is_closed = False
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
        if self._death is not None:
            self._say_again(self._death)
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
        if self._death is not None:
            self._say_again(self._death)
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
            if not self._is_closed:
                os.eventfd_write(self._wake_fd, 1)

    def check(self) -> None:
        """Return if the process lives.

        Raises:
            EngineDeadError: It does not.
        """
        if self._death is not None:
            self._say_again(self._death)
        if self._process.fileno() in self._channel.wait(0.0):
            self._die_of_its_end()

    def die(self, death: EngineDeadError, patience_s: float = 0.0) -> NoReturn:
        """Let nothing of the engine remain, and say why, now and whenever somebody asks again.

        Args:
            death: Why.
            patience_s: How long the process gets to end by itself.
        """
        self.close(death, patience_s)
        raise death

    def close(self, death: EngineDeadError, patience_s: float = 0.0) -> None:
        """End the process and all that it started. Only the first call counts.

        Args:
            death: What to say to who comes later.
            patience_s: How long the process gets to end by itself.
        """
        with self._wake_lock:
            if self._is_closed:
                return
            self._is_closed = True
            os.close(self._wake_fd)
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

    def _say_again(self, death: EngineDeadError) -> NoReturn:
        raise EngineDeadError(str(death)) from death
