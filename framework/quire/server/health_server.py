"""Health checks, and metrics that need no key, on a port of their own, in a thread of its own.

The main event loop may be busy: with a flood of requests, or with a part that blocks it. A
supervisor that gets no answer in time would kill a server with all that it computes. The thread
here waits for the interpreter at most, and it also sees what the main loop cannot report: that the
loop itself has stopped.
"""

import asyncio
import logging
import socket
import threading
from functools import partial

from quire.server.http.acceptor import Acceptor
from quire.server.http.connection import Connection
from quire.server.http.connections import Connections
from quire.server.http.entry_checks import METRICS_PATH
from quire.server.http.refusals import Refusals
from quire.server.routes.health import HealthRoutes
from quire.server.routes.metrics import MetricsRoute
from quire.server.routes.operation import Operation
from quire.server.routes.router import ErrorResponses, HTTPRouter

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 1.0


class HealthServer:
    """Serves `/livez`, `/readyz`, `/health`, and open metrics from a thread, without a key.

    Args:
        routes: Health checks; they only read, so they may be called from any thread.
        listener: Bound socket; closed by `stop`.
        metrics: Metrics, which may be read in any thread, too; None: they are not served here.
    """

    def __init__(
        self, routes: HealthRoutes, listener: socket.socket, metrics: MetricsRoute | None = None
    ) -> None:
        self._listener = listener
        paths = {"/livez": routes.livez, "/readyz": routes.readyz, "/health": routes.health}
        if metrics is not None:
            paths[METRICS_PATH] = metrics.metrics
        operations = [Operation(path, endpoint) for path, endpoint in paths.items()]
        self._app = ErrorResponses(HTTPRouter(operations))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()
        self._is_started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="quire-health", daemon=True)

    def start(self) -> None:
        """Serve from now on."""
        self._thread.start()
        self._is_started.wait(STOP_TIMEOUT_S)

    def stop(self) -> None:
        """End the thread, and close its connections."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:  # the edge of the thread: the server goes on without it
            logger.exception("the health checks on their own port ended")

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        refusals = Refusals()
        connections = Connections(self._app, refusals)
        acceptor = Acceptor(self._listener, partial(Connection, connections), refusals)
        acceptor.start()
        self._is_started.set()
        await self._end.wait()
        acceptor.stop()
        await connections.close(0.1)
