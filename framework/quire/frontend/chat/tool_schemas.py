"""Schemas of tools: checks before anything is generated, and what a tool parser gets of them.

A function without `parameters` takes no arguments. Those of every other one are an object's schema.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire.errors import InvalidRequestError
from quire.frontend.chat.schema_faults import pattern_fault, resolves
from quire.frontend.typed_value import in_json

NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
MAX_DEPTH = 128
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_COMBINING = frozenset({"$ref", "anyOf", "oneOf", "allOf"})  # some backends refuse `type` beside
_SCHEMA = ("items", "additionalProperties", "not", "if", "then", "else", "contains")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")


def normalized(functions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return functions that all have `parameters`, the schema of an object.

    Args:
        functions: `function` objects of OpenAI's tool definitions, which were checked.
    """
    return [{**function, "parameters": object_schema(function)} for function in functions]


def object_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a function's arguments, which was checked."""
    given: dict[str, Any] | None = function.get("parameters")
    if given is None:
        return NO_ARGUMENTS
    if "type" not in given and given.keys() & _COMBINING:
        return given
    return {**given, "type": "object"}


def check_parameters(function: Mapping[str, Any], where: str) -> None:
    """Check that the parameters of a function are the schema of an object, if it has any.

    Args:
        function: `function` object of a tool definition.
        where: Path of the function in the request.

    Raises:
        InvalidRequestError: They are not the schema of an object, or it is broken.
    """
    where = f"{where}.parameters"
    given = function.get("parameters")
    if given is None:
        return
    if not isinstance(given, dict):
        raise _refusal(where, f"must be the JSON schema of an object, got {in_json(given)}")
    check_schema(given, where)
    named = given.get("type", "object")
    if named != "object" and "object" not in named:
        raise _refusal(where, f"must be a schema of type object, got type {in_json(named)}")


def check_schema(schema: dict[str, Any], where: str) -> None:
    """Check that a schema and its subschemas are JSON schemas, as far as a look at them shows.

    That is the types and sizes of keywords, brackets in patterns, and references to places in the
    schema.

    Args:
        schema: The schema.
        where: Path of the schema in the request.

    Raises:
        InvalidRequestError: It is none; the message names the keyword and its place.
    """
    waiting: list[tuple[Any, str, int]] = [(schema, "", 0)]
    references: list[tuple[str, str]] = []
    is_one_resource = True
    while waiting:
        each, at, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise _refusal(where, f"is nested more than {MAX_DEPTH} deep")
        if isinstance(each, bool):
            continue
        if not isinstance(each, dict):
            raise _refusal(where, f"is no JSON schema: {in_json(each)} at {at or '/'} is no schema")
        for keyword, problem in _problems(each):
            raise _refusal(where, f"is no JSON schema: {keyword!r} at {at or '/'} {problem}")
        is_one_resource &= not at or not isinstance(each.get("$id", each.get("id")), str)
        if isinstance(reference := each.get("$ref"), str):
            references.append((at, reference))
        waiting += ((child, f"{at}/{path}"[:200], depth + 1) for path, child in _children(each))
    for at, reference in references if is_one_resource else ():
        if not resolves(reference, schema):
            problem = f"{reference!r:.80} is to a place that is not in the schema"
            raise _refusal(where, f"is no JSON schema: '$ref' at {at or '/'}: {problem}")


def _problems(schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield keywords with values that nothing can read, and what is wrong with them."""
    named = schema.get("type", [])
    types = [named] if isinstance(named, str) else named
    if not isinstance(types, list) or not all(each in TYPES for each in types):
        yield "type", f"must be of {', '.join(TYPES)}; got {in_json(named)}"
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        yield "required", "must be a list of names"
    values = schema.get("enum", [None])
    if not isinstance(values, list) or not values:
        yield "enum", "must be a list of at least one value"
    for keyword in _SIZES:
        size = schema.get(keyword, 0)
        if isinstance(size, bool) or not isinstance(size, int | float) or size < 0 or size % 1:
            yield keyword, f"must be a whole number from 0 on; got {in_json(size)}"
    for keyword in _MAPS:
        if not isinstance(schema.get(keyword, {}), dict):
            yield keyword, "must be an object of schemas"
    for keyword in _LISTS:
        if not isinstance(schema.get(keyword, []), list):
            yield keyword, "must be a list of schemas"
    names = [("patternProperties", pattern) for pattern in schema.get("patternProperties", {})]
    for keyword, pattern in [("pattern", schema.get("pattern")), *names]:
        if isinstance(pattern, str) and (fault := pattern_fault(pattern)):
            yield keyword, f"{fault}: {pattern!r:.80}"


def _children(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword in _MAPS:
        for name, child in schema.get(keyword, {}).items():
            yield f"{keyword}/{name}", child
    for keyword in _LISTS:
        for i, child in enumerate(schema.get(keyword, [])):
            yield f"{keyword}/{i}", child
    for keyword in _SCHEMA:
        child = schema.get(keyword, True)
        for i, part in enumerate(child if isinstance(child, list) else [child]):
            yield (f"{keyword}/{i}" if isinstance(child, list) else keyword), part


def _refusal(where: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{where} {what}", param=where)
