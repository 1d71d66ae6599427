"""Grammars of calls, from the way in which a family writes them."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from quire.errors import GrammarError
from quire.interfaces.tool_parsing import CallGrammar, CallShape, MembersPiece, Piece, SchemaPiece
from quire_tool_parsers.argument_pieces import ArgumentPieces
from quire_tool_parsers.argument_schemas import argument_schemas, schema_of_others
from quire_tool_parsers.argument_types import ArgumentTypes
from quire_tool_parsers.call_format import CallFormat
from quire_tool_parsers.call_writing import CallWriting
from quire_tool_parsers.free_body import free_body

_NUMBER = {"type": "integer", "minimum": 0, "maximum": 9999}
_NAME = re.compile(r"[\w.-]+")
_PART = re.compile(r"(\$name|\$number|\$arguments|\$members)")

Tool = dict[str, Any]


def call_grammar(
    form: CallFormat, tools: Sequence[Tool], *, at_least_one: bool
) -> CallGrammar | None:
    """Return a grammar of calls of `tools`; None if there is none for the format.

    Args:
        form: Format of the calls.
        tools: OpenAI tool definitions, the `function` objects, all with `parameters`.
        at_least_one: Whether the completion consists of calls; otherwise they are in free text.

    Raises:
        GrammarError: The format cannot follow the schema of a tool; the message names it.
    """
    writing = form.writing
    if not tools or writing is None or not (at_least_one or writing.triggers):
        return None
    writer = _ShapeWriter(form, writing, tools, is_forced=at_least_one)
    is_at_start = not at_least_one and writing.is_at_start
    return CallGrammar(
        tuple(writer.shape(tool, call) for call in writing.calls for tool in tools),
        separator=None if writing.is_single else writing.separator,
        triggers=() if at_least_one else writing.triggers,
        begin=writing.begin,
        end=writing.end,
        excluded=() if at_least_one else writing.excluded,
        is_at_start=is_at_start,
        covers_reasoning=not (at_least_one or is_at_start) and form.calls_end_reasoning,
    )


class _ShapeWriter:
    """Writer of the calls of a request's tools."""

    def __init__(
        self, form: CallFormat, writing: CallWriting, tools: Sequence[Tool], *, is_forced: bool
    ) -> None:
        self._form = form
        self._writing = writing
        self._is_forced = is_forced
        self._is_json = form.notations[0] == "json"
        self._types = ArgumentTypes(tools)
        self._arguments = ArgumentPieces(form, writing)

    def shape(self, tool: Tool, call: str) -> CallShape:
        """Return the format of a call of one tool."""
        try:
            return CallShape(tool["name"], tuple(self._pieces(tool, call)))
        except GrammarError as error:
            message = f"the parameters of the tool {tool['name']!r:.80}: {error}"
            raise GrammarError(message, param="tools") from error

    def _pieces(self, tool: Tool, call: str) -> Iterator[Piece]:
        """Yield the pieces, literal texts joined."""
        head, members, tail = call.partition("$members")
        is_free = members and not self._is_forced and tool.get("strict") is False
        if is_free and (body := free_body(self._form, head, tail)):
            yield from (*self._pieces(tool, head), *body)
            return
        text = ""
        for part in _PART.split(call):
            match part:
                case "$name":
                    text += self._name(tool["name"])
                case "$number" | "$arguments" | "$members":
                    yield from [text] if text else []
                    text = ""
                    yield self._part(part, tool)
                case _:
                    text += part
        yield from [text] if text else []

    def _name(self, name: str) -> str:
        if self._is_json:
            return json.dumps(name, ensure_ascii=False)[1:-1]
        if not _NAME.fullmatch(name):
            raise GrammarError(f"the format of this model's calls has no spelling for {name!r:.80}")
        return name

    def _part(self, part: str, tool: Tool) -> Piece:
        match part:
            case "$number":
                return SchemaPiece(_NUMBER)
            case "$arguments":
                return SchemaPiece(tool["parameters"])
        name, given = tool["name"], tool["parameters"]
        arguments = argument_schemas(given)
        members = [
            self._arguments.member(argument, self._types.of(name, argument.key))
            for argument in arguments
        ]
        schema, others = schema_of_others(given), None
        if schema is not None:
            types, declared = self._types.of(name, ""), list(given.get("properties", ()))
            others = self._arguments.others(schema, types, declared)
        return MembersPiece(tuple(members), self._writing.argument_separator, others)
