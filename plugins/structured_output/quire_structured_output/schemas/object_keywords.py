"""Properties of objects: their schemas, those required, their number, and what others depend on."""

from __future__ import annotations

import math
from itertools import combinations

from quire_structured_output.regex_syntax import check_text
from quire_structured_output.schemas.ecma_regex import anchored_match
from quire_structured_output.schemas.evaluated_properties import evaluated
from quire_structured_output.schemas.listed_names import close_listed, drop_listed_patterns
from quire_structured_output.schemas.number_keywords import translate_counts
from quire_structured_output.schemas.property_names import translate_property_names
from quire_structured_output.schemas.schema_marks import NAMES_ONLY, NARROWED, marked
from quire_structured_output.schemas.schema_translation import Schema, Translation

MAX_DEPENDENCIES = 4  # of one object; each doubles the alternatives
MAX_COMBINATIONS = 64  # of names, for `minProperties` and `maxProperties`
OF_OBJECTS = ("properties", "required", "additionalProperties", "patternProperties", NAMES_ONLY)


def translate_objects(translation: Translation) -> None:
    """Translate the keywords of objects, but for `unevaluatedProperties`.

    Raises:
        GrammarError: One is malformed or has no equivalent, or nothing satisfies two of them.
    """
    given = translation.given
    _properties(translation)
    required = translation.names("required") if not isinstance(given.get("required"), bool) else []
    if required:
        translation.written["required"] = required
    _further_properties(translation)
    translate_property_names(translation)
    drop_listed_patterns(translation)
    _count_properties(translation, required)
    _dependencies(translation)


def translate_unevaluated_properties(translation: Translation) -> None:
    """Translate `unevaluatedProperties` where the evaluated ones are the same for all values.

    Properties that only a branch of `anyOf` evaluates are not allowed, which is narrower. All other
    keywords have to be translated.

    Raises:
        GrammarError: It is beside `propertyNames`.
    """
    given = translation.given
    if "unevaluatedProperties" not in given:
        return
    if "propertyNames" in given:
        raise translation.refusal("unevaluatedProperties", "beside 'propertyNames'")
    rest = translation.part(given["unevaluatedProperties"], "unevaluatedProperties")
    own = {**translation.written, "allOf": translation.also}
    found = evaluated(own, translation.normalizer.resolved)
    if rest == {} or found.are_all:
        return
    closed: Schema = {
        "properties": {name: {} for name in sorted(found.names)},
        "patternProperties": {regex: {} for regex in sorted(found.regexes)},
        "additionalProperties": rest,
    }
    translation.also.append(closed if found.is_known else marked(closed, NARROWED))


def order_properties(translation: Translation) -> None:
    """Put own properties behind those of `$ref` and `allOf` if these are written first.

    All other keywords have to be translated. The object is closed if no further names are left.
    """
    close_listed(translation)
    words = [word for word in translation.given if word in ("$ref", "allOf", "properties")]
    written = translation.written
    if "properties" not in written or not words or words[0] == "properties":
        return
    translation.also.append({word: written.pop(word) for word in OF_OBJECTS if word in written})


def _properties(translation: Translation) -> None:
    properties = translation.mapping("properties")
    if not properties:
        return
    translation.written["properties"] = {
        name: translation.part(part, "properties", name) for name, part in properties.items()
    }
    for name in properties:
        check_text(name, f"a name in 'properties' at {translation.where}")


def _further_properties(translation: Translation) -> None:
    """Translate `patternProperties` and `additionalProperties`."""
    given, written = translation.given, translation.written
    where = f"a name in 'patternProperties' at {translation.where}"
    patterns = translation.mapping("patternProperties")
    if patterns:
        written["patternProperties"] = {
            anchored_match(regex, where): translation.part(part, "patternProperties", regex)
            for regex, part in patterns.items()
        }
    if "additionalProperties" in given:
        written["additionalProperties"] = translation.part(
            given["additionalProperties"], "additionalProperties"
        )


def _count_properties(translation: Translation, required: list[str]) -> None:
    """Translate `minProperties` and `maxProperties`."""
    low, high = translate_counts(translation, "minProperties", "maxProperties")
    written = translation.written
    if low <= len(set(required)):
        written.pop("minProperties", None)
    elif low > 1 and written.get("additionalProperties") is not False:
        raise translation.refusal("minProperties", "above 1, as a name could be written twice")
    elif low > 1 and "patternProperties" in written:
        raise translation.refusal("minProperties", "above 1 beside 'patternProperties'")
    listed = [name for name, part in written.get("properties", {}).items() if part is not False]
    is_closed = written.get("additionalProperties") is False
    is_fixed = is_closed and "patternProperties" not in written
    if high is not None and is_fixed and high >= len(listed):
        del written["maxProperties"]
    if set(listed) <= set(required):
        return
    if "minProperties" in written:
        _least_properties(translation, listed, low, is_fixed=is_fixed)
    if "maxProperties" in written and is_fixed:
        _most_properties(translation, listed, written["maxProperties"])


def _least_properties(
    translation: Translation, listed: list[str], low: int, *, is_fixed: bool
) -> None:
    """Write `minProperties` as the names of which all of some are there, or another one."""
    if math.comb(len(listed), low) > MAX_COMBINATIONS:
        return
    named: list[Schema] = [{"required": list(names)} for names in combinations(listed, low)]
    if not is_fixed:  # then it is one
        absent = {"properties": dict.fromkeys(listed, False), "minProperties": 1}
        named.append(absent)
    del translation.written["minProperties"]
    translation.also.append({"anyOf": named})


def _most_properties(translation: Translation, listed: list[str], high: int) -> None:
    """Write `maxProperties` as the names of which none of some is there."""
    num_absent = len(listed) - high
    if math.comb(len(listed), num_absent) > MAX_COMBINATIONS:
        return
    del translation.written["maxProperties"]
    absent = combinations(listed, num_absent)
    parts = [{"properties": dict.fromkeys(names, False)} for names in absent]
    translation.also.append({"anyOf": parts})


def _dependencies(translation: Translation) -> None:
    """Translate what a property asks of others: it is absent, or they hold."""
    found: list[tuple[str, Schema | bool]] = []
    for word in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name, needed in translation.mapping(word).items():
            if isinstance(needed, list):
                if not all(isinstance(each, str) for each in needed):
                    raise translation.error(word, "must list names")
                found.append((name, {"required": list(dict.fromkeys([name, *needed]))}))
            else:
                part = translation.part(needed, word, name)
                holds: Schema | bool = {"required": [name]}
                if part is False:
                    holds = False
                elif part:
                    holds = {"allOf": [{"required": [name]}, part]}
                found.append((name, holds))
    if len(found) > MAX_DEPENDENCIES:
        raise translation.refusal("dependencies", f"with more than {MAX_DEPENDENCIES} properties")
    for name, holds in found:
        branches = [{"properties": {name: False}}, holds]
        translation.also.append({"anyOf": [each for each in branches if each is not False]})
