"""Conversion of tools and of the choice among them to those of a chat, which nest their fields."""

from collections.abc import Sequence
from typing import Any

from quire.errors import InvalidRequestError
from quire.frontend.typed_value import in_json
from quire.frontend.unknown_fields import UnknownFields
from quire.server.routes.responses.mcp.requested_server import MCP

_FIELDS = {  # of each type
    "function": ("name", "description", "parameters", "strict"),
    "custom": ("name", "description", "format"),
}
_GRAMMAR = ("syntax", "definition")
_NEUTRAL: dict[str, Any] = {  # fields for OpenAI's own programs -> value that asks for nothing
    "allowed_callers": ["direct"],
    "async": False,
    "defer_loading": False,
    "output_schema": {},
}
_MODES = ("none", "auto", "required")

Tool = dict[str, Any]


def chat_tools(tools: Sequence[Tool] | None, unknown: UnknownFields) -> list[Tool] | None:
    """Return the functions among the tools in the shape of a chat, without tool servers.

    Raises:
        InvalidRequestError: One of them is hosted; `param` is its path.
        UnknownFieldError: One of them has a field that does not exist.
    """
    if tools is None:
        return None
    return [
        _chat_tool(tool, f"tools[{i}]", unknown)
        for i, tool in enumerate(tools)
        if tool.get("type") != MCP
    ]


def chat_choice(
    choice: str | dict[str, Any] | None, unknown: UnknownFields
) -> str | dict[str, Any] | None:
    """Return a choice of tools in the shape of a chat.

    Raises:
        InvalidRequestError: It is no choice among functions and custom tools.
        UnknownFieldError: It has a field that does not exist.
    """
    if choice is None or choice in _MODES:
        return choice
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(choice, dict) and kind in _FIELDS:
        return _named(choice, "tool_choice", unknown)
    if isinstance(choice, dict) and kind == "allowed_tools":
        unknown.check(choice, ("type", "mode", "tools"), "tool_choice")
        tools = choice.get("tools")
        if not isinstance(tools, list):
            raise InvalidRequestError(
                f"tool_choice.tools must be a list, got {in_json(tools)}", param="tool_choice.tools"
            )
        named = [_named(t, f"tool_choice.tools[{i}]", unknown) for i, t in enumerate(tools)]
        allowed = {"mode": choice.get("mode"), "tools": named}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    raise InvalidRequestError(
        f"tool_choice {in_json(kind or choice)} is not supported; it must be none, auto, required, "
        '{"type": "function", "name": ...}, the same with custom, or '
        '{"type": "allowed_tools", "mode": ..., "tools": [...]}',
        param="tool_choice",
    )


def _chat_tool(tool: Tool, where: str, unknown: UnknownFields) -> Tool:
    kind = tool.get("type")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise InvalidRequestError(
            f"{where}: the tool {in_json(kind)} is not supported, as this server has none of its "
            'own; offer one of yours: {"type": "function", "name": ..., "parameters": {...}}',
            param=f"{where}.type",
        )
    given = [name for name, value in tool.items() if value is not None]
    for name in given:
        if name in _NEUTRAL and tool[name] != _NEUTRAL[name]:
            raise InvalidRequestError(
                f"{where}.{name} is not supported, as this server runs no programs that call "
                "functions; leave it out",
                param=f"{where}.{name}",
            )
    unknown.check(given, ("type", *_FIELDS[kind], *_NEUTRAL), where)
    fields = {name: tool[name] for name in given if name in _FIELDS[kind]}
    if kind == "custom" and "format" in fields:
        fields["format"] = _format(fields["format"], f"{where}.format", unknown)
    return {"type": kind, kind: fields}


def _format(given: object, where: str, unknown: UnknownFields) -> object:
    """Return the format of a custom tool's input; one of another type is refused later."""
    if not isinstance(given, dict) or given.get("type") != "grammar":
        return given
    unknown.check(given, ("type", *_GRAMMAR), where)
    return {"type": "grammar", "grammar": {n: given[n] for n in _GRAMMAR if n in given}}


def _named(choice: object, where: str, unknown: UnknownFields) -> dict[str, Any]:
    name = choice.get("name") if isinstance(choice, dict) else None
    kind = choice.get("type") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or kind not in _FIELDS or not isinstance(name, str):
        raise InvalidRequestError(
            f'{where} must be {{"type": "function", "name": ...}}, got {in_json(choice)}',
            param=where,
        )
    unknown.check(choice, ("type", "name"), where)
    return {"type": kind, kind: {"name": name}}
