"""Values that the schema of an argument lists, and constants that it allows."""

import json
from typing import Any

from quire_tool_parsers.argument_schemas import TYPING, Schema, types_of, types_of_value
from quire_tool_parsers.written_values import json_text

MAX_DEPTH = 32  # of references and alternatives
CONSTANTS: dict[str, tuple[Any, ...]] = {"null": (None,), "boolean": (True, False)}
_NOTES = frozenset({"title", "description", "default", "examples", "deprecated", "nullable"})
_PLAIN = TYPING | _NOTES | {"$defs", "definitions"}


def listed_values(schema: Any, root: Schema, depth: int = MAX_DEPTH) -> list[Any] | None:
    """Return the values that a schema lists; None: it has others, or further conditions.

    Args:
        schema: The schema.
        root: The schema with the definitions that it refers to.
        depth: Levels of references and alternatives that are followed.
    """
    if not isinstance(schema, dict) or schema.keys() - _PLAIN or depth == 0:
        return None
    if "enum" in schema or "const" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        types = types_of({"type": schema["type"]}) if "type" in schema else None
        return [each for each in values if types is None or types_of_value(each) & types]
    if "$ref" in schema:
        return listed_values(_referred(root, schema["$ref"]), root, depth - 1)
    branches = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf") or []
    if not branches or ("allOf" in schema and len(branches) > 1):
        return None
    found = [listed_values(branch, root, depth - 1) for branch in branches]
    known = [values for values in found if values is not None]
    return None if len(known) < len(found) else [each for values in known for each in values]


def readable_texts(values: list[Any], types: frozenset[str]) -> list[str]:
    """Return the strings among values that are read as one of the values from plain text.

    Args:
        values: Values that a schema lists.
        types: Types that the parser reads the argument as.
    """
    texts = [value for value in values if isinstance(value, str)]
    return [text for text in texts if is_among(json.loads(json_text(text, types)), values)]


def is_among(value: Any, values: list[Any]) -> bool:
    """Whether a value is in a list, in which true is not 1."""
    return any(type(each) is type(value) and each == value for each in values)


def allows(schema: Any, value: Any, root: Schema, depth: int = MAX_DEPTH) -> bool:
    """Whether a schema allows a constant, as far as types, lists and alternatives say.

    Args:
        schema: The schema.
        value: null, true or false.
        root: The schema with the definitions that it refers to.
        depth: Levels of references and alternatives that are followed.
    """
    if not isinstance(schema, dict) or depth == 0:
        return schema is not False

    def each_of(keyword: str) -> list[bool]:
        return [allows(branch, value, root, depth - 1) for branch in schema[keyword]]

    if "$ref" in schema and not allows(_referred(root, schema["$ref"]), value, root, depth - 1):
        return False
    if "type" in schema and not types_of({"type": schema["type"]}) & types_of_value(value):
        return False
    if "enum" in schema and not is_among(value, schema["enum"]):
        return False
    if "const" in schema and not is_among(value, [schema["const"]]):
        return False
    some = all(any(each_of(keyword)) for keyword in ("anyOf", "oneOf") if keyword in schema)
    return some and ("allOf" not in schema or all(each_of("allOf")))


def _referred(root: Schema, reference: Any) -> Any:
    """Return the definition that a reference names; any value, if there is none."""
    place: Any = root
    for step in str(reference).removeprefix("#/").split("/"):
        place = place.get(step) if isinstance(place, dict) else None
    return {} if place is None else place
