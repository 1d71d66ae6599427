"""Reader of a call in braces: `call:find{city:<|"|>Oslo<|"|>,days:[1,2],exact:true}`.

Strings stand between two markers; other values are bare words, whose types the tool's schema knows.
Strings in JSON's own quotes are read as well.
"""

import json
from collections.abc import Generator

from quire_tool_parsers.argument_types import ArgumentTypes, json_text
from quire_tool_parsers.call_reader import ScanningReader
from quire_tool_parsers.json_scan import (
    BLANKS,
    MAX_DEPTH,
    Characters,
    after_blanks,
    parse,
    read_string,
    refuse,
)

_ALL_TYPES = frozenset({"null", "integer", "number", "boolean", "string"})
_MAX_WORD = 10_000  # characters of a bare value
_MAX_NAME = 512  # characters

Scan = Generator[None, str, str]  # returns the character after what was read


class BraceReader(ScanningReader):
    """Reader of a name and an object in braces.

    Args:
        quote: Marker on both sides of a string.
        types: Types of arguments.
    """

    def __init__(self, quote: str, types: ArgumentTypes) -> None:
        self._quote = quote
        self._types = types
        super().__init__()

    def scan(self) -> Characters:
        """Read the name and the arguments."""
        name: list[str] = []
        while (character := (yield)) != "{":
            name.append(character)
            if len(name) > _MAX_NAME:
                refuse("a name is too long")
        self.name = "".join(name).strip(BLANKS).removeprefix("call:").removeprefix(":") or None
        if (
            self.name is None
            or not self.name.replace("_", "").replace("-", "").replace(".", "").isalnum()
        ):
            refuse("a call has a name")
        yield from self._read_object(MAX_DEPTH, is_outermost=True)

    def _read_object(self, depth: int, *, is_outermost: bool = False) -> Characters:
        write, num_members = self._arguments.append, 0
        write("{")
        character = yield from after_blanks()
        while character != "}":
            key, character = yield from self._read_key(character)
            if character != ":":
                refuse("a colon is missing")
            write(f"{', ' if num_members else ''}{json.dumps(key, ensure_ascii=False)}: ")
            num_members += 1
            types = self._types.of(self.name or "", key) if is_outermost else _ALL_TYPES
            character = yield from self._read_value((yield from after_blanks()), types, depth)
            if character == ",":
                character = yield from after_blanks()
            elif character != "}":
                refuse("a comma is missing")
        write("}")

    def _read_key(self, first: str) -> Generator[None, str, tuple[str, str]]:
        if first == '"':
            literal: list[str] = []
            yield from read_string(literal)
            return parse(literal), (yield from after_blanks())
        if first == self._quote[0]:
            text: list[str] = []
            yield from self._expect_quote()
            yield from self._read_quoted(text)
            return "".join(text), (yield from after_blanks())
        key, character = [], first
        while character not in ':{}[],"' + BLANKS:
            key.append(character)
            if len(key) > _MAX_NAME:
                refuse("a name is too long")
            character = yield
        if character in BLANKS:
            character = yield from after_blanks()
        return "".join(key), character

    def _read_value(self, first: str, types: frozenset[str], depth: int) -> Scan:
        """Write a value as JSON; return the first non-blank character after it."""
        if depth == 0:
            refuse("values are nested too deeply")
        if first == "{":
            yield from self._read_object(depth - 1)
            return (yield from after_blanks())
        if first == "[":
            return (yield from self._read_list(depth - 1))
        if first == '"' and self._quote[0] != '"':
            yield from read_string(self._arguments)
            return (yield from after_blanks())
        if first == self._quote[0]:
            yield from self._expect_quote()
            self._arguments.append('"')
            yield from self._read_quoted(None)
            self._arguments.append('"')
            return (yield from after_blanks())
        return (yield from self._read_word(first, types))

    def _read_list(self, depth: int) -> Scan:
        write, num_items = self._arguments.append, 0
        write("[")
        character = yield from after_blanks()
        while character != "]":
            if num_items:
                write(", ")
            num_items += 1
            character = yield from self._read_value(character, _ALL_TYPES, depth)
            if character == ",":
                character = yield from after_blanks()
            elif character != "]":
                refuse("a comma is missing")
        write("]")
        return (yield from after_blanks())

    def _read_word(self, first: str, types: frozenset[str]) -> Scan:
        """Write a bare value; a quote behind it closes a string whose first quote is missing."""
        word, character = [], first
        while character not in ",}]":
            if character == self._quote[0]:
                yield from self._expect_quote()
                types, character = frozenset({"string"}), (yield from after_blanks())
                break
            word.append(character)
            if len(word) > _MAX_WORD:
                refuse("a value is too long")
            character = yield
        self._arguments.append(json_text("".join(word).strip(BLANKS), types))
        return character

    def _expect_quote(self) -> Characters:
        """Read a quote, whose first character was read."""
        for expected in self._quote[1:]:
            if (yield) != expected:
                refuse("a quote is broken")

    def _read_quoted(self, text: list[str] | None) -> Characters:
        """Read a string up to its quote; write it as JSON if there is no list for its text."""
        quote, held = self._quote, ""
        while True:
            held += yield
            if held == quote:
                return
            while held and not quote.startswith(held):
                self._keep(held[0], text)
                held = held[1:]

    def _keep(self, character: str, text: list[str] | None) -> None:
        if text is None:
            self._arguments.append(json.dumps(character, ensure_ascii=False)[1:-1])
        else:
            text.append(character)
