"""Schemas of the single arguments of a tool, for formats that write one after the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from quire.errors import GrammarError

ANY_TYPE = frozenset({"null", "integer", "number", "boolean", "object", "array", "string"})
TYPING = frozenset({"type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"})
_DEFINITIONS = ("$defs", "definitions")
_COMBINERS = ("anyOf", "oneOf")
REFUSED = frozenset(  # keywords about several arguments together, or about their names
    {"anyOf", "oneOf", "allOf", "not", "if", "enum", "const", "propertyNames", "minProperties"}
    | {"maxProperties", "dependentRequired", "dependentSchemas", "dependencies", "$ref"}
    | {"patternProperties"}
)

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ArgumentSchema:
    """An argument of a tool.

    Attributes:
        key: Its name.
        schema: Its schema, with the definitions that it refers to.
        is_required: Whether a call must have it.
    """

    key: str
    schema: Schema
    is_required: bool


def argument_schemas(parameters: Schema) -> list[ArgumentSchema]:
    """Return the arguments that the schema of a tool's parameters declares, in their order.

    Raises:
        GrammarError: A keyword cannot be followed by one argument after the other; the message
            names it.
    """
    for keyword in parameters:
        if keyword in REFUSED:
            raise _refusal(keyword)
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    for name in required:
        if properties.get(name, False) is False:
            raise GrammarError(f"'required' at / names {name!r:.80}, which 'properties' has not")
    definitions = {word: parameters[word] for word in _DEFINITIONS if word in parameters}
    return [
        ArgumentSchema(name, _with_definitions(schema, definitions, name), name in required)
        for name, schema in properties.items()
        if schema is not False
    ]


def schema_of_others(parameters: Schema) -> Schema | None:
    """Return the schema of arguments that are not declared; None: there are none.

    A tool that declares no arguments at all takes any, and otherwise one has to say that it does.
    """
    given = parameters.get("additionalProperties", "properties" not in parameters)
    if given is False:
        return None
    definitions = {word: parameters[word] for word in _DEFINITIONS if word in parameters}
    return _with_definitions(given, definitions, "additionalProperties")


def is_untyped(schema: Schema) -> bool:
    """Whether a schema does not say of which type a value is."""
    return not schema.keys() & TYPING


def restricted(schema: Any, types: frozenset[str]) -> Any:
    """Return a schema that allows the values of some types only, of those that it allows."""
    if not isinstance(schema, dict):
        return {"type": sorted(types)}
    if "$ref" in schema:
        return {**schema, "type": sorted(types)}
    found = dict(schema)
    for keyword in _COMBINERS:
        if isinstance(branches := schema.get(keyword), list):
            kept = [branch for branch in branches if types_of(branch) & types]
            found[keyword] = [restricted(branch, types) for branch in kept]
    if "enum" in schema:
        found["enum"] = [value for value in schema["enum"] if types_of_value(value) & types]
    elif not schema.keys() & {"const", *_COMBINERS}:
        found["type"] = sorted(types_of(schema) & types)
    return found


def types_of(schema: Any) -> frozenset[str]:
    """Return the types that a schema's own keywords allow."""
    if not isinstance(schema, dict):
        return ANY_TYPE
    if "enum" in schema:
        return frozenset(each for value in schema["enum"] for each in types_of_value(value))
    if "const" in schema:
        return types_of_value(schema["const"])
    named = schema.get("type", ANY_TYPE)
    types = {named} if isinstance(named, str) else set(named)
    return frozenset(types | ({"integer"} if "number" in types else set()))


def types_of_value(value: Any) -> frozenset[str]:
    """Return the names of the types of a value."""
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number"})
        case str():
            return frozenset({"string"})
        case list():
            return frozenset({"array"})
    return frozenset({"object"})


def _with_definitions(schema: Any, definitions: Schema, name: str) -> Schema:
    if schema is True:
        return {}
    references = list(_references(schema))
    for reference in references:
        if not str(reference).startswith(tuple(f"#/{word}/" for word in _DEFINITIONS)):
            raise _refusal("$ref", f" to {reference!r:.80} in the argument {name!r:.80}")
    return {**definitions, **schema} if references else schema


def _references(schema: Any) -> Iterator[Any]:
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if "$ref" in each:
                yield each["$ref"]
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def _refusal(keyword: str, what: str = " of all arguments together") -> GrammarError:
    return GrammarError(
        f"the format of this model's calls does not support {keyword!r}{what}, because it writes "
        "one argument after the other"
    )
