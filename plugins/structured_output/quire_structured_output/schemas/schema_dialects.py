"""Keywords by the draft of JSON Schema that brought them; an older schema ignores them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DRAFTS = ("draft-03", "draft-04", "draft-06", "draft-07", "draft2019-09", "draft2020-12")
NEW = {
    "draft-04": ("allOf", "anyOf", "oneOf", "not", "multipleOf", "minProperties", "maxProperties"),
    "draft-06": ("const", "contains", "propertyNames"),
    "draft-07": ("if", "then", "else"),
    "draft2019-09": (
        "dependentRequired", "dependentSchemas", "minContains", "maxContains",
        "unevaluatedProperties", "unevaluatedItems", "$recursiveRef",
    ),
    "draft2020-12": ("prefixItems", "$dynamicRef"),
}  # fmt: skip
FIRST = {word: draft for draft, words in NEW.items() for word in words}


def keywords_of(schema: Mapping[str, Any], draft: str) -> dict[str, Any]:
    """Return a schema without the keywords that its draft does not have."""
    age = DRAFTS.index(draft) if draft in DRAFTS else len(DRAFTS)
    return {
        word: value
        for word, value in schema.items()
        if word not in FIRST or DRAFTS.index(FIRST[word]) <= age
    }
