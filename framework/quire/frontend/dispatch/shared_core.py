"""Several threads may call one engine core: they take turns, and nobody calls one that is dead.

A core knows one caller. Here the calls of many queue up, and whoever closes it does not queue: the
call that runs ends after its step, with an error, as does each that waits.
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


class SharedCore:
    """An engine core, and whose turn it is. Its verbs are for whoever has the turn.

    Args:
        core: The engine; nobody else may call it from now on.
    """

    def __init__(self, core: EngineCoreClient) -> None:
        self._core = core
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._is_taken = False
        self._is_closed = False
        self._death: EngineDeadError | None = None

    @contextmanager
    def turn(self) -> Iterator[Self]:
        """Wait until nobody else has the core, and have it.

        Raises:
            EngineDeadError: It was closed, or is dead.
            InvalidRequestError: This thread has it already: a plugin calls the engine that waits
                for it.
        """
        with self._turns():
            if self._is_taken:
                raise InvalidRequestError("the engine cannot be called from inside a call of it")
            self._check()
            self._is_taken = True
            try:
                yield self
            finally:
                self._is_taken = False
                if self._is_closed:
                    self._core.shutdown()

    def close(self) -> None:
        """End the call that runs and those that wait, and shut the core down. From any thread.

        A step that does not end is not waited for: an engine in a process of its own is killed,
        and one in this process is shut down by the call that runs, when its step ends.
        """
        self._is_closed = True
        self._core.wake()
        lock = self._turns()
        if not lock.acquire(timeout=CLOSE_WAIT_S):
            is_killed = self._core.kill()
            if not (is_killed and lock.acquire(timeout=CLOSE_WAIT_S)):
                return
        try:
            if not self._is_taken:  # else by ourselves, further up: a signal, or a plugin
                self._core.shutdown()
        finally:
            lock.release()

    def add(self, request: EngineRequest) -> None:
        """Queue a request; raises as the core does."""
        self._call(lambda: self._core.add(request))

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget requests; a core that is dead has forgotten them."""
        if self._death is None:
            self._guard(lambda: self._core.abort(request_ids))

    def step(self) -> EngineOutputs | None:
        """Run one step; returns as the core does.

        Raises:
            EngineDeadError: It failed, then or ever before, or the core was closed.
        """
        return self._call(self._core.step)

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._core.has_work()

    def control(self, command: Control) -> Any:
        """Do something between two steps; returns and raises what the core does."""
        return self._call(lambda: self._core.control(command))

    def stats(self) -> EngineStats:
        """Return a few numbers about now."""
        return self._call(self._core.stats)

    def _turns(self) -> threading.RLock:
        """Return the lock; in a fork a new one, as whoever had the old one is not here."""
        if os.getpid() != self._pid:
            self._pid, self._lock, self._is_taken = os.getpid(), threading.RLock(), False
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
        """Call the core; what it did not raise on purpose is its death: half a step was done."""
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
