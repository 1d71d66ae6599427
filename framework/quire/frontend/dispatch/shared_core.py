"""An engine core shared by several threads: one caller at a time, and none once it is dead.

A core supports one caller. Calls of several threads wait for a lock here. Closing does not wait for
it: the running call ends with an error after its step, as do all waiting calls.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from quire.errors import EngineDeadError, InvalidRequestError, QuireError
from quire.frontend.dispatch.engine_client import EngineCoreClient, death_by
from quire.messages import Control, EngineOutputs, EngineRequest, EngineStats

R = TypeVar("R")

CLOSE_WAIT_S = 10.0
STATS_WAIT_S = 0.05  # for the caller that has the core, before its last step counts


class SharedCore:
    """An engine core with a lock.

    `add`, `abort`, `step` and `has_work` may be called only within `turn`; `control` and `stats`
    take a turn of their own, but `stats` waits for no other caller's requests.

    Args:
        core: Engine core; from now on called by this object alone.
    """

    def __init__(self, core: EngineCoreClient) -> None:
        self._core = core
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._is_held = False
        self._is_closed = False
        self._death: EngineDeadError | None = None
        self._last_stats: EngineStats | None = None  # of the last step

    @contextmanager
    def turn(self) -> Iterator[Self]:
        """Wait for exclusive use of the core, and hold it.

        Raises:
            EngineDeadError: The core was closed or is dead.
            InvalidRequestError: This thread holds it already: a plugin called the engine from
                within one of the engine's calls.
        """
        with self._lock_of_process():
            if self._is_held:
                raise InvalidRequestError(
                    "the engine cannot be called from within one of its own calls"
                )
            self._check()
            self._is_held = True
            try:
                yield self
            finally:
                self._is_held = False
                if self._is_closed:
                    self._core.shutdown()

    def close(self) -> None:
        """End the running call and all waiting ones, and shut the core down. From any thread.

        If the running step does not end in time, an engine in its own process is killed; one in
        this process is shut down by the running call when its step ends.
        """
        self._is_closed = True
        self._core.wake()
        lock = self._lock_of_process()
        if not lock.acquire(timeout=CLOSE_WAIT_S):
            is_killed = self._core.kill()
            if not (is_killed and lock.acquire(timeout=CLOSE_WAIT_S)):
                return
        try:
            if not self._is_held:  # else by this thread: called from a signal handler or a plugin
                self._core.shutdown()
        finally:
            lock.release()

    def add(self, request: EngineRequest) -> None:
        """Queue a request; raises what the core raises."""
        self._call(lambda: self._core.add(request))

    def abort(self, request_ids: Sequence[str]) -> None:
        """Abort requests; does nothing if the core is dead."""
        if self._death is None:
            self._guard(lambda: self._core.abort(request_ids))

    def step(self) -> EngineOutputs | None:
        """Run one step; return what the core returns.

        Raises:
            EngineDeadError: This or an earlier call failed, or the core was closed.
        """
        outputs = self._call(self._core.step)
        if outputs is not None:
            self._last_stats = outputs.stats
        return outputs

    def has_work(self) -> bool:
        """Return whether a step would do anything."""
        return self._core.has_work()

    def control(self, command: Control) -> Any:
        """Wait for a turn and run a control command in it; return or raise its outcome."""
        with self.turn():
            return self._call(lambda: self._core.control(command))

    def stats(self) -> EngineStats:
        """Return the current statistics; while another thread uses the core, its last step's.

        Raises:
            EngineDeadError: The core was closed or is dead.
            InvalidRequestError: This thread holds the core already.
        """
        lock = self._lock_of_process()
        while not lock.acquire(timeout=STATS_WAIT_S):
            self._check()
            if self._last_stats is not None:
                return self._last_stats
        try:
            with self.turn():
                return self._call(self._core.stats)
        finally:
            lock.release()

    def _lock_of_process(self) -> threading.RLock:
        """Return the lock; in a fork a new one, since the holder of the old one does not exist."""
        if os.getpid() != self._pid:
            self._pid, self._lock, self._is_held = os.getpid(), threading.RLock(), False
        return self._lock

    def _call(self, verb: Callable[[], R]) -> R:
        self._check()
        return self._guard(verb)

    def _check(self) -> None:
        if self._is_closed:
            raise EngineDeadError("the engine was closed")
        if self._death is not None:
            raise EngineDeadError(str(self._death)) from self._death

    def _guard(self, verb: Callable[[], R]) -> R:
        """Call the core; after an error other than a QuireError it counts as dead.

        Such an error may have interrupted a step, so the core's state is unknown.
        """
        try:
            return verb()
        except EngineDeadError as death:
            self._death = death
            raise
        except QuireError:
            raise
        except Exception as error:
            self._death = death_by(error)
            raise self._death from error
