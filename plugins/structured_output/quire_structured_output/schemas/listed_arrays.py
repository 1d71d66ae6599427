"""`uniqueItems` of a short enum as a list of arrays, for JSON with text around it.

Such a text is not read along, so the grammar has to say all of it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

from quire_structured_output.schemas.disjoint import key_of
from quire_structured_output.schemas.schema_complement import other_types
from quire_structured_output.schemas.subschemas import with_subschemas
from quire_structured_output.schemas.written_size import charge_written, written_size
from quire_structured_output.unique.unique_places import UNIQUE

MAX_ITEMS = 10  # of the enum
MAX_ARRAYS = 1_000  # in any order; longer ones in one order

Schema = dict[str, Any]


def with_listed_arrays(schema: Schema, spent: Counter[str]) -> Schema:
    """Return a schema in normal form that lists the arrays whose unique items are a short enum.

    Args:
        schema: The schema.
        spent: What the schemas of the constraint have cost, to which the arrays are added.

    Raises:
        GrammarError: The arrays have too many characters.
    """
    defs = schema.get("$defs", {})

    def rewritten(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        found = with_subschemas(part, rewritten)
        return _listed(found, defs, spent) if part.get(UNIQUE) is True else found

    return dict(rewritten(schema))


def _listed(schema: Schema, defs: Schema, spent: Counter[str]) -> Schema:
    """Return an array as one of a list; the schema itself if its items are no short enum."""
    items = schema.get("items", {})
    if isinstance(items, dict) and set(items) == {"$ref"}:
        items = defs[items["$ref"].rsplit("/", 1)[1]]
    is_short = isinstance(items, dict) and len(items.get("enum", [None] * 99)) <= MAX_ITEMS
    if not is_short or set(items) - {"enum", "type"} or "prefixItems" in schema:
        return schema
    values = list({key_of(value): value for value in items["enum"]}.values())
    low, high = schema.get("minItems", 0), min(len(values), schema.get("maxItems", len(values)))
    gone = {"items", "minItems", "maxItems", UNIQUE}
    rest = {word: value for word, value in schema.items() if word not in gone}
    listed_arrays = []
    for array in _arrays(values, low, high):
        charge_written(spent, written_size(array))
        listed_arrays.append(array)
    arrays = {"enum": listed_arrays}
    listed = {"anyOf": [{"type": other_types({"array"})}, arrays]}
    return {**rest, "allOf": [*rest.get("allOf", []), listed]}


def _arrays(values: list[Any], low: int, high: int) -> Iterator[list[Any]]:
    """Yield arrays of different values: in any order up to a length, and then in the given one."""
    num_arrays = 0
    for length in range(low, high + 1):
        arrays = list(itertools.islice(itertools.permutations(values, length), MAX_ARRAYS + 1))
        if num_arrays + len(arrays) > MAX_ARRAYS:
            arrays = list(itertools.combinations(values, length))
        num_arrays += len(arrays)
        yield from map(list, arrays)
