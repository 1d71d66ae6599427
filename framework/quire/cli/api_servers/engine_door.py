"""How the parent lets a process into the engine: a socket for each, gone once it is connected."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from quire.frontend.dispatch.engine_thread import EngineThread
from quire.launch.engine_process.engine_wire import CloseFrontEnd, OpenFrontEnd
from quire.launch.engine_process.remote_core import RemoteCore
from quire.launch.front_end_start import EngineAddress
from quire.messages import AdapterRef, Started
from quire.process.children.child_process import SocketFolder
from quire.process.ipc import encode


class EngineDoor:
    """Lets processes into an engine.

    Args:
        core: The engine, which was started for several front ends.
        thread: Thread that calls the core.
        started: What the start of the engine found.
        adapters: Adapters by the names that requests use.
    """

    def __init__(
        self,
        core: RemoteCore,
        thread: EngineThread,
        started: Started,
        adapters: Mapping[str, AdapterRef],
    ) -> None:
        self._core = core
        self._thread = thread
        self._started = started
        self._adapters = dict(adapters)
        self._folders: dict[int, SocketFolder] = {}

    async def open(self, number: int) -> bytes:
        """Let the engine wait for a process, and return where, encoded.

        Raises:
            EngineDeadError: The engine is dead.
        """
        folder = self._folders[number] = SocketFolder()
        await self._call(OpenFrontEnd(number, folder.address))
        return encode(
            EngineAddress(
                address=folder.address,
                pid=self._core.pid,
                started=self._started,
                adapters=self._adapters,
            )
        )

    def entered(self, number: int) -> None:
        """Remove the socket of a process that is connected."""
        if (folder := self._folders.pop(number, None)) is not None:
            folder.remove()

    async def close(self, number: int) -> None:
        """Let the engine end the requests of a process that is gone.

        Raises:
            EngineDeadError: The engine is dead.
        """
        self.entered(number)
        await self._call(CloseFrontEnd(number))

    async def _call(self, command: OpenFrontEnd | CloseFrontEnd) -> None:
        """Call the engine in its thread."""
        outcome: Future[None] = Future()
        self._thread.post(partial(self._run, command, outcome))
        await asyncio.wrap_future(outcome)

    def _run(self, command: OpenFrontEnd | CloseFrontEnd, outcome: Future[None], _: Any) -> None:
        try:
            self._core.control(command)
        except BaseException as error:
            outcome.set_exception(error)
            raise
        outcome.set_result(None)
