"""Custom tools, whose input is a text in place of JSON: the model is shown functions of one text.

A regular expression of the input is the pattern of that text, and is enforced as the schema of a
strict function is. A grammar in Lark cannot be: inside JSON its texts have another spelling.
"""

import re
from typing import Any

from quire.errors import InvalidRequestError
from quire.frontend.chat.custom_input import INPUT
from quire.frontend.unknown_fields import UnknownFields
from quire.server.wire.bodies import convert
from quire.server.wire.protocol import CustomGrammar, CustomTool, CustomToolDefinition

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


def _input_schema(
    given: dict[str, Any] | None, where: str, unknown: UnknownFields
) -> dict[str, Any]:
    kind = "text" if given is None else given.get("type")
    if given is None or kind == "text":
        unknown.check(given or (), ("type",), where)
        return {"type": "string", "description": "The input, as plain text"}
    if kind != "grammar":
        raise InvalidRequestError(
            f"{where}.type must be text or grammar, got {kind!r:.50}", param=f"{where}.type"
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
    return {
        "type": "string",
        "description": f"Plain text that matches the regular expression {grammar.definition}",
        "pattern": f"^(?:{_whole_pattern(grammar.definition)})$",
    }


def _whole_pattern(regex: str) -> str:
    """Return a regular expression of a whole text as a JSON schema has it.

    Anchors at its ends add nothing, and names of groups mean nothing: schemas know no `(?P<name>`.
    """
    found = _PARTS.sub(lambda part: "(?:" if part["named"] else part.group(), regex)
    is_escaped = _ESCAPED_END.search(found) is not None
    return found.removeprefix("^") if is_escaped else found.removeprefix("^").removesuffix("$")
