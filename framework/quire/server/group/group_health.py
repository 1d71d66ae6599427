"""Health checks of a server with several processes, answered by their parent."""

from collections.abc import Callable
from typing import Any

from quire.frontend.async_frontend import AsyncFrontend
from quire.server.group.front_end_group import FrontEndGroup
from quire.server.http.lifecycle import Lifecycle
from quire.server.routes.health import HealthRoutes


class GroupHealth(HealthRoutes):
    """The health of the engine, and of all processes as they report it; for any thread.

    Args:
        frontend: The parent's frontend, which has the state of the engine.
        lifecycle: Lifecycle of the parent.
        plugins_report: Function that returns a dict per plugin.
        group: The processes.
    """

    def __init__(
        self,
        frontend: AsyncFrontend,
        lifecycle: Lifecycle,
        plugins_report: Callable[[], list[dict[str, Any]]],
        group: FrontEndGroup,
    ) -> None:
        super().__init__(frontend, lifecycle, plugins_report)
        self._group = group

    def state(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the engine and all processes serve new requests, and what is wrong."""
        is_well, body = super().state()
        if not is_well:
            return is_well, body
        if not self._group.members:
            return False, {"status": "not ready"}
        return min((each.health for each in self._group.members), key=lambda health: health[0])

    def failing(self) -> dict[str, Any] | None:
        """Return what makes all requests of a process fail; None if nothing does."""
        found = [each.failing for each in self._group.members if each.failing is not None]
        return found[0] if found else None
