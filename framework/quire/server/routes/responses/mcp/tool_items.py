"""Items of tools that a server called, in a conversation: calls of the assistant, and results."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from quire.errors import InvalidRequestError
from quire.server.routes.responses.assistant_turn import AssistantTurn

Item = dict[str, Any]

FIELDS = {  # of each type
    "mcp_list_tools": ("type", "id", "server_label", "tools", "error", "status"),
    "mcp_call": (
        "type", "id", "server_label", "name", "arguments", "output", "error", "status",
        "approval_request_id",
    ),
    "mcp_approval_request": ("type", "id", "server_label", "name", "arguments", "status"),
    "mcp_approval_response": (
        "type", "id", "approval_request_id", "approve", "reason", "status",
    ),
}  # fmt: skip
_TEXTS = {  # fields of each type that must be texts
    "mcp_list_tools": ("server_label",),
    "mcp_call": ("id", "server_label", "name", "arguments"),
    "mcp_approval_request": ("id", "server_label", "name", "arguments"),
    "mcp_approval_response": ("approval_request_id",),
}
_WAITS = "This call was not run: the user has not approved it."
_REFUSED = "This call was not run: the user refused it."
_BROKE_OFF = "This call broke off; it may have had its effect."


class ToolItems:
    """Adds the items of tools to a conversation.

    Args:
        turn: Function that returns the turn of the assistant to which the next call belongs.
        functions: Names by which the model calls tools, by label and name; others keep theirs.
    """

    def __init__(
        self, turn: Callable[[], AssistantTurn], functions: Mapping[tuple[str, str], str]
    ) -> None:
        self._turn = turn
        self._functions = functions
        self._asked: dict[str, AssistantTurn] = {}  # turns of all calls that need approval
        self._waiting: dict[str, AssistantTurn] = {}  # of those without a result
        self._answers: dict[str, bool] = {}  # of the client

    def add(self, kind: str, item: Item, where: str) -> None:
        """Add an item.

        Raises:
            InvalidRequestError: It is invalid; `param` is its path.
        """
        for name in _TEXTS[kind]:
            if not isinstance(item.get(name), str):
                raise _invalid(f"{where}.{name}", f"must be a string, got {item.get(name)!r:.80}")
        match kind:
            case "mcp_call":
                self._add_call(item)
            case "mcp_approval_request":
                if item["id"] in self._asked:
                    raise _invalid(f"{where}.id", f"is that of two items: {item['id']!r:.80}")
                turn = self._turn()
                turn.add_call(item["id"], self._function(item), item["arguments"])
                self._asked[item["id"]] = self._waiting[item["id"]] = turn
            case "mcp_approval_response":
                self._add_answer(item, where)

    def close(self) -> None:
        """Give the calls that still wait a result, as templates want one for each call."""
        for request_id, turn in self._waiting.items():
            turn.add_result(request_id, _WAITS)
        self._waiting = {}

    def _add_call(self, item: Item) -> None:
        has_result = item.get("status") not in ("in_progress", "incomplete")
        request_id = item.get("approval_request_id")
        if request_id in self._waiting:
            result = result_of(item) if has_result else _BROKE_OFF
            self._waiting.pop(request_id).add_result(request_id, result)
            return
        if not has_result:
            return
        turn = self._turn()
        turn.add_call(item["id"], self._function(item), item["arguments"])
        turn.add_result(item["id"], result_of(item))

    def _add_answer(self, item: Item, where: str) -> None:
        request_id = item["approval_request_id"]
        if request_id not in self._asked:
            raise _invalid(
                f"{where}.approval_request_id",
                f"is {request_id!r:.80}, and no mcp_approval_request before it has this id; send "
                "the request, too, or previous_response_id",
            )
        if not isinstance(item.get("approve"), bool):
            raise _invalid(
                f"{where}.approve", f"must be true or false, got {item.get('approve')!r:.80}"
            )
        reason = item.get("reason")
        if reason is not None and not isinstance(reason, str):
            raise _invalid(f"{where}.reason", f"must be a string, got {reason!r:.80}")
        if self._answers.setdefault(request_id, item["approve"]) != item["approve"]:
            raise _invalid(
                f"{where}.approve",
                f"is {json.dumps(item['approve'])}, and an earlier answer for "
                f"{request_id!r:.80} says the opposite",
            )
        if not item["approve"] and request_id in self._waiting:
            turn = self._waiting.pop(request_id)
            turn.add_result(request_id, f"{_REFUSED} {reason}" if reason else _REFUSED)

    def _function(self, item: Item) -> str:
        name: str = item["name"]
        return self._functions.get((item["server_label"], name), name)


def result_of(item: Item) -> str:
    """Return the result of a call for the model: its output, or what went wrong."""
    error, output = item.get("error"), item.get("output")
    if isinstance(output, str) and error is None:
        return output
    if isinstance(error, dict):
        content = error.get("content")
        parts = content if isinstance(content, list) else []
        texts = [str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part]
        return "\n".join(texts) or str(error.get("message") or "the call failed")
    return error if isinstance(error, str) else "the call failed"


def _invalid(where: str, message: str) -> InvalidRequestError:
    return InvalidRequestError(f"{where} {message}", param=where)
