"""Completions that the grammar of a tool parser allows, and the values that their calls have."""

import json
import random
from collections.abc import Iterable
from typing import Any

from quire.call_grammar import (
    CallGrammar,
    CallShape,
    EitherPiece,
    MembersPiece,
    Piece,
    RegexPiece,
    SchemaPiece,
    TextPiece,
)

TOOLS = (
    {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "detailed": {"type": "boolean"},
                "places": {"type": "array", "items": {"type": "string"}},
                "about": {"type": "object", "properties": {"note": {"type": "string"}}},
            },
            "required": ["city"],
        },
    },
    {"name": "ping", "parameters": {"type": "object", "properties": {}}},
)


class GrammarCompletions:
    """A repeatable sequence of completions.

    Args:
        grammar: Grammar of calls, one at least.
        seed: Number of the sequence.

    Attributes:
        names: Names of the tools that the last completion calls, in order.
        values: Strings in its arguments, each of them once. Numbers may be in a header.
    """

    def __init__(self, grammar: CallGrammar, seed: int) -> None:
        self._grammar = grammar
        self._chance = random.Random(seed)
        self.names: list[str] = []
        self.values: list[str] = []

    def completion(self) -> str:
        """Return the next completion."""
        grammar = self._grammar
        most = 1 if grammar.separator is None else 3
        shapes = self._chance.choices(grammar.shapes, k=self._chance.randint(1, most))
        self.names, self.values = [shape.tool for shape in shapes], []
        calls = (grammar.separator or "").join(map(self._call, shapes))
        return grammar.begin + calls + grammar.end

    def _call(self, shape: CallShape) -> str:
        return self._joined(shape.pieces)

    def _joined(self, pieces: Iterable[Piece]) -> str:
        return "".join(map(self._piece, pieces))

    def _piece(self, piece: Piece) -> str:
        match piece:
            case str():
                return piece
            case SchemaPiece(schema):
                return json.dumps(self._value(schema, schema))
            case TextPiece(schema, end):
                value = self._value(schema, schema)
                return (value if isinstance(value, str) else json.dumps(value)) + end
            case RegexPiece(_, before, after):
                return f"{before}key_{self._chance.randint(0, 10**9)}{after}"
            case EitherPiece(alternatives):
                return self._joined(self._chance.choice(alternatives))
            case MembersPiece(members, separator, others):
                members += () if others is None else (others,) * self._chance.randint(0, 2)
                written = (each for each in members if each.is_required or self._is_written())
                return separator.join(self._joined(each.pieces) for each in written)

    def _is_written(self) -> bool:
        return self._chance.random() < 0.5

    def _value(self, schema: Any, root: Any) -> Any:
        """Return a value that satisfies a schema with the usual keywords."""
        if not isinstance(schema, dict):
            return self._new_string()
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._chance.choice(schema["enum"])
        for keyword in ("anyOf", "oneOf", "allOf"):
            if keyword in schema:
                return self._value(schema[keyword][0], root)
        if (reference := schema.get("$ref", "")).startswith("#/"):
            target = root
            for key in reference[2:].split("/"):
                target = target[key]
            return self._value(target, root)
        kind = schema.get("type", "string")
        return self._of_type(kind if isinstance(kind, str) else kind[0], schema, root)

    def _of_type(self, kind: str, schema: dict[str, Any], root: Any) -> Any:
        match kind:
            case "object":
                required = schema.get("required", ())
                properties = schema.get("properties", {})
                keys = [key for key in properties if key in required or self._is_written()]
                return {key: self._value(properties[key], root) for key in keys}
            case "array":
                num = max(schema.get("minItems", 0), min(2, schema.get("maxItems", 2)))
                return [self._value(schema.get("items", True), root) for _ in range(num)]
            case "integer" | "number":
                return self._chance.randint(max(0, schema.get("minimum", 0)), 1000)
            case "boolean":
                return self._is_written()
            case "null":
                return None
        return "abc" if "pattern" in schema else self._new_string()

    def _new_string(self) -> str:
        value = f"value {len(self.values)}x"
        self.values.append(value)
        return value
