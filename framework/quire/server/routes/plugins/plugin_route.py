"""The operation of a plugin's route: the checks before the plugin is called."""

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from quire.server.routes.chat.chat_turn import ChatTurns
from quire.server.routes.operation import Operation
from quire.server.routes.plugins.loaded_route import LoadedRoute
from quire.server.routes.plugins.route_call import RouteCall
from quire.server.routes.plugins.route_response import RouteResponse
from quire.server.routes.plugins.route_structs import strict_body
from quire.server.routes.respond import received_body
from quire.server.wire.fields import check_declared
from quire.server.wire.sender import Sender


def plugin_operations(routes: Iterable[LoadedRoute], turns: ChatTurns) -> list[Operation]:
    """Return the operations of plugins.

    Args:
        routes: Routes that are served.
        turns: Turns of conversations; it has the frontend.
    """
    return [PluginRoute(route, turns).operation() for route in routes]


class PluginRoute:
    """Endpoint of a plugin's route."""

    def __init__(self, loaded: LoadedRoute, turns: ChatTurns) -> None:
        self._loaded = loaded
        self._turns = turns
        kind = loaded.route.body
        self._body = None if kind is None else strict_body(kind)

    def operation(self) -> Operation:
        """Return the operation that calls the route."""
        route, declared = self._loaded.route, self._loaded.capabilities

        async def respond(request: Request) -> Response:
            return await self._respond(request)

        respond.__doc__ = type(route).__doc__
        return Operation(
            declared.path,
            respond,
            declared.method,
            self._body,
            route.response,
            route.event,
            is_admin=declared.is_admin,
            name=f"route_{self._loaded.entry.name}",
        )

    async def _respond(self, request: Request) -> Response:
        frontend, generates = self._turns.frontend, self._loaded.capabilities.generates
        limit = frontend.time_limit(Sender.of(request.scope).arrival_s)
        if generates:
            frontend.check_queue()
        async with limit.hold():
            body = await self._read(request)
        call = RouteCall(request, body, self._turns, generates=generates)
        return RouteResponse(self._loaded, call, limit)

    async def _read(self, request: Request) -> Any:
        if self._body is None:
            return None
        body = await received_body(request, self._body)
        check_declared(body, self._turns.unknown)
        return body.typed
