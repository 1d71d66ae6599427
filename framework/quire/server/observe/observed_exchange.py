"""One HTTP request with its response, once it is over: what metrics, traces and logs read."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
from starlette.types import Scope

from quire.messages import CompletedRequest
from quire.sampling_params import SamplingParams
from quire.server.wire.http_errors import ERROR_CODE
from quire.server.wire.protocol import Usage

GENERATION = "quire_generation"  # keys of the scope
ROUTE = "quire_route"
BACKGROUND = "quire_background"  # task that goes on with a request after its response
STATUS = "quire_status"
TOOL_CALLS = "quire_tool_calls"  # counts calls of tool servers


class ObservedGeneration(Protocol):
    """The completions of an exchange."""

    @property
    def model(self) -> str:
        """Name of the model or the adapter."""

    @property
    def params(self) -> SamplingParams:
        """Sampling parameters."""

    @property
    def records(self) -> Sequence[CompletedRequest]:
        """Records of its requests to the engine that have ended."""

    def usage(self) -> Usage:
        """Return the token counts."""


class CountedCalls(Protocol):
    """The calls of tool servers of an exchange."""

    @property
    def num_calls(self) -> int:
        """Number of calls that were run."""


class ObservedExchange(msgspec.Struct, frozen=True):
    """An HTTP request that is over.

    Attributes:
        scope: ASGI scope, with what guard and routes added.
        ended_unix_s: Time of its end, in seconds since 1970.
        duration_s: Seconds from its head to its end.
    """

    scope: Scope
    ended_unix_s: float
    duration_s: float

    @property
    def request_id(self) -> str:
        """Id in the header `X-Request-Id` of the response."""
        return str(self.scope.get("quire_request_id", ""))

    @property
    def client(self) -> str:
        """Name of the key, or address of the client."""
        return str(self.scope.get("quire_client", ""))

    @property
    def method(self) -> str:
        """HTTP method."""
        return str(self.scope["method"])

    @property
    def route(self) -> str:
        """Path of its route, as declared; "other" if no operation was called."""
        return str(self.scope.get(ROUTE, "other"))

    @property
    def path(self) -> str:
        """Path, without the query."""
        return str(self.scope["path"])

    @property
    def status(self) -> int:
        """HTTP status; 499 if the client left before there was one."""
        return int(self.scope.get(STATUS, 499))

    @property
    def error_code(self) -> str | None:
        """Code of the error that was sent, also within a stream."""
        code: str | None = self.scope.get(ERROR_CODE)
        return code

    @property
    def num_tool_calls(self) -> int | None:
        """Number of calls of tool servers; None if the request names no tool server."""
        calls: CountedCalls | None = self.scope.get(TOOL_CALLS)
        return None if calls is None else calls.num_calls

    @property
    def generation(self) -> ObservedGeneration | None:
        """The completions, if the request was a valid one for completions."""
        generation: ObservedGeneration | None = self.scope.get(GENERATION)
        return generation
