"""Translation of a JSON schema to a regular expression.

The regex may match fewer texts than the schema allows (properties are in the schema's order, none
is added, and an unanchored `pattern` must match the whole string), but never one that the schema
forbids. A keyword that is not supported, or unknown, is refused with its name and path: a
constraint that is silently dropped is worse than an error. outlines_core.json_schema is not used,
because it drops most keywords silently.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from quire.errors import GrammarError
from quire_structured_output.budget import Budget
from quire_structured_output.outlines import json_regex
from quire_structured_output.outlines.integer_range import integer_range, integers
from quire_structured_output.outlines.listed_values import values_regex
from quire_structured_output.outlines.supported_keywords import (
    COMBINERS,
    KEYWORDS_OF_TYPE,
    MAX_DEPTH,
    Schema,
    bounds,
    constraints,
    refusal,
    types_of,
)
from quire_structured_output.regex_syntax import check_text, without_nul
from quire_structured_output.schemas.disjoint import are_disjoint
from quire_structured_output.schemas.ecma_regex import whole_match
from quire_structured_output.schemas.json_text import in_pointer, parse_json

MAX_PROPERTIES = 500
MAX_REFERENCE_LENGTH = 1_000
ANY_VALUE_DEPTH = 2

SCALARS = {
    "number": json_regex.NUMBER,
    "boolean": json_regex.BOOLEAN,
    "null": json_regex.NULL,
}


@dataclass(frozen=True, slots=True)
class SchemaRegex:
    """Result of the translation of a schema.

    Attributes:
        expression: Regular expression of JSON texts that the schema allows.
        patterns: Path and expression of each `pattern`, still to be checked for characters that
            JSON would have to escape.
    """

    expression: str
    patterns: tuple[tuple[str, str], ...]


def parse_schema(schema: Schema | str | bool, budget: Budget) -> Schema | bool:
    """Return the parsed schema, checked against the limits of size.

    Raises:
        GrammarError: It is not JSON, not a schema, or too large.
    """
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False)
        budget.read(len(text))
        parsed = parse_json(text)
    except RecursionError:
        raise GrammarError(f"the JSON schema is nested more than {MAX_DEPTH} deep") from None
    except (ValueError, TypeError) as error:
        raise GrammarError(f"the JSON schema is not JSON: {error}") from None
    if not isinstance(parsed, dict | bool):
        raise GrammarError("a JSON schema must be an object, true or false")
    return parsed


def schema_regex(schema: Schema | str | bool, budget: Budget | None = None) -> SchemaRegex:
    """Translate a schema; quick and safe for any schema.

    Args:
        schema: JSON schema, parsed or as text.
        budget: Budget of the whole constraint; None for a budget of its own.

    Raises:
        GrammarError: A part is not supported, or nothing can satisfy it; the message names it.
    """
    budget = budget or Budget()
    root = parse_schema(schema, budget)
    translation = _Translation(root, budget)
    expression = translation.regex(root, "")
    return SchemaRegex(expression, tuple(translation.patterns))


def referenced(root: Schema | bool, reference: Any, path: str) -> Any:
    """Return the schema that a reference names; raises a GrammarError."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise refusal(
            "$ref", path, f"to {reference!r}: only '#/...' inside the schema is supported"
        )
    if len(reference) > MAX_REFERENCE_LENGTH:
        raise refusal("$ref", path, f"of more than {MAX_REFERENCE_LENGTH} characters")
    target: Any = root
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        elif isinstance(target, dict) and name in target:
            target = target[name]
        else:
            raise GrammarError(f"'$ref' at {path or '/'}: the schema has no {reference!r}")
    return target


def any_object_regex() -> str:
    """Return the expression of any JSON object, nested a few levels deep at most."""
    return json_regex.open_object(json_regex.any_value(ANY_VALUE_DEPTH - 1))


