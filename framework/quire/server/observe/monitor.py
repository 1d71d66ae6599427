"""The observers of one server, and the middleware that shows them each HTTP request."""

import time
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from quire.config import ServerSettings
from quire.frontend.async_frontend import AsyncFrontend
from quire.server.http.lifecycle import Lifecycle
from quire.server.observe.access_log import AccessLog
from quire.server.observe.exchange import Exchange
from quire.server.observe.exposition import Exposition
from quire.server.observe.loop_lag import measure_loop_lag
from quire.server.observe.readings import Readings


class Monitor:
    """Metrics, traces and access log of a server.

    Args:
        frontend: Frontend, which has the metrics of requests and steps.
        settings: Names of metrics, and where to log to.
        lifecycle: Lifecycle, which has the requests and connections.

    Attributes:
        exposition: Metrics of the server.

    Raises:
        SettingsError: The access log cannot be written.
    """

    def __init__(
        self, frontend: AsyncFrontend, settings: ServerSettings, lifecycle: Lifecycle
    ) -> None:
        self._log = AccessLog.open(settings.access_log) if settings.access_log else None
        readings = Readings(
            frontend,
            lifecycle,
            num_lines_dropped=int if self._log is None else self._log.num_dropped,
        )
        self._loop_lag_s = readings.loop_lag_s
        self.exposition = Exposition(readings, settings.metrics_names)
        self._sinks: list[Callable[[Exchange], None]] = [readings.http.add]
        if self._log is not None:
            self._sinks.append(self._log.add)

    async def measure(self) -> None:
        """Measure what needs a clock, until cancelled."""
        await measure_loop_lag(self._loop_lag_s)

    def add(self, exchange: Exchange) -> None:
        """Take an HTTP request that is over."""
        for sink in self._sinks:
            sink(exchange)

    def close(self) -> None:
        """Write what is held back."""
        if self._log is not None:
            self._log.close()


class ObservedApp:
    """ASGI middleware in front of the guard, so that refusals are observed, too.

    Args:
        app: Application behind it.
        monitor: Observers.
    """

    def __init__(self, app: ASGIApp, monitor: Monitor) -> None:
        self._app = app
        self._monitor = monitor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and observe its end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.monotonic()
        try:
            await self._app(scope, receive, send)
        finally:
            duration_s = time.monotonic() - scope.get("quire_arrival_s", began_s)
            self._monitor.add(Exchange(scope, time.time(), duration_s))
