"""Texts of the API description: families of routes, and descriptions of fields from docstrings."""

import inspect
import re
from typing import Any

OTHER_FAMILY = "Other"
_FAMILIES = (
    (r"/(livez|readyz|health|version|metrics|load|v1/plugins)?$", "Health and metrics"),
    (r"/v1/engine", "Live engine"),
    (r"/(admin/|reset_)", "Control"),
    (r"/(de)?tokenize$", "Tokens"),
    (r"/v1/messages", "Anthropic"),
    (r"/api/", "Ollama"),
    (r"/v1/", "OpenAI"),
)
_ATTRIBUTE = re.compile(r"^    (\w+): (.+(?:\n {8,}.+)*)", re.MULTILINE)


def family_of(path: str) -> str:
    """Return the family of routes that a path belongs to."""
    found = (name for pattern, name in _FAMILIES if re.match(pattern, path))
    return next(found, OTHER_FAMILY)


def describe_fields(schema: dict[str, Any]) -> None:
    """Move what a struct's docstring says of its fields from its schema's description to theirs."""
    text, _, attributes = inspect.cleandoc(schema.get("description", "")).partition("Attributes:\n")
    if text:
        schema["description"] = text.strip()
    for name, words in _ATTRIBUTE.findall(attributes):
        if (field := schema.get("properties", {}).get(name)) is not None:
            field["description"] = " ".join(words.split())
