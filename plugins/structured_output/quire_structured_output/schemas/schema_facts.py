"""What can be known of all values of a schema in normal form, and whether two have one in common.

A proof that schemas exclude each other is sought type by type: by listed values, lengths, ranges,
the items of arrays, and the properties of objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire_structured_output.schemas.disjoint import json_type_of, key_of
from quire_structured_output.schemas.ecma_search import WrittenRegexes
from quire_structured_output.schemas.schema_marks import NARROWED

ALL_TYPES = frozenset({"object", "array", "string", "number", "boolean", "null"})
MAX_DEPTH = 12  # of schemas in schemas that are compared
MAX_ALTERNATIVES = 24
ALTERNATIVES_DEPTH = 4  # as many levels does a choice of alternatives count for
MAX_VALUES = 200  # that are compared with regexes
MAX_SEARCH_WORK = 400_000  # of regexes in names and values
EXCLUSIVE = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
WITH_COLON, WITH_AT = frozenset({"uri", "ipv6"}), frozenset({"email"})

Schema = dict[str, Any]
Resolve = Callable[[Any], Any]


@dataclass(slots=True)
class Facts:
    """What holds for each value of a schema.

    Attributes:
        types: Its possible types; whole numbers are numbers.
        values: The possible values; None: they are not listed.
        required: Names that an object has.
        properties: For a name the schemas of its value; False is among them if it has none.
        is_closed: Whether an object has no other names than `properties` and `patterns` allow.
        patterns: Regexes of further names.
        items: Schemas of all items of an array.
        low: Keyword of a count or bound -> the largest.
        high: Keyword of a count or bound -> the smallest.
        format: Format of a string that the parser knows.
        regexes: Expressions that a string matches.
        alternatives: Lists of schemas, of each of which one holds.
    """

    types: frozenset[str] = ALL_TYPES
    values: list[Any] | None = None
    required: set[str] = field(default_factory=set)
    properties: dict[str, list[Any]] = field(default_factory=dict)
    is_closed: bool = False
    patterns: set[str] = field(default_factory=set)
    items: list[Any] = field(default_factory=list)
    low: dict[str, float] = field(default_factory=dict)
    high: dict[str, float] = field(default_factory=dict)
    format: str | None = None
    regexes: list[str] = field(default_factory=list)
    alternatives: list[Sequence[Any]] = field(default_factory=list)

    def allows_name(self, name: str, regexes: WrittenRegexes) -> bool:
        """Return whether an object may have a property of this name, as far as is known."""
        if False in self.properties.get(name, ()):
            return False
        if not self.is_closed or name in self.properties:
            return True
        return any(regexes.is_found(expression, name) is not False for expression in self.patterns)


def facts_of(parts: Sequence[Any], resolve: Resolve) -> Facts | None:
    """Return what holds for each value of all of some schemas; None: there is no value.

    Args:
        parts: Schemas in normal form, with their marks; nothing is read of what is narrower.
        resolve: Function that follows a reference.
    """
    found, waiting, num_read = Facts(), list(parts), 0
    while waiting and num_read < 200:  # what is not read is not known
        part = resolve(waiting.pop())
        num_read += 1
        if part is False:
            return None
        if isinstance(part, dict):
            if NARROWED not in part:
                _add(found, part)
            waiting += part.get("allOf", ())
            if "$ref" in part and len(part) > 1:
                waiting.append({"$ref": part["$ref"]})
    return found if found.types and found.values != [] else None


def _add(found: Facts, part: Schema) -> None:
    if "type" in part:
        named = part["type"] if isinstance(part["type"], list) else [part["type"]]
        found.types &= {"number" if name == "integer" else name for name in named}
    if "enum" in part:
        keys = {key_of(value) for value in part["enum"]}
        listed = part["enum"] if found.values is None else found.values
        found.values = [value for value in listed if key_of(value) in keys]
        found.types &= {_plain_type(value) for value in found.values}
    found.required.update(part.get("required", ()))
    for name, value in part.get("properties", {}).items():
        found.properties.setdefault(name, []).append(value)
    if part.get("additionalProperties") is False:
        found.is_closed = True
        found.patterns.update(part.get("patternProperties", ()))
    if "items" in part and "prefixItems" not in part:
        found.items.append(part["items"])
    for word in ("minItems", "minLength", "minimum", "exclusiveMinimum"):
        if word in part:
            found.low[word] = max(found.low.get(word, -math.inf), part[word])
    for word in ("maxItems", "maxLength", "maximum", "exclusiveMaximum"):
        if word in part:
            found.high[word] = min(found.high.get(word, math.inf), part[word])
    found.format = part.get("format", found.format)
    if "pattern" in part:
        found.regexes.append(part["pattern"])
    if "anyOf" in part:
        found.alternatives.append(part["anyOf"])


class Comparison:
    """Proofs that schemas have no value in common.

    Args:
        resolve: Function that follows a reference.
        charge: Function that is called for each comparison, and raises if there are too many.
    """

    def __init__(self, resolve: Resolve, charge: Callable[[], None]) -> None:
        self.resolve = resolve
        self._charge = charge
        self.regexes = WrittenRegexes(MAX_SEARCH_WORK)

    def are_disjoint(self, first: Sequence[Any], second: Sequence[Any], depth: int = 0) -> bool:
        """Return whether it is proved that no value satisfies both all `first` and all `second`."""
        self._charge()
        if depth > MAX_DEPTH:
            return False
        one, other = facts_of(first, self.resolve), facts_of(second, self.resolve)
        if one is None or other is None:
            return True
        common = one.types & other.types
        if all(self._are_disjoint_as(kind, one, other, depth) for kind in common):
            return True
        return self._by_alternatives(first, one, second, depth) or self._by_alternatives(
            second, other, first, depth
        )

    def _by_alternatives(
        self, own: Sequence[Any], facts: Facts, other: Sequence[Any], depth: int
    ) -> bool:
        """Return whether each schema of some `anyOf` excludes `other`."""
        for parts in facts.alternatives:
            if len(parts) <= MAX_ALTERNATIVES:
                rest = [_without(each, parts, self.resolve) for each in own]
                deeper = depth + ALTERNATIVES_DEPTH
                if all(self.are_disjoint([*rest, each], other, deeper) for each in parts):
                    return True
        return False

    def _are_disjoint_as(self, kind: str, one: Facts, other: Facts, depth: int) -> bool:
        if one.values is not None and other.values is not None:
            keys = {key_of(value) for value in one.values if _plain_type(value) == kind}
            return all(key_of(v) not in keys for v in other.values if _plain_type(v) == kind)
        if kind in ("string", "number") and self._are_no_values(kind, one, other):
            return True
        match kind:
            case "object":
                return self._excludes(one, other, depth) or self._excludes(other, one, depth)
            case "array":
                is_filled = max(one.low.get("minItems", 0), other.low.get("minItems", 0)) > 0
                return _are_apart(one, other, "minItems", "maxItems") or (
                    is_filled and self.have_disjoint_items(one, other, depth)
                )
            case "string":
                return _are_apart(one, other, "minLength", "maxLength") or _have_disjoint_formats(
                    one.format, other.format
                )
            case "number":
                return _are_apart(one, other, "minimum", "maximum")
        return False

    def _are_no_values(self, kind: str, one: Facts, other: Facts) -> bool:
        """Return whether the values that one schema lists are not allowed by the other."""
        values, facts = (one.values, other) if one.values is not None else (other.values, one)
        if values is None or len(values) > MAX_VALUES:
            return False
        listed = [value for value in values if _plain_type(value) == kind]
        if kind == "number":
            return all(_are_apart(_only(value), facts, "minimum", "maximum") for value in listed)
        return all(self._is_no_string_of(value, facts) for value in listed)

    def _is_no_string_of(self, value: str, facts: Facts) -> bool:
        length = len(value)
        if not facts.low.get("minLength", 0) <= length <= facts.high.get("maxLength", math.inf):
            return True
        return any(
            self.regexes.is_found(expression, value) is False for expression in facts.regexes
        )

    def have_disjoint_items(self, one: Facts, other: Facts, depth: int = 0) -> bool:
        """Return whether no value can be an item of arrays of both."""
        if not one.items or not other.items:
            return False
        return self.are_disjoint(one.items, other.items, depth + 1)

    def _excludes(self, one: Facts, other: Facts, depth: int) -> bool:
        """Return whether a name that `one` requires is impossible in `other`."""
        for name in one.required:
            if not other.allows_name(name, self.regexes):
                return True
            own, others = one.properties.get(name), other.properties.get(name)
            is_in_both = name in other.required and own and others
            if is_in_both and self.are_disjoint(own or (), others or (), depth + 1):
                return True
        return False


def _without(schema: Any, parts: Sequence[Any], resolve: Resolve) -> Any:
    """Return a schema without one `anyOf`, of which a schema is assumed to hold."""
    found = resolve(schema)
    if isinstance(found, dict) and found.get("anyOf") is parts:
        return {word: value for word, value in found.items() if word != "anyOf"}
    return schema


def _are_apart(one: Facts, other: Facts, low: str, high: str) -> bool:
    """Return whether counts or numbers cannot be equal."""

    def is_below(first: Facts, second: Facts) -> bool:
        upper, is_upper_open = _bound(first.high, high, min, math.inf)
        lower, is_lower_open = _bound(second.low, low, max, -math.inf)
        return upper < lower or (upper == lower and (is_upper_open or is_lower_open))

    return is_below(one, other) or is_below(other, one)


def _bound(
    bounds: dict[str, float], word: str, choose: Callable[..., float], none: float
) -> tuple[float, bool]:
    """Return a bound, and whether it is excluded."""
    closed, is_open = bounds.get(word, none), bounds.get(EXCLUSIVE.get(word, ""), none)
    return choose(closed, is_open), choose(closed, is_open) != closed or is_open == closed != none


def _have_disjoint_formats(one: str | None, other: str | None) -> bool:
    """Return whether one format needs a character that a hostname does not have."""
    both = {one, other}
    return "hostname" in both and bool(both & (WITH_COLON | WITH_AT))


def _only(value: float) -> Facts:
    return Facts(low={"minimum": value}, high={"maximum": value})


def _plain_type(value: Any) -> str:
    kind = json_type_of(value)
    return "number" if kind == "integer" else kind
