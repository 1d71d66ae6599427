"""One thread owns the engine core: commands go in, outputs come out, and its death is announced.

The core is not thread-safe and need not be. The thread sleeps on a condition while the core has no
work, and drains the commands before every step, so an abort takes effect within one step. While it
sleeps it looks now and then whether the core still lives. Nobody waits for ever for a step that
hangs: whoever stops the thread says how long it gets, and what is on its way then has failed.
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

HEALTH_INTERVAL_S = 0.5  # how often an idle engine is looked after
STOP_TIMEOUT_S = 5.0  # for the step that runs
KILL_TIMEOUT_S = 0.5  # for a thread to see that its engine's process was killed

logger = logging.getLogger(__name__)

Command = Callable[[EngineCoreClient], None]


class EngineThread:
    """Runs the steps of a core.

    Args:
        core: The engine; from now on nobody else calls it.
        on_outputs: Called in the thread after each step that had something to say.
        on_death: Called once, when a step or a command failed or the thread was stopped; in the
            thread, or by who stops it if that takes too long.
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
        self._is_left_behind = False
        self._owner_pid = os.getpid()
        self._busy_since: float | None = None  # when the last step ended, or the first began
        self._death: EngineDeadError | None = None
        # A daemon, so that a caller who forgets to shut down can still leave the program.
        self._thread = threading.Thread(target=self._run, name="quire-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        # While modules still exist: a daemon thread that outlives them can crash the exit.
        atexit.register(self.stop)

    @property
    def death(self) -> EngineDeadError | None:
        """Why the engine stopped, if it did."""
        return self._death

    @property
    def stalled_s(self) -> float:
        """Seconds since the last step ended; 0 while there is nothing to do."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def post(self, command: Command) -> None:
        """Have a command called with the core, in the thread, before the next step.

        Raises:
            EngineDeadError: The engine stopped, or we are a fork of the process that has it; the
                command will never be called.
        """
        if os.getpid() != self._owner_pid:
            raise EngineDeadError(f"the engine belongs to process {self._owner_pid}, not to a fork")
        with self._wake:
            if self._death is not None:
                raise EngineDeadError(str(self._death)) from self._death
            self._commands.append(command)
            self._wake.notify()
        self._core.wake()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the thread after the step that runs, and shut the core down. May be called twice.

        If that takes too long, an engine in another process is killed; one in this process is left
        behind, with the thread, and everybody who waits hears that it is dead.
        """
        self.stop_soon()
        is_ours = os.getpid() == self._owner_pid and threading.current_thread() is not self._thread
        if not is_ours or self._is_left_behind:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._die(EngineDeadError(f"the engine was shut down, and hung for {timeout_s:g} s"))
            if self._core.kill():
                self._thread.join(KILL_TIMEOUT_S)
            else:
                self._is_left_behind = True

    def stop_soon(self) -> None:
        """Let the thread end after the step that runs, without waiting for it."""
        if os.getpid() != self._owner_pid:
            return  # a fork has neither the thread nor the engine
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        self._core.wake()

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            self._die(EngineDeadError("the engine was shut down"))
        except BaseException as error:  # whoever waits for this thread must hear of it
            if self._death is None:
                logger.critical("the engine died", exc_info=error)
            self._die(death_by(error))
        finally:
            self._shut_down()

    def _turn(self) -> bool:
        """Run the commands and one step; False when the thread is to end."""
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
        """Wait a while, if need be; whether there is something to do."""
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
        """Say once why the engine stopped."""
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
            logger.exception("the engine did not shut down cleanly")
        atexit.unregister(self.stop)
