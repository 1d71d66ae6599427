"""Calls of custom tools, whose input is one text: for the model they are functions of that text.

A model knows functions only, so its call has `{"input": "..."}` as arguments. The text of the input
is read from these as they come.
"""

import json
import re

from quire.frontend.chat.call_arguments import arguments_object

INPUT = "input"
_BEGINNING = f'{{"{INPUT}":"'  # of the arguments; blanks may be around its marks
_BLANKS = " \t\r\n"
_BLANKS_BEFORE = (0, 1, len(_BEGINNING) - 2, len(_BEGINNING) - 1)
_PART = re.compile(  # of a JSON string: characters, or an escape
    r'[^"\\]+|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    r"|\\u[0-9a-fA-F]{4}|\\[^u]",
    re.DOTALL,
)
_HIGH = re.compile(r"\\u[dD][89abAB]")
_NUM_HALF = 6  # characters of the escape of half a character
_PREFIX = re.compile(r"\\?|\\u[0-9a-fA-F]{0,3}")  # of an escape that is not complete
_LONE = re.compile("[\ud800-\udfff]")


class CustomInput:
    """Reads the arguments of one call.

    If they are another object than one with the input, what the model has written is the input.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._num_matched = 0  # characters of the beginning
        self._is_other = False
        self._is_over = False
        self._held = ""  # of the string: an escape that is not complete

    def feed(self, piece: str) -> str:
        """Return the text of the input that is certain with a further piece."""
        self._pieces.append(piece)
        at = self._read_beginning(piece)
        if self._num_matched < len(_BEGINNING) or self._is_over:
            return ""
        return self._string(self._held + piece[at:])

    def close(self) -> str:
        """Return the rest, at the end of the arguments."""
        if not self._is_other:
            return ""
        text = "".join(self._pieces)
        given = (arguments_object(text) or {}).get(INPUT)
        return _shown(given if isinstance(given, str) else text)

    def _read_beginning(self, piece: str) -> int:
        """Read the text before the string; return where that begins in the piece."""
        for at, character in enumerate(piece):
            if self._is_other or self._num_matched == len(_BEGINNING):
                return at
            if character == _BEGINNING[self._num_matched]:
                self._num_matched += 1
            elif character not in _BLANKS or self._num_matched not in _BLANKS_BEFORE:
                self._is_other = True
        return len(piece)

    def _string(self, text: str) -> str:
        found: list[str] = []
        at = 0
        while (part := _PART.match(text, at)) is not None:
            is_half = len(part.group()) == _NUM_HALF and _HIGH.match(part.group()) is not None
            if is_half and _PREFIX.fullmatch(text, part.end()) is not None:
                break  # the other half of the character may follow
            found.append(_decoded(part.group()))
            at = part.end()
        self._is_over = text[at : at + 1] == '"'
        self._held = text[at:]
        return "".join(found)


def input_of(arguments: str) -> str:
    """Return the input of a whole call."""
    reader = CustomInput()
    return reader.feed(arguments) + reader.close()


def _decoded(part: str) -> str:
    if part[0] != "\\":
        return _shown(part)
    try:
        return _shown(json.loads(f'"{part}"'))
    except ValueError:
        return part  # no escape of JSON, in a call that breaks off


def _shown(text: str) -> str:
    """Return a text that can be sent, without halves of characters."""
    return _LONE.sub("\ufffd", text)
