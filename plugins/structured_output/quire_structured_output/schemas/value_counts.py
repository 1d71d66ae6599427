"""How many values a schema in normal form has at most, where they are easily counted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

ONE_OF = {"null": 1, "boolean": 2}


def most_values(schema: Any, resolve: Callable[[Any], Any]) -> int | None:
    """Return an upper bound of the number of values of a schema; None: there is none.

    Args:
        schema: Schema in normal form.
        resolve: Function that follows a reference.
    """
    schema = resolve(schema)
    if schema is False:
        return 0
    if not isinstance(schema, dict):
        return None
    if "enum" in schema:
        return len(schema["enum"])
    if "type" not in schema:
        return None
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    counts = [_of_type(name, schema) for name in types]
    return None if None in counts else sum(count for count in counts if count is not None)


def _of_type(name: str, schema: dict[str, Any]) -> int | None:
    if name != "integer":
        return ONE_OF.get(name)
    low = [math.ceil(schema["minimum"])] if "minimum" in schema else []
    high = [math.floor(schema["maximum"])] if "maximum" in schema else []
    low += [math.floor(schema["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in schema else []
    high += [math.ceil(schema["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in schema else []
    return max(0, min(high) - max(low) + 1) if low and high else None
