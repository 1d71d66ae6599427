"""GET /metrics: the metrics for Prometheus."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from quire.server.keys.account import Account

_OF_KEYS = b"quire_key_"  # the names of `observe.key_metrics`


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
        account = request.scope.get("quire_account")  # none on the health port
        if isinstance(account, Account) and account.has_key and not request.scope["quire_is_admin"]:
            body = without_other_keys(body, account.name)
        return Response(body, headers={"content-type": content_type})


def without_other_keys(body: bytes, name: str) -> bytes:
    """Return metrics without the rows of other keys than the one of a name."""
    own = b'{key="%b"}' % name.encode()  # names need no escapes
    lines = body.splitlines(keepends=True)
    return b"".join(each for each in lines if not each.startswith(_OF_KEYS) or own in each)
