"""The parent of several processes that serve HTTP for one engine: it serves nothing but health.

It starts and ends the processes and handles signals; a signal drains all processes at once. When
the engine dies, they show their clients the error, and the server ends.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any

from quire.config import ServerSettings
from quire.errors import EngineDeadError
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.dispatch.engine_client import EngineCoreClient
from quire.frontend.intake.request_hooks import RequestHook
from quire.server.bound_sockets import url_of
from quire.server.group.front_end_group import FrontEndGroup
from quire.server.group.group_health import GroupHealth
from quire.server.health_server import HealthServer
from quire.server.http.lifecycle import Lifecycle, wait_to_drain
from quire.server.http_server import STOP_TIMEOUT_S
from quire.server.keys.accounts import Accounts
from quire.server.observe.exposition import Exposition
from quire.server.observe.merged_families import MergedFamilies
from quire.server.observe.readings import Readings
from quire.server.routes.metrics import MetricsRoute
from quire.server.stats_log import log_stats
from quire.server.stop_signals import signals_handled
from quire.server.stopping import Stopping

EXIT_S = 1.5  # for the processes to send their last events, and exit


class GroupServer:
    """A server whose processes serve HTTP.

    Args:
        frontend: Frontend of this process, which sends no requests.
        settings: Settings of the server.
        plugins_report: Function that returns a dict per plugin.
        group: The processes.
        accounts: Accounts of the keys, as all processes share them.
        stats_hooks: The plugins' `stats_logged`.
    """

    def __init__(
        self,
        frontend: AsyncFrontend,
        settings: ServerSettings,
        plugins_report: Callable[[], list[dict[str, Any]]],
        group: FrontEndGroup,
        accounts: Accounts,
        stats_hooks: Sequence[RequestHook] = (),
    ) -> None:
        self._frontend = frontend
        self._settings = settings
        self._group = group
        self._accounts = accounts
        self._stats_hooks = stats_hooks
        self._lifecycle = Lifecycle()
        self._health = GroupHealth(frontend, self._lifecycle, plugins_report, group)
        readings = Readings(frontend, self._lifecycle, key_accounts=lambda: accounts.with_keys)
        self._exposition = Exposition(readings, settings.metrics_names)
        self._stopping = Stopping(frontend, self._lifecycle, self._drain)

    async def serve(
        self,
        listener: socket.socket,
        health_listener: socket.socket | None,
        on_ready: Callable[[str], None],
    ) -> None:
        """Serve until a signal, or until the engine dies.

        Args:
            listener: Bound socket from which the processes accept.
            health_listener: Bound socket of the port that has only health checks.
            on_ready: Function called with the URL once all processes serve.

        Raises:
            QuireError: A process did not start, or all of them died too often.
            EngineDeadError: The engine died.
        """
        tasks = [
            asyncio.create_task(each)
            for each in (
                log_stats(self._frontend, hooks=self._stats_hooks),
                self._stopping.end_with_engine(),
                self._end_with_group(),
                self._lifecycle.beat(),
                self._accounts.follow_files(),
            )
        ]
        health = None
        with signals_handled(self._stopping.on_signal):
            try:
                if await self._has_started():
                    health = self._health_server(health_listener)
                    on_ready(url_of(listener))
                    await self._stopping.ended.wait()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(
                    self._group.stop(EXIT_S), self._frontend.shutdown(0.0, STOP_TIMEOUT_S)
                )
                if health is not None:
                    await asyncio.to_thread(health.stop)
        if (death := self._stopping.engine_death) is not None:
            raise EngineDeadError(death.headline)
        if self._group.failure is not None:
            raise self._group.failure

    async def render(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics of all processes, and their content type."""
        with contextlib.suppress(EngineDeadError):
            self._frontend.thread.post(_take_news)  # it looks by itself only at intervals
        samples = await self._group.read_samples()
        exposition = self._exposition
        merged = MergedFamilies(
            exposition.registry.collect(), samples, self._group.retired, exposition.shared
        )
        return exposition.render(accept, merged)

    async def _has_started(self) -> bool:
        """Start the processes; False: the server ends before they are ready."""
        starting = asyncio.create_task(self._group.start(self.render))
        ended = asyncio.create_task(self._stopping.ended.wait())
        await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not starting.done():
            starting.cancel()
            return False
        starting.result()
        return True

    def _health_server(self, listener: socket.socket | None) -> HealthServer | None:
        if listener is None:
            return None
        loop = asyncio.get_running_loop()

        async def render(accept: str) -> tuple[bytes, str]:
            rendering = asyncio.run_coroutine_threadsafe(self.render(accept), loop)
            return await asyncio.wrap_future(rendering)

        metrics = MetricsRoute(render) if self._settings.open_metrics else None
        server = HealthServer(self._health, listener, metrics)
        server.start()
        return server

    async def _drain(self) -> None:
        """Let all processes drain, until none has a request, or time is up."""
        self._group.drain()
        timeout_s = self._settings.shutdown_timeout_s
        await wait_to_drain(self._group.wait_until_drained(), self._stopping.aborted, timeout_s)

    async def _end_with_group(self) -> None:
        await self._group.failed.wait()
        self._stopping.ended.set()


def _take_news(core: EngineCoreClient) -> None:
    core.check_health()
