"""Guard middleware in front of all routes: checks of Host, API key, Origin and body size.

It denies by default: it runs before routing, so new routes and unknown paths are guarded too. Only
`/livez` and `/readyz`, spelt exactly so, need no key.
"""

import hashlib
import logging
import secrets
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.config import ServerSettings
from quire.server.http.body_budget import BodyBudget, too_large
from quire.server.http.lifecycle import Lifecycle
from quire.server.http.origins import check_host, check_origin, header_values, is_loopback
from quire.server.wire.http_errors import HTTPError, error_response, unavailable

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/livez", "/readyz"})
KEY_NAME = "default"  # of the key in `quire_client`, for usage, limits and logs
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    """ASGI middleware: Host, key, Origin, drain, connections and body size, in this order.

    It sets `quire_request_id` of the scope, `quire_arrival_s`, by `time.monotonic`, unless the
    server knows better when the request arrived, and `quire_client`: the name of the key, or the
    address of a client without one.

    Args:
        app: Application behind the guard.
        settings: Address, API key and body limit.
        lifecycle: Counter of the requests, which also has the drain state.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, lifecycle: Lifecycle) -> None:
        self._app = app
        self._key = settings.api_key and _digest(settings.api_key.encode())
        self._checks_host = is_loopback(settings.host)
        self._bodies = BodyBudget(settings.max_body_bytes, settings.max_received_bytes)
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the application, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":  # no route supports WebSocket
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._guard(scope, receive, send)

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = f"req-{secrets.token_hex(12)}"
        scope.setdefault("quire_arrival_s", time.monotonic())
        scope["quire_request_id"] = request_id  # made here; ids from clients are not used
        scope["quire_client"] = _address_of(scope)
        guarded_send, body = _GuardedSend(send, request_id), self._bodies.receive(receive)
        self._lifecycle.enter()
        try:
            self._check(scope)
            await self._app(scope, body, guarded_send)
        except Exception as error:
            if guarded_send.has_started:
                raise  # too late for an error response: break the connection
            await error_response(error, request_id)(scope, receive, guarded_send)
        finally:
            body.release()
            self._lifecycle.leave()

    def _check(self, scope: Scope) -> None:
        if self._checks_host:
            check_host(scope)
        if scope["path"] in OPEN_PATHS:
            return
        if self._key:
            self._check_key(scope)
            scope["quire_client"] = KEY_NAME
        if scope["method"] not in _SAFE_METHODS:
            check_origin(scope)
        if self._lifecycle.is_draining:
            raise unavailable(
                "the server is shutting down and takes no new requests", "shutting_down"
            )
        if self._lifecycle.is_crowded:
            raise unavailable("the server has too many open connections; try again later")
        self._check_length(scope)

    def _check_key(self, scope: Scope) -> None:
        values = header_values(scope, b"authorization")
        scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
        given = _digest(token.strip().encode("latin-1"))
        if not secrets.compare_digest(given, self._key or b"") or scheme.lower() != "bearer":
            raise HTTPError(
                401,
                "this server requires a key: send the header 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

    def _check_length(self, scope: Scope) -> None:
        for value in header_values(scope, b"content-length"):
            if value.isdecimal() and int(value[:20]) > self._bodies.max_body_bytes:
                raise too_large(self._bodies.max_body_bytes)


class _GuardedSend:
    """A `send` that adds the request's id and records whether a response has started."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._header = (b"x-request-id", request_id.encode())
        self.has_started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            message = {**message, "headers": [*message.get("headers", ()), self._header]}
        await self._send(message)


def _address_of(scope: Scope) -> str:
    """Return the address of the client; a Unix socket has none."""
    client = scope.get("client")
    return str(client[0]) if client else "local"


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
