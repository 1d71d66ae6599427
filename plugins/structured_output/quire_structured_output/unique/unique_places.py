"""Where a schema asks for unique items: the places of a JSON text, found by walking the schema.

A place is what the schemas in normal form may say of one value. It joins the branches of `anyOf`,
as the text does not tell which of them will hold: an array is unique if one of them asks for it. So
a text is never wrongly accepted, and only a schema that mixes arrays of both kinds in one place
becomes narrower.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from quire_structured_output.schemas.ecma_search import WrittenRegexes

UNIQUE = "x-unique"  # marks the arrays of a normal form whose items are unique

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """What a schema may say of one value.

    Attributes:
        leaves: Schemas without references and alternatives, of which some or all hold.
        is_unique: Whether the items are unique if the value is an array.
        is_plain: Whether all items have one schema, whatever the other items are.
    """

    leaves: tuple[Schema, ...]
    is_unique: bool
    is_plain: bool
    schema: UniqueSchema = field(repr=False)

    def item(self, index: int) -> Place | None:
        """Return the place of an item; None: no unique array is in it."""
        parts = []
        for leaf in self.leaves:
            first = leaf.get("prefixItems", ())
            parts.append(first[index] if index < len(first) else leaf.get("items"))
        return self.schema.place(parts)

    def value(self, name: bytes) -> Place | None:
        """Return the place of the value of a property; None: no unique array is in it.

        Args:
            name: The name as it is written in JSON, with quotes.
        """
        plain = json.loads(name)
        return self.schema.place(
            [part for leaf in self.leaves for part in self.schema.values_of(leaf, plain)]
        )


class UniqueSchema:
    """The places of a schema in normal form.

    Args:
        schema: The schema; arrays of unique items have the mark `UNIQUE`.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._defs = schema.get("$defs", {})
        self._places: dict[tuple[int, ...], Place | None] = {}
        self._regexes = WrittenRegexes()

    @cached_property
    def root(self) -> Place | None:
        """The place of the whole text; None: the schema has no unique array."""
        return self.place([self._schema])

    def place(self, parts: list[Any]) -> Place | None:
        """Return what several schemas say together; None: no unique array is in it."""
        relevant = [part for part in parts if id(part) in self._leading]
        if not relevant:
            return None
        key = tuple(sorted({id(part) for part in parts if isinstance(part, dict)}))
        if key not in self._places:
            leaves = tuple(self._leaves(parts))
            arrays = [leaf for leaf in leaves if _may_be_array(leaf)]
            self._places[key] = Place(
                leaves=leaves,
                is_unique=any(UNIQUE in leaf for leaf in leaves),
                is_plain=len(arrays) == 1 and "prefixItems" not in arrays[0],
                schema=self,
            )
        return self._places[key]

    def values_of(self, leaf: Schema, name: str) -> Iterator[Any]:
        """Yield the schemas that one schema has for the value of a property."""
        is_listed = name in leaf.get("properties", {})
        if is_listed:
            yield leaf["properties"][name]
        for expression, part in leaf.get("patternProperties", {}).items():
            is_found = self._regexes.is_found(expression, name)
            if is_found is not False:  # if it is not known, the others hold too
                yield part
            is_listed = is_listed or is_found is True
        if not is_listed:
            yield leaf.get("additionalProperties")

    def _leaves(self, parts: list[Any]) -> Iterator[Schema]:
        seen: set[int] = set()
        waiting = [part for part in parts if isinstance(part, dict)]
        while waiting:
            part = waiting.pop()
            if id(part) in seen:
                continue
            seen.add(id(part))
            waiting += [each for each in self._same_value(part) if isinstance(each, dict)]
            if set(part) - {"$ref", "allOf", "anyOf", "$defs"}:
                yield part

    def _same_value(self, part: Schema) -> Iterator[Any]:
        if "$ref" in part:
            yield self._defs[part["$ref"].rsplit("/", 1)[1]]
        yield from part.get("allOf", ())
        yield from part.get("anyOf", ())

    @cached_property
    def _leading(self) -> set[int]:
        """The ids of the schemas from which a unique array can be reached."""
        parents: dict[int, list[int]] = {}
        waiting: list[Any] = [self._schema, *self._defs.values()]
        marked: list[int] = []
        seen: set[int] = set()
        while waiting:
            part = waiting.pop()
            if not isinstance(part, dict) or id(part) in seen:
                continue
            seen.add(id(part))
            if UNIQUE in part:
                marked.append(id(part))
            for inner in [*self._same_value(part), *_inner(part)]:
                parents.setdefault(id(inner), []).append(id(part))
                waiting.append(inner)
        found: set[int] = set()
        while marked:
            each = marked.pop()
            if each not in found:
                found.add(each)
                marked += parents.get(each, ())
        return found


def _inner(part: Schema) -> Iterator[Any]:
    """Yield the schemas of the values inside a value."""
    yield from part.get("properties", {}).values()
    yield from part.get("patternProperties", {}).values()
    yield from part.get("prefixItems", ())
    yield part.get("items")
    yield part.get("additionalProperties")


def _may_be_array(leaf: Schema) -> bool:
    types = leaf.get("type", "array")
    return "array" in ([types] if isinstance(types, str) else types)
