"""Tools of a chat request, and the constraint that forces a tool call."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.errors import InvalidRequestError
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.unknown_fields import UnknownFields
from quire.sampling_params import StructuredOutputsParams
from quire.server.wire.bodies import convert
from quire.server.wire.protocol import ChatBody, Function, Tool

MAX_TOOLS = 128
_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FUNCTION_FIELDS = Function.__struct_encode_fields__


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools of a chat request, and how the model may call them.

    Attributes:
        tools: Tools that the template shows the model; empty if it must not call any.
        constraint: Structured-output constraint that forces a call, if one is forced.
        allows_parallel: Whether a completion may have more than one call.
    """

    tools: list[dict[str, Any]]
    constraint: StructuredOutputsParams | None = None
    allows_parallel: bool = True


NO_TOOLS = ToolUse([])


def tool_use(body: ChatBody, frontend: AsyncFrontend, unknown: UnknownFields) -> ToolUse:
    """Read `tools`, `tool_choice` and `parallel_tool_calls`.

    Args:
        body: Body of the request.
        frontend: Frontend whose tool parser reads the calls.
        unknown: What happens to fields that do not exist.

    Raises:
        InvalidRequestError: They are contradictory, or the tool parser does not support them.
        RequestError: The tool parser refuses the tools, or failed.
    """
    tools = _checked(body.tools or [], unknown)
    allows_parallel = body.parallel_tool_calls is not False
    choice = body.tool_choice or "auto"
    if choice == "none" or (choice == "auto" and not tools):
        return NO_TOOLS
    if choice == "auto":
        return ToolUse(tools, None, allows_parallel)
    if not tools:
        raise InvalidRequestError(
            "tool_choice asks for a call, but there are no tools", param="tools"
        )
    if choice == "required":
        return ToolUse(tools, _forced(tools, frontend, allows_parallel), allows_parallel)
    name = _named(choice, unknown)
    named = [tool for tool in tools if tool["function"]["name"] == name]
    if not named:
        raise InvalidRequestError(
            f"tool_choice names {name!r:.80}, which is not among the tools", param="tool_choice"
        )
    return ToolUse(named, _forced(named, frontend, False), allows_parallel=False)


def _checked(tools: Sequence[dict[str, Any]], unknown: UnknownFields) -> list[dict[str, Any]]:
    if len(tools) > MAX_TOOLS:
        raise InvalidRequestError(f"tools takes at most {MAX_TOOLS} tools", param="tools")
    names = [_name(tool, f"tools[{i}]", unknown) for i, tool in enumerate(tools)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequestError(f"tools: {twice!r} is given twice", param="tools")
    return list(tools)


def _name(raw: dict[str, Any], where: str, unknown: UnknownFields) -> str:
    if raw.get("type") != "function":
        raise InvalidRequestError(
            f"{where}.type must be 'function', got {raw.get('type')!r:.50}", param=f"{where}.type"
        )
    name = convert(raw, Tool, where).function.name
    unknown.check(raw, Tool.__struct_fields__, where)
    unknown.check(raw["function"], _FUNCTION_FIELDS, f"{where}.function")
    if not _FUNCTION_NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{where}.function.name must be 1 to 64 letters, digits, dots, dashes or underscores, "
            f"got {name[:80]!r}",
            param=f"{where}.function.name",
        )
    return name


def _named(choice: str | dict[str, Any], unknown: UnknownFields) -> str:
    """Return the function that `{"type": "function", "function": {"name": ...}}` names."""
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(function, dict) and isinstance(name, str):
            unknown.check(choice, ("type", "function"), "tool_choice")
            unknown.check(function, ("name",), "tool_choice.function")
            return name
    raise InvalidRequestError(
        "tool_choice must be none, auto, required or "
        '{"type": "function", "function": {"name": ...}}',
        param="tool_choice",
    )


def _forced(
    tools: list[dict[str, Any]], frontend: AsyncFrontend, allows_parallel: bool
) -> StructuredOutputsParams:
    calls = frontend.completion_parsers.call_grammar([tool["function"] for tool in tools])
    if calls is None:
        raise InvalidRequestError(
            "the tool-call parser of this model cannot force a call; send tool_choice auto",
            param="tool_choice",
        )
    if not allows_parallel:
        calls = msgspec.structs.replace(calls, separator=None)
    return StructuredOutputsParams(calls=calls)
