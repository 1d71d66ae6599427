"""The HTTP server: listening, draining and shutdown.

The first SIGTERM, SIGINT or SIGHUP drains: readiness turns 503, running requests may finish, and
new ones get 503 with `Retry-After`. The second signal, or the end of `shutdown_timeout_s`, aborts.
If the engine dies, the server exits with an error, so that its supervisor can start a new one.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from quire.config import ServerSettings
from quire.errors import EngineDeadError
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.intake.request_hooks import RequestHook
from quire.server.app import create_app
from quire.server.bound_sockets import bound_health_socket, bound_socket, url_of
from quire.server.health_server import HealthServer
from quire.server.http.acceptor import Acceptor
from quire.server.http.connection import Connection
from quire.server.http.connection_limit import connection_limits
from quire.server.http.connections import Connections
from quire.server.http.lifecycle import Lifecycle, wait_to_drain
from quire.server.http.refusals import Refusals
from quire.server.keys.accounts import Accounts
from quire.server.observe.monitor import Monitor, RenderAll
from quire.server.routes.health import HealthRoutes
from quire.server.routes.metrics import MetricsRoute
from quire.server.routes.plugins.loaded_route import LoadedRoute
from quire.server.stats_log import log_stats
from quire.server.stop_signals import signals_handled
from quire.server.stopping import Stopping
from quire.server.tool_servers.tool_servers import ToolServers

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 1.0  # for the last step, when all requests are over
ABORT_GRACE_S = 1.0  # for sending the last events of aborted streams


class HTTPServer:
    """An HTTP server that drains before it stops listening.

    Args:
        frontend: Frontend that serves the requests; shut down when the server stops.
        settings: Address to listen on, and drain timeout.
        plugins_report: Function that returns a dict per plugin, for /v1/plugins.
        on_ready: Function called with the server's URL once it listens.
        accounts: Accounts of the keys; None to load them from the settings.
        stats_hooks: The plugins' `stats_logged`.
        render_all: Renders the metrics of all processes of the server; None: this is the only one.
        routes: Routes of plugins.
        tool_servers: Tool servers whose tools responses may call; None for none.

    Attributes:
        stopping: The server's way to its end.
        connections: Open connections; None before the start.
        app: ASGI application.
    """

    def __init__(
        self,
        frontend: AsyncFrontend,
        settings: ServerSettings,
        plugins_report: Callable[[], list[dict[str, Any]]],
        on_ready: Callable[[str], None] | None = None,
        accounts: Accounts | None = None,
        stats_hooks: Sequence[RequestHook] = (),
        render_all: RenderAll | None = None,
        routes: Sequence[LoadedRoute] = (),
        tool_servers: ToolServers | None = None,
    ) -> None:
        self._stats_hooks = stats_hooks
        self._lifecycle = Lifecycle()
        self._accounts = accounts or Accounts.load(settings)
        self._monitor = Monitor(
            frontend, settings, self._lifecycle, self._accounts, render_all=render_all
        )
        self.app = create_app(
            frontend,
            settings,
            plugins_report,
            self._lifecycle,
            self._accounts,
            self._monitor,
            routes,
            tool_servers,
        )
        self._frontend = frontend
        self._plugins_report = plugins_report
        self._settings = settings
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self.stopping = Stopping(frontend, self._lifecycle, self._drain)
        self.connections: Connections | None = None
        self._refusals = Refusals()
        self._lifecycle.num_refused = lambda: self._refusals.totals

    def run(
        self, listeners: Sequence[socket.socket], health_listener: socket.socket | None = None
    ) -> None:
        """Serve on bound sockets, in an event loop of its own, until the server is stopped.

        Args:
            listeners: Bound sockets.
            health_listener: Bound socket of the port that has only health checks.
        """
        health = None
        if health_listener is not None:
            routes = HealthRoutes(self._frontend, self._lifecycle, self._plugins_report)
            metrics = MetricsRoute(self._monitor.render)
            is_open = self._settings.open_metrics
            health = HealthServer(routes, health_listener, metrics if is_open else None)
            health.start()
        try:
            asyncio.run(self.serve(listeners))
        finally:
            if health is not None:
                health.stop()

    async def serve(self, listeners: Sequence[socket.socket]) -> None:
        """Serve on bound sockets until the server is stopped."""
        self._loop = asyncio.get_running_loop()
        connection_limits()  # it raises the limit of open files, or says what is missing
        self.connections = Connections(self.app, self._refusals, self.app.early_refusals)
        self._lifecycle.connections = self.connections.open
        acceptors = [self._acceptor(each, self.connections) for each in listeners]
        tasks = [asyncio.create_task(each) for each in self._background()]
        with self._signals():
            try:
                await self._wait_until_admitted()
                for acceptor in acceptors:
                    acceptor.start()
                if self._on_ready is not None:
                    self._on_ready(url_of(listeners[0]))
                await self.stopping.ended.wait()
            finally:
                for acceptor in acceptors:
                    acceptor.stop()
                for task in tasks:
                    task.cancel()
                await self.connections.close(ABORT_GRACE_S)
                self._monitor.close()

    def _background(self) -> list[Coroutine[Any, Any, None]]:
        """Return what runs beside the requests."""
        return [
            log_stats(self._frontend, hooks=self._stats_hooks),
            self._monitor.measure(),
            self.stopping.end_with_engine(),
            self._lifecycle.beat(),
            self._accounts.follow_files(),
        ]

    def _acceptor(self, listener: socket.socket, connections: Connections) -> Acceptor:
        """Return an acceptor for a listening socket."""
        return Acceptor(listener, partial(Connection, connections), self._refusals)

    def _signals(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which signals stop the server."""
        return signals_handled(self.stopping.on_signal)

    async def _wait_until_admitted(self) -> None:
        """Wait until the server may accept connections: at once, if it is the only process."""

    async def _wait_until_idle(self) -> None:
        """Wait until the server has no request left."""
        await self._lifecycle.wait_until_idle()

    def stop(self) -> None:
        """Drain and stop; a second call aborts. May be called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.stopping.stop)

    async def _drain(self) -> None:
        """Wait for the running requests, and abort those left."""
        timeout_s = self._settings.shutdown_timeout_s
        await wait_to_drain(self._wait_until_idle(), self.stopping.aborted, timeout_s)
        if self._lifecycle.num_in_flight:
            logger.warning("aborting %d running requests", self._lifecycle.num_in_flight)
        await self._frontend.shutdown(0.0, STOP_TIMEOUT_S)


def serve(
    frontend: AsyncFrontend,
    settings: ServerSettings,
    plugins_report: Callable[[], list[dict[str, Any]]],
    on_ready: Callable[[str], None] | None = None,
    bound: socket.socket | None = None,
    bound_health: socket.socket | None = None,
    accounts: Accounts | None = None,
    stats_hooks: Sequence[RequestHook] = (),
    routes: Sequence[LoadedRoute] = (),
    tool_servers: ToolServers | None = None,
) -> None:
    """Serve until a signal; the frontend is shut down at the end.

    Args:
        frontend: Frontend that serves the requests.
        settings: Address to listen on, and drain timeout.
        plugins_report: Function that returns a dict per plugin, for /v1/plugins.
        on_ready: Function called with the server's URL once it listens; `port` 0 takes a free port.
        bound: Result of `bound_socket`, if the address was bound before the frontend was made.
        bound_health: Result of `bound_health_socket`, as for `bound`.
        accounts: Accounts of the keys, if they were loaded before, so that errors are known early.
        stats_hooks: The plugins' `stats_logged`.
        routes: Routes of plugins.
        tool_servers: Tool servers whose tools responses may call; None for none.

    Raises:
        PluginError: A route of a plugin has one of quire's paths.
        SettingsError: The address cannot be bound.
        EngineDeadError: The engine died, so the server exited.
    """
    server = HTTPServer(
        frontend,
        settings,
        plugins_report,
        on_ready,
        accounts,
        stats_hooks,
        routes=routes,
        tool_servers=tool_servers,
    )
    listener = bound or bound_socket(settings)
    if bound_health is not None or not settings.health_port:
        server.run([listener], bound_health)
    else:
        with bound_health_socket(settings) as health:
            server.run([listener], health)
    if (death := server.stopping.engine_death) is not None:
        raise EngineDeadError(death.headline)
