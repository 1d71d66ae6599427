"""Tools of a chat request, and the constraints that force a call or its arguments.

With `tool_choice` required or a named function the completion consists of calls. With auto it is
free text, in which calls may be; if a function has `strict: true`, the arguments of its calls
follow its schema all the same.

Custom tools are functions of one text from here on.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from quire.call_grammar import CallGrammar
from quire.errors import InvalidRequestError
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers
from quire.frontend.chat.tool_schemas import object_schema
from quire.frontend.unknown_fields import UnknownFields
from quire.sampling_params import StructuredOutputsParams
from quire.server.routes.chat.custom_tools import CUSTOM, function_tool
from quire.server.wire.bodies import convert
from quire.server.wire.protocol import AllowedTools, ChatBody, Function, Tool

MAX_TOOLS = 128
_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
Key = tuple[str, str]  # type of a tool, and its name
_FUNCTION_FIELDS = Function.__struct_encode_fields__


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools of a chat request, and how the model may call them.

    Attributes:
        tools: Tools that the template shows the model; empty if it must not call any.
        constraint: Structured-output constraint that forces a call, if one is forced.
        allows_parallel: Whether a completion may have more than one call.
        strict_calls: Constraint of the calls in free text, if a tool is strict.
        is_named: Whether the request names the function that is called.
        custom: Names of custom tools.
    """

    tools: list[dict[str, Any]]
    constraint: StructuredOutputsParams | None = None
    allows_parallel: bool = True
    strict_calls: StructuredOutputsParams | None = None
    is_named: bool = False
    custom: frozenset[str] = frozenset()


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
    use = _tool_use(body, checked_tools(body.tools or [], unknown), frontend, unknown)
    custom = custom_names(body.tools or [])
    return replace(use, custom=custom) if custom else use


def _tool_use(
    body: ChatBody, tools: list[dict[str, Any]], frontend: AsyncFrontend, unknown: UnknownFields
) -> ToolUse:
    allows_parallel = body.parallel_tool_calls is not False
    choice = body.tool_choice or "auto"
    custom = custom_names(body.tools or [])
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        choice, tools = _allowed(choice, tools, custom, unknown)
    if choice == "none" or (choice == "auto" and not tools):
        return NO_TOOLS
    if choice == "auto":
        strict = _strict(tools, custom, frontend, allows_parallel)
        return ToolUse(tools, None, allows_parallel, strict)
    if not tools:
        raise InvalidRequestError(
            "tool_choice asks for a call, but there are no tools", param="tools"
        )
    if choice == "required":
        return ToolUse(tools, _forced(tools, frontend, allows_parallel), allows_parallel)
    kind, name = _named(choice, unknown)
    named = [tool for tool in tools if _key(tool, custom) == (kind, name)]
    if not named:
        raise InvalidRequestError(
            f"tool_choice names the {kind} {name!r:.80}, which is not among the tools",
            param="tool_choice",
        )
    forced = _forced(named, frontend, allows_parallel=False)
    return ToolUse(named, forced, allows_parallel=False, is_named=True)


def checked_tools(tools: Sequence[dict[str, Any]], unknown: UnknownFields) -> list[dict[str, Any]]:
    """Return the tools of a request; custom tools are functions.

    Raises:
        InvalidRequestError: They are too many, or one of them has no valid name or a broken schema.
        UnknownFieldError: One of them has a field that does not exist.
    """
    if len(tools) > MAX_TOOLS:
        raise InvalidRequestError(f"tools takes at most {MAX_TOOLS} tools", param="tools")
    checked = [_checked(tool, f"tools[{i}]", unknown) for i, tool in enumerate(tools)]
    names = [tool["function"]["name"] for tool in checked]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequestError(f"tools: {twice!r} is given twice", param="tools")
    return checked


def custom_names(tools: Sequence[dict[str, Any]]) -> frozenset[str]:
    """Return the names of the custom tools among tools that `checked_tools` has accepted."""
    return frozenset(tool[CUSTOM]["name"] for tool in tools if tool["type"] == CUSTOM)


def _checked(raw: dict[str, Any], where: str, unknown: UnknownFields) -> dict[str, Any]:
    """Return a tool as a function."""
    kind = raw.get("type")
    if kind == CUSTOM:
        tool = function_tool(raw, where, unknown)
    elif kind == "function":
        tool = raw
        convert(raw, Tool, where)
        unknown.check(raw, Tool.__struct_fields__, where)
        unknown.check(raw["function"], _FUNCTION_FIELDS, f"{where}.function")
        object_schema(raw["function"], f"{where}.function")
    else:
        raise InvalidRequestError(
            f"{where}.type must be 'function' or 'custom', got {kind!r:.50}", param=f"{where}.type"
        )
    name = tool["function"]["name"]
    if not _FUNCTION_NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{where}.{kind}.name must be 1 to 64 letters, digits, dots, dashes or underscores, "
            f"got {name[:80]!r}",
            param=f"{where}.{kind}.name",
        )
    return tool


