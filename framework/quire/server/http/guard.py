"""Guard middleware in front of all routes: the checks of a head, limits of keys, and body size.

It denies by default: it runs before routing, so new routes and unknown paths are guarded too.
"""

import time
from collections.abc import Collection
from contextlib import nullcontext

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.config import ServerSettings
from quire.server.http.body_budget import BodyBudget
from quire.server.http.entry_checks import EntryChecks, is_counted
from quire.server.http.lifecycle import Lifecycle
from quire.server.keys.account import account_of
from quire.server.keys.accounts import Accounts
from quire.server.observe.observed_exchange import ROUTE, STATUS
from quire.server.observe.request_id import request_id_of
from quire.server.wire.families import dialect_of
from quire.server.wire.http_errors import error_response
from quire.server.wire.retry_after import Header, with_measured_wait

_UNCOUNTED = nullcontext()


class Guard:
    """ASGI middleware: Host, key, Origin, drain, connections and body size, in this order.

    It sets in the scope: `quire_request_id`; `quire_arrival_s`, by `time.monotonic`, unless the
    server knows better when the request arrived; `quire_client`, the name of the key, or the
    address of a client without one; `quire_account`, the account of the key; and `quire_is_admin`.

    Args:
        app: Application behind the guard.
        settings: Address and body limits.
        lifecycle: Counter of the requests, which also has the drain state.
        accounts: Accounts of the keys.
        paths: Paths of the operations; a refusal of a request for one of them names it.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        lifecycle: Lifecycle,
        accounts: Accounts,
        paths: Collection[str] = (),
    ) -> None:
        self._app = app
        self._paths = frozenset(paths)
        self._accounts = accounts
        self._checks = EntryChecks(settings, lifecycle, accounts)
        max_received_bytes = settings.max_received_bytes // settings.api_server_count
        self._bodies = BodyBudget(settings.max_body_bytes, max_received_bytes)
        self._lifecycle = lifecycle
        lifecycle.num_received_bytes = lambda: self._bodies.num_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the application, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":  # no route supports WebSocket
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._guard(scope, receive, send)

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = request_id_of(scope)
        scope.setdefault("quire_arrival_s", time.monotonic())
        scope["quire_request_id"] = request_id
        self._accounts.open(scope)
        guarded_send = _GuardedSend(send, scope, self._lifecycle)
        body = self._bodies.receive(receive)
        self._lifecycle.enter()
        try:
            self._checks.check(scope)
            with account_of(scope).request() if is_counted(scope) else _UNCOUNTED:
                await self._app(scope, body, guarded_send)
        except Exception as error:
            if guarded_send.has_started:
                raise  # too late for an error response: break the connection
            if scope["path"] in self._paths:
                scope.setdefault(ROUTE, scope["path"])
            await error_response(error, request_id)(scope, receive, guarded_send)
        finally:
            body.release()
            self._lifecycle.leave()


def guarded_headers(start: Message, scope: Scope, lifecycle: Lifecycle) -> list[Header]:
    """Return the headers of a response with those that every response has.

    If the client shall try again, they say when that makes sense, as far as it is known.
    """
    headers = list(start.get("headers", ()))
    if start["status"] == 503:
        headers = with_measured_wait(headers, lifecycle.wait_s())
    request_id = scope["quire_request_id"].encode()
    headers.append((b"x-request-id", request_id))
    if (name := dialect_of(scope["path"]).request_id_header) is not None:
        headers.append((name, request_id))
    return [*headers, *account_of(scope).headers()]


class _GuardedSend:
    """A `send` that adds the guard's headers, and records whether and how a response started."""

    def __init__(self, send: Send, scope: Scope, lifecycle: Lifecycle) -> None:
        self._send = send
        self._scope = scope
        self._lifecycle = lifecycle
        self.has_started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            self._scope[STATUS] = message["status"]
            headers = guarded_headers(message, self._scope, self._lifecycle)
            message = {**message, "headers": headers}
        await self._send(message)
