"""State of the server: whether it drains, and the numbers of requests and of connections.

While the server drains it still listens: running requests finish, and new ones get 503 with
`Retry-After`.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from quire.server.http.connection_limit import connection_limits

BEAT_S = 0.5
SILENCE_LIMIT_S = 10.0  # an event loop that does not run for so long counts as blocked


class Lifecycle:
    """State shared by the guard, the health routes and the shutdown, in one event loop.

    Attributes:
        connections: Open connections, if a server of ours accepts them.
        wait_s: Function that returns the seconds a new request would wait in the queue, for
            `Retry-After`.
        num_refused: Function that returns the number of connections that were refused or closed
            because of a limit or an error, by kind.
        num_received_bytes: Function that returns the bytes of bodies that are being received.
    """

    def __init__(self) -> None:
        self.connections: Collection[object] = ()
        self.wait_s: Callable[[], float] = lambda: 0.0
        self.num_refused: Callable[[], Mapping[str, int]] = dict
        self.num_received_bytes: Callable[[], int] = int
        self.is_draining = False
        self.num_in_flight = 0
        self._beat_s: float | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        """Count a request that begins."""
        self.num_in_flight += 1
        self._idle.clear()

    def leave(self) -> None:
        """Count a request that ends."""
        self.num_in_flight -= 1
        if self.num_in_flight == 0:
            self._idle.set()

    @property
    def is_crowded(self) -> bool:
        """Whether there are more connections than are served with more than health checks."""
        return bool(self.connections) and len(self.connections) > connection_limits().served

    async def beat(self) -> None:
        """Show at intervals that the event loop runs, until cancelled."""
        while True:
            self._beat_s = time.monotonic()
            await asyncio.sleep(BEAT_S)

    @property
    def is_silent(self) -> bool:
        """Whether the event loop is blocked; may be read from any thread."""
        beat_s = self._beat_s
        return beat_s is not None and time.monotonic() - beat_s > SILENCE_LIMIT_S

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self.is_draining = True

    async def wait_until_idle(self) -> None:
        """Wait for the last request in flight."""
        await self._idle.wait()


async def wait_to_drain(
    drained: Coroutine[Any, Any, object], abort: asyncio.Event, timeout_s: float
) -> None:
    """Wait until a server has drained, is asked to abort, or has had its time.

    Args:
        drained: Coroutine that ends with the last running request; cancelled if that takes longer.
        abort: Event of a second signal.
        timeout_s: Seconds that the running requests may take.
    """
    tasks = [asyncio.create_task(drained), asyncio.create_task(abort.wait())]
    await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
