"""Checks of the tools of a chat, before anything is generated; custom tools become functions."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import InvalidRequestError
from quire.frontend.chat.tool_schemas import check_parameters
from quire.frontend.chat.tools.custom_tools import CUSTOM, function_tool
from quire.frontend.chat.tools.tool_definitions import Function, Tool
from quire.frontend.typed_value import convert, in_json
from quire.frontend.unknown_fields import UnknownFields

MAX_TOOLS = 128
_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FUNCTION_FIELDS = Function.__struct_encode_fields__
_STRICT = UnknownFields()


def checked_tools(
    tools: Sequence[Mapping[str, Any]] | None, unknown: UnknownFields = _STRICT
) -> list[dict[str, Any]]:
    """Return the tools of a request, in their order; custom tools are functions.

    Args:
        tools: Tools in OpenAI's format; None: there are none.
        unknown: What happens to fields that do not exist.

    Raises:
        InvalidRequestError: They are too many, or one of them has no valid name or a broken schema.
        UnknownFieldError: One of them has a field that does not exist.
    """
    given = convert([] if tools is None else tools, list[Any], "tools")
    if len(given) > MAX_TOOLS:
        raise InvalidRequestError(f"tools takes at most {MAX_TOOLS} tools", param="tools")
    checked = [_checked(tool, f"tools[{i}]", unknown) for i, tool in enumerate(given)]
    counts = Counter(tool["function"]["name"] for tool in checked)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        raise InvalidRequestError(f"tools: {twice!r} is given twice", param="tools")
    return checked


def _checked(given: object, where: str, unknown: UnknownFields) -> dict[str, Any]:
    """Return a tool as a function."""
    raw = convert(given, dict[str, Any], where)
    kind = raw.get("type")
    if kind == CUSTOM:
        tool = function_tool(raw, where, unknown)
    elif kind == "function":
        tool = raw
        convert(raw, Tool, where)
        unknown.check(raw, Tool.__struct_fields__, where)
        unknown.check(raw["function"], _FUNCTION_FIELDS, f"{where}.function")
        check_parameters(raw["function"], f"{where}.function")
    else:
        raise InvalidRequestError(
            f"{where}.type must be 'function' or 'custom', got {in_json(kind, 50)}",
            param=f"{where}.type",
        )
    name = tool["function"]["name"]
    if not _FUNCTION_NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{where}.{kind}.name must be 1 to 64 letters, digits, dots, dashes or underscores, "
            f"got {name[:80]!r}",
            param=f"{where}.{kind}.name",
        )
    return tool
