"""Control verbs wait for their turn in the engine's thread, and never longer than it lives.

An error of ours is the answer of a verb. Any other means that nobody knows the engine's state: it
dies of that, in this process as in another one.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

from quire.errors import EngineDeadError, QuireError
from quire.frontend.dispatch.engine_client import EngineCoreClient
from quire.frontend.dispatch.engine_thread import EngineThread
from quire.messages import Control

Pending = asyncio.Future[Any]


class ControlCalls:
    """The control verbs that somebody waits for, and those who wait for the engine's end."""

    def __init__(self, thread: EngineThread) -> None:
        self._thread = thread
        self._waiting: set[Pending] = set()
        self._lock = threading.RLock()  # a finalizer may come in between

    async def call(self, command: Control) -> Any:
        """Have a command done between two steps; returns and raises what the engine does."""
        with self._pending() as pending:
            self._thread.post(partial(_run, pending, command))
            return await pending

    async def wait_for_death(self) -> EngineDeadError:
        """Return why the engine stopped, as soon as it did."""
        with self._pending() as pending:
            if self._thread.death is None:
                with contextlib.suppress(EngineDeadError):
                    await pending
        return self._thread.death or EngineDeadError("the engine stopped")

    def fail(self, death: EngineDeadError) -> None:
        """Tell everybody who waits that no answer will come."""
        with self._lock:
            waiting = list(self._waiting)
        for pending in waiting:
            _send(pending, partial(_set_error, pending, death))

    @contextlib.contextmanager
    def _pending(self) -> Iterator[Pending]:
        pending: Pending = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.add(pending)
        try:
            yield pending
        finally:
            with self._lock:
                self._waiting.discard(pending)


def _run(pending: Pending, command: Control, core: EngineCoreClient) -> None:
    try:
        result = core.control(command)
    except EngineDeadError:
        raise  # the thread ends, and tells everybody
    except QuireError as error:  # the caller's: it is raised where it waits
        _send(pending, partial(_set_error, pending, error))
    else:
        _send(pending, partial(_set_result, pending, result))


def _send(pending: Pending, call: partial[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        pending.get_loop().call_soon_threadsafe(call)


def _set_result(pending: Pending, result: Any) -> None:
    if not pending.done():
        pending.set_result(result)


def _set_error(pending: Pending, error: Exception) -> None:
    if not pending.done():
        pending.set_exception(error)
