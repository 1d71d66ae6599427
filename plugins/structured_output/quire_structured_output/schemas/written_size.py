"""How many characters a schema in normal form has when it is written, and their limit."""

from __future__ import annotations

from collections import Counter
from typing import Any

from quire.errors import GrammarError

MAX_WRITTEN = 2**20  # characters, of all schemas of a constraint


def charge_written(spent: Counter[str], size: int) -> None:
    """Charge characters that are written.

    Raises:
        GrammarError: The schemas of the constraint have too many together.
    """
    spent["written"] += size
    if spent["written"] > MAX_WRITTEN:
        raise GrammarError(
            "the JSON schema is too large: written with the equivalents of its keywords it has "
            f"more than {MAX_WRITTEN} characters; use fewer of 'not', 'if', 'oneOf', 'contains', "
            "'dependencies' and 'uniqueItems'"
        )


def written_size(value: Any) -> int:
    """Return about how many characters a value has in JSON; a part that is shared is read once."""
    return _size(value, {})


def _size(value: Any, known: dict[int, int]) -> int:
    if isinstance(value, str):
        return _text_size(value)
    if not isinstance(value, dict | list):
        return len(str(value))
    if isinstance(value, list) and set(map(type, value)) == {str}:  # of an enum, which may be long
        return 2 + 2 * len(value) + sum(map(_text_size, value))
    if id(value) not in known:
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 2 + sum(2 + _size(part, known) for part in parts)
    return known[id(value)]


def _text_size(text: str) -> int:
    return 2 + (len(text) if text.isascii() else 6 * len(text))
