"""Is the process alive, may it be given requests, what is it made of: nothing here computes."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from quire import __version__
from quire.frontend.async_frontend import AsyncFrontend
from quire.server.http.lifecycle import Lifecycle
from quire.server.wire.json_response import json_response


class HealthRoutes:
    """The routes for whoever watches the server.

    Args:
        frontend: Knows whether the engine answers.
        lifecycle: Knows whether the server drains.
        plugins_report: Returns a plain dict for each plugin.
    """

    def __init__(
        self,
        frontend: AsyncFrontend,
        lifecycle: Lifecycle,
        plugins_report: Callable[[], list[dict[str, Any]]],
    ) -> None:
        self._frontend = frontend
        self._lifecycle = lifecycle
        self._plugins_report = plugins_report

    async def livez(self, request: Request) -> Response:
        """The process runs its event loop."""
        del request
        return json_response({"status": "alive"})

    async def health(self, request: Request) -> Response:
        """The engine is loaded and well, its steps come to an end, new requests are taken."""
        del request
        if self._lifecycle.is_draining:
            return json_response({"status": "draining"}, 503)
        if self._frontend.is_stalled:
            return json_response({"status": "stalled"}, 503)
        if not self._frontend.is_ready():
            return json_response({"status": "not ready"}, 503)
        return json_response({"status": "ready"})

    async def readyz(self, request: Request) -> Response:
        """The same, and no plugin makes every request fail: a restart would not fix that."""
        health = await self.health(request)
        failing = self._frontend.failing_plugins
        if health.status_code != 200 or not failing:
            return health
        plugins = [
            {"plugin": each.source.plugin, "failures": each.num_failures} for each in failing
        ]
        return json_response({"status": "failing", "plugins": plugins}, 503)

    async def version(self, request: Request) -> Response:
        """The version of quire."""
        del request
        return json_response({"version": __version__})

    async def plugins(self, request: Request) -> Response:
        """Which plugins are installed, and what became of each."""
        del request
        return json_response({"object": "list", "data": self._plugins_report()})
