"""Marks of schemas in normal form while it is built, and their removal when it is complete.

What is proved about a schema holds for its translation only if that allows the same values; a
translation may be narrower. And a translation may name properties that the schema itself does not
evaluate. The marks say so; no parser sees them.
"""

from __future__ import annotations

from typing import Any

from quire_structured_output.schemas.subschemas import inner_schemas

NARROWED = "x-narrowed"  # its own keywords allow less than what they are written for
WIDENED = "x-widened"  # its own keywords allow more, until the normal form is complete
ASIDE = "x-aside"  # it evaluates no properties
NAMES_ONLY = "x-names-only"  # its patterns and further properties are about names
MARKS = frozenset({NARROWED, WIDENED, ASIDE, NAMES_ONLY})

Schema = dict[str, Any]


def marked(schema: Schema | bool, *marks: str) -> Schema | bool:
    """Return a copy with marks of a schema, which needs none if it allows all or nothing."""
    if isinstance(schema, bool) or not schema:
        return schema
    return {**schema, **dict.fromkeys(marks, True)}


def remove_marks(schema: Schema) -> None:
    """Remove the marks of a normal form, its definitions included."""
    waiting: list[Any] = [schema]
    seen: set[int] = set()
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        for mark in MARKS & part.keys():
            del part[mark]
        waiting += inner_schemas(part)
