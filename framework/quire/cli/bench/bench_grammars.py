"""Grammars of `quire bench structured`: endless ones, new ones of several kinds, hostile ones."""

from collections.abc import Callable
from typing import Any

from quire.sampling_params import StructuredOutputsParams

MAX_BYTES_PER_TOKEN = 8  # of the closing characters of a grammar: it must outlast its output
CONSTRAINTS = ("json", "regex")


def endless(constraint: str, index: int, output_len: int) -> StructuredOutputsParams:
    """Return one of different grammars whose completions have at least `output_len` tokens."""
    if constraint == "regex":
        closing = f"#{{{MAX_BYTES_PER_TOKEN * output_len}}}"
        return StructuredOutputsParams(regex=f"[a-z ]*(?:{index} )?[a-z ]*{closing}")
    item = _object({f"name_{index}": {"type": "string"}, "size": {"type": "integer"}})
    return StructuredOutputsParams(
        json={"type": "array", "items": item, "minItems": MAX_BYTES_PER_TOKEN * output_len}
    )


def new_schema(index: int) -> StructuredOutputsParams:
    """Return a schema that was not compiled before; the kinds of ordinary schemas take turns."""
    kind = SCHEMA_KINDS[index % len(SCHEMA_KINDS)]
    return StructuredOutputsParams(json=kind(f"name_{index}"))


def hostile(index: int) -> StructuredOutputsParams:
    """Return a grammar that takes long to compile, if it ever ends; the kinds take turns."""
    kind = HOSTILE_KINDS[index % len(HOSTILE_KINDS)]
    return kind(index)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _flat(name: str) -> dict[str, Any]:
    kinds = ("string", "integer", "number", "boolean")
    return _object({f"{name}_{kind}": {"type": kind} for kind in kinds})


def _nested(name: str) -> dict[str, Any]:
    address = _object({"street": {"type": "string"}, "city": {"type": "string"}})
    return _object({name: _object({"home": address, "work": address})})


def _lists(name: str) -> dict[str, Any]:
    items = {"type": "array", "items": _flat("item"), "minItems": 1, "maxItems": 8}
    return _object({name: items})


def _choices(name: str) -> dict[str, Any]:
    return _object({name: {"enum": [f"value {i}" for i in range(100)]}, "kind": {"const": name}})


def _texts(name: str) -> dict[str, Any]:
    code = {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}
    return _object({name: {"type": "string", "maxLength": 40}, "code": code})


def _formats(name: str) -> dict[str, Any]:
    formats = ("date-time", "uuid", "ipv4", "email")
    return _object({f"{name}_{each}": {"type": "string", "format": each} for each in formats})


def _unions(name: str) -> dict[str, Any]:
    return _object({name: {"anyOf": [{"type": "null"}, _flat("left"), {"type": "integer"}]}})


def _wide(name: str) -> dict[str, Any]:
    return _object({f"{name}_{i}": {"type": ["string", "null"]} for i in range(50)})


SCHEMA_KINDS: tuple[Callable[[str], dict[str, Any]], ...] = (
    *(_flat, _nested, _lists, _choices, _texts, _formats, _unions, _wide),
)


def _many_states(index: int) -> StructuredOutputsParams:
    return StructuredOutputsParams(regex=f"[ab]*a[ab]{{24}}{index}", backend="outlines")


def _nested_repetitions(index: int) -> StructuredOutputsParams:
    regex = f"((((a{{0,60}}){{0,60}}){{0,60}}){{0,60}})b{index}"
    return StructuredOutputsParams(regex=regex)


def _large_enum(index: int) -> StructuredOutputsParams:
    return StructuredOutputsParams(json={"enum": [f"{index} {i}" for i in range(20_000)]})


HOSTILE_KINDS: tuple[Callable[[int], StructuredOutputsParams], ...] = (
    *(_many_states, _nested_repetitions, _large_enum),
)
