"""The schemas that a schema in normal form consists of, found by keyword and not by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

BY_NAME = ("properties", "patternProperties", "$defs")
IN_LIST = ("allOf", "anyOf", "prefixItems")
SINGLE = ("items", "additionalProperties")

Schema = dict[str, Any]


def with_subschemas(schema: Schema, changed: Callable[[Any], Any]) -> Schema:
    """Return a copy of a schema in normal form whose direct subschemas are changed.

    Args:
        schema: Schema in normal form.
        changed: Function of a subschema, which may be a truth value.
    """
    found = dict(schema)
    for word in BY_NAME:
        if word in found:
            found[word] = {name: changed(part) for name, part in found[word].items()}
    for word in IN_LIST:
        if word in found:
            found[word] = [changed(part) for part in found[word]]
    for word in SINGLE:
        if word in found:
            found[word] = changed(found[word])
    return found


def inner_schemas(schema: Schema) -> Iterator[Any]:
    """Yield the direct subschemas of a schema in normal form, truth values too."""
    for word in BY_NAME:
        yield from schema.get(word, {}).values()
    for word in IN_LIST:
        yield from schema.get(word, ())
    for word in SINGLE:
        if word in schema:
            yield schema[word]


def all_subschemas(schema: Any) -> Iterator[Schema]:
    """Yield a schema in normal form and all schemas in it that are no truth values."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, dict):
            continue
        yield each
        waiting += inner_schemas(each)
