"""The end of a server: by a signal, by its parent, or with its engine."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable

from quire.errors import EngineDeadError
from quire.frontend.async_frontend import AsyncFrontend
from quire.server.http.lifecycle import Lifecycle

DEATH_NOTICE_S = 0.5  # for health checks and clients to see that the engine is dead

logger = logging.getLogger(__name__)


class Stopping:
    """A server's way to its end, in one event loop.

    The first request to stop drains the server; the second one aborts what still runs. A server
    whose engine has died ends by itself.

    Args:
        frontend: Frontend of the server.
        lifecycle: Lifecycle of the server.
        drain: Waits for the running requests, until `aborted` or for a time.

    Attributes:
        aborted: Event of the second request to stop.
        ended: Event of the end.
        engine_death: Error of an engine that died; None otherwise.
    """

    def __init__(
        self, frontend: AsyncFrontend, lifecycle: Lifecycle, drain: Callable[[], Awaitable[None]]
    ) -> None:
        self._frontend = frontend
        self._lifecycle = lifecycle
        self._drain = drain
        self._draining: asyncio.Task[None] | None = None
        self.aborted = asyncio.Event()
        self.ended = asyncio.Event()
        self.engine_death: EngineDeadError | None = None

    def on_signal(self, signum: signal.Signals) -> None:
        """Stop because of a signal."""
        logger.info("received %s: finishing the running requests, then exiting", signum.name)
        self.stop()

    def stop(self) -> None:
        """Drain and end; a second call aborts."""
        if self._draining is None:
            self.drain()
        else:
            self.aborted.set()

    def drain(self) -> None:
        """Drain and end; a second call changes nothing."""
        if self._draining is None:
            self._lifecycle.drain()
            self._draining = asyncio.create_task(self._drain_and_end())

    def abort(self) -> None:
        """End without waiting for requests that run."""
        self.drain()
        self.aborted.set()

    async def end_with_engine(self) -> None:
        """Wait for the engine to die, leave clients time to see the error, and end."""
        death = await self._frontend.controls.wait_for_death()
        if self._draining is None:
            logger.critical("the engine died, so the server exits: %s", death.headline)
            self.engine_death = death
            await asyncio.sleep(DEATH_NOTICE_S)
            self.ended.set()

    async def _drain_and_end(self) -> None:
        await self._drain()
        self.ended.set()
