"""Complements of schemas in normal form, and the properties that a schema evaluates.

An automaton has no `not`. But the complement of what schemas are negated in practice (a required
property, a constant, a type) can be written with other keywords. Each function returns schemas that
allow a part of the complement, all of it where that is possible, and never more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from quire_structured_output.schemas.disjoint import json_type_of

MAX_ALTERNATIVES = 32
MAX_WORDS = 200  # of an enum whose complement is written
ALL_TYPES = ("object", "array", "string", "number", "boolean", "null")

Schema = dict[str, Any]
Resolve = Callable[[Any], Any]


def complement(schema: Any, resolve: Resolve) -> list[Schema] | None:
    """Return schemas of which each allows only values that `schema` does not; None: unknown.

    Args:
        schema: Schema in normal form.
        resolve: Function that follows a reference.
    """
    schema = resolve(schema)
    if schema is False:
        return [{}]
    if schema == {}:
        return []
    if not isinstance(schema, dict):
        return None
    found: list[Schema] = []
    for word, value in schema.items():
        part = _complement_of(word, value, resolve)
        if part is not None:
            found += part
    is_known = bool(found) and len(found) <= MAX_ALTERNATIVES
    return found if is_known else None


def _complement_of(word: str, value: Any, resolve: Resolve) -> list[Schema] | None:
    """Return schemas of values that break one keyword."""
    match word:
        case "required":
            return [{"type": "object", "properties": {name: False}} for name in value]
        case "type":
            others = other_types({value} if isinstance(value, str) else set(value))
            return [{"type": others}] if others else []
        case "enum":
            return _not_one_of(value)
        case "properties":
            return _broken_property(value, resolve)
        case "allOf":
            parts = [complement(each, resolve) for each in value]
            return [each for part in parts if part for each in part]
        case "anyOf":
            each_part = [complement(each, resolve) for each in value]
            if any(part is None for part in each_part):
                return None
            products = itertools.product(*[part or [] for part in each_part])
            return [_all_of(parts) for parts in itertools.islice(products, MAX_ALTERNATIVES)]
    return None


def _broken_property(properties: Schema, resolve: Resolve) -> list[Schema]:
    found: list[Schema] = []
    for name, part in properties.items():
        for other in complement(part, resolve) or ():
            broken = {"type": "object", "required": [name], "properties": {name: other}}
            found.append(broken)
    return found


def _not_one_of(values: Sequence[Any]) -> list[Schema] | None:
    """Return schemas of values that are none of a list of strings, truth values and nulls."""
    types = {json_type_of(value) for value in values}
    words = [value for value in values if isinstance(value, str)]
    if types - {"string", "boolean", "null"} or len(words) > MAX_WORDS:
        return None
    found: list[Schema] = []
    if others := other_types(types):
        found.append({"type": others})
    if words:
        found.append({"type": "string", "pattern": f"^(?:{_other_words(words)})$"})
    if len(flags := {value for value in values if isinstance(value, bool)}) == 1:
        found.append({"enum": [not next(iter(flags))]})
    return found


def other_types(types: set[str]) -> list[str]:
    """Return the types that values of other types than these have."""
    if "integer" in types:
        types = types | {"number"}  # a part: numbers with a fraction are left out
    return [name for name in ALL_TYPES if name not in types]


def _other_words(words: Sequence[str]) -> str:
    """Return a regex for all strings but these, in the syntax of the normal form."""
    first: dict[str, list[str]] = {}
    for word in words:
        if word:
            first.setdefault(word[0], []).append(word[1:])
    chars = "".join(_char(char) for char in sorted(first))
    anything = r"[\x{0}-\x{10ffff}]"
    others = f"[^{chars}]{anything}*" if chars else f"{anything}+"
    parts = [] if "" in words else [""]
    parts.append(others)
    parts += [f"{_char(char)}(?:{_other_words(rest)})" for char, rest in first.items()]
    return "|".join(parts)


def _char(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"


def _all_of(parts: Sequence[Schema]) -> Schema:
    return parts[0] if len(parts) == 1 else {"allOf": list(parts)}


def evaluated(schema: Any, resolve: Resolve, depth: int = 0) -> tuple[set[str], set[str]] | None:
    """Return the names and regexes of properties that a schema evaluates whatever the value is.

    None: it evaluates all properties.
    """
    names: set[str] = set()
    regexes: set[str] = set()
    schema = resolve(schema)
    if not isinstance(schema, dict) or depth > 16:
        return names, regexes
    if "additionalProperties" in schema:
        return None
    names |= schema.get("properties", {}).keys()
    regexes |= schema.get("patternProperties", {}).keys()
    for part in schema.get("allOf", ()):
        inner = evaluated(part, resolve, depth + 1)
        if inner is None:
            return None
        names |= inner[0]
        regexes |= inner[1]
    return names, regexes
