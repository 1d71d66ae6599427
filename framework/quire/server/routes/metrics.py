"""GET /metrics: the metrics for Prometheus."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response


class MetricsRoute:
    """Route of the metrics.

    Args:
        render: Returns the metrics and their content type, by the `Accept` header of a request.
    """

    def __init__(self, render: Callable[[str], Awaitable[tuple[bytes, str]]]) -> None:
        self._render = render

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in Prometheus' text format, or as OpenMetrics if that is accepted."""
        body, content_type = await self._render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})
