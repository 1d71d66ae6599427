"""Calls in the value of a region, with arguments of the types that the tools declare."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from quire_tool_parsers.argument_types import STRING, ArgumentTypes
from quire_tool_parsers.json_writing import string_text
from quire_tool_parsers.response_template.content import json_value
from quire_tool_parsers.written_values import json_text


@dataclass(frozen=True, slots=True)
class Call:
    """A call.

    Attributes:
        name: Name of the tool.
        arguments: JSON text of an object.
        id: Id that the model has written, if any.
    """

    name: str
    arguments: str
    id: str | None


def calls_in(value: Any, types: ArgumentTypes, *, is_untyped: bool) -> Iterator[Call]:
    """Yield the calls in a value: one, or a list of them.

    Args:
        value: Calls as in a message, with or without `function` around them.
        types: Types of arguments.
        is_untyped: Whether the values of arguments were written without types.

    Raises:
        ValueError: A call has no name, or its arguments are not an object.
    """
    for each in value if isinstance(value, list) else [value]:
        outer = each if isinstance(each, dict) else {}
        call = outer.get("function", outer)
        name = call.get("name") if isinstance(call, dict) else None
        if not isinstance(name, str) or not name:
            raise ValueError("a call has a name")
        members = _members(call.get("arguments"))
        texts = (
            f"{string_text(key)}: {_argument(member, types.of(name, key, frozenset()), is_untyped)}"
            for key, member in members.items()
        )
        call_id = outer.get("id")
        call_id = call_id if isinstance(call_id, str) else None
        yield Call(_encodable(name), _escaped(f"{{{', '.join(texts)}}}"), call_id)


def _encodable(name: str) -> str:
    """Return a name; raise a UnicodeEncodeError, a ValueError, for half a character."""
    name.encode()
    return name


def _escaped(text: str) -> str:
    """Return a JSON text with escapes for halves of characters, which no response can have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(json.loads(text))
    return text


def _members(arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str):
        arguments = json_value(arguments)
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise ValueError("arguments are an object")
    return arguments


def _argument(value: Any, types: frozenset[str], is_untyped: bool) -> str:
    """Return the JSON text of an argument."""
    if isinstance(value, str) and types:
        return json_text(value, types)
    if isinstance(value, list) and types and "array" not in types:
        return f"[{', '.join(_argument(each, types, is_untyped) for each in value)}]"
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    is_text = is_untyped and types == STRING and not isinstance(value, str)
    return string_text(text) if is_text else text
