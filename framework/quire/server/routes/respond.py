"""The way of a request that generates: read, prepared, and responded to in full or as a stream."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.unknown_fields import UnknownFields
from quire.outputs import CompletionOutput
from quire.server.http.disconnect import exchange_of
from quire.server.http.early_refusals import limit_of
from quire.server.http.event_stream import EventStream
from quire.server.http.json_response import EncodedResponse
from quire.server.observe.observed_exchange import GENERATION
from quire.server.routes.generation import Generation
from quire.server.wire.bodies import Body, S, read_body
from quire.server.wire.common_fields import QueuedBody
from quire.server.wire.fields import REFUSED, Refusal, sampler_values
from quire.server.wire.sender import Sender

B = TypeVar("B", bound=QueuedBody)
R = TypeVar("R")


class PreparedRequest(Protocol):
    """One request, ready to run: what its route makes of the completions."""

    @property
    def generation(self) -> Generation:
        """The completions."""

    def events(self) -> AsyncGenerator[bytes]:
        """Generate; yield the events of a stream as JSON."""

    async def whole(self, outputs: Sequence[CompletionOutput]) -> bytes:
        """Return the full response as JSON, from the output of each choice."""


async def respond(
    request: Request,
    frontend: AsyncFrontend,
    kind: type[B],
    unknown: UnknownFields,
    prepare: Callable[[Body[B], Sender, dict[str, Any]], Awaitable[PreparedRequest | Response]],
    refused: Mapping[str, Refusal] = REFUSED,
    served_name: Callable[[str | None], str | None] = lambda name: name,
) -> Response:
    """Read a request, and respond in full or as a stream.

    Args:
        request: HTTP request.
        frontend: Frontend that serves it.
        kind: Struct of its body.
        unknown: What happens to fields that do not exist.
        prepare: Function that makes its run, from the body, its sender and the samplers' fields;
            or the response, if there is nothing to generate.
        refused: Known fields of the route that are not supported.
        served_name: Function that returns the name by which a model is served.
    """
    body, run = await prepared(request, frontend, kind, unknown, prepare, refused, served_name)
    if isinstance(run, Response):
        return run
    request.scope[GENERATION] = run.generation
    release = run.generation.release
    if body.stream:
        request_id = request.scope["quire_request_id"]
        return EventStream(run.events(), request_id, on_close=release)
    return EncodedResponse(partial(_full_response, run), release)


async def prepared(
    request: Request,
    frontend: AsyncFrontend,
    kind: type[B],
    unknown: UnknownFields,
    prepare: Callable[[Body[B], Sender, dict[str, Any]], Awaitable[R]],
    refused: Mapping[str, Refusal] = REFUSED,
    served_name: Callable[[str | None], str | None] = lambda name: name,
) -> tuple[B, R]:
    """Read a request for which there is room, and return its body and its run.

    Args:
        request: HTTP request.
        frontend: Frontend that serves it.
        kind: Struct of its body.
        unknown: What happens to fields that do not exist.
        prepare: Function that makes its run, from the body, its sender and the samplers' fields.
        refused: Known fields of the route that are not supported.
        served_name: Function that returns the name by which a model is served.
    """
    sender = Sender.of(request.scope)
    limit = frontend.time_limit(sender.arrival_s)
    frontend.check_queue()
    async with limit.hold():
        body = await received_body(request, kind)
    limit = limit_of(frontend, sender, body.typed)
    sender.account.check_model(served_name(body.typed.model) or frontend.model_name)
    intake = frontend.intake
    values = sampler_values(body, intake.extra_fields, intake.offered_fields, unknown, refused)
    async with limit.hold():
        return body.typed, await prepare(body, sender, values)


async def _full_response(run: PreparedRequest) -> bytes:
    return await run.whole(await run.generation.outputs())


async def received_body(request: Request, kind: type[S]) -> Body[S]:
    """Read and decode a body; raises what `read_body` does.

    It waits for nothing if our own server has received the whole body.
    """
    exchange = exchange_of(request.scope)
    is_received = exchange is not None and exchange.is_received
    return await read_body(request, kind, is_received=is_received)
