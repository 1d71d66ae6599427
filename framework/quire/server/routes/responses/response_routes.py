"""Endpoints of /v1/responses and of stored responses."""

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import InvalidRequestError
from quire.server.http.event_stream import EventStream
from quire.server.http.json_response import EncodedResponse, in_thread_if, json_response
from quire.server.http.lifecycle import Lifecycle
from quire.server.keys.account import account_of
from quire.server.observe.observed_exchange import BACKGROUND, GENERATION, TOOL_CALLS
from quire.server.routes.chat.chat_turn import ChatTurns
from quire.server.routes.respond import prepared
from quire.server.routes.responses.background import BackgroundRuns
from quire.server.routes.responses.chat_request import check_include
from quire.server.routes.responses.item_list import page_of
from quire.server.routes.responses.mcp.server_tools import ServerTools
from quire.server.routes.responses.refused_fields import REFUSED_OF_RESPONSES
from quire.server.routes.responses.response_request import ResponseRequests
from quire.server.routes.responses.store.response_store import ResponseStore
from quire.server.routes.responses.store.store_errors import no_response
from quire.server.routes.responses.store.stored_response import StoredResponse
from quire.server.wire.bodies import LARGE_BYTES
from quire.server.wire.query import read_query
from quire.server.wire.responses import DeletedResponse, ItemsQuery, ResponseBody, ResponseQuery


class ResponseRoutes:
    """Endpoints of /v1/responses.

    Args:
        turns: Turns of conversations.
        store: Stored responses; None if this server stores none.
        lifecycle: Lifecycle, which waits for responses in the background when the server drains.
        tools: Tools of tool servers.
    """

    def __init__(
        self,
        turns: ChatTurns,
        store: ResponseStore | None,
        lifecycle: Lifecycle,
        tools: ServerTools,
    ) -> None:
        self._turns = turns
        self._store = store
        self._requests = ResponseRequests(turns, store, tools)
        self._background = None if store is None else BackgroundRuns(store, lifecycle)

    async def create(self, request: Request) -> Response:
        """Generate a response, in full or as a stream, or in the background."""
        turns, scope = self._turns, request.scope
        body, (run, stored) = await prepared(
            request,
            turns.frontend,
            ResponseBody,
            turns.unknown,
            partial(self._requests.prepare, scope),
            REFUSED_OF_RESPONSES,
        )
        scope[GENERATION] = run.observed
        if run.tools is not None:
            scope[TOOL_CALLS] = run.tools
        if body.background and self._background is not None and stored is not None:
            scope[BACKGROUND] = self._background.start(run, stored, is_streamed=bool(body.stream))
            if stored.events is None:
                return self._response(stored)
            events = self._background.events(stored, stored.events)
            return EventStream(events, scope["quire_request_id"])
        release = run.release
        if body.stream:
            return EventStream(run.stream(), scope["quire_request_id"], on_close=release)
        return EncodedResponse(run.whole, release)

    async def retrieve(self, request: Request) -> Response:
        """Return a stored response, or the events of one that was streamed in the background."""
        stored = self._found(request)
        query = read_query(request, ResponseQuery)
        check_include(query.include)
        if not query.stream:
            if query.starting_after is not None:
                raise InvalidRequestError(
                    "starting_after needs stream=true", param="starting_after"
                )
            return self._response(stored)
        if stored.events is None or self._background is None:
            raise InvalidRequestError(
                f"the response {stored.id!r:.140} has no stored events; only those created with "
                "background: true and stream: true have them; leave out stream",
                param="stream",
            )
        first = 0 if query.starting_after is None else query.starting_after + 1
        return EventStream(
            self._background.events(stored, stored.events, first), request.scope["quire_request_id"]
        )

    async def cancel(self, request: Request) -> Response:
        """Cancel a response that is generated in the background."""
        stored = self._found(request)
        if not msgspec.json.decode(stored.response, type=_Background).background:
            raise InvalidRequestError(
                "only a response with background: true can be cancelled; to end another one, close "
                "its connection"
            )
        if self._background is not None:
            await self._background.cancel(stored)
        return self._response(stored)

    async def delete(self, request: Request) -> Response:
        """Delete a stored response; one that is being generated is cancelled."""
        stored = self._found(request)
        if self._store is not None and self._background is not None:
            self._store.remove(stored)
            await self._background.cancel(stored)
        return json_response(DeletedResponse(stored.id))

    async def input_items(self, request: Request) -> Response:
        """Return the items that a stored response was generated from."""
        stored = self._found(request)
        query = read_query(request, ItemsQuery)
        check_include(query.include)
        page = partial(page_of, stored, query)
        return json_response(await in_thread_if(stored.total_bytes > LARGE_BYTES, page))

    def _response(self, stored: StoredResponse) -> Response:
        found = stored.response
        if self._background is not None:
            found = self._background.json_of(stored)
        return Response(found, media_type="application/json")

    def _found(self, request: Request) -> StoredResponse:
        name = request.path_params["response_id"]
        if self._store is None:
            raise no_response(name)
        return self._store.find(account_of(request.scope), name)


class _Background(msgspec.Struct):
    background: bool
