"""References of a schema object, beside which its other keywords count."""

from quire_structured_output.schemas.schema_translation import Translation


def translate_references(translation: Translation) -> None:
    """Translate `$ref`, and dynamic references to an anchor that occurs once.

    Raises:
        GrammarError: The target is not in the schema, or depends on where a reference is met.
    """
    given = translation.given
    for word in ("$ref", "$dynamicRef", "$recursiveRef"):
        if word not in given:
            continue
        anchor = str(given[word]).rpartition("#")[2] or "#"
        if word != "$ref" and not translation.normalizer.is_static(anchor):
            raise translation.refusal(word, "whose anchor occurs more than once")
        translation.also.append(translation.reference(given[word]))
