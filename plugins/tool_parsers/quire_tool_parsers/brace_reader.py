"""Reader of a call in braces: `call:find{city:<|"|>Oslo<|"|>,days:[1,2],exact:true}`.

Strings stand between two markers; other values are bare words, whose types the tool's schema knows.
Strings in JSON's own quotes are read as well, and so is one whose first marker is missing. A comma
ends a bare word of an object only if another member follows: `{city:Oslo, Norway<|"|>,days:1}`.
"""

import re
from collections.abc import Generator
from typing import Any

from quire_tool_parsers.argument_types import ANY_TYPE, ArgumentTypes
from quire_tool_parsers.call_reader import ScanningReader
from quire_tool_parsers.json_scan import (
    BLANKS,
    MAX_DEPTH,
    Characters,
    Scan,
    after_blanks,
    parse,
    read_string,
    refuse,
)
from quire_tool_parsers.json_writing import escaped, string_text
from quire_tool_parsers.written_values import json_text

_NAME_PART = re.compile(r"[\s\w.:-]*")
_NAME = re.compile(r"\s*(?:call)?:?\s*(?P<name>[\w.-]+)\s*")
_BLANK_RUN = re.compile(r"\s*")
_KEY = re.compile(r'[^:{}\[\],"\s]*')


class BraceReader(ScanningReader):
    """Reader of a name and an object in braces.

    Args:
        quote: Marker on both sides of a string.
        types: Types of arguments.
    """

    def __init__(self, quote: str, types: ArgumentTypes) -> None:
        self._quote = quote
        self._types = types
        first = re.escape(quote[0])
        self._plain_key = re.compile(rf'[^:{{}}\[\],"\s{first}]*')
        self._within_string = re.compile(f"[^{first}]*")
        self._within_word = re.compile(rf"[^{first},}}\]]*")
        self._ahead = ("", "")  # a key that was read to see what a comma is, and what follows it
        super().__init__()

    def scan(self) -> Characters:
        """Read the name and the arguments."""
        named = _NAME.fullmatch("".join((yield from _run(_NAME_PART))))
        if (yield) != "{" or named is None:
            refuse("a call has a name")
        self.name = named["name"]
        yield from self._read_object(MAX_DEPTH, is_outermost=True)

    def _read_object(self, depth: int, *, is_outermost: bool = False) -> Characters:
        write, keys = self._arguments.append, set[str]()
        write("{")
        character = yield from after_blanks()
        while character != "}":
            key = yield from self._read_key(character)
            if key in keys:
                refuse("a key occurs twice")
            write(f"{', ' if keys else ''}{key}: ")
            keys.add(key)
            types = self._types_of(key) if is_outermost else ANY_TYPE
            first = yield from after_blanks()
            character = yield from self._read_value(first, types, depth, is_member=True)
            if character == ",":
                character = self._ahead[0] or self._ahead[1] or (yield from after_blanks())
            elif character != "}":
                refuse("a comma is missing")
        write("}")

    def _types_of(self, key: str) -> frozenset[str]:
        return self._types.of(self.name or "", parse([key]), ANY_TYPE)

    def _read_key(self, first: str) -> Scan:
        """Read a key and its colon; return its JSON text.

        Args:
            first: First character of the key, or all of it if it was read ahead.
        """
        key: list[str] = []
        (ahead, behind), self._ahead = self._ahead, ("", "")
        if ahead:
            key.append(string_text(ahead))
        elif first == '"':
            yield from _read_json_string(key)
        elif first == self._quote[0]:
            yield from self._read_quoted(key)
        else:
            rest = yield from _run(_KEY)
            key.append(string_text("".join([first, *rest])))
        if (behind if ahead else (yield from after_blanks())) != ":":
            refuse("a colon is missing")
        return "".join(key)

    def _read_value(
        self, first: str, types: frozenset[str], depth: int, *, is_member: bool = False
    ) -> Scan:
        """Write a value as JSON; return the first non-blank character after it."""
        if depth == 0:
            refuse("values are nested too deeply")
        if first == "{":
            yield from self._read_object(depth - 1)
        elif first == "[":
            yield from self._read_list(depth - 1)
        elif first == self._quote[0]:
            yield from self._read_quoted(self._arguments)
        elif first == '"':
            yield from _read_json_string(self._arguments)
        else:
            return (yield from self._read_word(first, types, is_member))
        return (yield from after_blanks())

    def _read_list(self, depth: int) -> Characters:
        write, is_first = self._arguments.append, True
        write("[")
        character = yield from after_blanks()
        while character != "]":
            if not is_first:
                write(", ")
            is_first = False
            character = yield from self._read_value(character, ANY_TYPE, depth)
            if character == ",":
                character = yield from after_blanks()
            elif character != "]":
                refuse("a comma is missing")
        write("]")

    def _read_word(self, first: str, types: frozenset[str], is_member: bool) -> Scan:
        """Write a bare value; a quote behind it closes a string whose first quote is missing."""
        word, character = [], first
        if first not in ",}]":
            word = [first, *(yield from _run(self._within_word))]
            character = yield
        while character == "," and is_member:
            more, character = yield from self._read_ahead()
            if self._ahead != ("", ""):
                break
            word += more
            if character not in ",}]" and character != self._quote[0]:
                word += [character, *(yield from _run(self._within_word))]
                character = yield
        if character == self._quote[0]:
            yield from self._expect_quote()
            self._arguments.append(string_text("".join(word)))
            return (yield from after_blanks())
        self._arguments.append(json_text("".join(word).strip(BLANKS), types))
        return character

    def _read_ahead(self) -> Generator[Any, str, tuple[list[str], str]]:
        """Read what is behind a comma: the key of a member, or more of the bare word before it.

        Returns:
            What was read, and the character behind it; of a member the comma, and the key is kept.
        """
        blanks = yield from _run(_BLANK_RUN)
        key = "".join((yield from _run(self._plain_key)))
        behind = yield from _run(_BLANK_RUN)
        character = yield
        is_next = character == ":" if key else character in f'"}}{self._quote[0]}'
        if is_next:
            self._ahead = (key, character)
            return [], ","
        return [",", *blanks, key, *behind], character

    def _expect_quote(self) -> Characters:
        """Read a quote, whose first character was read."""
        for expected in self._quote[1:]:
            if (yield) != expected:
                refuse("a quote is broken")

    def _read_quoted(self, out: list[str]) -> Characters:
        """Append a string as JSON; the first character of its quote was read."""
        yield from self._expect_quote()
        out.append('"')
        quote, held = self._quote, ""
        while held != quote:
            if not held:
                while run := (yield self._within_string):
                    out.append(escaped(run))
            held += yield
            while not quote.startswith(held):
                out.append(escaped(held[0]))
                held = held[1:]
        out.append('"')


def _run(pattern: re.Pattern[str]) -> Generator[Any, str, list[str]]:
    """Return the pieces of a run of characters."""
    pieces: list[str] = []
    while piece := (yield pattern):
        pieces.append(piece)
    return pieces


def _read_json_string(out: list[str]) -> Characters:
    """Append a string in JSON's quotes, the first of which was read."""
    literal: list[str] = []
    yield from read_string(literal)
    parse(literal)
    out += literal
