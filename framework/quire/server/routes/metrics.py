"""GET /metrics: the metrics for Prometheus."""

from starlette.requests import Request
from starlette.responses import Response

from quire.server.observe.exposition import Exposition


class MetricsRoute:
    """Route of the metrics.

    Args:
        exposition: Metrics of the server.
    """

    def __init__(self, exposition: Exposition) -> None:
        self._exposition = exposition

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in Prometheus' text format, or as OpenMetrics if that is accepted."""
        body, content_type = self._exposition.render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})
