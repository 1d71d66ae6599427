"""JSON of a value that arrives as plain text: a string piece by piece, others at their end."""

from quire_tool_parsers.argument_types import STRING
from quire_tool_parsers.json_writing import escaped
from quire_tool_parsers.written_values import json_or_string, json_text, may_become_null

_STRING_OR_NULL = STRING | {"null"}


class ValueWriter:
    """Writer of one value.

    Args:
        types: Types that the value may have; None: it is JSON, or else a string.
    """

    def __init__(self, types: frozenset[str] | None) -> None:
        self._types = types
        self._held: list[str] = []
        self._is_open = False  # a string has begun

    def add(self, text: str) -> str:
        """Return the JSON text that is certain with the next characters."""
        if self._is_open:
            return escaped(text)
        self._held.append(text)
        if not self._is_string():
            return ""
        self._is_open = True
        return '"' + escaped("".join(self._held))

    def end(self) -> str:
        """Return the rest of the JSON text."""
        if self._is_open:
            return '"'
        text = "".join(self._held)
        return json_or_string(text) if self._types is None else json_text(text, self._types)

    def _is_string(self) -> bool:
        """Whether the value is a string, whatever follows."""
        if self._types is None or not self._types <= _STRING_OR_NULL:
            return False
        return "null" not in self._types or not may_become_null("".join(self._held))
