"""Keywords of JSON Schema: supported ones, annotations, and errors for the others."""

from typing import Any

from quire.errors import GrammarError

MAX_DEPTH = 24
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"$schema", "$comment", "$defs", "definitions"}
)
COMBINERS = ("$ref", "enum", "const", "anyOf", "oneOf", "allOf")
KEYWORDS_OF_TYPE = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": (),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "boolean": (),
    "null": (),
}
SUPPORTED = {"type", *COMBINERS, *(word for words in KEYWORDS_OF_TYPE.values() for word in words)}

Schema = dict[str, Any]


def constraints(schema: Schema, path: str) -> set[str]:
    """Return the keywords that constrain, after a check that all of them are supported."""
    keywords = set()
    for word, value in schema.items():
        is_annotation = word in ANNOTATIONS or word.startswith("x-") or (word == "$id" and not path)
        if is_annotation or (word == "uniqueItems" and value is False):
            continue
        if word not in SUPPORTED:
            raise refusal(word, path)
        keywords.add(word)
    return keywords


def types_of(schema: Schema, keywords: set[str], path: str) -> list[str]:
    """Return the types to allow: those in `type`, or else those that the keywords apply to."""
    if "type" not in keywords:
        return [name for name, words in KEYWORDS_OF_TYPE.items() if keywords.intersection(words)]
    named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not named or not all(isinstance(name, str) and name in KEYWORDS_OF_TYPE for name in named):
        raise GrammarError(
            f"'type' at {path or '/'} must be one or more of {', '.join(KEYWORDS_OF_TYPE)}"
        )
    return list(named)


def bounds(schema: Schema, low_word: str, high_word: str, path: str) -> tuple[int, int | None]:
    """Return the minimum and maximum count, None for no maximum; raises a GrammarError."""
    low, high = schema.get(low_word, 0), schema.get(high_word)
    for word, value in ((low_word, low), (high_word, high)):
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if not is_count and not (value is None and word not in schema):
            raise GrammarError(f"'{word}' at {path or '/'} must be an integer of at least 0")
    if high is not None and low > high:
        raise GrammarError(
            f"nothing can satisfy '{low_word}' {low} and '{high_word}' {high} at {path or '/'}"
        )
    return low, high


def refusal(keyword: str, path: str, why: str = "") -> GrammarError:
    """Return the error for a keyword that is not supported."""
    detail = f" {why}" if why else ""
    return GrammarError(
        f"the outlines backend does not support '{keyword}' at {path or '/'}{detail}; remove it, "
        "and validate the completion yourself"
    )
