"""Conversion of OpenAI messages to the input of chat templates: plain text, arguments as objects.

Fields that a template cannot render are refused by name, and so are those that do not exist.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import InvalidRequestError
from quire.frontend.chat.custom_input import INPUT
from quire.frontend.chat.surrogate_halves import without_halves
from quire.frontend.unknown_fields import UnknownFields

ROLES = ("system", "developer", "user", "assistant", "tool")
PART_SEPARATOR = "\n"  # between the text parts of one message
KEPT_KEYS = ("name", "tool_call_id", "reasoning_content")
MESSAGE_KEYS = frozenset({"role", "content", "tool_calls", "reasoning", *KEPT_KEYS})
PART_KEYS = frozenset({"type", "text", "cache_control"})  # the last concerns other APIs' billing
CALL_KEYS = frozenset({"id", "type", "index", "function", "custom"})
FUNCTION_KEYS = frozenset({"name", "arguments"})
CUSTOM_KEYS = frozenset({"name", "input"})
UNSUPPORTED_KEYS = frozenset({"function_call", "refusal", "audio", "annotations"})  # of messages
STRICT = UnknownFields()

Message = dict[str, Any]


def normalize_messages(
    messages: Sequence[Mapping[str, Any]], unknown: UnknownFields = STRICT
) -> list[Message]:
    """Return the messages in the format of chat templates.

    Args:
        messages: Messages in OpenAI's format.
        unknown: What happens to fields that do not exist.

    Raises:
        InvalidRequestError: A message does not follow the API; `param` is its path.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise InvalidRequestError(
            "messages must be a list of at least one message", param="messages"
        )
    return [_normalize(message, f"messages[{i}]", unknown) for i, message in enumerate(messages)]


def normalize_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return checked tools with `type` and `function` alone; None if there are none."""
    return [
        {"type": "function", "function": dict(tool["function"])} for tool in tools or ()
    ] or None


def _normalize(message: object, where: str, unknown: UnknownFields) -> Message:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{where} must be an object, got {message!r}", param=where)
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequestError(
            f"{where}.role must be one of {', '.join(ROLES)}, got {role!r}", param=f"{where}.role"
        )
    _check_keys(message, MESSAGE_KEYS, where, unknown)
    calls = message.get("tool_calls") or []
    is_optional = role == "assistant" and bool(calls or message.get("reasoning_content"))
    normal: Message = {
        "role": "system" if role == "developer" else role,
        "content": _text(message.get("content"), f"{where}.content", is_optional, unknown),
    }
    normal |= {key: message[key] for key in KEPT_KEYS if message.get(key) is not None}
    if role == "assistant" and message.get("reasoning") is not None:
        normal.setdefault("reasoning_content", message["reasoning"])
    if calls:
        normal["tool_calls"] = _calls(calls, role, f"{where}.tool_calls", unknown)
    return normal


def _check_keys(
    given: Mapping[str, Any], known: frozenset[str], where: str, unknown: UnknownFields
) -> None:
    """Refuse unknown keys, except those with an empty value such as `"refusal": null`."""
    for key, value in given.items():
        if key in known or value in (None, False, "", [], {}):
            continue
        if known is MESSAGE_KEYS and key in UNSUPPORTED_KEYS:
            path = f"{where}.{key}"
            raise InvalidRequestError(f"{path} is not supported; leave it out", param=path)
        unknown.handle(str(key), known, where)


def _text(content: object, where: str, is_optional: bool, unknown: UnknownFields) -> str:
    if isinstance(content, str):
        return content
    if content is None and is_optional:
        return ""
    if not isinstance(content, list):
        raise InvalidRequestError(
            f"{where} must be a string or a list of parts, got {content!r}", param=where
        )
    parts = (_part(part, f"{where}[{i}]", unknown) for i, part in enumerate(content))
    return PART_SEPARATOR.join(parts)


def _part(part: object, where: str, unknown: UnknownFields) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text" or not isinstance(part, Mapping):
        raise InvalidRequestError(
            f"{where} has the type {kind!r}; this model reads text parts only", param=where
        )
    _check_keys(part, PART_KEYS, where, unknown)
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"{where}.text must be a string, got {text!r}", param=where)
    return text


def _calls(calls: object, role: str, where: str, unknown: UnknownFields) -> list[dict[str, Any]]:
    if role != "assistant":
        raise InvalidRequestError(
            f"{where}: a message of role {role} cannot have tool calls", param=where
        )
    if not isinstance(calls, list):
        raise InvalidRequestError(f"{where} must be a list, got {calls!r}", param=where)
    return [_call(call, f"{where}[{i}]", unknown) for i, call in enumerate(calls)]


def _call(call: object, where: str, unknown: UnknownFields) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise InvalidRequestError(f"{where} must be an object, got {call!r:.100}", param=where)
    read = _custom_call if call.get("type") == "custom" else _function_call
    function = read(call, where, unknown)
    _check_keys(call, CALL_KEYS, where, unknown)
    normal = {"type": "function", "function": function}
    return normal | ({"id": call["id"]} if call.get("id") is not None else {})


def _function_call(call: Mapping[str, Any], where: str, unknown: UnknownFields) -> dict[str, Any]:
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not name:
        raise InvalidRequestError(f"{where} must have a function with a name", param=where)
    _check_keys(function, FUNCTION_KEYS, f"{where}.function", unknown)
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    return {"name": name, "arguments": arguments}


def _custom_call(call: Mapping[str, Any], where: str, unknown: UnknownFields) -> dict[str, Any]:
    """Return the call of a custom tool as that of a function of one text."""
    custom = call.get("custom")
    name = custom.get("name") if isinstance(custom, Mapping) else None
    if not isinstance(custom, Mapping) or not name:
        raise InvalidRequestError(f"{where} must have a custom tool with a name", param=where)
    _check_keys(custom, CUSTOM_KEYS, f"{where}.custom", unknown)
    text, path = custom.get("input"), f"{where}.custom.input"
    if not isinstance(text, str):
        raise InvalidRequestError(f"{path} must be a string, got {text!r:.100}", param=path)
    return {"name": name, "arguments": {INPUT: text}}


def _arguments(arguments: object, where: str) -> dict[str, Any] | str:
    """Return arguments as an object; a text that is none is passed on as it is.

    The API carries them as JSON text. What a model wrote in an earlier turn may be something else,
    and the conversation goes on with it.
    """
    if arguments is None or isinstance(arguments, dict):
        return arguments or {}
    if not isinstance(arguments, str):
        raise InvalidRequestError(
            f"{where} must be JSON text or an object, got {arguments!r:.100}", param=where
        )
    if not arguments.strip():
        return {}
    try:
        parsed = json.loads(without_halves(arguments))
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments
