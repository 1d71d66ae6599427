"""Control commands from the event loop, run in the engine's thread between two steps.

A command that raises a `QuireError` fails with it. Any other error leaves the engine in an unknown
state, so the engine dies, whether it runs in this process or in another one. If the engine stops,
all waiting commands fail.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

from quire.errors import EngineDeadError
from quire.frontend.dispatch.engine_client import EngineCoreClient
from quire.frontend.dispatch.engine_thread import EngineThread
from quire.messages import Control

Pending = asyncio.Future[Any]


class ControlCalls:
    """Pending control commands, and pending waits for the engine's end."""

    def __init__(self, thread: EngineThread) -> None:
        self._thread = thread
        self._waiting: set[Pending] = set()
        self._lock = threading.RLock()  # reentrant: a finalizer may run while it is held

    async def call(self, command: Control) -> Any:
        """Run a command between two steps; return or raise its outcome."""
        with self._pending() as pending:
            self._thread.post(partial(_run, pending, command))
            return await pending

    async def wait_for_death(self) -> EngineDeadError:
        """Wait until the engine has stopped, and return the reason."""
        with self._pending() as pending:
            if self._thread.death is None:
                with contextlib.suppress(EngineDeadError):
                    await pending
        return self._thread.death or EngineDeadError("the engine stopped")

    def fail(self, death: EngineDeadError) -> None:
        """Fail everything that is pending."""
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
    # An EngineDeadError ends the engine's thread, which fails everything that is pending.
    core.begin_control(command).add_done_callback(partial(_reply, pending))


def _reply(pending: Pending, outcome: Future[Any]) -> None:
    error = outcome.exception()
    if error is None:
        _send(pending, partial(_set_result, pending, outcome.result()))
    else:
        _send(pending, partial(_set_error, pending, error))


def _send(pending: Pending, call: partial[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nothing awaits the result
        pending.get_loop().call_soon_threadsafe(call)


def _set_result(pending: Pending, result: Any) -> None:
    if not pending.done():
        pending.set_result(result)


def _set_error(pending: Pending, error: BaseException) -> None:
    if not pending.done():
        pending.set_exception(error)
