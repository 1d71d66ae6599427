"""Refusals of completions while requests wait, before the application has any work with them.

A server under ten times its load refuses nine requests in ten, so what a refusal costs is taken
from those that are served. A refusal here has the checks, the response, the metrics and the line in
the log of one by the application; what it leaves out is the application, and the body if the queue
is full. Requests that it lets pass are checked again by the application, as are all others.

The limits of keys do not count such requests.
"""

import time
from collections.abc import Mapping

from starlette.types import Scope

from quire.errors import OverloadedError, RequestError, RequestTimeoutError
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.intake.time_limit import TimeLimit
from quire.server.http.entry_checks import EntryChecks
from quire.server.http.guard import guarded_headers
from quire.server.http.lifecycle import Lifecycle
from quire.server.http.request_head import Head
from quire.server.http.whole_response import WholeResponse
from quire.server.keys.accounts import Accounts
from quire.server.observe.monitor import Monitor
from quire.server.observe.observed_exchange import ROUTE, STATUS
from quire.server.observe.request_id import request_id_of
from quire.server.wire.bodies import LARGE_BYTES, check_content_type, decode
from quire.server.wire.common_fields import QueuedBody
from quire.server.wire.http_errors import (
    HTTPError,
    error_json,
    headers_of,
    status_of,
)
from quire.server.wire.sender import Sender


class EarlyRefusals:
    """Refuses requests for completions; used in one event loop.

    Args:
        frontend: Frontend, which has the queue.
        checks: Checks of a head.
        lifecycle: Lifecycle, which has the number of connections and the wait.
        accounts: Accounts of the keys.
        monitor: Observers of each request.
        bodies: Structs of the bodies, by the paths of the routes that queue requests; None for
            a body that says nothing about the queue.
    """

    def __init__(
        self,
        frontend: AsyncFrontend,
        checks: EntryChecks,
        lifecycle: Lifecycle,
        accounts: Accounts,
        monitor: Monitor,
        bodies: Mapping[str, type[QueuedBody] | None],
    ) -> None:
        self._frontend = frontend
        self._checks = checks
        self._lifecycle = lifecycle
        self._accounts = accounts
        self._monitor = monitor
        self._bodies = {path.encode(): body for path, body in bodies.items()}

    def may_refuse(self, head: Head) -> bool:
        """Whether a request may have to be refused: it is to be queued, and others wait."""
        if head.method != "POST" or head.target not in self._bodies:
            return False
        return self._lifecycle.is_crowded or self._frontend.may_refuse

    def refusal(self, scope: Scope, body: bytes | None) -> WholeResponse | None:
        """Return the response to a request that is refused; None to pass it to the application.

        Args:
            scope: ASGI scope of a request that may have to be refused.
            body: Whole body; None if it is not whole.
        """
        scope[ROUTE] = scope["path"]
        scope["quire_request_id"] = request_id_of(scope)
        self._accounts.open(scope)
        try:
            self._checks.check(scope)
        except HTTPError as error:
            return self._response(scope, error)
        if scope["quire_is_admin"]:
            return None
        try:
            self._check_room(scope, body)
        except (OverloadedError, RequestTimeoutError) as error:
            return self._response(scope, error)
        except RequestError:
            return None  # the application says what is wrong with the request
        return None

    def _check_room(self, scope: Scope, body: bytes | None) -> None:
        self._frontend.check_queue()
        kind = self._bodies[scope["raw_path"]]
        if kind is None or body is None or len(body) >= LARGE_BYTES:
            return
        check_content_type(scope)
        typed = decode(body, kind).typed
        limit_of(self._frontend, Sender.of(scope), typed)

    def _response(self, scope: Scope, error: RequestError) -> WholeResponse:
        status = scope[STATUS] = status_of(error)
        body = error_json(error, scope, scope["quire_request_id"])
        given = [(name.encode(), value.encode()) for name, value in headers_of(error).items()]
        headers = guarded_headers(
            {"status": status, "headers": [*given, (b"content-type", b"application/json")]},
            scope,
            self._lifecycle,
        )
        self._monitor.observe(scope, time.monotonic())
        return WholeResponse(status, headers, body)


def limit_of(frontend: AsyncFrontend, sender: Sender, body: QueuedBody) -> TimeLimit:
    """Return the time limit of a request that does not wait too long, and ends in its time.

    Raises:
        OverloadedError: It must be sent again later.
        RequestTimeoutError: Its time has passed.
        InvalidRequestError: Its timeout is not a positive number.
    """
    limit = frontend.time_limit(sender.arrival_s, body.timeout_s)
    limit.check()
    priority = sender.account.priority_of(body.priority)
    frontend.check_room(limit, body.completion_limit, priority)
    return limit
