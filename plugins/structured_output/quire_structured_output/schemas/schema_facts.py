"""What can be known of all values of a schema in normal form, and whether two have one in common.

A proof that schemas exclude each other is sought type by type: by listed values, lengths, ranges,
the items of arrays, and the properties of objects. Types and names are compared in an order that is
the same in each process, for so is then the work, which has a limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire_structured_output.schemas.disjoint import json_type_of, key_of
from quire_structured_output.schemas.ecma_search import WrittenRegexes
from quire_structured_output.schemas.schema_marks import NARROWED

ALL_TYPES = ("null", "boolean", "number", "string", "array", "object")  # quick ones first
MAX_READ = 200  # schemas of one value
WORK_READ = 16  # values or schemas that are read
WORK_COMPARED = 256  # values whose keys are compared
MAX_DEPTH = 12  # of schemas in schemas that are compared
MAX_ALTERNATIVES = 24
ALTERNATIVES_DEPTH = 4  # as many levels does a choice of alternatives count for
MAX_VALUES = 200  # that are compared with regexes
MAX_SEARCH_WORK = 100_000  # of regexes in names and values
EXCLUSIVE = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
WITH_COLON, WITH_AT = frozenset({"uri", "ipv6"}), frozenset({"email"})

Schema = dict[str, Any]
Resolve = Callable[[Any], Any]


@dataclass(slots=True)
class Facts:
    """What holds for each value of a schema.

    Attributes:
        types: Its possible types; whole numbers are numbers.
        values: For a type the possible values by `key_of`; None: they are not listed.
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

    types: frozenset[str] = frozenset(ALL_TYPES)
    values: dict[str, dict[str, Any]] | None = None
    required: dict[str, None] = field(default_factory=dict)
    properties: dict[str, list[Any]] = field(default_factory=dict)
    is_closed: bool = False
    patterns: dict[str, None] = field(default_factory=dict)
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


def _by_type(values: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Return the values of an enum by type and key."""
    found: dict[str, dict[str, Any]] = {}
    for value in values:
        found.setdefault(_plain_type(value), {})[key_of(value)] = value
    return found


def _common(
    one: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the values that two enums have in common."""
    both = {
        kind: {key: value for key, value in one[kind].items() if key in other[kind]}
        for kind in one
        if kind in other
    }
    return {kind: values for kind, values in both.items() if values}


def _add(found: Facts, part: Schema, listed: dict[str, dict[str, Any]] | None) -> None:
    if "type" in part:
        named = part["type"] if isinstance(part["type"], list) else [part["type"]]
        found.types &= {"number" if name == "integer" else name for name in named}
    if listed is not None:
        found.values = listed if found.values is None else _common(found.values, listed)
        found.types &= found.values.keys()
    found.required.update(dict.fromkeys(part.get("required", ())))
    for name, value in part.get("properties", {}).items():
        found.properties.setdefault(name, []).append(value)
    if part.get("additionalProperties") is False:
        found.is_closed = True
        found.patterns.update(dict.fromkeys(part.get("patternProperties", ())))
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
        charge: Function that is called with the work of each comparison, and raises if it is too
            much. One is the work of a comparison of small schemas.
    """

    def __init__(self, resolve: Resolve, charge: Callable[[int], None]) -> None:
        self.resolve = resolve
        self.charge = charge
        self.regexes = WrittenRegexes(MAX_SEARCH_WORK)
        self._values: dict[int, tuple[Any, dict[str, dict[str, Any]]]] = {}
        self._facts: dict[tuple[int, ...], tuple[Sequence[Any], Facts | None]] = {}

    def facts_of(self, parts: Sequence[Any]) -> Facts | None:
        """Return what holds for each value of all of some schemas; None: there is no value.

        Args:
            parts: Schemas in normal form, with their marks; nothing is read of what is narrower.
                They must not change.
        """
        key = tuple(map(id, parts))
        if key not in self._facts:  # with the parts, so that their ids are not used again
            self._facts[key] = tuple(parts), self._read(parts)
        return self._facts[key][1]

    def _read(self, parts: Sequence[Any]) -> Facts | None:
        found, waiting, num_read = Facts(), list(parts), 0
        while waiting and num_read < MAX_READ:  # what is not read is not known
            part = self.resolve(waiting.pop())
            num_read += 1
            if part is False:
                return None
            if isinstance(part, dict):
                if NARROWED not in part:
                    _add(found, part, self._listed(part))
                waiting += part.get("allOf", ())
                if "$ref" in part and len(part) > 1:
                    waiting.append({"$ref": part["$ref"]})
        self.charge(num_read // WORK_READ)
        return found if found.types else None

    def _listed(self, part: Schema) -> dict[str, dict[str, Any]] | None:
        """Return the values of a schema's enum by type and key, which are read once."""
        if "enum" not in part:
            return None
        values = part["enum"]
        if id(values) not in self._values:
            self.charge(len(values) // WORK_READ)
            self._values[id(values)] = values, _by_type(values)
        return self._values[id(values)][1]

    def are_disjoint(self, first: Sequence[Any], second: Sequence[Any], depth: int = 0) -> bool:
        """Return whether it is proved that no value satisfies both all `first` and all `second`."""
        self.charge(1)
        if depth > MAX_DEPTH:
            return False
        one, other = self.facts_of(first), self.facts_of(second)
        if one is None or other is None:
            return True
        common = [kind for kind in ALL_TYPES if kind in one.types & other.types]
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
            values, others = one.values.get(kind, {}), other.values.get(kind, {})
            self.charge(min(len(values), len(others)) // WORK_COMPARED)
            return values.keys().isdisjoint(others)
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
        listed = [] if values is None else list(values.get(kind, {}).values())
        if values is None or len(listed) > MAX_VALUES:
            return False
        self.charge(len(listed) // WORK_READ)
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
