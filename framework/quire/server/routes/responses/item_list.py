"""Pages of the items that a response was generated from, as the API describes stored items."""

import hashlib
from collections.abc import Sequence
from typing import Any

from quire.errors import InvalidRequestError
from quire.server.routes.responses.input_items import Item, kind_of
from quire.server.routes.responses.store.stored_response import StoredResponse
from quire.server.wire.responses import InputItemList, ItemsQuery

_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "mcp_list_tools": "mcpl",
    "mcp_call": "mcp",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
}


def page_of(stored: StoredResponse, query: ItemsQuery) -> InputItemList:
    """Return the page that a query asks for.

    Raises:
        InvalidRequestError: It begins after an item that does not exist, or ends before one.
    """
    items = [_described(item, stored, i) for i, item in enumerate(stored.input_of_all())]
    if query.order == "desc":
        items.reverse()
    if query.after is not None:
        items = items[_index(items, query.after, "after") + 1 :]
    if query.before is not None:
        items = items[: _index(items, query.before, "before")]
    page = items[: query.limit]
    first_id, last_id = (page[0]["id"], page[-1]["id"]) if page else ("", "")
    return InputItemList(
        data=page, first_id=first_id, last_id=last_id, has_more=len(page) < len(items)
    )


def _index(items: Sequence[Item], item_id: str, param: str) -> int:
    found = next((i for i, item in enumerate(items) if item["id"] == item_id), None)
    if found is None:
        raise InvalidRequestError(f"{param} names no item: {item_id!r:.140}", param=param)
    return found


def _described(item: Item, stored: StoredResponse, index: int) -> dict[str, Any]:
    """Return an item with all the fields of a stored one; an id of the client's stays."""
    kind = str(kind_of(item))
    described = {name: value for name, value in item.items() if value is not None}
    digest = hashlib.sha256(f"{stored.id} {index}".encode()).hexdigest()[:32]
    described = {"id": f"{_PREFIXES[kind]}_{digest}", "type": kind, "status": "completed"} | (
        described
    )
    if kind == "message" and isinstance(item["content"], str):
        described["content"] = [_text_part(item["content"], item["role"])]
    if kind == "reasoning":
        described.setdefault("summary", [])
    return described


def _text_part(text: str, role: str) -> dict[str, Any]:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}
