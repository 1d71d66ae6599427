"""Random instances of a schema, and mutations of them: candidates, for the oracle to judge."""

import copy
import random
from collections.abc import Iterator
from typing import Any

FORMATS = {
    "date": "2024-02-29",
    "time": "12:30:45Z",
    "date-time": "2024-02-29T12:30:45Z",
    "duration": "P3DT4H",
    "email": "ann@example.com",
    "hostname": "www.example.com",
    "ipv4": "192.0.2.7",
    "ipv6": "2001:db8::7",
    "uri": "https://example.com/a?b=c",
    "uri-reference": "/a/b",
    "iri": "https://example.com/a",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "regex": "^a+$",
    "json-pointer": "/a/0",
}
WORDS = ("", "a", "name", "x-1", "1.2.3", "https://example.com", "A1", "é日", 'q"\\', "0", "true")
MAX_DEPTH = 7


class InstanceGenerator:
    """Generates instances that follow most keywords of a schema.

    Args:
        schema: A schema whose references are all within it.
        rng: Source of randomness.
    """

    def __init__(self, schema: Any, rng: random.Random) -> None:
        self._root = schema
        self._rng = rng

    def instance(self, schema: Any, depth: int = 0) -> Any:
        """Return a candidate for a schema."""
        rng = self._rng
        if not isinstance(schema, dict):
            return rng.choice(WORDS)
        schema = self._merged(schema, depth)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return rng.choice(schema["enum"])
        if "default" in schema and rng.random() < 0.1:
            return schema["default"]
        if schema.get("examples") and isinstance(schema["examples"], list) and rng.random() < 0.5:
            return rng.choice(schema["examples"])
        kind = schema.get("type") or self._kind(schema)
        if isinstance(kind, list):
            kind = rng.choice(kind)
        make = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": self._number,
            "number": self._number,
        }.get(kind)
        if make is not None:
            return make(schema | {"type": kind}, depth)
        return {"null": None, "boolean": rng.random() < 0.5}.get(kind, "a")

    def _kind(self, schema: dict[str, Any]) -> str:
        if schema.keys() & {"properties", "required", "patternProperties", "minProperties"}:
            return "object"
        if schema.keys() & {"items", "prefixItems", "minItems"}:
            return "array"
        if schema.keys() & {"minimum", "maximum", "multipleOf"}:
            return "number"
        if schema.keys() & {"pattern", "minLength", "format"}:
            return "string"
        return self._rng.choice(["object", "array", "string", "integer", "boolean", "null"])

    def _merged(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        """Resolve references, and choose among alternatives."""
        for _ in range(12):
            parts = []
            rest = dict(schema)
            if isinstance(reference := rest.pop("$ref", None), str):
                parts.append(self._resolve(reference))
            parts.extend(rest.pop("allOf", []))
            for key in ("anyOf", "oneOf"):
                if alternatives := rest.pop(key, []):
                    near_end = depth > MAX_DEPTH - 2
                    parts.append(
                        min(alternatives, key=lambda part: len(str(part)))
                        if near_end
                        else self._rng.choice(alternatives)
                    )
            if not parts:
                return schema
            for part in parts:
                if isinstance(part, dict):
                    rest = _joined(rest, part)
            schema = rest
        return schema

    def _resolve(self, reference: str) -> Any:
        if not reference.startswith("#"):
            return {}
        node = self._root
        for part in reference[1:].strip("/").split("/") if reference != "#" else []:
            name = part.replace("~1", "/").replace("~0", "~").replace("%24", "$")
            node = node.get(name, {}) if isinstance(node, dict) else {}
        return node

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        required = schema.get("required")
        needed = set(required) if isinstance(required, list) else set()
        share = 0.0 if depth > MAX_DEPTH else self._rng.choice([0.0, 0.15, 0.4])
        made = {
            name: self.instance(part, depth + 1)
            for name, part in properties.items()
            if name in needed or self._rng.random() < share
        }
        rest = schema.get("additionalProperties", {})
        for name in needed - made.keys():
            made[name] = self.instance(rest, depth + 1)
        if isinstance(rest, dict) and rest and depth < MAX_DEPTH:
            for _ in range(self._rng.randint(0, 2)):
                made[self._rng.choice(["a", "key", "b-1"])] = self.instance(rest, depth + 1)
        return made

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        first = schema.get("prefixItems", [])
        items = schema.get("items", {})
        if isinstance(items, list):
            first, items = items, schema.get("additionalItems", {})
        low = schema.get("minItems", 0)
        most = min(schema.get("maxItems", low + 3), low + (0 if depth > MAX_DEPTH else 3))
        count = self._rng.randint(low, max(low, most)) if low < 50 else low
        return [
            self.instance(first[i] if i < len(first) else items, depth + 1) for i in range(count)
        ]

    def _string(self, schema: dict[str, Any], depth: int) -> str:
        del depth
        if schema.get("format") in FORMATS:
            return FORMATS[schema["format"]]
        low, high = schema.get("minLength", 0), schema.get("maxLength", 1_000)
        word = self._rng.choice(WORDS)
        return (word + "a" * (low - len(word)))[: max(low, high)]

    def _number(self, schema: dict[str, Any], depth: int) -> float:
        del depth
        low, high = schema.get("minimum"), schema.get("maximum")
        if low is None:
            low = (high if high is not None else 10) - 12
        if high is None:
            high = low + 100
        low, high = int(low), max(int(low), int(high))
        value = self._rng.randint(low, high)
        step = schema.get("multipleOf")
        if isinstance(step, int) and step:
            return value // step * step
        if schema["type"] == "number" and self._rng.random() < 0.4:
            return value + 0.5
        return value


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    joined = other | one
    for key in ("properties", "patternProperties"):
        if isinstance(one.get(key), dict) and isinstance(other.get(key), dict):
            joined[key] = other[key] | one[key]
    if isinstance(one.get("required"), list) and isinstance(other.get("required"), list):
        joined["required"] = list(dict.fromkeys(one["required"] + other["required"]))
    return joined


def mutations(instance: Any, rng: random.Random) -> Iterator[Any]:
    """Yield instances that differ from one in a single place."""
    for _ in range(12):
        changed = copy.deepcopy([instance])
        places = list(_places(changed))
        container, key = rng.choice(places)
        value = container[key]
        if isinstance(container, dict) and rng.random() < 0.3:
            del container[key]
        elif isinstance(value, dict) and rng.random() < 0.4:
            value["not_in_the_schema"] = 1
        else:
            container[key] = rng.choice(
                [None, True, -1, 0, 1.5, 10**12, "", "zz zz", "\n", "٣", "a" * 300, [], [[]], {}]
            )
        if changed:
            yield changed[0]


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    keys = node if isinstance(node, dict) else range(len(node))
    for key in list(keys):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from _places(node[key])
