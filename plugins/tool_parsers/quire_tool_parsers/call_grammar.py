"""Grammars of calls, from the format of a family: literal texts with JSON schemas between them."""

import json
from collections.abc import Sequence
from typing import Any

from quire.errors import GrammarError
from quire.interfaces.tool_parsing import CallGrammar, CallShape, SchemaPiece
from quire_tool_parsers.call_format import CallFormat

NO_ARGUMENTS = {"type": "object", "additionalProperties": False}
COMBINING_KEYWORDS = frozenset({"$ref", "anyOf", "oneOf", "allOf"})  # refused beside `type`


def call_grammar(
    form: CallFormat, tools: Sequence[dict[str, Any]], *, at_least_one: bool
) -> CallGrammar | None:
    """Return a grammar of calls of `tools`; None if there is none for the format.

    Args:
        form: Format of the calls.
        tools: OpenAI tool definitions, the `function` objects.
        at_least_one: Whether the completion consists of calls; otherwise they are in free text.

    Raises:
        GrammarError: The parameters of a tool are not an object.
    """
    if not tools or not _is_object_between_markers(form):
        return None
    opening = form.section_open[0]
    shapes = tuple(_call_shape(tool, opening, form.section_close[0]) for tool in tools)
    return CallGrammar(shapes, separator="\n", triggers=() if at_least_one else (opening,))


def _is_object_between_markers(form: CallFormat) -> bool:
    has_markers = form.section_open and form.section_close
    return bool(form.notations == ("json",) and has_markers and not form.is_list)


def _call_shape(tool: dict[str, Any], opening: str, closing: str) -> CallShape:
    name = json.dumps(tool["name"], ensure_ascii=False)
    return CallShape(
        tool["name"],
        (
            f'{opening}\n{{"name": {name}, "arguments": ',
            SchemaPiece(arguments_schema(tool)),
            f"}}\n{closing}",
        ),
    )


def arguments_schema(tool: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the arguments of a tool, which is always one of an object.

    Raises:
        GrammarError: The parameters are not an object.
    """
    parameters = tool.get("parameters")
    if parameters is None:
        return NO_ARGUMENTS
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        raise GrammarError(
            f"the parameters of the tool {tool['name']!r} must be a schema of type object",
            param="tools",
        )
    if parameters.keys() & COMBINING_KEYWORDS:
        return parameters
    return {"type": "object"} | parameters
