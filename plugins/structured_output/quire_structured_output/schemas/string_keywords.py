"""Lengths, patterns and formats of strings."""

from quire.errors import GrammarError
from quire_structured_output.schemas.ecma_regex import anchored_match
from quire_structured_output.schemas.formats import (
    EXACT_FORMATS,
    FORMATS,
    KNOWN_FORMATS,
    NARROWER_FORMATS,
    SAME_FORMATS,
    pattern_of_format,
)
from quire_structured_output.schemas.number_keywords import translate_counts
from quire_structured_output.schemas.schema_marks import NARROWED, marked
from quire_structured_output.schemas.schema_translation import Schema, Translation


def translate_strings(translation: Translation) -> None:
    """Translate the lengths, `pattern` and `format`; raises a GrammarError."""
    translate_counts(translation, "minLength", "maxLength")
    given = translation.given
    if "pattern" in given:
        where = f"'pattern' at {translation.where}"
        if not isinstance(given["pattern"], str):
            raise GrammarError(f"{where} must be a string")
        translation.written["pattern"] = anchored_match(given["pattern"], where)
    if given.get("format") is not None:
        _format(translation)


def _format(translation: Translation) -> None:
    """Translate `format`; one that is not known is an annotation."""
    name = translation.given["format"]
    if not isinstance(name, str):
        raise translation.error("format", "must be a string")
    name = NARROWER_FORMATS.get(name, name)
    if name in FORMATS:
        pattern: Schema = {"pattern": pattern_of_format(name)}
        is_exact = name in EXACT_FORMATS
        translation.also.append(pattern if is_exact else marked(pattern, NARROWED))
    elif name in SAME_FORMATS:
        translation.also.append({"format": name})
    elif name in KNOWN_FORMATS:
        raise translation.refusal("format", f"{name!r}")
