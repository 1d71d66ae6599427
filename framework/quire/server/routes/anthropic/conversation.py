"""Conversion of `system` and `messages` to the messages of a chat.

Texts of one role that follow each other are one message, as in Anthropic's API and as templates
expect it. Each result of a tool is a message of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import InvalidRequestError
from quire.frontend.chat.conversation import PART_SEPARATOR
from quire.frontend.unknown_fields import UnknownFields

Json = Mapping[str, Any]
ChatMessage = dict[str, Any]

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "ctx": "user", "msg": "user"}
BLOCKS: dict[str, frozenset[str]] = {  # type of a block -> its other fields
    "text": frozenset({"text", "cache_control", "citations"}),
    "thinking": frozenset({"thinking", "signature", "cache_control"}),
    "redacted_thinking": frozenset({"data", "cache_control"}),
    "tool_use": frozenset({"id", "name", "input", "cache_control", "caller", "toolset_name"}),
    "tool_result": frozenset(
        {"tool_use_id", "content", "is_error", "cache_control", "toolset_name"}
    ),
    "tool_reference": frozenset({"tool_name", "cache_control"}),
}
BLOCKS_OF = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "tool_result": ("text", "tool_reference"),
}
_TEXT_ONLY = "this model reads text; describe it in a text block"
_BY_ANTHROPIC = "this server runs no tools; leave the block out"
REFUSED_BLOCKS = {  # of Anthropic's models, or what they get from Anthropic's servers
    "image": _TEXT_ONLY,
    "document": "this model reads text; send the document's text in a text block",
    "search_result": "send its text in a text block",
    "browser_state": _TEXT_ONLY,
    "container_upload": "this server has no containers; leave the block out",
    "server_tool_use": _BY_ANTHROPIC,
    "web_search_tool_result": _BY_ANTHROPIC,
    "web_fetch_tool_result": _BY_ANTHROPIC,
    "code_execution_tool_result": _BY_ANTHROPIC,
    "bash_code_execution_tool_result": _BY_ANTHROPIC,
    "text_editor_code_execution_tool_result": _BY_ANTHROPIC,
    "tool_search_tool_result": _BY_ANTHROPIC,
    "advisor_tool_result": _BY_ANTHROPIC,
    "fallback": _BY_ANTHROPIC,
    "mcp_tool_listing": _BY_ANTHROPIC,
    "mcp_tool_use": _BY_ANTHROPIC,
    "mcp_tool_result": _BY_ANTHROPIC,
    "tool_addition": "send the tool in tools",
    "tool_removal": "leave the tool out of tools",
    "compaction": "shorten messages in the client, and leave the block out",
}
BILLING = "x-anthropic-billing-header"  # begins a text for Anthropic's servers, new in each request


def chat_messages(
    system: str | Sequence[Json] | None, messages: Sequence[Json], unknown: UnknownFields
) -> list[ChatMessage]:
    """Return the messages of a chat.

    Args:
        system: System prompt.
        messages: Messages in Anthropic's format.
        unknown: What happens to fields that do not exist.

    Raises:
        InvalidRequestError: A message does not follow the API; `param` is its path.
    """
    if not messages:
        raise InvalidRequestError("messages must have at least one message", param="messages")
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
            _check_fields(message, ("role", "content"), where, unknown)
        chat.add(ROLES[role], message.get("content"), f"{where}.content")
    return chat.messages


class _Chat:
    """The messages so far.

    Args:
        unknown: What happens to fields that do not exist.
    """

    def __init__(self, unknown: UnknownFields) -> None:
        self.messages: list[ChatMessage] = []
        self._unknown = unknown

    def add(self, role: str, content: object, where: str) -> None:
        """Add the content of a message: a text, or blocks."""
        if isinstance(content, str):
            self._add_text(role, content)
            return
        if not isinstance(content, list):
            raise InvalidRequestError(
                f"{where} must be a string or a list of blocks, got {content!r:.100}", param=where
            )
        if not content and role == "user":
            raise InvalidRequestError(f"{where} must have at least one block", param=where)
        blocks = [
            self._checked(block, f"{where}[{i}]", BLOCKS_OF[role])
            for i, block in enumerate(content)
        ]
        if role == "assistant":
            self._add_assistant(blocks, where)
        else:
            self._add_blocks(role, blocks, where)

    def _add_blocks(self, role: str, blocks: Sequence[Json], where: str) -> None:
        texts: list[str] = []
        for i, block in enumerate(blocks):
            at = f"{where}[{i}]"
            if block["type"] == "text":
                text = _string(block, "text", at)
                if not (role == "system" and text.startswith(BILLING)):
                    texts.append(text)
                continue
            if texts:
                self._add_text(role, PART_SEPARATOR.join(texts))
                texts = []
            self._add_result(block, at)
        if texts:
            self._add_text(role, PART_SEPARATOR.join(texts))

    def _add_text(self, role: str, text: str) -> None:
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != role or "tool_calls" in last:
            self.messages.append({"role": role, "content": text})
        elif last["content"] and text:
            last["content"] += PART_SEPARATOR + text
        else:
            last["content"] += text

    def _add_result(self, block: Json, where: str) -> None:
        content = block.get("content") or ""
        if isinstance(content, list):
            inner = f"{where}.content"
            content = PART_SEPARATOR.join(
                self._text_of_result(part, f"{inner}[{i}]") for i, part in enumerate(content)
            )
        elif not isinstance(content, str):
            raise InvalidRequestError(
                f"{where}.content must be a string or a list of blocks, got {content!r:.100}",
                param=f"{where}.content",
            )
        is_error = block.get("is_error") or False
        if not isinstance(is_error, bool):
            raise InvalidRequestError(
                f"{where}.is_error must be true or false", param=f"{where}.is_error"
            )
        self.messages.append(
            {
                "role": "tool",
                "tool_call_id": _string(block, "tool_use_id", where),
                "content": f"Error: {content}" if is_error else content,
            }
        )

    def _text_of_result(self, part: object, where: str) -> str:
        block = self._checked(part, where, BLOCKS_OF["tool_result"])
        return _string(block, "text" if block["type"] == "text" else "tool_name", where)

    def _add_assistant(self, blocks: Sequence[Json], where: str) -> None:
        texts, thoughts, calls = [], [], []
        for i, block in enumerate(blocks):
            at = f"{where}[{i}]"
            match block["type"]:
                case "text":
                    texts.append(_string(block, "text", at))
                case "thinking":
                    thoughts.append(_string(block, "thinking", at))
                case "redacted_thinking":
                    _string(block, "data", at)  # only Anthropic's servers can read it
                case _:
                    calls.append(_call(block, at))
        self._add_text("assistant", PART_SEPARATOR.join(texts))
        message = self.messages[-1]
        if any(thoughts):
            before = message.get("reasoning_content")
            thoughts = [*([before] if before else []), *thoughts]
            message["reasoning_content"] = PART_SEPARATOR.join(thoughts)
        if calls:
            message["tool_calls"] = calls

    def _checked(self, block: object, where: str, kinds: Sequence[str]) -> Json:
        """Return a block of one of some types, with no other fields than that has."""
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(block, dict) or not isinstance(kind, str):
            raise InvalidRequestError(
                f"{where} must be a block with a type, got {block!r:.100}", param=where
            )
        if kind not in kinds:
            raise _wrong_type(kind, where, kinds)
        _check_fields(block, BLOCKS[kind], where, self._unknown)
        return block


def _check_fields(
    given: Json, known: frozenset[str] | Sequence[str], where: str, unknown: UnknownFields
) -> None:
    """Refuse fields that do not exist; null asks for nothing."""
    for name, value in given.items():
        if name not in known and name != "type" and value is not None:
            unknown.handle(name, known, where)


def _wrong_type(kind: str, where: str, kinds: Sequence[str]) -> InvalidRequestError:
    param = f"{where}.type"
    if kind in REFUSED_BLOCKS:
        message = f"{param} {kind!r} is not supported: {REFUSED_BLOCKS[kind]}"
        return InvalidRequestError(message, param=param)
    return InvalidRequestError(
        f"{param} must be one of {', '.join(kinds)} here, got {kind!r:.100}", param=param
    )


def _call(block: Json, where: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise InvalidRequestError(
            f"{where}.input must be an object, got {arguments!r:.100}", param=f"{where}.input"
        )
    name = _string(block, "name", where)
    if not name:
        raise InvalidRequestError(f"{where}.name must not be empty", param=f"{where}.name")
    function = {"name": name, "arguments": arguments}
    return {"id": _string(block, "id", where), "type": "function", "function": function}


def _string(block: Json, name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        path = f"{where}.{name}"
        raise InvalidRequestError(f"{path} must be a string, got {value!r:.100}", param=path)
    return value
