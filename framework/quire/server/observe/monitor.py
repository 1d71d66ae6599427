"""The observers of one server, and the middleware that shows them each HTTP request."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Receive, Scope, Send

from quire.config import ServerSettings
from quire.errors import SettingsError
from quire.frontend.async_frontend import AsyncFrontend
from quire.server.http.lifecycle import Lifecycle
from quire.server.keys.accounts import Accounts
from quire.server.observe.access_log import AccessLog
from quire.server.observe.exposition import Exposition
from quire.server.observe.loop_lag import measure_loop_lag
from quire.server.observe.observed_exchange import BACKGROUND, ObservedExchange
from quire.server.observe.readings import Readings

if TYPE_CHECKING:
    from quire.server.observe.tracing import Tracing


RenderAll = Callable[[str], Awaitable[tuple[bytes, str]]]


class Monitor:
    """Metrics, traces and access log of a server.

    Args:
        frontend: Frontend, which has the metrics of requests and steps.
        settings: Names of metrics, and where to log and to send traces to.
        lifecycle: Lifecycle, which has the requests and connections.
        accounts: Accounts of the keys; None for none.
        render_all: Renders the metrics of all processes of the server; None: this is the only one.

    Attributes:
        exposition: Metrics of this process.
        tool_calls: Metrics of calls of tool servers.

    Raises:
        SettingsError: The access log cannot be written, or traces cannot be sent.
    """

    def __init__(
        self,
        frontend: AsyncFrontend,
        settings: ServerSettings,
        lifecycle: Lifecycle,
        accounts: Accounts | None = None,
        render_all: RenderAll | None = None,
    ) -> None:
        self._log = AccessLog.open(settings.access_log) if settings.access_log else None
        accounts = accounts or Accounts()
        readings = Readings(
            frontend,
            lifecycle,
            num_lines_dropped=int if self._log is None else self._log.num_dropped,
            key_accounts=lambda: accounts.with_keys,
        )
        self._render_all = render_all
        self._loop_lag_s = readings.loop_lag_s
        self.exposition = Exposition(readings, settings.metrics_names)
        self._count = readings.http.add
        self.tool_calls = readings.tool_calls
        self._sinks: list[Callable[[ObservedExchange], None]] = []  # of all that a request began
        self._closers: list[Callable[[], None]] = []
        if self._log is not None:
            self._sinks.append(self._log.add)
            self._closers.append(self._log.close)
        if settings.otlp_traces_endpoint is not None:
            tracing = _tracing_to(settings.otlp_traces_endpoint)
            self._sinks.append(tracing.add)
            self._closers.append(tracing.close)

    async def render(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics of the server, and their content type.

        Args:
            accept: `Accept` header of the request.
        """
        if self._render_all is not None:
            return await self._render_all(accept)
        return self.exposition.render(accept)

    async def measure(self) -> None:
        """Measure what needs a clock, until cancelled."""
        await measure_loop_lag(self._loop_lag_s)

    def observe(self, scope: Scope, began_s: float) -> None:
        """Take an HTTP request that is over.

        The access log and the traces have what it began in the background, and so wait for that.

        Args:
            scope: Its ASGI scope, with what guard and routes added.
            began_s: Time of its begin, by `time.monotonic`, if the scope has no earlier one.
        """
        began_s = scope.get("quire_arrival_s", began_s)
        self._count(_exchange(scope, began_s))
        background: asyncio.Task[None] | None = scope.get(BACKGROUND)
        if background is None:
            self._record(scope, began_s)
        else:
            background.add_done_callback(lambda _: self._record(scope, began_s))

    def _record(self, scope: Scope, began_s: float) -> None:
        exchange = _exchange(scope, began_s)
        for sink in self._sinks:
            sink(exchange)

    def close(self) -> None:
        """Write and send what is held back."""
        for close in self._closers:
            close()


def _exchange(scope: Scope, began_s: float) -> ObservedExchange:
    """Return a request that is over now."""
    return ObservedExchange(scope, time.time(), time.monotonic() - began_s)


def check_outputs(settings: ServerSettings) -> None:
    """Return if the access log can be written and traces can be sent, before a model is loaded.

    Raises:
        SettingsError: One of them cannot.
    """
    if settings.access_log:
        AccessLog.open(settings.access_log).close()
    if settings.otlp_traces_endpoint is not None:
        _tracing_to(settings.otlp_traces_endpoint).close()


def _tracing_to(endpoint: str) -> "Tracing":
    """Return the tracing to a collector.

    Raises:
        SettingsError: OpenTelemetry is not installed, or the endpoint is not an HTTP URL.
    """
    try:
        from quire.server.observe import tracing  # its imports are an extra, and take long
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"otlp_traces_endpoint needs OpenTelemetry, and there is no module {error.name!r}: "
            "install it with `pip install 'quire[otel]'`"
        ) from None
    return tracing.Tracing.to(endpoint)


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
            self._monitor.observe(scope, began_s)
