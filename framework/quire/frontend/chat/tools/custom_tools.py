"""Custom tools, whose input is a text in place of JSON: the model is shown functions of one text.

A regular expression of the input is the pattern of that text, and is enforced as the schema of a
strict function is. A grammar in Lark cannot be: inside JSON its texts have another spelling.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from quire.errors import InvalidRequestError
from quire.frontend.chat.custom_input import INPUT
from quire.frontend.chat.schema_faults import pattern_fault
from quire.frontend.chat.tools.tool_definitions import (
    CustomGrammar,
    CustomTool,
    CustomToolDefinition,
)
from quire.frontend.typed_value import convert, in_json
from quire.frontend.unknown_fields import UnknownFields

CUSTOM = "custom"
_PARTS = re.compile(  # of a regular expression: an escape, a class, the beginning of a named group
    r"\\.|\[\^?(?:\\.|[^\]\\])*\]|(?P<named>\(\?P<\w+>)", re.DOTALL
)
_ESCAPED_END = re.compile(r"(?<!\\)(\\\\)*\\\$\Z")


def function_tool(raw: dict[str, Any], where: str, unknown: UnknownFields) -> dict[str, Any]:
    """Return a custom tool as a function.

    Args:
        raw: Tool of the type `custom`.
        where: Its path in the request.
        unknown: What happens to fields that do not exist.

    Raises:
        InvalidRequestError: It is incomplete, or its format is not supported.
        UnknownFieldError: It has a field that does not exist.
    """
    definition = convert(raw, CustomTool, where).custom
    unknown.check(raw, CustomTool.__struct_fields__, where)
    unknown.check(raw[CUSTOM], CustomToolDefinition.__struct_fields__, f"{where}.custom")
    schema = _input_schema(definition.format, f"{where}.custom.format", unknown)
    function: dict[str, Any] = {"name": definition.name}
    if definition.description is not None:
        function["description"] = definition.description
    function["parameters"] = {
        "type": "object",
        "properties": {INPUT: schema},
        "required": [INPUT],
        "additionalProperties": False,
    }
    if "pattern" in schema:
        function["strict"] = True
    return {"type": "function", "function": function}


def formats_of(tools: Sequence[Mapping[str, Any]], names: Collection[str]) -> dict[str, str]:
    """Return the regular expressions of custom tools, by their paths.

    Args:
        tools: Tools of a request, which were checked.
        names: Names of those that are looked at.
    """
    found: dict[str, str] = {}
    for i, tool in enumerate(tools):
        definition = tool.get(CUSTOM, {})
        form = definition.get("format") if definition.get("name") in names else None
        if form is not None and form["type"] == "grammar":
            found[f"tools[{i}].{CUSTOM}.format.grammar.definition"] = form["grammar"]["definition"]
    return found


def _input_schema(
    given: dict[str, Any] | None, where: str, unknown: UnknownFields
) -> dict[str, Any]:
    kind = "text" if given is None else given.get("type")
    if given is None or kind == "text":
        unknown.check(given or (), ("type",), where)
        return {"type": "string", "description": "The input, as plain text"}
    if kind != "grammar":
        raise InvalidRequestError(
            f"{where}.type must be text or grammar, got {in_json(kind, 50)}", param=f"{where}.type"
        )
    unknown.check(given, ("type", "grammar"), where)
    grammar = convert(given.get("grammar"), CustomGrammar, f"{where}.grammar")
    unknown.check(given["grammar"], CustomGrammar.__struct_fields__, f"{where}.grammar")
    if grammar.syntax != "regex":
        raise InvalidRequestError(
            f"{where}.grammar.syntax {grammar.syntax!r:.50} is not supported: the input is in a "
            "string of JSON, which can be limited by a regex only; send the syntax regex, or the "
            "format text with the grammar in the description",
            param=f"{where}.grammar.syntax",
        )
    if (fault := pattern_fault(grammar.definition)) is not None:
        raise InvalidRequestError(
            f"{where}.grammar.definition {fault}: {grammar.definition!r:.80}",
            param=f"{where}.grammar.definition",
        )
    return {
        "type": "string",
        "description": f"Plain text that matches the regular expression {grammar.definition}",
        "pattern": whole_pattern(grammar.definition),
    }


def whole_pattern(definition: str) -> str:
    """Return a regular expression of a whole text as a JSON schema has it.

    Anchors at its ends add nothing, and names of groups mean nothing: schemas know no `(?P<name>`.
    """
    found = _PARTS.sub(lambda part: "(?:" if part["named"] else part.group(), definition)
    is_escaped = _ESCAPED_END.search(found) is not None
    found = found.removeprefix("^") if is_escaped else found.removeprefix("^").removesuffix("$")
    return f"^(?:{found})$"
