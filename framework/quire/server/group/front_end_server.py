"""An HTTP server that is one of several processes for one engine, and obeys its parent."""

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from quire.config import ServerSettings
from quire.errors import QuireError
from quire.frontend.async_frontend import AsyncFrontend
from quire.server.group.connection_counts import ConnectionCounts
from quire.server.group.control_stream import ControlStream
from quire.server.group.group_wire import (
    Drain,
    Drained,
    ReadSamples,
    ReadyToServe,
    Render,
    Rendered,
    Report,
    Samples,
    Serve,
    StopServing,
    ToProcess,
)
from quire.server.http.acceptor import Acceptor
from quire.server.http.connection import Connection
from quire.server.http.connections import Connections
from quire.server.http_server import HTTPServer
from quire.server.keys.accounts import Accounts
from quire.server.observe.merged_families import Sample, samples_of
from quire.server.routes.health import HealthRoutes
from quire.server.routes.plugins.loaded_route import LoadedRoute
from quire.server.tool_servers.tool_servers import ToolServers

REPORT_S = 1.0  # between two reports
RENDER_S = 5.0  # for the metrics of all processes

logger = logging.getLogger(__name__)


class FrontEndServer(HTTPServer):
    """One of the processes of a server.

    Signals are for the parent: it says when to accept connections, when to drain, and when to end.

    Args:
        frontend: Frontend that serves the requests; shut down when the server stops.
        settings: Settings of the server.
        plugins_report: Function that returns a dict per plugin, for /v1/plugins.
        parent: Connection to the parent.
        accounts: Accounts of the keys.
        number: Number of this process.
        counts: Connections of all processes.
        routes: Routes of plugins.
        tool_servers: Tool servers whose tools responses may call; None for none.
    """

    def __init__(
        self,
        frontend: AsyncFrontend,
        settings: ServerSettings,
        plugins_report: Callable[[], list[dict[str, Any]]],
        parent: ControlStream,
        accounts: Accounts,
        number: int,
        counts: ConnectionCounts,
        routes: Sequence[LoadedRoute] = (),
        tool_servers: ToolServers | None = None,
    ) -> None:
        super().__init__(
            frontend,
            settings,
            plugins_report,
            accounts=accounts,
            render_all=self._render_all,
            routes=routes,
            tool_servers=tool_servers,
        )
        self._parent = parent
        self._number = number
        self._counts = counts
        self._health = HealthRoutes(frontend, self._lifecycle, plugins_report)
        self._admitted = asyncio.Event()
        self._call_ids = itertools.count(1)
        self._rendered: dict[int, asyncio.Future[Rendered]] = {}

    def _background(self) -> list[Coroutine[Any, Any, None]]:
        return [
            self._obey(),
            self._report(),
            self._monitor.measure(),
            self.stopping.end_with_engine(),
            self._lifecycle.beat(),
            self._accounts.follow_files(),
        ]

    def _signals(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def _acceptor(self, listener: socket.socket, connections: Connections) -> Acceptor:
        make_protocol = partial(Connection, connections)
        return Acceptor(listener, make_protocol, self._refusals, self._gives_way)

    async def _wait_until_admitted(self) -> None:
        self._parent.send(ReadyToServe())
        await self._admitted.wait()
        self._gives_way()

    def _gives_way(self) -> bool:
        """Note the number of connections; return whether another process has fewer."""
        num = 0 if self.connections is None else len(self.connections.open)
        return self._counts.gives_way(self._number, num)

    async def _wait_until_idle(self) -> None:
        """Wait until no process has a request left: until then this one refuses new ones, too."""
        await self._lifecycle.wait_until_idle()
        self._parent.send(Drained())
        await self.stopping.aborted.wait()

    async def _obey(self) -> None:
        """Do what the parent says, until it is gone."""
        while (message := await self._parent.receive()) is not None:
            self._take(message)
        self._end_now()

    def _take(self, message: ToProcess) -> None:
        match message:
            case Serve():
                self._admitted.set()
            case Drain():
                self.stopping.drain()
            case StopServing():
                self._end_now()
            case ReadSamples():
                self._parent.send(Samples(message.call_id, self._samples()))
            case Rendered():
                answer = self._rendered.get(message.call_id)
                if answer is not None and not answer.done():
                    answer.set_result(message)

    def _end_now(self) -> None:
        self.stopping.abort()
        self._admitted.set()

    async def _report(self) -> None:
        """Tell the parent at intervals how this process is."""
        while True:
            health = self._health.state()
            self._parent.send(Report(health, self._health.failing(), self._samples()))
            if self._admitted.is_set():
                self._gives_way()
            await asyncio.sleep(REPORT_S)

    def _samples(self) -> list[Sample]:
        return samples_of(self._monitor.exposition.registry.collect())

    async def _render_all(self, accept: str) -> tuple[bytes, str]:
        """Let the parent render the metrics of all processes.

        Raises:
            QuireError: It does not answer.
        """
        call_id, answer = next(self._call_ids), asyncio.get_running_loop().create_future()
        self._rendered[call_id] = answer
        self._parent.send(Render(call_id, accept))
        try:
            rendered: Rendered = await asyncio.wait_for(answer, RENDER_S)
        except TimeoutError:
            raise QuireError("the metrics of the other processes do not come") from None
        finally:
            del self._rendered[call_id]
        return rendered.body, rendered.content_type
