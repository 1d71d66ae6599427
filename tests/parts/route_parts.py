"""Routes of plugins for tests, registered without any plugin."""

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from quire.interfaces.http_route import HTTPRoute, HTTPRouteCapabilities, RouteRequest
from quire.plugins.kinds import KINDS
from quire.plugins.registry import Entry, Source
from quire.server.routes.plugins.loaded_route import LoadedRoute

KIND = next(kind for kind in KINDS if kind.name == "routes")
PATH = "/acme/try"


class TryBody(msgspec.Struct):
    """A body of any use."""

    text: str = "Once"
    stream: bool = False
    number: int | None = None


class RouteOf(HTTPRoute):
    """A route whose response a function of the test makes.

    Args:
        make: Function that gets the request.
    """

    body: ClassVar[type[msgspec.Struct] | None] = TryBody

    def __init__(self, make: Callable[[RouteRequest], Any]) -> None:
        self._make = make

    async def respond(self, request: RouteRequest) -> Any:
        """Return what the function returns, or its iterator."""
        made = self._make(request)
        return await made if hasattr(made, "__await__") else made


def entry_of(
    name: str = "acme_try", *, distribution: str = "acme-routes", **capabilities: Any
) -> Entry:
    """Return the registry entry of a route."""
    declared = HTTPRouteCapabilities(**{"path": PATH, "generates": True} | capabilities)
    source = Source(distribution.replace("-", "_"), distribution, "1")
    return Entry(KIND, name, "acme_routes:Try", source, capabilities=declared)


def loaded(
    make: Callable[[RouteRequest], Any] | HTTPRoute, *, name: str = "acme_try", **capabilities: Any
) -> LoadedRoute:
    """Return a route that is served."""
    route = make if isinstance(make, HTTPRoute) else RouteOf(make)
    return LoadedRoute(entry_of(name, **capabilities), route)
