"""POST /reset_prefix_cache: clear the prefix cache, so that later prompts are computed."""

from starlette.requests import Request
from starlette.responses import Response

from quire.frontend.async_frontend import AsyncFrontend
from quire.messages import ResetPrefixCache
from quire.server.http.json_response import json_response


class CacheRoutes:
    """Routes of the KV cache; the guard requires the key, as for all routes."""

    def __init__(self, frontend: AsyncFrontend) -> None:
        self._frontend = frontend

    async def reset_prefix_cache(self, request: Request) -> Response:
        """Clear all cached prefixes between two steps; running requests continue."""
        del request
        await self._frontend.controls.call(ResetPrefixCache())
        return json_response({"status": "reset"})
