"""Routes of the health checks, the version and the plugins; they start no computation."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from quire import __version__
from quire.frontend.async_frontend import AsyncFrontend
from quire.server.http.json_response import json_response
from quire.server.http.lifecycle import Lifecycle


class HealthRoutes:
    """Routes for monitoring the server; the health checks may be called from any thread.

    Args:
        frontend: Frontend, which has the state of the engine.
        lifecycle: Lifecycle, which has the drain state.
        plugins_report: Function that returns a dict per plugin.
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

    async def root(self, request: Request) -> Response:
        """Return a text that says that the server runs; Ollama's command line asks this first."""
        del request
        return PlainTextResponse("quire is running\n")

    async def livez(self, request: Request) -> Response:
        """Return 200 as long as the event loop runs."""
        del request
        return json_response({"status": "alive"})

    async def health(self, request: Request) -> Response:
        """Return 200 if the engine is ready, its steps complete, and new requests are accepted."""
        del request
        is_well, body = self.state()
        return json_response(body, 200 if is_well else 503)

    async def readyz(self, request: Request) -> Response:
        """Return `health`, or 503 while every request fails, which no restart may fix."""
        health = await self.health(request)
        failing = self.failing() if health.status_code == 200 else None
        return health if failing is None else json_response({"status": "failing"} | failing, 503)

    def state(self) -> tuple[bool, dict[str, Any]]:
        """Return whether new requests are served, and the body that says so."""
        if self._lifecycle.is_draining:
            status = "draining"
        elif self._lifecycle.is_silent:
            status = "blocked"
        elif self._frontend.is_stalled:
            status = "stalled"
        else:
            status = "ready" if self._frontend.is_ready() else "not ready"
        return status == "ready", {"status": status}

    def failing(self) -> dict[str, Any] | None:
        """Return what makes every request fail; None if nothing does."""
        if hooks := self._frontend.intake.failing_hooks:
            plugins = [
                {"plugin": each.source.plugin, "failures": each.num_failures} for each in hooks
            ]
            cause = f"plugin {hooks[0].source} failed in request_received"
            return {"cause": cause, "plugins": plugins}
        steps = self._frontend.dispatch.watched_steps
        return {"cause": steps.cause, "failures": steps.num_failures} if steps.is_failing else None

    async def version(self, request: Request) -> Response:
        """Return the version of quire."""
        del request
        return json_response({"version": __version__})

    async def plugins(self, request: Request) -> Response:
        """Return the installed plugins and their states."""
        del request
        return json_response({"object": "list", "data": self._plugins_report()})
