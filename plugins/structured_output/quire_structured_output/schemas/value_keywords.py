"""Types and listed values, checked so that every JSON parser reads the same values."""

from __future__ import annotations

from typing import Any

from quire.errors import GrammarError
from quire_structured_output.regex_syntax import check_text
from quire_structured_output.schemas.disjoint import json_type_of, keeps_type
from quire_structured_output.schemas.number_keywords import is_exact
from quire_structured_output.schemas.schema_budget import MAX_DEPTH
from quire_structured_output.schemas.schema_translation import Translation

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


def translate_values(translation: Translation) -> None:
    """Translate `type`, `enum` and `const`.

    Raises:
        GrammarError: One is malformed, no value has the type, or a parser would read another value.
    """
    given, written, types = translation.given, translation.written, None
    if "type" in given:
        types = given["type"] if isinstance(given["type"], list) else [given["type"]]
        if not types or not all(isinstance(each, str) and each in TYPES for each in types):
            raise translation.error("type", f"must be one or more of {', '.join(TYPES)}")
        written["type"] = types[0] if len(types) == 1 else list(dict.fromkeys(types))
    for word in ("enum", "const"):
        if word not in given:
            continue
        values = given[word] if word == "enum" else [given[word]]
        if not isinstance(values, list) or not values:
            raise translation.error(word, "must be a non-empty list")
        translation.normalizer.budget.list_values(len(values))
        kept = [value for value in values if types is None or keeps_type(value, types)]
        if not kept:
            raise GrammarError(f"nothing satisfies both 'type' and '{word}' at {translation.where}")
        check_text("".join(filter(_is_text, kept)), f"'{word}' at {translation.where}")
        for value in kept:
            if not _is_text(value):
                _check_value(translation, value, word, 0)
        if "enum" in written:
            translation.also.append({"enum": kept})
        else:
            written["enum"] = kept


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _check_value(translation: Translation, value: Any, word: str, depth: int) -> None:
    """Check that every JSON parser reads the same value."""
    translation.normalizer.budget.list_values(depth > 0)
    if depth > MAX_DEPTH:
        raise translation.error(word, f"is nested more than {MAX_DEPTH} deep")
    kind = json_type_of(value)
    if kind == "string":
        check_text(value, f"'{word}' at {translation.where}")
    elif kind in ("integer", "number") and not is_exact(value):
        raise translation.refusal(word, f"with the number {value}, which not every parser can read")
    elif kind == "array":
        for part in value:
            _check_value(translation, part, word, depth + 1)
    elif kind == "object":
        for name, part in value.items():
            check_text(name, f"'{word}' at {translation.where}")
            _check_value(translation, part, word, depth + 1)
