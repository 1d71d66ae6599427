"""Tools with an argument of each type, for formats that write values without types."""

from typing import Any

TYPED_TOOLS: tuple[dict[str, Any], ...] = (
    {
        "name": "find",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "days": {"type": "integer"},
                "limit": {"type": "number"},
                "exact": {"type": "boolean"},
                "places": {"type": "array", "items": {"type": "string"}},
                "filter": {"type": "object"},
                "unit": {"type": ["string", "null"]},
                "page": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            },
        },
    },
    {"name": "now", "parameters": {"type": "object", "properties": {}}},
)
