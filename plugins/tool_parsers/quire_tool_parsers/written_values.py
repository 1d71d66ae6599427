"""JSON of values that a model writes as plain text.

A text becomes the first kind of value that it is the text of and its types allow: null, integer,
number, boolean, object, array. Otherwise it is a string: what a model has written is never lost.
JSON that is valid is passed on as it is written, with its digits, escapes and blanks.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from quire_tool_parsers.json_writing import integer_text, number_text, string_text
from quire_tool_parsers.python_reader import python_value

_NULLS = ("null", "NULL", "None")
_MAX_NULL = 64  # characters of a null, blanks included

Reader = Callable[[str], str | None]  # returns JSON, or None if a text is no such value


def json_text(text: str, types: frozenset[str]) -> str:
    """Return the JSON text of a value.

    Args:
        text: Text of the value.
        types: Types that it may have.
    """
    for name, read in _READERS.items():
        if name in types and (found := read(text)) is not None:
            return found
    return string_text(text)


def json_or_string(text: str) -> str:
    """Return a text that is JSON as it is; any other as a JSON string."""
    return _as_json(text.strip()) or string_text(text)


def may_become_null(text: str) -> bool:
    """Whether a text is the beginning of a null."""
    return len(text) <= _MAX_NULL and any(null.startswith(text.strip()) for null in _NULLS)


def _null(text: str) -> str | None:
    return "null" if len(text) <= _MAX_NULL and text.strip() in _NULLS else None


def _boolean(text: str) -> str | None:
    words = {"true": "true", "1": "true", "false": "false", "0": "false"}
    return words.get(text.strip().lower())


def _container(opening: str) -> Reader:
    """Return a reader of objects or lists, in the notation of JSON or of Python."""

    def read(text: str) -> str | None:
        text = text.strip()
        if not text.startswith(opening):
            return None
        return _as_json(text) or _as_loose_json(text) or python_value(text)

    return read


def _as_json(text: str) -> str | None:
    """Return a text that is JSON with different keys in each object and finite numbers."""
    try:
        json.loads(
            text,
            object_pairs_hook=_check_keys,
            parse_int=len,
            parse_float=_check_finite,
            parse_constant=_refuse,
        )
    except (ValueError, RecursionError):
        return None
    return text


def _as_loose_json(text: str) -> str | None:
    """Return the JSON text of JSON with line breaks in strings, or with a key several times.

    The last value of a key counts, as in all of Python's JSON.
    """
    try:
        value = json.loads(text, strict=False, parse_constant=_refuse)
        return json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return None


def _check_keys(members: Sequence[tuple[str, Any]]) -> None:
    if len({key for key, _ in members}) < len(members):
        raise ValueError("a key occurs twice")


def _check_finite(number: str) -> None:
    if not math.isfinite(float(number)):
        raise ValueError(number)


def _refuse(name: str) -> Any:
    raise ValueError(name)


_READERS: dict[str, Reader] = {
    "null": _null,
    "integer": lambda text: integer_text(text.strip()),
    "number": lambda text: number_text(text.strip()),
    "boolean": _boolean,
    "object": _container("{"),
    "array": _container("["),
}
