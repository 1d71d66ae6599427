"""POST /reset_prefix_cache: forget what is cached, so that every later prompt is computed."""

from starlette.requests import Request
from starlette.responses import Response

from quire.frontend.async_frontend import AsyncFrontend
from quire.messages import ResetPrefixCache
from quire.server.wire.json_response import json_response


class CacheRoutes:
    """The routes of the KV cache; the guard asks for the key, as everywhere."""

    def __init__(self, frontend: AsyncFrontend) -> None:
        self._frontend = frontend

    async def reset_prefix_cache(self, request: Request) -> Response:
        """Forget all cached prefixes, between two steps; what runs goes on."""
        del request
        await self._frontend.control(ResetPrefixCache())
        return json_response({"status": "reset"})
