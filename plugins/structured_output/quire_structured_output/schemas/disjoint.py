"""Check that two schemas have no common value, so that `oneOf` is equivalent to `anyOf`.

True is a proof; False only means that no proof was found. The check uses types, listed values, and
properties of objects: one that both require with different values (a discriminator), or one that
the first requires and the second forbids.
"""

import json
from collections.abc import Collection
from typing import Any

_NUMBERS = frozenset({"number", "integer"})


def are_disjoint(first: Any, second: Any) -> bool:
    """Return whether it is proved that no value satisfies both; the caller follows references."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return False
    values, other_values = _values(first), _values(second)
    if values is not None and other_values is not None:
        return {key_of(value) for value in values}.isdisjoint(map(key_of, other_values))
    types, other_types = _types(first), _types(second)
    if types is None or other_types is None:
        return False
    if types.isdisjoint(other_types):
        return True
    is_about_objects = types & other_types == {"object"}
    return is_about_objects and (_excludes(first, second) or _excludes(second, first))


def json_type_of(value: Any) -> str:
    """Return the type of a JSON value: integer for whole numbers without a decimal point."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def keeps_type(value: Any, types: Collection[str]) -> bool:
    """Return whether a value has one of the types; 1.0 counts as an integer, as in JSON Schema."""
    kind = json_type_of(value)
    if kind == "integer":
        return not _NUMBERS.isdisjoint(types)
    if kind == "number":
        return "number" in types or ("integer" in types and value.is_integer())
    return kind in types


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _types(schema: dict[str, Any]) -> frozenset[str] | None:
    """Return the types that a value of the schema may have; None if unknown."""
    values = _values(schema)
    if values is not None:
        named = {json_type_of(value) for value in values}
    elif "type" in schema:
        named = {schema["type"]} if isinstance(schema["type"], str) else set(schema["type"])
    else:
        return None
    return frozenset(named) | (_NUMBERS if named & _NUMBERS else frozenset())


def _excludes(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Return whether some property of `first` makes it impossible to satisfy `second`."""
    properties, other_properties = first.get("properties", {}), second.get("properties", {})
    if not isinstance(properties, dict) or not isinstance(other_properties, dict):
        return False
    other_required = frozenset(second.get("required", []))
    for name in first.get("required", []):
        if name not in other_properties:
            if second.get("additionalProperties") is False:
                return True
        elif name in other_required and are_disjoint(properties.get(name), other_properties[name]):
            return True
    return False


def key_of(value: Any) -> str:
    """Return a text that is the same for equal JSON values only; 1.0 is 1, and true is not 1."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_plain(part) for part in value]
        case dict():
            return {name: _plain(part) for name, part in value.items()}
    return value
