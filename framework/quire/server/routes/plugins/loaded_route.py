"""Routes of plugins that the user has named: import, and checks of what they declare.

An installed package opens no route by itself: a route can do with the model, and with the machine,
whatever its code does, so the operator names each one. A named one that cannot be served stops the
start.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from quire.config import ServerSettings
from quire.errors import PluginError, PluginLoadError, SettingsError
from quire.interfaces.http_route import WITHOUT_BODY, HTTPRoute, HTTPRouteCapabilities
from quire.plugins.loading import Registries
from quire.plugins.registry import Entry
from quire.server.http.json_response import json_of
from quire.server.routes.operation import Operation
from quire.server.routes.plugins.route_structs import structs_of
from quire.server.routes.router import HTTPRouter


@dataclass(frozen=True, slots=True)
class LoadedRoute:
    """A route that is served.

    Attributes:
        entry: Registry entry.
        route: The plugin's object.
    """

    entry: Entry
    route: HTTPRoute

    @property
    def capabilities(self) -> HTTPRouteCapabilities:
        """Path, method and kind of key."""
        declared: HTTPRouteCapabilities = self.entry.capabilities
        return declared

    def __str__(self) -> str:
        return f"HTTP route {self.entry.name!r} of plugin {self.entry.source}"


def load_routes(settings: ServerSettings, registries: Registries) -> tuple[LoadedRoute, ...]:
    """Import the routes that the user has named.

    Raises:
        PluginError: A name is unknown or contested, a route cannot be imported, made or described,
            or two of them have one path and method.
        SettingsError: A route needs an admin key, and there is none.
    """
    registry = registries.routes
    names = dict.fromkeys(settings.routes)
    loaded = tuple(_made(entry, registry.load(entry)) for entry in map(registry.entry, names))
    _check_apart(loaded)
    check_described(loaded)
    for route in loaded:
        if route.capabilities.is_admin and not settings.has_control_routes:
            raise SettingsError(
                f"the {route} needs an admin key, and there is none; set QUIRE_ADMIN_KEY or "
                "admin_key_file, or leave the route out of --routes"
            )
    return loaded


def check_paths(routes: Iterable[LoadedRoute], own: Iterable[Operation]) -> None:
    """Check that routes of plugins have none of quire's paths, whatever the method.

    Raises:
        PluginError: One has.
    """
    router = HTTPRouter(tuple(own))
    for route in routes:
        if router.has_path(route.capabilities.path):
            raise PluginError(
                f"the {route} has the path {route.capabilities.path}, which is one of quire's own; "
                "leave it out of --routes, and ask its author for another path"
            )


def check_described(routes: Iterable[LoadedRoute]) -> None:
    """Check that the structs of routes can be described in /openapi.json, which has all of them.

    Raises:
        PluginLoadError: Those of a route cannot, by themselves or beside those of the ones before.
    """
    structs: list[type[msgspec.Struct]] = []
    for route in routes:
        structs += structs_of(route.route)
        try:
            json_of(msgspec.json.schema_components(structs))
        except Exception as error:
            raise PluginLoadError(
                f"the {route} cannot be described in /openapi.json: {type(error).__name__}: "
                f"{error}\n  The fields of its structs need types that are JSON, and two structs "
                "of one module need names of their own."
            ) from error


def _made(entry: Entry, kind: type[HTTPRoute]) -> LoadedRoute:
    what = f"HTTP route {entry.name!r} of {entry.source}"
    _check_declared(what, entry.capabilities, kind)
    try:
        return LoadedRoute(entry, kind())
    except (Exception, SystemExit) as error:
        message = f"{what} could not be made: {type(error).__name__}: {error}"
        raise PluginLoadError(message) from error


def _check_declared(what: str, capabilities: HTTPRouteCapabilities, kind: type[HTTPRoute]) -> None:
    for name, struct in (("body", kind.body), ("response", kind.response), ("event", kind.event)):
        if struct is None:
            continue
        if not (isinstance(struct, type) and issubclass(struct, msgspec.Struct)):
            raise PluginLoadError(f"{what}: {name} must be a msgspec.Struct, got {struct!r}")
    if kind.body is not None and capabilities.method in WITHOUT_BODY:
        raise PluginLoadError(f"{what} declares a body, which {capabilities.method} does not have")


def _check_apart(routes: Iterable[LoadedRoute]) -> None:
    seen: dict[tuple[str, str], LoadedRoute] = {}
    for route in routes:
        key = (route.capabilities.method, route.capabilities.path)
        if (other := seen.setdefault(key, route)) is not route:
            raise PluginError(
                f"the {other} and the {route} both have {' '.join(key)}; leave one of them out of "
                "--routes"
            )
