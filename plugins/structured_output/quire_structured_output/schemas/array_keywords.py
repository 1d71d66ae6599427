"""Items of arrays: their number, their schemas, one that must be there, and that they differ."""

from __future__ import annotations

from typing import Any

from quire.errors import GrammarError
from quire_structured_output.schemas.number_keywords import translate_counts
from quire_structured_output.schemas.schema_complement import other_types
from quire_structured_output.schemas.schema_marks import NARROWED, marked
from quire_structured_output.schemas.schema_translation import Translation
from quire_structured_output.schemas.value_counts import most_values
from quire_structured_output.unique.unique_places import UNIQUE

MAX_POSITIONS = 8  # of the item that `contains` asks for
EVALUATING = frozenset(  # beside `unevaluatedItems`, which then depends on the value
    {"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "contains"}
    | {"dependentSchemas"}
)


def translate_arrays(translation: Translation) -> None:
    """Translate the keywords of arrays.

    Raises:
        GrammarError: One is malformed or has no equivalent, or nothing satisfies two of them.
    """
    given, written = translation.given, translation.written
    _, most = translate_counts(translation, "minItems", "maxItems")
    prefix, items = given.get("prefixItems"), given.get("items")
    if isinstance(items, list):
        prefix, items = items, given.get("additionalItems")
    if items is None and "unevaluatedItems" in given:
        items = _unevaluated_items(translation)
    if prefix is not None:
        if not isinstance(prefix, list):
            raise translation.error("prefixItems", "must be a list")
        written["prefixItems"] = [
            translation.part(part, "prefixItems", i) for i, part in enumerate(prefix)
        ]
    if items is not None:
        written["items"] = translation.part(items, "items")
    if given.get("uniqueItems") is True and (most is None or most > 1):
        _unique_items(translation)
    if "contains" in given:
        _contains(translation, most)


def _unevaluated_items(translation: Translation) -> Any:
    """Return the schema of the items after `prefixItems`, if nothing else evaluates any."""
    rest = translation.given["unevaluatedItems"]
    if rest is not True and EVALUATING & translation.given.keys():
        raise translation.refusal("unevaluatedItems", "beside keywords that evaluate items, too")
    return rest


def _unique_items(translation: Translation) -> None:
    """Mark the array, for what reads the text, unless there are too few items."""
    written = translation.written
    low = written.get("minItems", 0)
    if low > 1 and "prefixItems" not in written:
        num_items = most_values(written.get("items", {}), translation.normalizer.resolved)
        if num_items is not None and low > num_items:
            raise GrammarError(
                f"nothing satisfies 'uniqueItems' and 'minItems' at {translation.where}"
            )
    written[UNIQUE] = True


def _contains(translation: Translation, most: int | None) -> None:
    """Translate `contains` to one array for each place of the item, up to a limit."""
    given = translation.given
    low, high = given.get("minContains", 1), given.get("maxContains")
    part = translation.part(given["contains"], "contains")
    if low == 0 and high is None:
        return
    if high is not None or low != 1:
        word = "maxContains" if high is not None else "minContains"
        raise translation.refusal(word)
    part = translation.normalizer.shared(part)
    others = {"type": other_types({"array"})}
    num_places = MAX_POSITIONS if most is None else min(MAX_POSITIONS, most)
    places = range(0 if part is False else num_places)
    arrays = [
        {"type": "array", "minItems": place + 1, "prefixItems": [*[{}] * place, part]}
        for place in places
    ]
    found = {"anyOf": [others, *arrays]}
    is_exact = part is False or (most is not None and most <= MAX_POSITIONS)
    translation.also.append(found if is_exact else marked(found, NARROWED))
