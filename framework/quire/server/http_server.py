"""Listen, and stop well: readiness flips first, what runs may finish, what comes is told to retry.

The first SIGTERM or SIGINT drains; the second one, or the end of `shutdown_timeout_s`, aborts. When
the engine dies the server ends too, and says so: whoever supervises it starts a new one.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from quire.config import ServerSettings
from quire.errors import EngineDeadError, SettingsError
from quire.frontend.async_frontend import AsyncFrontend
from quire.server.app import create_app
from quire.server.http.connections import Connection
from quire.server.http.lifecycle import Lifecycle
from quire.server.stats_log import log_stats

logger = logging.getLogger(__name__)

BACKLOG = 2048
STOP_TIMEOUT_S = 1.0  # for the step that runs when all requests are over
ABORT_GRACE_S = 1  # for the last events of aborted streams to leave
DEATH_NOTICE_S = 0.5  # for health checks and clients to hear that the engine is dead


class HTTPServer(uvicorn.Server):
    """A uvicorn server that drains before it stops listening.

    Args:
        frontend: Serves the requests; shut down when the server stops.
        settings: Where to listen, and how long to drain.
        plugins_report: For /v1/plugins.
        on_ready: Called with the server's URL once it listens.

    Attributes:
        engine_death: Why the engine stopped, if it did so by itself.
    """

    def __init__(
        self,
        frontend: AsyncFrontend,
        settings: ServerSettings,
        plugins_report: Callable[[], list[dict[str, Any]]],
        on_ready: Callable[[str], None] | None = None,
    ) -> None:
        self._lifecycle = Lifecycle()
        app = create_app(frontend, settings, plugins_report, self._lifecycle)
        super().__init__(_uvicorn_config(app, settings))
        self._frontend = frontend
        self._settings = settings
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.engine_death: EngineDeadError | None = None
        self._abort = asyncio.Event()

    def stop(self) -> None:
        """Drain and stop; a second call aborts. May be called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal: uvicorn's own answer would stop listening at once."""
        del frame
        logger.info("%s: finishing the running requests", signal.Signals(sig).name)
        self.stop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and say where."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._tasks.append(asyncio.create_task(log_stats(self._frontend)))
        self._tasks.append(asyncio.create_task(self._end_with_engine()))
        if self.started and self._on_ready is not None:
            self._on_ready(url_of(self.servers[0].sockets[0]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close what is open."""
        for task in self._tasks:
            task.cancel()
        await super().shutdown(sockets)

    def _stop(self) -> None:
        if self._stopping is None:
            self._lifecycle.drain()
            self._stopping = asyncio.create_task(self._drain())
        else:
            self._abort.set()

    async def _drain(self) -> None:
        """Let the running requests finish, abort the others, and let uvicorn close the rest."""
        idle = asyncio.create_task(
            self._lifecycle.wait_until_idle(self._settings.shutdown_timeout_s)
        )
        aborted = asyncio.create_task(self._abort.wait())
        await asyncio.wait({idle, aborted}, return_when=asyncio.FIRST_COMPLETED)
        aborted.cancel()
        idle.cancel()
        if self._lifecycle.num_in_flight:
            logger.warning("aborting %d running requests", self._lifecycle.num_in_flight)
        await self._frontend.shutdown(0.0, STOP_TIMEOUT_S)
        self.should_exit = True

    async def _end_with_engine(self) -> None:
        """Wait for the engine to die, let those who have asked hear it, and end."""
        death = await self._frontend.wait_for_death()
        if self._stopping is None:
            logger.critical("the engine is dead, so the server ends: %s", death)
            self.engine_death = death
            await asyncio.sleep(DEATH_NOTICE_S)
            self.should_exit = True


def serve(
    frontend: AsyncFrontend,
    settings: ServerSettings,
    plugins_report: Callable[[], list[dict[str, Any]]],
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until a signal; the frontend is shut down at the end.

    Args:
        frontend: Serves the requests.
        settings: Where to listen, and how long to drain.
        plugins_report: Returns a plain dict for each plugin.
        on_ready: Called with the server's URL once it listens; `port` 0 takes a free one.

    Raises:
        SettingsError: The address cannot be listened on.
        EngineDeadError: The engine died, and the server with it.
    """
    server = HTTPServer(frontend, settings, plugins_report, on_ready)
    server.run([listening_socket(settings)])
    if server.engine_death is not None:
        raise server.engine_death


def listening_socket(settings: ServerSettings) -> socket.socket:
    """Return a socket bound to the address of the settings.

    Raises:
        SettingsError: It cannot be bound.
    """
    try:
        found = socket.getaddrinfo(
            settings.host,
            settings.port,
            type=socket.SOCK_STREAM,
            proto=socket.IPPROTO_TCP,  # asyncio switches Nagle's delays off only if it reads this
            flags=socket.AI_PASSIVE,
        )
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # "localhost": 127.0.0.1 first
        family, kind, protocol, _, address = found[0]
        return _bound(socket.socket(family, kind, protocol), address)
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {settings.host} port {settings.port}: {error}; choose another "
            "address with --host and --port (port 0 takes a free one)"
        ) from error


def _bound(listener: socket.socket, address: Any) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def url_of(listener: Any) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _uvicorn_config(app: Any, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,  # logging is the caller's
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,  # a client's word about where it comes from counts for nothing
        http=Connection,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=ABORT_GRACE_S,
    )
