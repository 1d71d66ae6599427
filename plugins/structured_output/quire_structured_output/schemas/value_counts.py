"""How many values a schema in normal form has at most, where they are easily counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from quire_structured_output.schemas.disjoint import key_of

ONE_OF = {"null": 1, "boolean": 2}
MAX_DEPTH = 4  # of schemas in schemas whose values are counted

Schema = dict[str, Any]
Resolve = Callable[[Any], Any]


def most_values(schema: Any, resolve: Resolve, depth: int = 0) -> int | None:
    """Return an upper bound of the number of values of a schema; None: there is none.

    Args:
        schema: Schema in normal form.
        resolve: Function that follows a reference.
        depth: Number of schemas around it whose values are counted.
    """
    schema = resolve(schema)
    if schema is False:
        return 0
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return None
    known = [bound for bound in _bounds(schema, resolve, depth + 1) if bound is not None]
    return min(known, default=None)


def _bounds(schema: Schema, resolve: Resolve, depth: int) -> Iterator[int | None]:
    """Yield upper bounds, each by a keyword."""
    if "enum" in schema:
        yield len({key_of(value) for value in schema["enum"]})
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        yield _sum(_of_type(name, schema, resolve, depth) for name in types)
    if "anyOf" in schema:
        yield _sum(most_values(part, resolve, depth) for part in schema["anyOf"])
    for part in schema.get("allOf", ()):
        yield most_values(part, resolve, depth)


def _sum(counts: Iterator[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _of_type(name: str, schema: Schema, resolve: Resolve, depth: int) -> int | None:
    if name == "object":
        return _of_object(schema, resolve, depth)
    if name == "integer":
        return _of_integer(schema)
    return ONE_OF.get(name)


def _of_object(schema: Schema, resolve: Resolve, depth: int) -> int | None:
    if schema.get("additionalProperties") is not False or schema.get("patternProperties"):
        return None
    total = 1
    for name, part in schema.get("properties", {}).items():
        count = most_values(part, resolve, depth)
        if count is None:
            return None
        total *= count if name in schema.get("required", ()) else count + 1
    return total


def _of_integer(schema: Schema) -> int | None:
    low = [math.ceil(schema["minimum"])] if "minimum" in schema else []
    high = [math.floor(schema["maximum"])] if "maximum" in schema else []
    low += [math.floor(schema["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in schema else []
    high += [math.ceil(schema["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in schema else []
    return max(0, min(high) - max(low) + 1) if low and high else None