@dataclass(slots=True)
class _Translation:
    """State of the translation of one schema."""

    root: Schema | bool
    budget: Budget
    patterns: list[tuple[str, str]] = field(default_factory=list)
    checked: dict[str, str] = field(default_factory=dict)  # pattern -> expression
    depth: int = 0
    open_refs: list[str] = field(default_factory=list)

    def regex(self, schema: Any, path: str) -> str:
        """Translate the schema at `path`, a JSON pointer that follows references."""
        if schema is False:
            raise GrammarError(f"nothing can satisfy the schema 'false' at {path or '/'}")
        if schema is True:
            return json_regex.any_value(ANY_VALUE_DEPTH)
        if not isinstance(schema, dict):
            raise GrammarError(f"the schema at {path or '/'} is neither an object nor a boolean")
        with self._level(path):
            expression = self._object_regex(schema, path)
        self.budget.write(len(expression))
        return expression

    @contextmanager
    def _level(self, path: str) -> Iterator[None]:
        self.budget.visit()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise GrammarError(f"the JSON schema is nested more than {MAX_DEPTH} deep, at {path}")
        yield
        self.depth -= 1

    def _object_regex(self, schema: Schema, path: str) -> str:
        keywords = constraints(schema, path)
        combiners = [word for word in COMBINERS if word in keywords]
        if combiners:
            return self._combined(combiners[0], schema, keywords, path)
        types = types_of(schema, keywords, path)
        if not types:
            return json_regex.any_value(ANY_VALUE_DEPTH)
        parts = [self._typed(name, schema, path) for name in types]
        return parts[0] if len(parts) == 1 else json_regex.one_of(parts)

    def _typed(self, name: str, schema: Schema, path: str) -> str:
        match name:
            case "object":
                return self._object(schema, path)
            case "array":
                return self._array(schema, path)
            case "string":
                return self._string(schema, path)
            case "integer":
                return integers(*integer_range(schema, path))
            case "number":
                _check_number(schema, path)
        return SCALARS[name]

    # --- schemas combined from others --------------------------------------------------------

    def _combined(self, word: str, schema: Schema, keywords: set[str], path: str) -> str:
        allowed = {word, "type"} if word in ("enum", "const") else {word}
        for other in sorted(keywords - allowed):
            raise refusal(other, path, f"beside '{word}'")
        match word:
            case "$ref":
                return self._referenced(schema["$ref"], path)
            case "enum" | "const":
                return values_regex(word, schema, path, self.budget)
        branches = schema[word]
        if not isinstance(branches, list) or not branches:
            raise GrammarError(f"'{word}' at {path or '/'} must be a non-empty list")
        if word == "allOf" and len(branches) > 1:
            raise refusal("allOf", path, "with more than one schema")
        parts = [self.regex(part, f"{path}/{word}/{i}") for i, part in enumerate(branches)]
        if word == "oneOf":
            self._check_one_of(branches, path)  # after the translation, which checks the schemas
        return json_regex.one_of(parts)

    def _check_one_of(self, branches: list[Any], path: str) -> None:
        schemas = [self._resolved(branch, path) for branch in branches]
        self.budget.compare(sum(len(json.dumps(schema)) for schema in schemas) * len(schemas))
        for i, first in enumerate(schemas):
            for k, second in enumerate(schemas[i + 1 :], i + 1):
                if not are_disjoint(first, second):
                    raise refusal(
                        "oneOf", path, f"as its schemas {i} and {k} may both match; use anyOf"
                    )

    def _resolved(self, schema: Any, path: str) -> Any:
        """Follow references to a schema without one."""
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict) or "$ref" not in schema:
                return schema
            schema = referenced(self.root, schema["$ref"], path)
        return schema

    def _referenced(self, reference: Any, path: str) -> str:
        if reference in self.open_refs:
            raise refusal("$ref", path, f"as {reference!r} leads back to itself")
        target = referenced(self.root, reference, path)
        self.open_refs.append(reference)
        expression = self.regex(target, path)
        self.open_refs.pop()
        return expression

    # --- objects, arrays, strings ------------------------------------------------------------

    def _object(self, schema: Schema, path: str) -> str:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        if not isinstance(properties, dict) or len(properties) > MAX_PROPERTIES:
            raise GrammarError(
                f"'properties' at {path or '/'} must be an object with at most {MAX_PROPERTIES} "
                "members"
            )
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise GrammarError(f"'required' at {path or '/'} must be a list of names")
        for name in required:
            if name not in properties:
                raise refusal("required", path, f"for {name!r}, which is not in 'properties'")
        if not properties:
            return self._free_object(schema.get("additionalProperties", True), path)
        if isinstance(schema.get("additionalProperties", False), dict):
            raise refusal("additionalProperties", path, "with a schema, beside 'properties'")
        needed = frozenset(required)
        members = [
            (_name(name, path), self._property(name, part, path), name in needed)
            for name, part in properties.items()
        ]
        self.budget.write(json_regex.length_of_object(members))
        return json_regex.closed_object(members)

    def _property(self, name: str, part: Any, path: str) -> str:
        return self.regex(part, f"{path}/properties/{in_pointer(name)}")

    def _free_object(self, value: Any, path: str) -> str:
        if value is False:
            return json_regex.closed_object([])
        if value is True:
            return json_regex.open_object(json_regex.any_value(ANY_VALUE_DEPTH - 1))
        return json_regex.open_object(self.regex(value, f"{path}/additionalProperties"))

    def _array(self, schema: Schema, path: str) -> str:
        low, high = bounds(schema, "minItems", "maxItems", path)
        items = schema.get("items", True)
        if isinstance(items, list):
            raise refusal("items", path, "as a list; write 'prefixItems'")
        prefix = schema.get("prefixItems")
        if prefix is not None:
            return self._tuple(prefix, items, low, high, path)
        if items is False and low == 0:
            return json_regex.array_of("", 0, 0)
        item = (
            json_regex.any_value(ANY_VALUE_DEPTH - 1)
            if items is True
            else self.regex(items, f"{path}/items")
        )
        return json_regex.array_of(item, low, high)

    def _tuple(self, prefix: Any, items: Any, low: int, high: int | None, path: str) -> str:
        if not isinstance(prefix, list) or not prefix:
            raise GrammarError(f"'prefixItems' at {path or '/'} must be a non-empty list")
        if high is not None and high < len(prefix):
            raise refusal("maxItems", path, f"below the {len(prefix)} of 'prefixItems'")
        parts = [self.regex(part, f"{path}/prefixItems/{i}") for i, part in enumerate(prefix)]
        more = max(low - len(prefix), 0)
        if items is False and more:
            raise GrammarError(f"nothing can satisfy 'minItems' {low} at {path or '/'}")
        if items is False or (items is True and not more):
            return json_regex.tuple_of(parts)
        item = self.regex(items, f"{path}/items")
        most = None if high is None else high - len(prefix)
        return json_regex.tuple_of(parts, json_regex.more_items(item, more, most))

    def _string(self, schema: Schema, path: str) -> str:
        low, high = bounds(schema, "minLength", "maxLength", path)
        given = [word for word in ("pattern", "format", "minLength", "maxLength") if word in schema]
        if len(given) > 1 and given[0] in ("pattern", "format"):
            raise refusal(given[1], path, f"beside '{given[0]}'")
        if "pattern" in schema:
            return self._pattern(schema["pattern"], f"{path}/pattern")
        if "format" in schema:
            return _format(schema["format"], path)
        return json_regex.string_of(low, high)

    def _pattern(self, pattern: Any, path: str) -> str:
        if not isinstance(pattern, str):
            raise GrammarError(f"'pattern' at {path} must be a string")
        if pattern not in self.checked:
            self.budget.look_at_pattern(len(pattern))
            whole = whole_match(pattern, f"'pattern' at {path}", around=())
            self.checked[pattern] = without_nul(whole)
            self.patterns.append((path, self.checked[pattern]))
        return json_regex.quoted(self.checked[pattern])


def _check_number(schema: Schema, path: str) -> None:
    for word in KEYWORDS_OF_TYPE["integer"]:
        if word in schema:
            raise refusal(word, path, "for numbers that are not integers")


def _format(name: Any, path: str) -> str:
    if not isinstance(name, str) or name not in json_regex.FORMATS:
        known = ", ".join(json_regex.FORMATS)
        raise refusal("format", path, f"{name!r} (known: {known})")
    return json_regex.quoted(json_regex.FORMATS[name])


def _name(name: str, path: str) -> str:
    check_text(name, f"a name in 'properties' at {path or '/'}")
    return name
