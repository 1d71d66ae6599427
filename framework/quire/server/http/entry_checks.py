"""Checks of the head of a request: Host, key, Origin, drain, connections and the declared length.

Only `/livez`, `/readyz` and the pages for a browser, spelt exactly so, need no key.
"""

from starlette.types import Scope

from quire.config import ServerSettings
from quire.server.bound_sockets import is_loopback
from quire.server.http.body_budget import too_large
from quire.server.http.lifecycle import Lifecycle
from quire.server.http.origins import check_host, check_origin
from quire.server.keys.accounts import Accounts
from quire.server.wire.headers import header_values
from quire.server.wire.http_errors import unavailable

OPEN_PATHS = frozenset({"/livez", "/readyz"})
PAGE_PATHS = frozenset({"/ui", "/docs"})  # a browser that opens a page can send no key
METRICS_PATH = "/metrics"  # served also while draining
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

STORED_ROOT = "/v1/responses/"  # below it requests read or end stored responses


def is_counted(scope: Scope) -> bool:
    """Whether the limits of keys count a request: not one that reads, or ends another one."""
    return scope["method"] not in SAFE_METHODS and not scope["path"].startswith(STORED_ROOT)


class EntryChecks:
    """Checks of a head, in this order: Host, key, Origin, drain, connections, declared length.

    Args:
        settings: Address and body limits.
        lifecycle: Lifecycle, which has the drain state and the number of connections.
        accounts: Accounts of the keys.
    """

    def __init__(self, settings: ServerSettings, lifecycle: Lifecycle, accounts: Accounts) -> None:
        self._accounts = accounts
        self._lifecycle = lifecycle
        self._checks_host = is_loopback(settings.host)
        self._max_body_bytes = settings.max_body_bytes
        opens_metrics = settings.open_metrics and not settings.health_port
        metrics = {METRICS_PATH} if opens_metrics else set()  # else they are open on that port
        self._open_paths = OPEN_PATHS | metrics | (PAGE_PATHS if settings.ui else set())

    def check(self, scope: Scope) -> None:
        """Check a head, and set in the scope whose key it has.

        Raises:
            HTTPError: The request is refused.
        """
        if self._checks_host:
            check_host(scope)
        if scope["path"] in self._open_paths and b"%" not in (scope.get("raw_path") or b""):
            return
        self._accounts.identify(scope)
        if scope["method"] not in SAFE_METHODS:
            check_origin(scope)
        if scope["path"] == METRICS_PATH:
            return
        if self._lifecycle.is_draining and not scope["path"].startswith(STORED_ROOT):
            raise unavailable(
                "the server is shutting down and takes no new requests", "shutting_down"
            )
        if self._lifecycle.is_crowded:
            raise unavailable("the server has too many open connections; try again later")
        self._check_length(scope)

    def _check_length(self, scope: Scope) -> None:
        for value in header_values(scope, b"content-length"):
            if value.isdecimal() and int(value[:20]) > self._max_body_bytes:
                raise too_large(self._max_body_bytes)
