"""The thread that owns the engine core: it runs commands and steps, and reports its death.

The core is not thread-safe and need not be. The thread sleeps on a condition while the core has no
work, and drains the commands before every step, so an abort takes effect within one step. While it
sleeps, it checks the core's health at intervals. Stopping the thread has a timeout, so a step that
hangs blocks no caller: its requests fail.
"""

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from quire.errors import EngineDeadError
from quire.frontend.dispatch.engine_client import EngineCoreClient, death_by
from quire.messages import EngineOutputs

HEALTH_INTERVAL_S = 0.5  # between two health checks of an idle engine
STOP_TIMEOUT_S = 5.0  # for the running step
KILL_TIMEOUT_S = 0.5  # for the thread to notice that its engine's process was killed

logger = logging.getLogger(__name__)

Command = Callable[[EngineCoreClient], None]


class EngineThread:
    """Runs the steps of a core.

    Args:
        core: Engine core; from now on called by this thread alone.
        on_outputs: Function called in the thread after each step that has outputs.
        on_death: Function called once, when a step or a command failed or the thread was stopped;
            in the thread, or in the caller of `stop` if that times out.
    """

    def __init__(
        self,
        core: EngineCoreClient,
        on_outputs: Callable[[EngineOutputs], None],
        on_death: Callable[[EngineDeadError], None],
    ) -> None:
        self._core = core
        self._on_outputs = on_outputs
        self._on_death = on_death
        self._commands: deque[Command] = deque()
        self._wake = threading.Condition()
        self._is_stopping = False
        self._is_abandoned = False
        self._owner_pid = os.getpid()
        self._busy_since: float | None = None  # end of the last step, or start of the first one
        self._death: EngineDeadError | None = None
        # A daemon, so that the program can exit even if the caller does not shut down.
        self._thread = threading.Thread(target=self._run, name="quire-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        # Before modules are torn down: a daemon thread that still runs then can crash the exit.
        atexit.register(self.stop)

    @property
    def death(self) -> EngineDeadError | None:
        """The reason why the engine stopped; None while it runs."""
        return self._death

    def check_alive(self) -> None:
        """Return if the engine runs.

        Raises:
            EngineDeadError: The engine stopped.
        """
        if self._death is not None:
            raise EngineDeadError(str(self._death)) from self._death

    @property
    def stalled_s(self) -> float:
        """Seconds since the last step completed; 0 while the engine is idle."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def post(self, command: Command) -> None:
        """Queue a command, which is called in the thread with the core before the next step.

        Raises:
            EngineDeadError: The engine stopped, or this process is a fork of the one that owns it;
                the command is not called.
        """
        if os.getpid() != self._owner_pid:
            raise EngineDeadError(
                f"the engine belongs to process {self._owner_pid} and cannot be used in its forks"
            )
        with self._wake:
            self.check_alive()
            is_first = not self._commands  # the thread is woken once for all that it takes at once
            self._commands.append(command)
            if is_first:
                self._wake.notify()
        if is_first:
            self._core.wake()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the thread after the running step, and shut the core down. May be called twice.

        On a timeout the engine counts as dead, and all waiting calls fail. An engine in another
        process is killed; one in this process is abandoned together with the thread.
        """
        self.stop_soon()
        can_join = os.getpid() == self._owner_pid and threading.current_thread() is not self._thread
        if not can_join or self._is_abandoned:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._die(
                EngineDeadError(f"the engine was shut down; its last step hung for {timeout_s:g} s")
            )
            if self._core.kill():
                self._thread.join(KILL_TIMEOUT_S)
            else:
                self._is_abandoned = True

    def stop_soon(self) -> None:
        """Request the thread to end after the running step, without waiting for it."""
        if os.getpid() != self._owner_pid:
            return  # a fork has neither the thread nor the engine
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        self._core.wake()

    def _run(self) -> None:
        try:
            while self._run_once():
                pass
            self._die(EngineDeadError("the engine was shut down"))
        except BaseException as error:  # all waiting calls must fail with it
            if self._death is None:
                logger.critical("the engine died", exc_info=error)
            self._die(death_by(error))
        finally:
            self._shut_down()

    def _run_once(self) -> bool:
        """Run the commands and one step; return False if the thread must end."""
        while not self._wait_for_work():
            self._core.check_health()
        if self._busy_since is None:
            self._busy_since = time.monotonic()
        for command in self._take_commands():
            command(self._core)
        if self._is_stopping:
            return False
        if self._core.has_work() and (outputs := self._core.step()) is not None:
            self._busy_since = time.monotonic()
            self._on_outputs(outputs)
        return True

    def _wait_for_work(self) -> bool:
        """Wait at most one health interval for work; return whether there is any."""
        if self._core.has_work():
            return True
        with self._wake:
            if not (self._commands or self._is_stopping):
                self._busy_since = None
                self._wake.wait(HEALTH_INTERVAL_S)
            return bool(self._commands or self._is_stopping)

    def _take_commands(self) -> list[Command]:
        with self._wake:
            commands = list(self._commands)
            self._commands.clear()
        return commands

    def _die(self, death: EngineDeadError) -> None:
        """Record why the engine stopped, and report it once."""
        with self._wake:
            if self._death is not None:
                return
            self._death = death
            self._commands.clear()
        self._on_death(death)

    def _shut_down(self) -> None:
        try:
            self._core.shutdown()
        except Exception:
            logger.exception("the engine failed while shutting down")
        atexit.unregister(self.stop)
