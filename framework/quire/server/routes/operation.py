"""One operation of the HTTP API: its route, and the types that the API description names."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Operation:
    """A path with one method and its endpoint, whose docstring begins with a summary.

    Attributes:
        path: Path as Starlette matches it.
        endpoint: Function that responds.
        method: HTTP method.
        body: Struct of the JSON body; None for no body.
        response: Struct of the response; None for any JSON object.
        event: Struct of one event, if the response can be a stream.
        has_sampler_fields: Whether the body may have the fields of the engine's samplers.
    """

    path: str
    endpoint: Endpoint
    method: str = "GET"
    body: type[msgspec.Struct] | None = None
    response: type[msgspec.Struct] | None = None
    event: type[msgspec.Struct] | None = None
    has_sampler_fields: bool = False

    @property
    def summary(self) -> str:
        """First line of the endpoint's docstring."""
        return (self.endpoint.__doc__ or "").strip().split("\n", 1)[0]

    def route(self) -> Route:
        """Return the route."""
        return Route(self.path, self.endpoint, methods=[self.method])
