"""The operations of the Responses API."""

import asyncio

from quire.config import ServerSettings
from quire.server.http.lifecycle import Lifecycle
from quire.server.routes.chat.chat_turn import ChatTurns
from quire.server.routes.operation import Operation
from quire.server.routes.responses.item_events import EVENTS
from quire.server.routes.responses.mcp.server_tools import ServerTools
from quire.server.routes.responses.response_routes import ResponseRoutes
from quire.server.routes.responses.store.response_store import ResponseStore
from quire.server.wire.responses import (
    DeletedResponse,
    InputItemList,
    ItemsQuery,
    ResponseBody,
    ResponseObject,
    ResponseQuery,
)

RESPONSES_PATH = "/v1/responses"


def response_operations(
    turns: ChatTurns, settings: ServerSettings, lifecycle: Lifecycle, tools: ServerTools
) -> list[Operation]:
    """Return the operations of /v1/responses.

    Args:
        turns: Turns of conversations.
        settings: Settings of the server, with the limits of stored responses.
        lifecycle: Lifecycle, which waits for responses in the background when the server drains.
        tools: Tools of tool servers.
    """
    routes = ResponseRoutes(turns, _store(settings), lifecycle, tools)
    one = f"{RESPONSES_PATH}/{{response_id:path}}"
    return [
        Operation(
            RESPONSES_PATH,
            routes.create,
            "POST",
            ResponseBody,
            ResponseObject,
            EVENTS,
            has_sampler_fields=True,
        ),
        Operation(f"{one}/cancel", routes.cancel, "POST", response=ResponseObject),
        Operation(
            f"{one}/input_items", routes.input_items, response=InputItemList, query=ItemsQuery
        ),
        Operation(one, routes.retrieve, response=ResponseObject, event=EVENTS, query=ResponseQuery),
        Operation(one, routes.delete, "DELETE", response=DeletedResponse),
    ]


def _store(settings: ServerSettings) -> ResponseStore | None:
    """Return a new store; None without one, or if requests reach several processes in turn."""
    if settings.responses_store_max == 0 or settings.api_server_count > 1:
        return None
    return ResponseStore(
        settings.responses_store_max,
        settings.responses_store_max_bytes,
        settings.responses_store_ttl_s,
        later=lambda delay_s, expire: asyncio.get_running_loop().call_later(delay_s, expire),
    )
