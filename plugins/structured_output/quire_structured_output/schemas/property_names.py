"""`propertyNames` as `patternProperties` beside which there are no other names."""

from __future__ import annotations

import re

from quire.errors import GrammarError
from quire_structured_output.schemas.ecma_regex import anchored_match
from quire_structured_output.schemas.ecma_search import is_found
from quire_structured_output.schemas.formats import URI
from quire_structured_output.schemas.regex_words import listed_words
from quire_structured_output.schemas.schema_marks import MARKS, NAMES_ONLY, NARROWED
from quire_structured_output.schemas.schema_translation import Schema, Translation


def translate_property_names(translation: Translation) -> None:
    """Translate `propertyNames`; the other keywords that allow names are translated before.

    Raises:
        GrammarError: It has no equivalent, or does not allow a required name.
    """
    names = translation.given.get("propertyNames", True)
    if names is True:
        return
    written = translation.written
    found = translation.normalizer.resolved(translation.part(names, "propertyNames"))
    if found and not any(isinstance(name, str) for name in found.get("enum", [""])):
        found = False
    if found == {} or found == {"type": "string"}:
        return
    if found is False:
        translation.also.append({"properties": {}, "additionalProperties": False})
        return
    if "patternProperties" in written:
        raise translation.refusal("propertyNames", "beside 'patternProperties'")
    found = _joined(found)
    if NARROWED in found:
        written[NARROWED] = True
    found = {word: value for word, value in found.items() if word not in MARKS}
    if found.keys() >= {"minLength", "pattern"} and found["minLength"] == 1:
        del found["minLength"]
        written["properties"] = {**written.get("properties", {}), "": False}
    regex = _regex_of_names(found)
    if regex is None:
        raise translation.refusal("propertyNames", "of this kind; use a pattern or an enum")
    _check_listed(translation, regex)
    _write(translation, regex)


def _check_listed(translation: Translation, regex: str) -> None:
    """Forbid the listed properties whose names the regex does not allow."""
    written, charge = translation.written, translation.normalizer.budget.work

    def is_allowed(name: str) -> bool:
        return is_found(regex, name, "propertyNames", charge)

    written["properties"] = {
        name: part if is_allowed(name) else False
        for name, part in written.get("properties", {}).items()
    }
    if not all(map(is_allowed, written.get("required", []))):
        raise GrammarError(
            f"nothing satisfies both 'required' and 'propertyNames' at {translation.where}"
        )


def _write(translation: Translation, regex: str) -> None:
    """Write the names that a regex allows."""
    written = translation.written
    rest, pattern = written.get("additionalProperties", {}), anchored_match(regex, "a name")
    if written["properties"] and rest != {}:  # which is not for listed names that match
        listed = dict.fromkeys([*written["properties"], *written.get("required", [])])
        if listed_words(pattern, listed, translation.normalizer.budget.work) is not None:
            rest = translation.normalizer.shared(rest)
            written["properties"] = dict.fromkeys(listed, rest) | written["properties"]
            written["additionalProperties"] = False
            return
        only = {"patternProperties": {pattern: {}}, "additionalProperties": False}
        translation.also.append(only | {NAMES_ONLY: True})
        return
    written["patternProperties"] = {pattern: rest}
    if "additionalProperties" not in written:
        written[NAMES_ONLY] = True
    written["additionalProperties"] = False


def _joined(found: Schema) -> Schema:
    """Return a schema with the keywords of its `allOf`, unless two say something of the same."""
    parts = [{word: value for word, value in found.items() if word != "allOf"}]
    parts += found.get("allOf", ())
    joined = {word: value for part in parts for word, value in part.items()}
    return joined if len(joined) == sum(map(len, parts)) else found


def _regex_of_names(found: Schema) -> str | None:
    """Return a regex of ECMA-262 for names that a schema allows; None: it is of another kind."""
    rest = {word: value for word, value in found.items() if word != "type"}
    if found.get("type", "string") != "string":
        return None
    if set(rest) == {"pattern"}:
        return str(rest["pattern"]).replace("\\x{", "\\u{")
    if rest == {"format": "uri"}:
        return f"^(?:{URI})$"
    if set(rest) == {"enum"}:
        names = [re.sub(r"([^A-Za-z0-9])", lambda m: f"\\u{{{ord(m[1]):x}}}", name)
                 for name in rest["enum"] if isinstance(name, str)]  # fmt: skip
        return f"^(?:{'|'.join(names)})$" if names else None
    if set(rest) <= {"minLength", "maxLength"}:
        return rf"^[^]{{{rest.get('minLength', 0)},{rest.get('maxLength', '')}}}$"
    return None