def _key(tool: dict[str, Any], custom: frozenset[str]) -> Key:
    """Return the type of a tool, and its name."""
    name = tool["function"]["name"]
    return CUSTOM if name in custom else "function", name


def _allowed(
    choice: dict[str, Any],
    tools: list[dict[str, Any]],
    custom: frozenset[str],
    unknown: UnknownFields,
) -> tuple[str, list[dict[str, Any]]]:
    """Return the mode of `{"type": "allowed_tools", ...}`, and the tools that it allows.

    Raises:
        InvalidRequestError: It is incomplete, or allows a tool that there is not.
    """
    where = "tool_choice.allowed_tools"
    given = convert(choice.get("allowed_tools"), AllowedTools, where)
    unknown.check(choice, ("type", "allowed_tools"), "tool_choice")
    unknown.check(choice["allowed_tools"], AllowedTools.__struct_fields__, where)
    keys = {_named(tool, unknown, f"{where}.tools[{i}]") for i, tool in enumerate(given.tools)}
    allowed = [tool for tool in tools if _key(tool, custom) in keys]
    missing = keys - {_key(tool, custom) for tool in allowed}
    if not given.tools:
        raise InvalidRequestError(
            f"{where}.tools is empty; name the tools, or send tool_choice none",
            param=f"{where}.tools",
        )
    if missing:
        _, name = min(missing)
        raise InvalidRequestError(
            f"{where} names {name!r:.80}, which is not among the tools", param=f"{where}.tools"
        )
    return given.mode, allowed


def _named(choice: str | dict[str, Any], unknown: UnknownFields, where: str = "tool_choice") -> Key:
    """Return the type and the name of `{"type": "function", "function": {"name": ...}}`."""
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(choice, dict) and kind in ("function", CUSTOM):
        named = choice.get(kind)
        name = named.get("name") if isinstance(named, dict) else None
        if isinstance(named, dict) and isinstance(name, str):
            unknown.check(choice, ("type", kind), where)
            unknown.check(named, ("name",), f"{where}.{kind}")
            return kind, name
    raise InvalidRequestError(
        "tool_choice must be none, auto, required, "
        '{"type": "function", "function": {"name": ...}}, the same with custom, or '
        '{"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}',
        param=where,
    )


def _forced(
    tools: list[dict[str, Any]], frontend: AsyncFrontend, allows_parallel: bool
) -> StructuredOutputsParams:
    parsers = frontend.completion_parsers
    calls = parsers.call_grammar([tool["function"] for tool in tools], at_least_one=True)
    if calls is None:
        raise InvalidRequestError(
            "the tool-call parser of this model cannot force a call"
            f"{_lack(parsers, '[writing]')}; send tool_choice auto",
            param="tool_choice",
        )
    return _constraint(calls, allows_parallel)


def _strict(
    tools: list[dict[str, Any]],
    custom: frozenset[str],
    frontend: AsyncFrontend,
    allows_parallel: bool,
) -> StructuredOutputsParams | None:
    """Return the constraint of calls in free text; None if no function is strict."""
    functions = [tool["function"] for tool in tools]
    first = next((i for i, function in enumerate(functions) if function.get("strict")), None)
    if first is None or not frontend.completion_parsers.reads_calls:
        return None
    shown = [function if function.get("strict") else _lax(function) for function in functions]
    calls = frontend.completion_parsers.call_grammar(shown, at_least_one=False)
    if calls is None or not calls.triggers:
        is_custom = functions[first]["name"] in custom
        where = f"tools[{first}].{'custom.format' if is_custom else 'function.strict'}"
        raise InvalidRequestError(
            f"{where} needs a tool-call parser that constrains calls in free text, and this "
            f"model's does not{_lack(frontend.completion_parsers, '[writing] with triggers')}; "
            f"leave {where.rpartition('.')[2]} out, or send tool_choice required",
            param=where,
        )
    return _constraint(calls, allows_parallel)


def _lack(parsers: CompletionParsers, field: str) -> str:
    """Return what a user's table needs for calls to be constrained; empty for other parsers."""
    if parsers.tools is None or not parsers.tools.source.is_table:
        return ""
    return f", for which its file {parsers.tools.source.plugin} needs {field}"


def _lax(function: dict[str, Any]) -> dict[str, Any]:
    """Return a function whose arguments are not constrained."""
    return {"name": function["name"], "parameters": {"type": "object"}, "strict": False}


def _constraint(calls: CallGrammar, allows_parallel: bool) -> StructuredOutputsParams:
    if not allows_parallel:
        calls = msgspec.structs.replace(calls, separator=None)
    return StructuredOutputsParams(calls=calls)
