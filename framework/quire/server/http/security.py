"""Guard middleware in front of all routes: checks of Host, API key, Origin and body size.

It denies by default: it runs before routing, so new routes and unknown paths are guarded too. Only
`/livez` and `/readyz`, spelt exactly so, need no key.
"""

import hashlib
import ipaddress
import logging
import secrets
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.config import ServerSettings
from quire.server.http.body_budget import BodyBudget, too_large
from quire.server.http.lifecycle import Lifecycle
from quire.server.wire.http_errors import HTTPError, error_response, unavailable

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/livez", "/readyz"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    """ASGI middleware: Host, key, Origin, drain, connections and body size, in this order.

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
        scope["quire_request_id"] = request_id  # made here; ids from clients are not used
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
            self._check_host(scope)
        if scope["path"] in OPEN_PATHS:
            return
        if self._key:
            self._check_key(scope)
        if scope["method"] not in _SAFE_METHODS:
            _check_origin(scope)
        if self._lifecycle.is_draining:
            raise unavailable(
                "the server is shutting down and takes no new requests", "shutting_down"
            )
        if self._lifecycle.is_crowded:
            raise unavailable("the server has too many open connections; try again later")
        self._check_length(scope)

    def _check_host(self, scope: Scope) -> None:
        """Refuse a foreign Host on a loopback address: a web page may have rebound its name."""
        for value in _values(scope, b"host"):
            host = (urlsplit(f"//{value}").hostname or "") if _is_netloc(value) else ""
            if not is_loopback(host):
                raise HTTPError(
                    403,
                    "this server listens on a loopback address and accepts no other Host; "
                    "call it as 127.0.0.1 or localhost, or start it with --host",
                    code="forbidden_host",
                )

    def _check_key(self, scope: Scope) -> None:
        values = _values(scope, b"authorization")
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
        for value in _values(scope, b"content-length"):
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


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_origin(scope: Scope) -> None:
    """Refuse requests that a browser sends for a web page of another origin."""
    hosts = [value.lower() for value in _values(scope, b"host")]
    for origin in _values(scope, b"origin"):
        scheme, _, netloc = origin.lower().partition("://")
        if scheme not in ("http", "https") or netloc not in hosts:
            raise HTTPError(
                403,
                "requests from web pages of another origin are refused",
                code="forbidden_origin",
            )


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def _is_netloc(value: str) -> bool:
    """Whether a Host header is only a host and an optional port."""
    try:
        parts = urlsplit(f"//{value}")
        parts.port  # noqa: B018 - raises if it is not a number
    except ValueError:
        return False
    return parts.netloc == value and "@" not in value


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
