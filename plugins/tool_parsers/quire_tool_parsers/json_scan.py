"""Scanners of JSON text that arrives character by character.

They find the ends of values; `json` checks each complete one. An error that is visible earlier (a
`<` between values, a line break in a string) raises at once.
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


def after_blanks() -> Generator[None, str, str]:
    """Return the next non-blank character."""
    while (character := (yield)) in BLANKS:
        pass
    return character


def read_value(first: str, literal: list[str]) -> Characters:
    """Append a value's text; return the character after it if that was read, else None."""
    if first == '"':
        return (yield from read_string(literal))
    if first in CLOSERS:
        return (yield from read_container(first, literal))
    character = first
    while character in BARE:
        literal.append(character)
        character = yield
    return character


def read_string(literal: list[str]) -> Characters:
    """Append a string's text, from its opening quote, already read, to the closing one."""
    literal.append('"')
    while True:
        character = yield
        if character < " ":
            refuse("a string has a control character")
        literal.append(character)
        if character == '"':
            return
        if character == "\\":
            literal.append((yield))


def read_container(first: str, literal: list[str]) -> Characters:
    """Append the text of an object or a list, whose opening bracket was already read."""
    literal.append(first)
    expected = [CLOSERS[first]]
    while expected:
        character = yield
        if character == '"':
            yield from read_string(literal)
            continue
        if character in CLOSERS:
            expected.append(CLOSERS[character])
        elif character in "]}":
            if character != expected.pop():
                refuse("brackets do not match")
        elif character not in BARE and character not in BLANKS and character not in ",:":
            refuse("the text is not JSON")
        if len(expected) > MAX_DEPTH:
            refuse("values are nested too deeply")
        literal.append(character)


def parse(literal: list[str]) -> Any:
    """Return the value of a JSON text in pieces.

    Raises:
        BrokenCallError: It is no JSON.
    """
    try:
        return json.loads("".join(literal), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise BrokenCallError(str(error)) from error


def refuse(reason: str) -> NoReturn:
    """Raise a BrokenCallError."""
    raise BrokenCallError(reason)
