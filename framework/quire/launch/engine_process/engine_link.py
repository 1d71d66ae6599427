"""Connection of the parent to the engine process: messages, and detection of its death.

Once the engine is dead, every method raises `EngineDeadError`; it cannot be restarted.
"""

import os
from typing import Any, NoReturn, Protocol

from quire.errors import EngineDeadError
from quire.launch.engine_process.engine_wire import Failed, ToEngine
from quire.process.interrupts import Interrupts
from quire.process.local.channel import Channel
from quire.process.wake_event import WakeEvent

EXIT_GRACE_S = 1.0  # time for a failed process to exit by itself
FLUSH_S = 0.1  # time for the last messages of a dead process to arrive


class EngineProcess(Protocol):
    """The process of an engine."""

    @property
    def pid(self) -> int:
        """Process id."""

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when the process dies."""

    def configure(self, config: bytes) -> None:
        """Send the process its configuration, if it belongs to this one."""

    def end(self, timeout_s: float) -> str:
        """End the process, if it belongs to this one; return a description of its end."""

    def kill(self) -> bool:
        """Kill the process; from any thread. Returns whether it belongs to this one."""


class EngineLink:
    """Connection to one engine in another process.

    It is used by one thread, except `wake` and `kill`, which any thread may call.

    Args:
        channel: Channel to the engine.
        process: Process of the engine.
        exit_grace_s: Time for a process that failed to exit by itself, before it is killed.

    Attributes:
        channel: Channel to the engine.
        exit_grace_s: Time for a process that failed to exit by itself, before it is killed.
        num_sent: Number of commands sent to the engine.
    """

    def __init__(
        self, channel: Channel, process: EngineProcess, exit_grace_s: float = EXIT_GRACE_S
    ) -> None:
        self.channel = channel
        self._process = process
        self.exit_grace_s = exit_grace_s
        self._wake = WakeEvent()
        self._death: EngineDeadError | None = None
        self.num_sent = 0
        self._interrupts = Interrupts()
        channel.watch(process.fileno())
        channel.watch(self._wake.fileno())

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._process.pid

    def configure(self, config: bytes) -> None:
        """Give the process its configuration, encoded; it has waited for it since its launch."""
        self._process.configure(config)

    def send(self, command: ToEngine) -> None:
        """Send a command without blocking.

        Raises:
            EngineDeadError: The engine is dead.
        """
        self._check_alive()
        with self._interrupts:
            try:
                self.channel.send(command)
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
            ready = self.channel.wait()
            if self._process.fileno() in ready:
                return self._last_message()
            if can_wake and self._wake.fileno() in ready:
                self._wake.clear()
                return None

    def poll(self) -> Any:
        """Return the next message if one has arrived, else None.

        Raises:
            EngineDeadError: The engine is dead, and all its messages were returned.
        """
        self._check_alive()
        if (message := self._take()) is not None:
            return message
        return self._last_message() if self._process.fileno() in self.channel.wait(0.0) else None

    def wake(self) -> None:
        """Make a `receive` with `can_wake` return; from any thread."""
        self._wake.set()

    def kill(self) -> bool:
        """Kill the process, so that `receive` finds it dead; from any thread.

        Returns:
            Whether it can be killed from here.
        """
        return self._is_owner and self._process.kill()

    def check(self) -> None:
        """Check that the process is alive.

        Raises:
            EngineDeadError: The process is dead.
        """
        self._check_alive()
        if self._process.fileno() in self.channel.wait(0.0):
            self._raise_process_death()

    def check_owner(self) -> None:
        """Check that this process started the engine.

        Raises:
            EngineDeadError: This process is a fork of it; both would read the same messages.
        """
        if not self._is_owner:
            raise EngineDeadError(
                f"the engine belongs to process {self._wake.owner_pid}, and cannot be used in its "
                f"fork {os.getpid()}; start another engine here"
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
        if not self._wake.close():
            return
        self._death = death
        self.channel.drain(patience_s)
        self._process.end(patience_s)
        self.channel.close()

    def _take(self, timeout_s: float = 0.0) -> Any:
        """Return the next message, None if there is none; a `Failed` is raised."""
        try:
            message = self.channel.take(timeout_s)
        except EngineDeadError as error:
            if self.channel.has_ended:  # seen before the process itself
                self.die(EngineDeadError(f"the engine process {self._process.end(timeout_s)}"))
            self.die(error)
        if isinstance(message, Failed):
            self.die(EngineDeadError(message.error.message), self.exit_grace_s)
        return message

    def _last_message(self) -> Any:
        """Return the next message of a dead process; raise the reason of its death after all."""
        message = self._take(FLUSH_S)
        return self._raise_process_death() if message is None else message

    def _raise_process_death(self) -> NoReturn:
        """Raise the reason of the process's death: its last message, or how it ended."""
        while self._take(FLUSH_S) is not None:
            pass  # drop messages before the last one, which `_take` raises if it is a `Failed`
        self.die(EngineDeadError(f"the engine process {self._process.end(self.exit_grace_s)}"))

    @property
    def _is_owner(self) -> bool:
        return os.getpid() == self._wake.owner_pid

    def _check_alive(self) -> None:
        self.check_owner()
        if self._death is not None:
            raise EngineDeadError(str(self._death)) from self._death
