"""Pages of the items that a response was generated from, as the API describes stored items."""

import hashlib
from typing import Any

from starlette.requests import Request

from quire.errors import InvalidRequestError
from quire.server.routes.responses.input_items import Item
from quire.server.routes.responses.query import choice_of, number_of
from quire.server.routes.responses.stored_response import StoredResponse
from quire.server.wire.responses import InputItemList

MAX_ITEMS, DEFAULT_ITEMS = 100, 20
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
}


def page_of(stored: StoredResponse, request: Request) -> InputItemList:
    """Return the page that a request asks for by `limit`, `order` and `after`.

    Raises:
        InvalidRequestError: One of them is invalid.
    """
    limit = number_of(request, "limit", MAX_ITEMS)
    items = [_described(item, stored, i) for i, item in enumerate(stored.input_of_all())]
    if choice_of(request, "order", ("desc", "asc")) == "desc":
        items.reverse()
    if (after := request.query_params.get("after")) is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise InvalidRequestError(f"after names no item: {after!r:.140}", param="after")
        items = items[ids.index(after) + 1 :]
    page = items[: limit or DEFAULT_ITEMS]
    first_id, last_id = (page[0]["id"], page[-1]["id"]) if page else ("", "")
    return InputItemList(
        data=page, first_id=first_id, last_id=last_id, has_more=len(page) < len(items)
    )


def _described(item: Item, stored: StoredResponse, index: int) -> dict[str, Any]:
    """Return an item with all the fields of a stored one; an id of the client's stays."""
    kind = item.get("type", "message")
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
