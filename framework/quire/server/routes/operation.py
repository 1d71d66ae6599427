"""One operation of the HTTP API: its route, its kind of key, and the types of its description."""

import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from quire.server.http.entry_checks import SAFE_METHODS
from quire.server.keys.account import account_of
from quire.server.keys.accounts import missing_key
from quire.server.observe.observed_exchange import ROUTE
from quire.server.wire.families import dialect_of
from quire.server.wire.http_errors import HTTPError


class Endpoint(Protocol):
    """Function that responds to a request."""

    __name__: str

    def __call__(self, request: Request, /) -> Awaitable[Response]:
        """Respond."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A path with one method and its endpoint, whose docstring begins with a summary.

    Attributes:
        path: Path, which may end with a parameter, as in `/v1/models/{model:path}`.
        endpoint: Function that responds.
        method: HTTP method.
        body: Struct of the JSON body; None for no body.
        response: Struct of the response; None for any JSON object.
        event: Struct of one event, if the response can be a stream; those of several kinds.
        has_sampler_fields: Whether the body may have the fields of the engine's samplers.
        is_admin: Whether it needs an admin key, which no other operation but reading takes.
        media_type: Content type of the response, if it is a text; None for JSON.
        query: Struct of the parameters of the URL's query; None for none.
        name: Name by which the description knows it; None: one made of its endpoint and its path.
    """

    path: str
    endpoint: Endpoint
    method: str = "GET"
    body: type[msgspec.Struct] | None = None
    response: type[msgspec.Struct] | None = None
    event: type[msgspec.Struct] | tuple[type[msgspec.Struct], ...] | None = None
    has_sampler_fields: bool = False
    is_admin: bool = False
    media_type: str | None = None
    query: type[msgspec.Struct] | None = None
    name: str | None = None

    @property
    def events(self) -> tuple[type[msgspec.Struct], ...]:
        """Structs of the events of a stream."""
        if self.event is None:
            return ()
        return self.event if isinstance(self.event, tuple) else (self.event,)

    @property
    def structs(self) -> list[type[msgspec.Struct]]:
        """All structs that its description refers to."""
        own = [self.body, self.response, *self.events, dialect_of(self.path).error_body]
        return [struct for struct in own if struct is not None]

    @property
    def id(self) -> str:
        """Name by which the description knows it, which no other operation has."""
        if self.name is not None:
            return self.name
        words = re.findall(r"\w+", re.sub(r"{.*?}", "", self.path))
        return "_".join([self.endpoint.__name__, *words])

    @property
    def summary(self) -> str:
        """First line of the endpoint's docstring, which `python -OO` removes."""
        written = (self.endpoint.__doc__ or "").strip().split("\n", 1)[0]
        return written or f"{self.method} {self.path}"

    async def respond(self, request: Request) -> Response:
        """Call the endpoint for a request with the right kind of key.

        Raises:
            HTTPError: It has another one.
        """
        request.scope[ROUTE] = self.path
        if self.is_admin:
            _check_admin(request.scope)
        elif self.method not in SAFE_METHODS and request.scope["quire_is_admin"]:
            raise HTTPError(
                403, "the admin key is for control routes only; send an API key", code="forbidden"
            )
        return await self.endpoint(request)


def _check_admin(scope: Scope) -> None:
    if not scope["quire_is_admin"]:
        if account_of(scope).has_key:
            raise HTTPError(403, "this route needs the admin key", code="forbidden")
        raise missing_key()
