"""Error responses: `{"error": {message, type, param, code}}` with a matching HTTP status.

Families of routes of other APIs have the shape of those (`wire/families`).

Messages of typed errors are written for the client and are sent unchanged. Any other exception is a
bug in quire: the client gets a generic message with the request's id, the log gets the traceback.
"""

import logging
import re

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.errors import (
    EngineDeadError,
    OverloadedError,
    QuireError,
    ReplicaDeadError,
    RequestError,
    RequestFailedError,
    RequestTimeoutError,
    UnknownModelError,
)
from quire.server.wire.dialect import ErrorDetail
from quire.server.wire.families import dialect_of
from quire.server.wire.retry_after import retry_headers

logger = logging.getLogger(__name__)

ERROR_CODE = "quire_error_code"  # of the scope, for metrics and logs
NO_RETRY = {"x-should-retry": "false"}  # OpenAI's clients would retry by themselves
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_PATH = re.compile(r"(?<![\w:/])(?:[A-Za-z]:\\|/)[^\s'\",;:()]*[/\\][^\s'\",;:()]*")
_LONGEST_MESSAGE = 2000
_CLIENT_LEFT = 499  # the status that proxies log


class HTTPError(RequestError):
    """A request refused at the HTTP level: too large, of the wrong type, without a key.

    Args:
        status: HTTP status.
        message: Message for the client: the problem, and what to do.
        code: Stable name of the failure.
        param: Field that caused the failure.
        headers: Response headers that go with the status.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.name = code
        self.headers = headers or {}


def unavailable(message: str, code: str = "overloaded") -> HTTPError:
    """Return the error of a server that takes no request now: try again, by another connection."""
    headers = retry_headers() | {"connection": "close"}
    return HTTPError(503, message, code=code, headers=headers)


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error."""
    match error:
        case HTTPError():
            return error.status
        case UnknownModelError():
            return 404
        case OverloadedError() | EngineDeadError() | ReplicaDeadError():
            return 503
        case RequestTimeoutError():
            return 504
        case RequestFailedError():
            return 500
        case RequestError():
            return 400
        case _:
            return 500


def detail_of(error: Exception, request_id: str = "") -> ErrorDetail:
    """Return the details of an error that the client may see."""
    status = status_of(error)
    kind = "invalid_request_error" if status < 500 else "server_error"
    match error:
        case HTTPError():
            kind = "rate_limit_error" if status == 429 else kind
            return ErrorDetail(_shortened(str(error)), kind, error.param, error.name)
        case RequestFailedError() | ReplicaDeadError():
            return ErrorDetail(scrubbed(str(error)), kind, error.param, error.code)
        case RequestError():
            return ErrorDetail(_shortened(str(error)), kind, error.param, error.code)
        case EngineDeadError():
            message = "the engine stopped; the server must be started again"
            return ErrorDetail(message, kind, None, error.code)
        case _:
            where = f" (request {request_id})" if request_id else ""
            return ErrorDetail(f"internal error{where}; see the log", kind, None, "internal_error")


def headers_of(error: Exception) -> dict[str, str]:
    """Return the headers that go with an error."""
    if isinstance(error, HTTPError):
        return error.headers
    if isinstance(error, RequestTimeoutError):
        return NO_RETRY
    if isinstance(error, EngineDeadError):
        return NO_RETRY  # the server exits; when another one starts is unknown
    wait_s = error.retry_after_s if isinstance(error, OverloadedError) else 0.0
    return retry_headers(wait_s) if status_of(error) == 503 else {}


def error_response(error: Exception, request_id: str = "") -> Response:
    """Return the response to a request that failed; failures of the server are also logged."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=_CLIENT_LEFT)  # for the log alone
    log_failure(error, request_id)
    return ErrorResponse(error, request_id)


class ErrorResponse(Response):
    """The response to a request that failed; it leaves the code of the error in the scope."""

    def __init__(self, error: Exception, request_id: str) -> None:
        super().__init__(None, status_of(error), headers_of(error), media_type="application/json")
        self._error = error
        self._request_id = request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, in the shape that the client of this route reads."""
        body = error_json(self._error, scope, self._request_id)
        whole = Response(body, self.status_code, headers_of(self._error), self.media_type)
        await whole(scope, receive, send)


def error_json(error: Exception, scope: Scope, request_id: str = "") -> bytes:
    """Return the body of an error, and leave its code in the scope.

    It is also the last event of a stream that breaks.
    """
    detail = detail_of(error, request_id)
    scope[ERROR_CODE] = detail.code
    return dialect_of(scope["path"]).error(detail, status_of(error), request_id)


def log_failure(error: Exception, request_id: str) -> None:
    """Log a failure of the server, with details that the client does not get."""
    if isinstance(error, EngineDeadError):
        logger.error("request %s failed: %s", request_id, error.headline)
    elif isinstance(error, RequestFailedError | ReplicaDeadError):
        logger.error("request %s failed: %r", request_id, str(error))  # one line, always
    elif not isinstance(error, QuireError):
        logger.error("request %s failed", request_id, exc_info=error)


def scrubbed(message: str) -> str:
    """Return the first line of a message, which may quote an exception, without paths."""
    first_line = message.split("\n", 1)[0]
    return _shortened(_PATH.sub("<path>", _ADDRESS.sub("<address>", first_line)))


def _shortened(message: str) -> str:
    too_long = len(message) > _LONGEST_MESSAGE
    text = message[:_LONGEST_MESSAGE] + "..." if too_long else message
    return text.encode("utf-8", "replace").decode()  # lone surrogates cannot be encoded
