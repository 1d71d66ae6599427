"""The ASGI application that calls the endpoint of each operation, by path and method.

Starlette's routing passes a request through several layers that quire has no use for; they took a
tenth of the time of a short one.
"""

import re
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from quire.server.routes.operation import Operation
from quire.server.wire.http_errors import HTTPError, error_response

Methods = dict[str, Operation]

_PARAMETER = re.compile(r"\\{(\w+):path\\}")  # as `re.escape` leaves `{name:path}`


class HTTPRouter:
    """Calls endpoints, and lets their errors through.

    Paths are taken as they are: "/livez/" is not "/livez". `GET` also serves `HEAD`.

    Args:
        operations: Operations. A path may end with a parameter, as in `/v1/models/{model:path}`,
            which the endpoint reads from the request's `path_params`.

    Attributes:
        operations: The operations.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = tuple(operations)
        by_path: dict[str, Methods] = {}
        for operation in operations:
            methods = by_path.setdefault(operation.path, {})
            methods[operation.method] = operation
            if operation.method == "GET":
                methods["HEAD"] = operation
        self._patterns = [
            (re.compile(_PARAMETER.sub(r"(?P<\1>.*)", re.escape(path)), re.DOTALL), methods)
            for path, methods in by_path.items()
            if "{" in path
        ]
        self._exact = {path: methods for path, methods in by_path.items() if "{" not in path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request.

        Raises:
            HTTPError: There is no such operation.
        """
        if scope["type"] != "http":
            raise RuntimeError(f"this application serves no {scope['type']!r} connections")
        operation = self._operation(scope)
        response = await operation.respond(Request(scope, receive, send))
        await response(scope, receive, send)

    def has_path(self, path: str) -> bool:
        """Whether there is an operation for a path, of any method."""
        return path in self._exact or bool(self._matched(path)[0])

    def _operation(self, scope: Scope) -> Operation:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        methods = self._exact.get(path)
        if methods is None:
            methods, scope["path_params"] = self._matched(path)
        operation = methods.get(scope["method"])
        if operation is None:
            raise _no_operation(scope, path, methods)
        return operation

    def _matched(self, path: str) -> tuple[Methods, dict[str, Any]]:
        """Return the operations of a path with a parameter, and its value."""
        for pattern, methods in self._patterns:
            if (match := pattern.fullmatch(path)) is not None:
                return methods, match.groupdict()
        return {}, {}


class ErrorResponses:
    """ASGI middleware that makes each error of an application a response; `Guard` does so, too.

    Args:
        app: Application.
    """

    def __init__(self, app: HTTPRouter) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request."""
        has_started = False

        async def noting_send(message: Any) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        except Exception as error:
            if has_started:
                raise  # too late for an error response
            request_id = scope.get("quire_request_id", "")
            await error_response(error, request_id)(scope, receive, send)


def _no_operation(scope: Scope, path: str, methods: Methods) -> HTTPError:
    what = f"{scope['method']} {path}"
    if not methods:
        return HTTPError(404, f"{what}: Not Found", code="not_found")
    headers = {"allow": ", ".join(sorted(methods))}
    return HTTPError(405, f"{what}: Method Not Allowed", code="method_not_allowed", headers=headers)
