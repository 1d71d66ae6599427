"""Types of a tool's arguments, for formats that write values as plain text.

The types are those that the tool's JSON schema allows, in `type`, `const`, `enum`, `anyOf`,
`oneOf`, `allOf`, and in the definitions that it refers to.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MAX_DEPTH = 100  # of alternatives in alternatives

STRING = frozenset({"string"})
ANY_TYPE = frozenset({"null", "integer", "number", "boolean", "object", "array", "string"})


class ArgumentTypes:
    """Types of the arguments of a request's tools.

    Args:
        tools: `function` objects of OpenAI's tool definitions.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._schemas = {tool["name"]: tool.get("parameters") for tool in tools}
        self._known: dict[tuple[str, str], frozenset[str]] = {}

    @property
    def names(self) -> frozenset[str]:
        """Names of the tools."""
        return frozenset(self._schemas)

    def takes_none(self, tool: str | None) -> bool:
        """Whether a tool is known to have no arguments."""
        if tool not in self._schemas:
            return False
        schema = self._schemas[tool]
        return not (isinstance(schema, dict) and schema.get("properties"))

    def of(self, tool: str, key: str, default: frozenset[str] = STRING) -> frozenset[str]:
        """Return the types of an argument.

        Args:
            tool: Name of the tool.
            key: Name of the argument.
            default: Types of an argument whose schema does not say, or that has none.
        """
        if (tool, key) not in self._known:
            self._known[tool, key] = frozenset(self._declared(tool, key))
        return self._known[tool, key] or default

    def _declared(self, tool: str, key: str) -> set[str]:
        schema = self._schemas.get(tool)
        if not isinstance(schema, dict):
            return set()
        properties = schema.get("properties")
        declared = properties.get(key) if isinstance(properties, dict) else None
        if declared is None:
            declared = schema.get("additionalProperties")
        return _Schemas(schema).types(declared, MAX_DEPTH)


class _Schemas:
    """The schemas within a tool's schema, each reference followed once.

    Args:
        root: The tool's schema.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._seen: set[str] = set()

    def types(self, schema: Any, depth: int) -> set[str]:
        """Return the types that a schema allows; empty if it does not say."""
        if not isinstance(schema, dict) or depth == 0:
            return set()
        if found := {
            name
            for name in _listed(schema.get("type"))
            if isinstance(name, str) and name in ANY_TYPE
        }:
            return found
        if isinstance(reference := schema.get("$ref"), str):
            return self.types(self._referred(reference), depth - 1)
        if "const" in schema:
            return {_type_of(schema["const"])}
        if isinstance(values := schema.get("enum"), list):
            return {_type_of(value) for value in values}
        found = set[str]()
        for keyword in ("anyOf", "oneOf", "allOf"):
            for alternative in _listed(schema.get(keyword)):
                found |= self.types(alternative, depth - 1)
        return found or _implied(schema)

    def _referred(self, reference: str) -> Any:
        """Return what `#/$defs/Name` refers to; None if nothing, or if it was asked for before."""
        if reference in self._seen:
            return None
        self._seen.add(reference)
        place: Any = self._root
        for step in reference.removeprefix("#/").split("/"):
            place = place.get(step) if isinstance(place, dict) else None
        return place


def _implied(schema: Mapping[str, Any]) -> set[str]:
    if "properties" in schema or "additionalProperties" in schema:
        return {"object"}
    return {"array"} if "items" in schema else set()


def _listed(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple):
        return value
    return () if value is None else (value,)


def _is_type(name: Any) -> bool:
    return isinstance(name, str) and name in ANY_TYPE


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case dict():
            return "object"
        case list():
            return "array"
        case _:
            return "string"
