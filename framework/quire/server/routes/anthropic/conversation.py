"""Conversion of `system` and `messages` to the messages of a chat.

Texts of one role that follow each other are one message, as in Anthropic's API and as templates
expect it. Each result of a tool is a message of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.errors import InvalidRequestError
from quire.frontend.chat.templates.conversation import PART_SEPARATOR
from quire.frontend.unknown_fields import UnknownFields
from quire.server.routes.anthropic.sent_blocks import (
    BLOCKS_OF,
    Json,
    check_fields,
    checked_block,
    string_of,
)

ChatMessage = dict[str, Any]

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "ctx": "user", "msg": "user"}
BILLING = "x-anthropic-billing-header"  # begins a text for Anthropic's servers, new in each request


def chat_messages(
    system: str | Sequence[Json] | None, messages: Sequence[Json], unknown: UnknownFields
) -> list[ChatMessage]:
    """Return the messages of a chat, at least one.

    Args:
        system: System prompt.
        messages: Messages in Anthropic's format.
        unknown: What happens to fields that do not exist.

    Raises:
        InvalidRequestError: A message does not follow the API, or there is none; `param` is its
            path.
    """
    chat = _Chat(unknown)
    if system:
        chat.add("system", system, "system")
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise InvalidRequestError(
                f"{where}.role must be user, assistant or system, got {role!r:.50}",
                param=f"{where}.role",
            )
        if len(message) > 2:
            check_fields(message, ("role", "content"), where, unknown)
        chat.add(ROLES[role], message.get("content"), f"{where}.content")
    found = chat.messages()
    if not messages or not found:
        raise InvalidRequestError(
            "messages must have at least one message that has content", param="messages"
        )
    return found


@dataclass(slots=True)
class _Turn:
    """Consecutive texts of one role; they are joined once, because that copies them."""

    role: str
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def message(self) -> ChatMessage:
        """Return the message of a chat."""
        message: ChatMessage = {"role": self.role, "content": _joined(self.texts)}
        if any(self.thoughts):
            message["reasoning_content"] = _joined(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class _Chat:
    """The messages so far, and the turn that the next text of its role continues.

    Args:
        unknown: What happens to fields that do not exist.
    """

    def __init__(self, unknown: UnknownFields) -> None:
        self._messages: list[ChatMessage] = []
        self._open: _Turn | None = None
        self._call_ids: set[str] = set()
        self._unknown = unknown

    def messages(self) -> list[ChatMessage]:
        """Return all messages."""
        self._close()
        return self._messages

    def add(self, role: str, content: object, where: str) -> None:
        """Add the content of a message: a text, or blocks."""
        if isinstance(content, str):
            self._turn(role).texts.append(content)
            return
        if not isinstance(content, list):
            raise InvalidRequestError(
                f"{where} must be a string or a list of blocks, got {content!r:.100}", param=where
            )
        if not content and role == "user":
            raise InvalidRequestError(f"{where} must have at least one block", param=where)
        blocks = [
            checked_block(block, f"{where}[{i}]", BLOCKS_OF[role], self._unknown)
            for i, block in enumerate(content)
        ]
        if role == "assistant":
            self._add_assistant(blocks, where)
        else:
            self._add_blocks(role, blocks, where)

    def _turn(self, role: str) -> _Turn:
        """Return the turn that a text of a role belongs to; none follows calls."""
        if self._open is None or self._open.role != role or self._open.calls:
            self._close()
            self._open = _Turn(role)
        return self._open

    def _close(self) -> None:
        if self._open is not None:
            self._messages.append(self._open.message())
            self._open = None

    def _add_blocks(self, role: str, blocks: Sequence[Json], where: str) -> None:
        for i, block in enumerate(blocks):
            at = f"{where}[{i}]"
            if block["type"] != "text":
                self._add_result(block, at)
                continue
            text = string_of(block, "text", at)
            if not (role == "system" and text.startswith(BILLING)):
                self._turn(role).texts.append(text)

    def _add_result(self, block: Json, where: str) -> None:
        call_id = string_of(block, "tool_use_id", where)
        if call_id not in self._call_ids:
            raise InvalidRequestError(
                f"{where}.tool_use_id is {call_id!r:.80}, and no tool_use block before it has this "
                "id; send the assistant's message with the call, too",
                param=f"{where}.tool_use_id",
            )
        content = self._text_of_result(block.get("content") or "", f"{where}.content")
        is_error = block.get("is_error") or False
        if not isinstance(is_error, bool):
            raise InvalidRequestError(
                f"{where}.is_error must be true or false", param=f"{where}.is_error"
            )
        content = f"Error: {content}" if is_error else content
        self._close()
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _text_of_result(self, content: object, where: str) -> str:
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise InvalidRequestError(
                f"{where} must be a string or a list of blocks, got {content!r:.100}", param=where
            )
        kinds, texts = BLOCKS_OF["tool_result"], []
        for i, part in enumerate(content):
            at = f"{where}[{i}]"
            block = checked_block(part, at, kinds, self._unknown)
            texts.append(string_of(block, "text" if block["type"] == "text" else "tool_name", at))
        return PART_SEPARATOR.join(texts)

    def _add_assistant(self, blocks: Sequence[Json], where: str) -> None:
        turn, calls = self._turn("assistant"), []
        for i, block in enumerate(blocks):
            at = f"{where}[{i}]"
            match block["type"]:
                case "text":
                    turn.texts.append(string_of(block, "text", at))
                case "thinking":
                    turn.thoughts.append(string_of(block, "thinking", at))
                case "redacted_thinking":
                    string_of(block, "data", at)  # only Anthropic's servers can read it
                case _:
                    calls.append(_call(block, at))
        turn.calls = calls
        self._call_ids.update(call["id"] for call in calls)


def _joined(texts: Sequence[str]) -> str:
    return PART_SEPARATOR.join(text for text in texts if text)


def _call(block: Json, where: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise InvalidRequestError(
            f"{where}.input must be an object, got {arguments!r:.100}", param=f"{where}.input"
        )
    name = string_of(block, "name", where)
    if not name:
        raise InvalidRequestError(f"{where}.name must not be empty", param=f"{where}.name")
    function = {"name": name, "arguments": arguments}
    return {"id": string_of(block, "id", where), "type": "function", "function": function}
