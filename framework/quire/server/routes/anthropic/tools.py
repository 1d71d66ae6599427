"""Conversion of Anthropic's tools and tool choice to those of a chat."""

from collections.abc import Sequence
from typing import Any

import msgspec

from quire.errors import InvalidRequestError
from quire.frontend.typed_value import convert
from quire.frontend.unknown_fields import UnknownFields
from quire.server.routes.anthropic.bodies import ToolChoice

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class ClientTool(msgspec.Struct, kw_only=True):
    """A tool that the client runs."""

    name: str
    input_schema: dict[str, Any]
    type: str | None = None
    description: str | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    allowed_callers: list[str] | None = None
    # without effect: all tools are in the prompt, as far as the template writes them
    defer_loading: bool | None = None
    input_examples: list[dict[str, Any]] | None = None
    cache_control: Any = None


_FIELDS = ClientTool.__struct_fields__


def custom_tools(tools: Sequence[dict[str, Any]], unknown: UnknownFields) -> list[ClientTool]:
    """Return the tools of a request.

    Raises:
        InvalidRequestError: One of them is not the client's, or incomplete.
        UnknownFieldError: One of them has a field that does not exist.
    """
    return [_custom_tool(tool, f"tools[{i}]", unknown) for i, tool in enumerate(tools)]


def chat_tool(tool: ClientTool) -> dict[str, Any]:
    """Return a tool as a function of a chat."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = {"type": "object"} | tool.input_schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def chat_tool_choice(choice: ToolChoice) -> str | dict[str, Any]:
    """Return a tool choice as that of a chat.

    Raises:
        InvalidRequestError: Its type is unknown, or it has no name, or one too many.
    """
    if choice.type == "tool":
        if not choice.name:
            raise InvalidRequestError(
                "tool_choice of type tool needs the name of a tool", param="tool_choice.name"
            )
        return {"type": "function", "function": {"name": choice.name}}
    if choice.type not in _CHOICES:
        raise InvalidRequestError(
            f"tool_choice.type must be auto, any, tool or none, got {choice.type!r:.50}",
            param="tool_choice.type",
        )
    if choice.name is not None:
        raise InvalidRequestError(
            f"tool_choice of type {choice.type} has no name; the type tool has one",
            param="tool_choice.name",
        )
    return _CHOICES[choice.type]


def _custom_tool(raw: dict[str, Any], where: str, unknown: UnknownFields) -> ClientTool:
    kind = raw.get("type")
    if kind not in (None, "custom"):
        raise InvalidRequestError(
            f"{where}.type {kind!r:.80} is not supported: its definition is Anthropic's; define "
            "the tool with name, description and input_schema, and run it in the client",
            param=f"{where}.type",
        )
    tool = convert(raw, ClientTool, where)
    unknown.check([name for name in raw if raw[name] is not None], _FIELDS, where)
    if tool.allowed_callers is not None and "direct" not in tool.allowed_callers:
        raise InvalidRequestError(
            f"{where}.allowed_callers must have direct: this server runs no code that calls tools",
            param=f"{where}.allowed_callers",
        )
    return tool
