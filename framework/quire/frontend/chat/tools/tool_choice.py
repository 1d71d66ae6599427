"""Tools of a chat request, and the constraints that force a call or its arguments.

With `tool_choice` required or a named function the completion consists of calls. With auto it is
free text, in which calls may be; if a function has `strict: true`, the arguments of its calls
follow its schema all the same.

Custom tools are functions of one text from here on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from quire.call_grammar import CallGrammar
from quire.errors import InvalidRequestError
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers, Tools
from quire.frontend.chat.tools.checked_tools import checked_tools
from quire.frontend.chat.tools.custom_tools import CUSTOM, formats_of
from quire.frontend.chat.tools.tool_definitions import AllowedTools
from quire.frontend.typed_value import convert
from quire.frontend.unknown_fields import UnknownFields
from quire.sampling_params import BeamSearchParams, SamplingParams, StructuredOutputsParams

P = TypeVar("P", SamplingParams, BeamSearchParams, SamplingParams | BeamSearchParams)
Key = tuple[str, str]  # type of a tool, and its name
Choice = str | Mapping[str, Any] | None
_STRICT = UnknownFields()


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
        formats: Regular expressions of the inputs of custom tools that may be called, by their
            paths in the request.
    """

    tools: list[dict[str, Any]]
    constraint: StructuredOutputsParams | None = None
    allows_parallel: bool = True
    strict_calls: StructuredOutputsParams | None = None
    is_named: bool = False
    custom: frozenset[str] = frozenset()
    formats: Mapping[str, str] = field(default_factory=dict)

    def constrained(self, params: P) -> P:
        """Return parameters by which calls are forced, or follow the schemas of strict tools.

        A constraint of the whole completion allows no calls, so strict tools add nothing to it.

        Args:
            params: Parameters of sampling or of a beam search.

        Raises:
            InvalidRequestError: They have another constraint beside a forced call, or are those of
                a beam search, which follows no constraint.
        """
        wanted = self.strict_calls if self.constraint is None else self.constraint
        if wanted is None:
            return params
        if isinstance(params, BeamSearchParams):
            raise InvalidRequestError(
                "a beam search compares the model's own log probabilities, so it can neither force "
                "a call nor follow a strict tool; leave out tool_choice and strict",
                param="tools",
            )
        if params.structured_outputs is None:
            return msgspec.structs.replace(params, structured_outputs=wanted)
        if self.constraint is not None:
            raise exclusive_constraints("a forced tool call")
        return params


NO_TOOLS = ToolUse([])


def tool_use(
    tools: Tools,
    choice: Choice,
    parsers: CompletionParsers,
    unknown: UnknownFields = _STRICT,
    *,
    allows_parallel: bool = True,
) -> ToolUse:
    """Read `tools` and `tool_choice` of a request.

    Args:
        tools: Tools in OpenAI's format.
        choice: Choice among them in OpenAI's format; None: auto.
        parsers: Parsers of the completions.
        unknown: What happens to fields that do not exist.
        allows_parallel: Whether a completion may have more than one call.

    Raises:
        InvalidRequestError: They are contradictory, or the tool parser does not support them.
        RequestError: The tool parser refuses the tools, or failed.
    """
    checked = checked_tools(tools, unknown)
    given = tools or ()
    custom = frozenset(tool[CUSTOM]["name"] for tool in given if tool["type"] == CUSTOM)
    use = _tool_use(checked, choice or "auto", custom, parsers, unknown, allows_parallel)
    if not custom:
        return use
    used = {tool["function"]["name"] for tool in use.tools}
    return replace(use, custom=custom, formats=formats_of(given, used))


def exclusive_constraints(other: str) -> InvalidRequestError:
    """Return the error of a request that has `structured_outputs` and another constraint."""
    return InvalidRequestError(
        f"structured_outputs and {other} exclude each other; send one of them",
        param="structured_outputs",
    )


def no_tool_parser() -> InvalidRequestError:
    """Return the error of a request whose calls could not be read."""
    return InvalidRequestError(
        "this model has no tool-call parser, so its calls could not be read; start with "
        "--tool-call-parser NAME (in Python: tool_call_parser=NAME), or send tool_choice none",
        param="tools",
    )


def _tool_use(
    tools: list[dict[str, Any]],
    choice: str | Mapping[str, Any],
    custom: frozenset[str],
    parsers: CompletionParsers,
    unknown: UnknownFields,
    allows_parallel: bool,
) -> ToolUse:
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        choice, tools = _allowed(choice, tools, custom, unknown)
    if choice == "none" or (choice == "auto" and not tools):
        return NO_TOOLS
    if choice == "auto":
        strict = _strict(tools, custom, parsers, allows_parallel)
        return ToolUse(tools, None, allows_parallel, strict)
    if not tools:
        raise InvalidRequestError(
            "tool_choice asks for a call, but there are no tools", param="tools"
        )
    if choice == "required":
        return ToolUse(tools, _forced(tools, parsers, allows_parallel), allows_parallel)
    kind, name = _named(choice, unknown)
    named = [tool for tool in tools if _key(tool, custom) == (kind, name)]
    if not named:
        raise InvalidRequestError(
            f"tool_choice names the {kind} {name!r:.80}, which is not among the tools",
            param="tool_choice",
        )
    forced = _forced(named, parsers, allows_parallel=False)
    return ToolUse(named, forced, allows_parallel=False, is_named=True)


def _key(tool: dict[str, Any], custom: frozenset[str]) -> Key:
    """Return the type of a tool, and its name."""
    name = tool["function"]["name"]
    return CUSTOM if name in custom else "function", name


def _allowed(
    choice: Mapping[str, Any],
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


def _named(
    choice: str | Mapping[str, Any], unknown: UnknownFields, where: str = "tool_choice"
) -> Key:
    """Return the type and the name of `{"type": "function", "function": {"name": ...}}`."""
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if isinstance(choice, Mapping) and kind in ("function", CUSTOM):
        named = choice.get(kind)
        name = named.get("name") if isinstance(named, Mapping) else None
        if isinstance(named, Mapping) and isinstance(name, str):
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
    tools: list[dict[str, Any]], parsers: CompletionParsers, allows_parallel: bool
) -> StructuredOutputsParams:
    if not parsers.reads_calls:
        raise no_tool_parser()
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
    parsers: CompletionParsers,
    allows_parallel: bool,
) -> StructuredOutputsParams | None:
    """Return the constraint of calls in free text; None if no function is strict."""
    functions = [tool["function"] for tool in tools]
    first = next((i for i, function in enumerate(functions) if function.get("strict")), None)
    if first is None:
        return None
    if not parsers.reads_calls:
        raise no_tool_parser()
    shown = [function if function.get("strict") else _lax(function) for function in functions]
    calls = parsers.call_grammar(shown, at_least_one=False)
    if calls is None or not calls.triggers:
        is_custom = functions[first]["name"] in custom
        where = f"tools[{first}].{'custom.format' if is_custom else 'function.strict'}"
        raise InvalidRequestError(
            f"{where} needs a tool-call parser that constrains calls in free text, and this "
            f"model's does not{_lack(parsers, '[writing] with triggers')}; "
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
