"""Types of a tool's arguments, for formats that write values as plain text.

The types are those that the tool's JSON schema allows. A text becomes the first kind of value that
it is the text of and the schema allows: null, integer, number, boolean, object, array. Otherwise it
is a string: what a model has written is never lost.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

MAX_DEPTH = 16  # of alternatives in alternatives

_TYPES = ("null", "integer", "number", "boolean", "object", "array", "string")


class ArgumentTypes:
    """Types of the arguments of a request's tools.

    Args:
        tools: `function` objects of OpenAI's tool definitions.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._schemas = {tool["name"]: tool.get("parameters") for tool in tools}

    @property
    def names(self) -> frozenset[str]:
        """Names of the tools."""
        return frozenset(self._schemas)

    def of(self, tool: str, key: str) -> frozenset[str]:
        """Return the types of an argument; those of one that is not declared are string."""
        schema = self._schemas.get(tool)
        properties = schema.get("properties") if isinstance(schema, dict) else None
        declared = properties.get(key) if isinstance(properties, dict) else None
        return frozenset(_types(declared, MAX_DEPTH)) or frozenset({"string"})


def json_text(text: str, types: frozenset[str]) -> str:
    """Return the JSON text of a value.

    Args:
        text: Text of the value.
        types: Types that it may have.
    """
    stripped = text.strip()
    for name, read in _READERS.items():
        if name in types and (found := read(stripped)) is not None:
            return found
    return json.dumps(text, ensure_ascii=False)


def is_text(types: frozenset[str]) -> bool:
    """Whether a value is a string, whatever it looks like."""
    return types <= {"string"}


def _types(schema: Any, depth: int) -> set[str]:
    """Return the types that a schema allows; empty if it does not say."""
    if not isinstance(schema, dict) or depth == 0:
        return set()
    given = schema.get("type")
    found = {name for name in _listed(given) if name in _TYPES}
    if found:
        return found
    for keyword in ("enum", "const"):
        if keyword in schema:
            values = schema["enum"] if keyword == "enum" else [schema["const"]]
            return {_type_of(value) for value in _listed(values)}
    for keyword in ("anyOf", "oneOf", "allOf"):
        for alternative in _listed(schema.get(keyword)):
            found |= _types(alternative, depth - 1)
    if not found and "properties" in schema:
        return {"object"}
    if not found and "items" in schema:
        return {"array"}
    return found


def _listed(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple):
        return value
    return () if value is None else (value,)


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case dict():
            return "object"
        case list():
            return "array"
        case _:
            return "string"


def _null(text: str) -> str | None:
    return "null" if text.lower() in ("null", "none") else None


def _integer(text: str) -> str | None:
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 1000:
        return None
    sign = "-" if text[0] == "-" else ""
    return sign + (digits.lstrip("0") or "0")


def _number(text: str) -> str | None:
    if (whole := _integer(text)) is not None:
        return whole
    try:
        value = float(text)
    except ValueError:
        return None
    return repr(value) if math.isfinite(value) and "_" not in text else None


def _boolean(text: str) -> str | None:
    return {"true": "true", "1": "true", "false": "false", "0": "false"}.get(text.lower())


def _container(opening: str) -> Callable[[str], str | None]:
    def read(text: str) -> str | None:
        if not text.startswith(opening):
            return None
        try:
            value = json.loads(text, parse_constant=_refuse)
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):
            return None

    return read


def _refuse(name: str) -> Any:
    raise ValueError(name)


_READERS: dict[str, Callable[[str], str | None]] = {
    "null": _null,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _container("{"),
    "array": _container("["),
}
