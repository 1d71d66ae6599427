"""Translation of `enum` and `const`, checked so that every JSON parser reads the same values."""

import math
from typing import Any

from quire.errors import GrammarError
from quire_structured_output.budget import Budget
from quire_structured_output.outlines import json_regex
from quire_structured_output.outlines.supported_keywords import MAX_DEPTH, Schema, refusal, types_of
from quire_structured_output.regex_syntax import check_text
from quire_structured_output.schemas.disjoint import json_type_of, keeps_type

MAX_VALUES = 2_000  # in one enum
MAX_EXACT_INTEGER = 2**53  # beyond it, JSON parsers disagree


def values_regex(word: str, schema: Schema, path: str, budget: Budget) -> str:
    """Return the expression of the values of `enum` or `const` that have the schema's type.

    Raises:
        GrammarError: There are none or too many, or a value cannot be written exactly.
    """
    values = schema["enum"] if word == "enum" else [schema["const"]]
    if not isinstance(values, list) or not values:
        raise GrammarError(f"nothing can satisfy the empty 'enum' at {path or '/'}")
    if len(values) > MAX_VALUES:
        raise GrammarError(
            f"'enum' at {path or '/'} has {len(values)} values; at most {MAX_VALUES} are allowed"
        )
    types = types_of(schema, {"type"} & schema.keys(), path) or None
    kept = [value for value in values if types is None or keeps_type(value, types)]
    if not kept:
        raise GrammarError(f"nothing satisfies both 'type' and '{word}' at {path or '/'}")
    for value in kept:
        _check_value(value, word, path, budget)
    return json_regex.one_of([json_regex.literal(value) for value in kept])


def _check_value(value: Any, word: str, path: str, budget: Budget, depth: int = 0) -> None:
    """Check that every JSON parser reads the same value."""
    budget.list_value()
    where = f"'{word}' at {path or '/'}"
    if depth > MAX_DEPTH:
        raise GrammarError(f"{where} is nested more than {MAX_DEPTH} deep")
    kind = json_type_of(value)
    if kind == "string":
        check_text(value, where)
    elif kind == "integer" and abs(value) > MAX_EXACT_INTEGER:
        raise refusal(word, path, f"with the number {value}, which is beyond 2**53")
    elif kind == "number" and not math.isfinite(value):
        raise refusal(word, path, "with a number that is not finite")
    elif kind == "array":
        for part in value:
            _check_value(part, word, path, budget, depth + 1)
    elif kind == "object":
        for name, part in value.items():
            check_text(name, where)
            _check_value(part, word, path, budget, depth + 1)
