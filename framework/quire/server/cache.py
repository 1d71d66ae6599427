"""POST /reset_prefix_cache: forget what is cached, so that every later prompt is computed."""

from starlette.requests import Request
from starlette.responses import Response

from quire.frontend.async_frontend import AsyncFrontend
from quire.messages import ResetPrefixCache
from quire.server.answers import json_response
from quire.server.errors import HTTPError


class CacheRoutes:
    """The routes of the KV cache; the guard asks for the key, as everywhere."""

    def __init__(self, frontend: AsyncFrontend) -> None:
        self._frontend = frontend

    async def reset_prefix_cache(self, request: Request) -> Response:
        """Forget all cached prefixes, between two steps."""
        del request
        self._frontend.check_health()
        if not await self._frontend.control(ResetPrefixCache()):
            raise HTTPError(
                409,
                "running requests still use cached prefixes; try again when they are over",
                code="cache_in_use",
            )
        return json_response({"status": "reset"})
