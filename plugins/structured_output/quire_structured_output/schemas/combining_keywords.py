"""Keywords that combine schemas: `allOf`, `anyOf` and `oneOf`, `not` and `if`."""

from __future__ import annotations

from quire_structured_output.schemas.schema_complement import whole_complement
from quire_structured_output.schemas.schema_marks import ASIDE, WIDENED, marked
from quire_structured_output.schemas.schema_translation import Schema, Translation

BESIDE = (
    "type",
    "enum",
    "properties",
    "required",
    "items",
    "additionalProperties",
    "patternProperties",
)  # what counts beside `oneOf`


def translate_branches(translation: Translation) -> None:
    """Translate `allOf`, `anyOf` and `oneOf`; what is beside them is translated before.

    Raises:
        GrammarError: One is not a list of schemas.
    """
    for word in ("allOf", "anyOf", "oneOf"):
        if word not in translation.given:
            continue
        branches = translation.given[word]
        if not isinstance(branches, list) or not branches:
            raise translation.error(word, "must be a non-empty list")
        parts = [translation.part(part, word, i) for i, part in enumerate(branches)]
        if word == "allOf":
            translation.also += parts
        elif word == "oneOf":
            translation.also.append(_exclusive(translation, parts))
        else:
            translation.also.append(any_of(parts))


def translate_not(translation: Translation) -> None:
    """Translate `not`; raises a GrammarError if the whole complement is not known."""
    if "not" not in translation.given:
        return
    part = translation.part(translation.given["not"], "not")
    found = whole_complement(part, translation.normalizer.resolved)
    if found is None:
        raise translation.refusal("not", "of this kind")
    translation.also.append(marked(any_of([*found]), ASIDE))


def translate_if(translation: Translation) -> None:
    """Translate `if`, `then` and `else`.

    Raises:
        GrammarError: The whole complement of the condition is not known.
    """
    given, normalizer = translation.given, translation.normalizer
    if "if" not in given or not ("then" in given or "else" in given):
        return
    condition = translation.part(given["if"], "if")
    then = translation.part(given.get("then", True), "then")
    other = translation.part(given.get("else", True), "else")
    fails = whole_complement(condition, normalizer.resolved)
    if fails is None:
        raise translation.refusal("if", "of this kind")
    if len(fails) > 1:
        other = normalizer.shared(other)
    branches = [all_of([condition, then]), *(all_of([each, other]) for each in fails)]
    found = any_of(branches)
    if isinstance(found, dict) and any(found is branch for branch in branches):
        found = {"anyOf": [found]}  # a `oneOf` is completed later, so it is not copied
    translation.also.append(marked(found, ASIDE))


def all_of(parts: list[Schema | bool]) -> Schema | bool:
    """Return the schema of values that satisfy all parts; False: there is none."""
    if False in parts:
        return False
    kept = [part for part in parts if part]
    return {"allOf": kept} if len(kept) > 1 else kept[0] if kept else {}


def any_of(parts: list[Schema | bool]) -> Schema | bool:
    """Return the schema of values that satisfy a part; False: there is none."""
    kept = [part for part in parts if part is not False]
    if {} in kept:
        return {}
    return {"anyOf": kept} if len(kept) > 1 else kept[0] if kept else False


def _exclusive(translation: Translation, parts: list[Schema | bool]) -> Schema | bool:
    """Return the equivalent of `oneOf`, which is completed when references lead somewhere."""
    kept = [part for part in parts if part is not False]
    if len(kept) < 2:
        return kept[0] if kept else False
    base = {key: translation.written[key] for key in BESIDE if key in translation.written}
    alternatives: Schema = {"anyOf": kept, WIDENED: True}
    translation.normalizer.exclude_later(alternatives, base, translation.where)
    return alternatives
