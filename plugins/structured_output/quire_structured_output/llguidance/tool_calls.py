"""Grammars of tool calls: of calls and nothing else, or of calls in free text, after a trigger."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quire.errors import GrammarError
from quire.interfaces.tool_parsing import CallGrammar, CallShape, SchemaPiece
from quire_structured_output.llguidance.lark_writing import json_part, literal
from quire_structured_output.llguidance.structural_tag import lark_of_format

OPENING = frozenset(  # keywords by which an object may have other names
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"}
    | {"allOf", "anyOf", "oneOf", "if", "$ref", "$dynamicRef", "dependentSchemas", "dependencies"}
)

NormalForm = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _ToolSchema:
    """A schema of a tool's arguments."""

    tool: str
    schema: dict[str, Any] | bool

    def normal(self, normal_form: NormalForm) -> dict[str, Any]:
        """Return the normal form of the schema.

        Raises:
            GrammarError: It is not supported; the message names the tool and the keyword.
        """
        try:
            return normal_form(_closed(self.schema))
        except GrammarError as error:
            raise GrammarError(f"the parameters of the tool {self.tool!r:.80}: {error}") from error


def lark_of_calls(calls: CallGrammar, normal_form: NormalForm) -> str:
    """Return the grammar of tool calls.

    Args:
        calls: Formats of the calls.
        normal_form: Function that returns the normal form of a JSON schema in them.

    Raises:
        GrammarError: A tool's schema is not supported, or a call has no trigger; the message names
            the tool.
    """
    if not calls.shapes:
        raise GrammarError("the request has no tool that could be called")
    if calls.triggers:
        return _calls_in_text(calls, normal_form)
    rules = [
        f"call{i}: {' '.join(_piece(piece, shape.tool, normal_form) for piece in shape.pieces)}"
        for i, shape in enumerate(calls.shapes)
    ]
    names = " | ".join(f"call{i}" for i in range(len(rules)))
    start = "call" if calls.separator is None else f"call ({literal(calls.separator)} call)*"
    return "\n".join([f"start: {start}", f"call: {names}", *rules])


def _piece(piece: str | SchemaPiece, tool: str, normal_form: NormalForm) -> str:
    if isinstance(piece, str):
        return literal(piece)
    return json_part(_ToolSchema(tool, piece.schema).normal(normal_form))


def _calls_in_text(calls: CallGrammar, normal_form: NormalForm) -> str:
    """Return the grammar of free text with calls, which is that of a structural tag."""
    tags = {
        "type": "triggered_tags",
        "triggers": list(calls.triggers),
        "tags": [_tag(shape) for shape in calls.shapes],
        "stop_after_first": calls.separator is None,
    }
    return lark_of_format(tags, "tools", lambda schema: schema.normal(normal_form))


def _tag(shape: CallShape) -> dict[str, Any]:
    begin, *rest = shape.pieces
    if not isinstance(begin, str) or not rest:
        raise GrammarError(f"a call of the tool {shape.tool!r:.80} does not begin with a text")
    content = [
        {"type": "const_string", "value": piece}
        if isinstance(piece, str)
        else {"type": "json_schema", "json_schema": _ToolSchema(shape.tool, piece.schema)}
        for piece in rest
    ]
    return {"begin": begin, "content": {"type": "sequence", "elements": content}, "end": ""}


def _closed(schema: dict[str, Any] | bool) -> dict[str, Any] | bool:
    """Return the schema of a tool's arguments without names that the tool does not declare."""
    if isinstance(schema, bool) or "properties" not in schema or OPENING & schema.keys():
        return schema
    return {**schema, "additionalProperties": False}
