"""GET /v1/engine and /v1/engine/stream: the engine now, and while it runs."""

from starlette.requests import Request
from starlette.responses import Response

from quire.server.http.event_stream import EventStream
from quire.server.observe.readings import Readings
from quire.server.routes.live.engine_view import EngineView
from quire.server.routes.live.live_feed import LiveFeed
from quire.server.routes.operation import Operation


class LiveRoutes:
    """Routes of the live engine; the guard requires the key, as for all routes.

    Args:
        feed: Views of the engine.
    """

    def __init__(self, feed: LiveFeed) -> None:
        self._feed = feed

    async def engine(self, request: Request) -> Response:
        """Return the load of the engine, and which requests hold its KV blocks."""
        del request
        return Response(await self._feed.current(), media_type="application/json")

    async def engine_stream(self, request: Request) -> Response:
        """Stream what `/v1/engine` returns, twice a second, as server-sent events."""
        return EventStream(self._feed.follow(), request.scope["quire_request_id"])


def live_operations(readings: Readings) -> list[Operation]:
    """Return the operations that show the engine."""
    routes = LiveRoutes(LiveFeed(readings))
    return [
        Operation("/v1/engine", routes.engine, response=EngineView),
        Operation("/v1/engine/stream", routes.engine_stream, event=EngineView),
    ]
