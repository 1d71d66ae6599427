"""Complements of schemas in normal form.

An automaton has no `not`. But the complement of what schemas are negated in practice (a required
property, a constant, a type, a bound) can be written with other keywords: all of it where that is
possible, else a part, and never more. Nothing is known of the complement of what is narrower than
a schema.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from quire_structured_output.schemas.disjoint import json_type_of
from quire_structured_output.schemas.other_words import other_words
from quire_structured_output.schemas.schema_marks import MARKS, NARROWED, WIDENED

MAX_ALTERNATIVES = 32
MAX_WORDS = 200  # of an enum whose complement is written
MAX_CHARACTERS = 10_000  # of these words together
ALL_TYPES = ("object", "array", "string", "number", "boolean", "null")
OPPOSITE_BOUNDS = {
    "minimum": "exclusiveMaximum",
    "exclusiveMinimum": "maximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMaximum": "minimum",
}
OPPOSITE_COUNTS = {  # with the type that a keyword counts for, and the difference
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
}

Schema = dict[str, Any]
Resolve = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Complement:
    """Values that a schema does not allow.

    Attributes:
        parts: Schemas of which each allows only such values.
        is_whole: Whether they allow all of them.
    """

    parts: list[Schema]
    is_whole: bool


def complement(schema: Any, resolve: Resolve) -> Complement | None:
    """Return schemas of which each allows only values that `schema` does not; None: unknown.

    Args:
        schema: Schema in normal form, with its marks.
        resolve: Function that follows a reference.
    """
    schema = resolve(schema)
    if schema is False:
        return Complement([{}], is_whole=True)
    if schema == {}:
        return Complement([], is_whole=True)
    if not isinstance(schema, dict) or NARROWED in schema:
        return None
    words = [(word, value) for word, value in schema.items() if word not in MARKS]
    found = _union(_complement_of(word, value, resolve) for word, value in words)
    found = Complement(_joined(found.parts), found.is_whole)
    is_whole = found.is_whole and WIDENED not in schema
    if len(found.parts) > MAX_ALTERNATIVES or not (found.parts or is_whole):
        return None
    return Complement(found.parts, is_whole)


def whole_complement(schema: Any, resolve: Resolve) -> list[Schema] | None:
    """Return schemas that together allow all values that `schema` does not; None: unknown."""
    found = complement(schema, resolve)
    return found.parts if found is not None and found.is_whole else None


def complement_parts(schema: Any, resolve: Resolve) -> list[Schema]:
    """Return schemas of which each allows only values that `schema` does not, as far as known."""
    found = complement(schema, resolve)
    return [] if found is None else found.parts


def outside(word: str, value: float) -> list[Schema]:
    """Return schemas of the values of its type that break a bound or a count, at most one."""
    if word in OPPOSITE_BOUNDS:
        return [{"type": "number", OPPOSITE_BOUNDS[word]: value}]
    kind, opposite, difference = OPPOSITE_COUNTS[word]
    count = int(value) + difference
    return [{"type": kind, opposite: count}] if count >= 0 else []


def _union(parts: Iterable[Complement | None]) -> Complement:
    listed = list(parts)
    known = [part for part in listed if part is not None]
    is_whole = len(known) == len(listed) and all(part.is_whole for part in known)
    return Complement([each for part in known for each in part.parts], is_whole)


def _complement_of(word: str, value: Any, resolve: Resolve) -> Complement | None:
    """Return schemas of values that break one keyword."""
    match word:
        case "required":
            absent = [{"type": "object", "properties": {name: False}} for name in value]
            return Complement(absent, is_whole=True)
        case "type":
            named = _named_types(value)
            others = other_types(named)
            is_whole = "integer" not in named or "number" in named
            return Complement([{"type": others}] if others else [], is_whole)
        case "enum":
            return _not_one_of(value)
        case "properties":
            return _broken_property(value, resolve)
        case "allOf":
            return _union(complement(each, resolve) for each in value)
        case "anyOf":
            return _intersection([complement(each, resolve) for each in value])
        case "minProperties" if value == 1:
            empty = {"type": "object", "properties": {}, "additionalProperties": False}
            return Complement([empty], is_whole=True)
        case "maxProperties" if value == 0:
            return Complement([{"type": "object", "minProperties": 1}], is_whole=True)
        case _ if word in OPPOSITE_BOUNDS or word in OPPOSITE_COUNTS:
            return Complement(outside(word, value), is_whole=True)
        case _ if value == {}:  # of further properties or of items, which are then of any kind
            return Complement([], is_whole=True)
    return None


def _joined(parts: Iterable[Schema]) -> list[Schema]:
    """Return schemas each once, and as one what types and what strings they allow.

    A parser compares each alternative with all of another `anyOf`: few of them are quick.
    """
    types: set[str] = set()
    patterns: dict[str, None] = {}
    others: list[Schema] = []
    for part in parts:
        if part.keys() in ({"type"}, {"type", "pattern"}):
            named = _named_types(part["type"])
            if "pattern" in part and "string" in named:
                named.remove("string")
                patterns[part["pattern"]] = None
            types |= named
        elif part not in others:
            others.append(part)
    return [*_of_types(types, list(patterns)), *others]


def _of_types(types: set[str], patterns: Sequence[str]) -> list[Schema]:
    """Return schemas of the values of some types and of the strings that match a pattern."""
    if not types:
        return [{"type": "string", "pattern": pattern} for pattern in patterns]
    if "string" in types or not patterns:
        return [{"type": [name for name in ALL_TYPES if name in types]}]
    first, *rest = patterns
    both = [name for name in ALL_TYPES if name in types or name == "string"]
    return [{"type": both, "pattern": first}, *_of_types(set(), rest)]


def _named_types(named: str | Sequence[str]) -> set[str]:
    """Return the types that the keyword `type` names."""
    return {named} if isinstance(named, str) else set(named)


def _intersection(listed: Sequence[Complement | None]) -> Complement | None:
    known = [part for part in listed if part is not None]
    if len(known) < len(listed):
        return None
    products = itertools.product(*[part.parts for part in known])
    found = [_all_of(parts) for parts in itertools.islice(products, MAX_ALTERNATIVES + 1)]
    is_whole = len(found) <= MAX_ALTERNATIVES and all(part.is_whole for part in known)
    return Complement(found[:MAX_ALTERNATIVES], is_whole)


def _broken_property(properties: Schema, resolve: Resolve) -> Complement:
    found: list[Complement | None] = []
    for name, part in properties.items():
        other = complement(part, resolve)
        if other is not None:
            broken = [
                {"type": "object", "required": [name], "properties": {name: value}}
                for value in other.parts
            ]
            other = Complement(broken, other.is_whole)
        found.append(other)
    return _union(found)


def _not_one_of(values: Sequence[Any]) -> Complement | None:
    """Return schemas of values that are none of a list of strings, truth values and nulls."""
    types = {json_type_of(value) for value in values}
    words = [value for value in values if isinstance(value, str)]
    if types - {"string", "boolean", "null"} or len(words) > MAX_WORDS:
        return None
    if sum(map(len, words)) > MAX_CHARACTERS:
        return None
    found: list[Schema] = []
    if others := other_types(types):
        found.append({"type": others})
    if words:
        found.append({"type": "string", "pattern": f"^(?:{other_words(words)})$"})
    if len(flags := {value for value in values if isinstance(value, bool)}) == 1:
        found.append({"enum": [not next(iter(flags))]})
    return Complement(found, is_whole=True)


def other_types(types: set[str]) -> list[str]:
    """Return the types that values of other types than these have."""
    if "integer" in types:
        types = types | {"number"}  # a part: numbers with a fraction are left out
    return [name for name in ALL_TYPES if name not in types]


def _all_of(parts: Sequence[Schema]) -> Schema:
    return parts[0] if len(parts) == 1 else {"allOf": list(parts)}
