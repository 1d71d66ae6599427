"""Reader of a call that is a JSON object: `{"name": "find", "arguments": {"city": "Oslo"}}`."""

from collections.abc import Collection

from quire_tool_parsers.call_format import JsonKeys
from quire_tool_parsers.call_reader import ScanningReader
from quire_tool_parsers.json_scan import (
    BLANKS,
    Characters,
    after_blanks,
    parse,
    read_container,
    read_string,
    read_value,
    refuse,
)

NO_ARGUMENTS = "{}"


class JsonReader(ScanningReader):
    """Reader of a JSON object with a name and arguments, keys in any order, others allowed.

    Arguments may be written as a string that contains the JSON text of an object. Those of a tool
    that the request offers may be null or an empty string, if there are none.

    Args:
        keys: Keys of the object.
        names: Names of the tools.
    """

    def __init__(self, keys: JsonKeys, names: Collection[str] = ()) -> None:
        self._keys = keys
        self._names = names
        self._has_arguments = False
        self._is_empty = False  # the arguments are null or an empty string
        super().__init__()

    def scan(self) -> Characters:
        """Read the object."""
        character = yield from after_blanks()
        if character != "{":
            refuse("a call must be a JSON object")
        character, is_first = (yield from after_blanks()), True
        while True:
            key = yield from self._read_key(character)
            if is_first and self._keys.first and key not in self._keys.first:
                refuse("a call begins with another key")
            is_first = False
            character = yield from after_blanks()
            if character != ":":
                refuse("a colon is missing")
            character = yield from self._read_member(key, (yield from after_blanks()))
            if character == "}":
                break
            if character != ",":
                refuse("a comma is missing")
            character = yield from after_blanks()
        if self.name is None:
            refuse("a call must have a name")
        if self._is_empty and self.name not in self._names:
            refuse("arguments must be one JSON object")
        if not self._has_arguments:
            if self._keys.is_required:
                refuse("a call must have arguments")
            self._arguments.append(NO_ARGUMENTS)

    def _read_key(self, first: str) -> Characters:
        if first != '"':
            refuse("a key must be a string")
        literal: list[str] = []
        yield from read_string(literal)
        return parse(literal)

    def _read_member(self, key: str, first: str) -> Characters:
        """Read a value; return the first non-blank character after it."""
        if self._keys.is_name:
            self._set_name(key)
        if self._keys.is_name or key in self._keys.arguments:
            return (yield from self._read_arguments(first))
        literal: list[str] = []
        behind = yield from read_value(first, literal)
        value = parse(literal)
        if key in self._keys.name:
            self._set_name(value)
        if behind is None or behind in BLANKS:
            behind = yield from after_blanks()
        return behind

    def _read_arguments(self, first: str) -> Characters:
        if self._has_arguments or first not in '{"n':
            refuse("arguments must be one JSON object")
        self._has_arguments = True
        if first == "{":
            yield from read_container(first, self._arguments)
            parse(self._arguments)
            return (yield from after_blanks())
        literal: list[str] = []
        behind = yield from read_value(first, literal)
        self._arguments.append(self._object_in(parse(literal)))
        return behind if behind and behind not in BLANKS else (yield from after_blanks())

    def _object_in(self, value: str | None) -> str:
        """Return the JSON text of an object that a string contains; null and "" are empty ones."""
        if value is None or value.strip() in ("", "null"):
            self._is_empty = True
            return NO_ARGUMENTS
        if not isinstance(parse([value]), dict):
            refuse("arguments must be one JSON object")
        return value

    def _set_name(self, name: object) -> None:
        if self.name is not None or not isinstance(name, str) or not name:
            refuse("a name must be one string")
        self.name = name
