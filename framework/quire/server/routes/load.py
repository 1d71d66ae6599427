"""GET /load: how busy the engine is, in the shape of vLLM's route."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.frontend.async_frontend import AsyncFrontend
from quire.server.http.json_response import json_response


class ServerLoad(msgspec.Struct):
    """Number of open requests of the engine, running and waiting, of all front ends together."""

    server_load: int


class LoadRoute:
    """Route of the load.

    Args:
        frontend: Frontend, which knows the open requests of its engine.
    """

    def __init__(self, frontend: AsyncFrontend) -> None:
        self._frontend = frontend

    async def load(self, request: Request) -> Response:
        """Return the number of requests that the engine has not ended yet."""
        del request
        return json_response(ServerLoad(len(self._frontend.dispatch.backlog)))
