r"""Judge of instances of JSON schemas: `jsonschema` with regexes of ECMA-262 and asserted formats.

Python's `re`, which `jsonschema` uses, reads `\d` and `\w` as classes of Unicode, and JSON Schema
asks for ECMA-262, so regexes are matched by `regress`. Both packages are for tests only.
"""

from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import regress  # type: ignore[import-not-found,import-untyped,unused-ignore]
from jsonschema.validators import extend, validator_for  # type: ignore[import-untyped]

DEFAULT_DIALECT = jsonschema.Draft202012Validator


def has_match(regex: str, text: str) -> bool:
    """Return whether an ECMA-262 regex matches somewhere in a text.

    It is read in the mode for Unicode, and by the older grammar if it is not valid there.
    """
    try:
        compiled = regress.Regex(regex, "u")
    except regress.RegressError:
        compiled = regress.Regex(regex)
    return compiled.find(text) is not None


def judge(schema: Any) -> Any:
    """Return a validator of a schema, in the dialect that it names."""
    dialect = validator_for(schema, default=DEFAULT_DIALECT)
    return _ecma(dialect)(schema, format_checker=dialect.FORMAT_CHECKER)


def _ecma(dialect: Any) -> Any:
    keywords = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    return extend(dialect, keywords)


def _pattern(validator: Any, regex: str, instance: Any, schema: Any) -> Iterator[Any]:
    del schema
    if validator.is_type(instance, "string") and not has_match(regex, instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {regex!r}")


def _pattern_properties(
    validator: Any, patterns: dict[str, Any], instance: Any, schema: Any
) -> Iterator[Any]:
    del schema
    if not validator.is_type(instance, "object"):
        return
    for regex, subschema in patterns.items():
        for name in instance:
            if has_match(regex, name):
                yield from validator.descend(instance[name], subschema, name, regex)


def _additional_properties(validator: Any, rest: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    listed, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name in instance:
        if name in listed or any(has_match(regex, name) for regex in patterns):
            continue
        if rest is False:
            yield jsonschema.ValidationError(f"{name!r} is not allowed")
        else:
            yield from validator.descend(instance[name], rest, name)
