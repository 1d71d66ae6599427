"""Incremental scanner for the JSON object of a tool call, to stream its arguments.

The scanner finds the ends of keys and values only; `json` checks each complete value. An error that
is visible earlier (a `<` between values, a line break in a string) ends the scan at once.
"""

import json
from collections.abc import Generator
from typing import Any, NoReturn

BLANKS = " \t\r\n"
BARE = frozenset("0123456789+-.eEtruefalsn")  # numbers, true, false, null
CLOSERS = {"{": "}", "[": "]"}
MAX_DEPTH = 200

Characters = Generator[None, str, Any]


class BrokenCallError(ValueError):
    """The text cannot become a call any more."""


class CallObject:
    """Scanner for `{"name": ..., "arguments": {...}}`, keys in any order, others allowed.

    Attributes:
        name: Name of the tool; None until it is complete.
        is_complete: True if the closing brace was read, and there are a name and arguments.
        is_broken: True if the text cannot become a call any more.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.is_complete = False
        self.is_broken = False
        self._has_arguments = False
        self._arguments: list[str] = []  # characters
        self._num_taken = 0
        self._reader = self._read_object()
        next(self._reader)

    def feed(self, text: str) -> int:
        """Scan text; return the number of characters consumed.

        The character that breaks the call is not consumed: it may begin something else.
        """
        for i, character in enumerate(text):
            try:
                self._reader.send(character)
            except BrokenCallError:
                self.is_broken = True
                return i
            except StopIteration:
                self.is_complete = True
                return i + 1
        return len(text)

    def take_arguments(self) -> str:
        """Return the arguments' new text since the last call; empty before the name is complete."""
        if self.name is None:
            return ""
        text = "".join(self._arguments[self._num_taken :])
        self._num_taken = len(self._arguments)
        return text

    def _read_object(self) -> Characters:
        character = yield from _after_blanks()
        if character != "{":
            _break("a call must be a JSON object")
        character = yield from _after_blanks()
        while True:
            key = yield from self._read_key(character)
            character = yield from _after_blanks()
            if character != ":":
                _break("a colon is missing")
            character = yield from self._read_member(key, (yield from _after_blanks()))
            if character == "}":
                break
            if character != ",":
                _break("a comma is missing")
            character = yield from _after_blanks()
        if self.name is None or not self._has_arguments:
            _break("a call must have a name and arguments")

    def _read_key(self, first: str) -> Characters:
        if first != '"':
            _break("a key must be a string")
        literal: list[str] = []
        yield from _read_string(literal)
        return _parse(literal)

    def _read_member(self, key: str, first: str) -> Characters:
        """Read a value; return the first non-blank character after it."""
        if key == "arguments":
            return (yield from self._read_arguments(first))
        literal: list[str] = []
        behind = yield from _read_value(first, literal)
        value = _parse(literal)
        if key == "name":
            self._set_name(value)
        if behind is None or behind in BLANKS:
            behind = yield from _after_blanks()
        return behind

    def _read_arguments(self, first: str) -> Characters:
        if self._has_arguments or first != "{":
            _break("arguments must be one JSON object")
        yield from _read_value(first, self._arguments)
        _parse(self._arguments)
        self._has_arguments = True
        return (yield from _after_blanks())

    def _set_name(self, name: object) -> None:
        if self.name is not None or not isinstance(name, str) or not name:
            _break("a name must be one string")
        self.name = name


def _after_blanks() -> Characters:
    """Return the next non-blank character."""
    while (character := (yield)) in BLANKS:
        pass
    return character


def _read_value(first: str, literal: list[str]) -> Characters:
    """Append a value's text; return the character after it if that was read, else None."""
    if first == '"':
        return (yield from _read_string(literal))
    if first in CLOSERS:
        return (yield from _read_container(first, literal))
    character = first
    while character in BARE:
        literal.append(character)
        character = yield
    return character


def _read_string(literal: list[str]) -> Characters:
    """Append a string's text, from its opening quote, already read, to the closing one."""
    literal.append('"')
    while True:
        character = yield
        if character < " ":
            _break("a string has a control character")
        literal.append(character)
        if character == '"':
            return
        if character == "\\":
            literal.append((yield))


def _read_container(first: str, literal: list[str]) -> Characters:
    """Append the text of an object or a list, whose opening bracket was already read."""
    literal.append(first)
    expected = [CLOSERS[first]]
    while expected:
        character = yield
        if character == '"':
            yield from _read_string(literal)
            continue
        if character in CLOSERS:
            expected.append(CLOSERS[character])
        elif character in "]}":
            if character != expected.pop():
                _break("brackets do not match")
        elif character not in BARE and character not in BLANKS and character not in ",:":
            _break("the text is not JSON")
        if len(expected) > MAX_DEPTH:
            _break("values are nested too deeply")
        literal.append(character)


def _parse(literal: list[str]) -> Any:
    try:
        return json.loads("".join(literal))
    except ValueError as error:
        raise BrokenCallError(str(error)) from error


def _break(reason: str) -> NoReturn:
    raise BrokenCallError(reason)
