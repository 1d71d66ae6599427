"""Conversion of input items to messages: the items of one turn of the assistant are one message.

An item that a client sends back as it got it is accepted with all its fields. What a model without
OpenAI's own tools cannot have in its context is refused by name.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import InvalidRequestError
from quire.frontend.chat.custom_input import INPUT
from quire.frontend.unknown_fields import UnknownFields
from quire.server.routes.responses.assistant_turn import AssistantTurn
from quire.server.routes.responses.mcp import tool_items
from quire.server.routes.responses.mcp.tool_items import ToolItems

Item = dict[str, Any]
Message = dict[str, Any]

ROLES = ("user", "assistant", "system", "developer")
_ITEM_FIELDS = {  # of each type
    "message": ("type", "role", "content", "id", "status", "phase"),
    "function_call": ("type", "call_id", "name", "arguments", "id", "status"),
    "function_call_output": ("type", "call_id", "output", "id", "status"),
    "custom_tool_call": ("type", "call_id", "name", "input", "id", "status"),
    "custom_tool_call_output": ("type", "call_id", "output", "id", "status"),
    "reasoning": ("type", "summary", "content", "encrypted_content", "id", "status"),
    **tool_items.FIELDS,
}
_TEXTS = (
    "id",
    "phase",
    "encrypted_content",
    "approval_request_id",
)  # fields of any item that are texts, or null
_STATUSES = ("in_progress", "completed", "incomplete")
_STATUSES_OF_CALLS = (*_STATUSES, "calling", "failed")  # of tools of tool servers
_PARTS = {  # type of a content part -> its text, and its other fields
    "input_text": ("text", ()),
    "output_text": ("text", ("annotations", "logprobs")),
    "refusal": ("refusal", ()),
    "reasoning_text": ("text", ()),
    "summary_text": ("text", ()),
}
_PARTS_OF_MESSAGES = ("input_text", "output_text", "refusal")
_MEDIA = ("input_image", "input_file", "input_audio", "input_video")


def items_of(given: str | Sequence[Item]) -> list[Item]:
    """Return an input as items; a text is the message of a user."""
    return [{"role": "user", "content": given}] if isinstance(given, str) else [*given]


def messages_of(
    items: Sequence[Item],
    instructions: str | None,
    unknown: UnknownFields,
    num_before: int = 0,
    turns: Sequence[Sequence[Item]] = (),
    functions: Mapping[tuple[str, str], str] | None = None,
) -> list[Message]:
    """Return the messages of a conversation.

    Args:
        items: Items of previous responses, and those of the request.
        instructions: Text of a system message in front of all others.
        unknown: What happens to fields that do not exist.
        num_before: Number of items that are not the request's; errors count from there.
        turns: Items of each turn of the assistant in the response itself so far.
        functions: Names by which the model calls tools of tool servers, by label and name.

    Raises:
        InvalidRequestError: An item is invalid, or not supported; `param` is its path.
        UnknownFieldError: An item has a field that does not exist.
    """
    conversation = _Conversation(unknown, functions or {})
    for i, item in enumerate(items):
        conversation.add(item, f"input[{i - num_before}]")
    for turn in turns:
        conversation.end_turn()
        for item in turn:
            conversation.add(item, "output")
    messages = conversation.messages()
    if instructions is None:
        return messages
    if messages and messages[0]["role"] == "system":  # many templates take one system message
        first = messages[0] | {"content": f"{instructions}\n\n{messages[0]['content']}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": instructions}, *messages]


class _Conversation:
    """Messages of items that are added in order."""

    def __init__(self, unknown: UnknownFields, functions: Mapping[tuple[str, str], str]) -> None:
        self._messages: list[Message | AssistantTurn] = []
        self._unknown = unknown
        self._call_ids: set[str] = set()
        self._has_ended_turn = False
        self._tools = ToolItems(self._turn, functions)

    def messages(self) -> list[Message]:
        """Return the messages so far."""
        self._tools.close()
        found: list[Message] = []
        for message in self._messages:
            found += message.messages() if isinstance(message, AssistantTurn) else [message]
        return found

    def end_turn(self) -> None:
        """Let the next items of the assistant begin a turn."""
        self._has_ended_turn = True

    def add(self, item: Item, where: str) -> None:
        """Add an item."""
        kind = kind_of(item)
        if not isinstance(kind, str) or kind not in _ITEM_FIELDS:
            raise _unsupported_item(kind, where)
        given = [name for name, value in item.items() if value is not None]
        self._unknown.check(given, _ITEM_FIELDS[kind], where)
        _check_description(item, where)
        match kind:
            case "message":
                self._add_message(item, where)
            case "reasoning":
                self._add_reasoning(item, where)
            case "function_call":
                self._add_call(item, _text_field(item, "arguments", where), where)
            case "custom_tool_call":
                text = _text_field(item, "input", where)
                self._add_call(item, json.dumps({INPUT: text}, ensure_ascii=False), where)
            case "function_call_output" | "custom_tool_call_output":
                self._add_output(item, where)
            case _:
                self._tools.add(kind, item, where)

    def _add_message(self, item: Item, where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise InvalidRequestError(
                f"{where}.role must be one of {', '.join(ROLES)}, got {role!r:.80}",
                param=f"{where}.role",
            )
        content = self._content(item.get("content"), f"{where}.content", _PARTS_OF_MESSAGES)
        if role != "assistant":
            role = "system" if role == "developer" else role
            self._messages.append({"role": role, "content": content})
            return
        turn = self._turn()
        (turn if turn.takes_text else self._new_turn()).add_text(content)

    def _add_reasoning(self, item: Item, where: str) -> None:
        """Add the reasoning's text, or its summary if there is no text."""
        text = self._content(item.get("content") or [], f"{where}.content", ("reasoning_text",))
        summary = item.get("summary") or []
        text = text or self._content(summary, f"{where}.summary", ("summary_text",))
        if not text:
            return
        turn = self._turn()
        (turn if turn.takes_reasoning else self._new_turn()).add_reasoning(text)

    def _add_call(self, item: Item, arguments: str, where: str) -> None:
        call_id, name = _text_field(item, "call_id", where), _text_field(item, "name", where)
        if not name:
            raise InvalidRequestError(
                f"{where}.name is empty; send the name of the function", param=f"{where}.name"
            )
        if item.get("status") == "incomplete":
            return  # it broke off, and a message has its text
        self._call_ids.add(call_id)
        self._turn().add_call(call_id, name, arguments)

    def _add_output(self, item: Item, where: str) -> None:
        call_id = _text_field(item, "call_id", where)
        if call_id not in self._call_ids:
            raise InvalidRequestError(
                f"{where}.call_id is {call_id!r:.80}, and no call before it has this "
                "call_id; send the call, too, or previous_response_id",
                param=f"{where}.call_id",
            )
        output = self._content(item.get("output"), f"{where}.output", ("input_text",))
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": output})

    def _turn(self) -> AssistantTurn:
        """Return the turn of the assistant that the next items of its belong to."""
        last = self._messages[-1] if self._messages else None
        if isinstance(last, AssistantTurn) and not self._has_ended_turn:
            return last
        return self._new_turn()

    def _new_turn(self) -> AssistantTurn:
        self._has_ended_turn = False
        turn = AssistantTurn()
        self._messages.append(turn)
        return turn

    def _content(self, content: object, where: str, kinds: Sequence[str]) -> str:
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise InvalidRequestError(
                f"{where} must be a string or a list of parts, got {content!r:.80}", param=where
            )
        return "\n".join(self._part(part, f"{where}[{i}]", kinds) for i, part in enumerate(content))

    def _part(self, part: object, where: str, kinds: Sequence[str]) -> str:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(kind, str) or kind not in kinds:
            way_out = "this server reads text only" if kind in _MEDIA else f"send {kinds[0]}"
            raise InvalidRequestError(
                f"{where}.type {kind!r:.80} is not supported; {way_out}", param=f"{where}.type"
            )
        name, others = _PARTS[kind]
        given = [field for field, value in part.items() if value is not None]
        self._unknown.check(given, ("type", name, *others), where)
        return _text_field(part, name, where)


def kind_of(item: Item) -> object:
    """Return the type of an item; one with a role and no type is a message."""
    kind = item.get("type")
    return "message" if kind is None and "role" in item else kind


def _check_description(item: Item, where: str) -> None:
    """Check the fields that describe an item and are not shown to the model."""
    for name in _TEXTS:
        if item.get(name) is not None:
            _text_field(item, name, where)
    status = item.get("status")
    statuses = _STATUSES_OF_CALLS if item.get("type") == "mcp_call" else _STATUSES
    if status is not None and status not in statuses:
        raise InvalidRequestError(
            f"{where}.status must be one of {', '.join(statuses)}, got {status!r:.80}",
            param=f"{where}.status",
        )


def _text_field(item: Item, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise InvalidRequestError(
            f"{where}.{name} must be a string, got {value!r:.80}", param=f"{where}.{name}"
        )
    return value


def _unsupported_item(kind: object, where: str) -> InvalidRequestError:
    known = ", ".join(_ITEM_FIELDS)
    way_out = f"send items of the types {known}"
    if kind == "item_reference":
        way_out = "send the item itself, or previous_response_id"
    return InvalidRequestError(
        f"{where}.type {kind!r:.80} is not supported; {way_out}", param=f"{where}.type"
    )
