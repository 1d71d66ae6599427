"""Closed objects whose patterns allow no name but the listed ones.

A parser subtracts the listed names from the patterns, and does not notice when none is left: it
would allow a comma after which nothing can follow. So such a pattern is written as properties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from quire_structured_output.schemas.combining_keywords import all_of
from quire_structured_output.schemas.regex_words import listed_words
from quire_structured_output.schemas.schema_marks import NAMES_ONLY
from quire_structured_output.schemas.schema_translation import Schema, Translation

MAX_PARTS_DEPTH = 16


def drop_listed_patterns(translation: Translation) -> None:
    """Write the patterns of a closed object as properties if all their names are listed."""
    written, normalizer = translation.written, translation.normalizer
    patterns = written.get("patternProperties", {})
    if not patterns or written.get("additionalProperties") is not False:
        return
    properties = dict(written.get("properties", {}))
    names = _names(written)
    for regex in list(patterns):
        words = listed_words(regex, names, normalizer.budget.work)
        if words is None:
            continue
        part = normalizer.shared(patterns.pop(regex))
        properties |= {word: all_of([properties.get(word, {}), part]) for word in words}
    written["properties"] = properties
    if not patterns:
        del written["patternProperties"]


def close_listed(translation: Translation) -> None:
    """Close an object if all names that its patterns allow are listed in what else must hold.

    Of references, one is followed to a pattern, and all to listed names.
    """
    normalizer, also = translation.normalizer, [part for part in translation.also if part]
    if len(also) + bool(translation.written) < 2:
        return
    near = [normalizer.resolved(part) if _is_reference(part) else part for part in also]
    closed = [
        part["patternProperties"]
        for part in _parts({**translation.written, "allOf": near}, lambda part: part)
        if part.get("additionalProperties") is False and part.get("patternProperties")
    ]
    if not closed:
        return
    names: dict[str, None] = {}
    for part in _parts({**translation.written, "allOf": also}, normalizer.resolved):
        names |= _names(part)
    for patterns in closed:
        words = [listed_words(regex, names, normalizer.budget.work) for regex in patterns]
        if None not in words:
            properties: Schema = {name: {} for name in names}
            only = {"properties": properties, "additionalProperties": False, NAMES_ONLY: True}
            translation.also.append(only)
            return


def _names(schema: Schema) -> dict[str, None]:
    """Return the names that a schema lists, as keys."""
    return dict.fromkeys([*schema.get("properties", {}), *schema.get("required", [])])


def _is_reference(schema: Schema | bool) -> bool:
    return isinstance(schema, dict) and set(schema) == {"$ref"}


def _parts(schema: Any, resolve: Callable[[Any], Any], depth: int = 0) -> Iterator[Schema]:
    """Yield a schema and those of its `allOf`, where these are resolved."""
    schema = resolve(schema)
    if not isinstance(schema, dict) or depth > MAX_PARTS_DEPTH:
        return
    yield schema
    for part in schema.get("allOf", ()):
        yield from _parts(part, resolve, depth + 1)
