"""Formats that users write: a TOML file with the fields of `TagFormat`."""

import re
import tomllib
from itertools import combinations

import msgspec

from quire.interfaces.reasoning import ReasoningParser
from quire_reasoning_parsers.families import parser_of
from quire_reasoning_parsers.family_table import Family
from quire_reasoning_parsers.tag_format import TagFormat
from quire_reasoning_parsers.tag_parser import TagParser

_MARKERS = ("open", "close", "wrapper_open", "wrapper_close")
_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<field>[^`]*)`")


class FileParser(TagParser):
    """The parser of a format that is read from a file."""

    @classmethod
    def from_file_text(cls, text: str) -> type[ReasoningParser]:
        """Return the parser of the format that a user's file describes.

        Raises:
            ValueError: The file describes none.
        """
        return parser_of("UserFormat", Family(format=read_format(text)))


def read_format(text: str) -> TagFormat:
    """Return the format that the text of a file describes.

    Raises:
        ValueError: It describes none; the message names the field, and says what it may be.
    """
    try:
        form = msgspec.convert(tomllib.loads(text), TagFormat)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is not TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise ValueError(_explained(str(error))) from error
    markers = {name: getattr(form, name) for name in _MARKERS}
    for name, texts in markers.items():
        _check_texts(name, texts, is_needed=name in ("open", "close"))
    for first, second in combinations(_MARKERS, 2):
        _check_apart(first, second, {*markers[first]} & {*markers[second]})
    return form


def _explained(message: str) -> str:
    """Return what is wrong with a field, with the fields that there are."""
    found = _UNKNOWN_FIELD.search(message)
    if found is None:
        return message.replace("`$.", "`")
    known = ", ".join(TagFormat.__struct_fields__)
    return f"there is no field {found['field']!r}; the fields are {known}"


def _check_texts(name: str, texts: tuple[str, ...], *, is_needed: bool) -> None:
    if is_needed and not texts:
        raise ValueError(f"{name} must have at least one marker")
    if "" in texts:
        raise ValueError(f"{name} must not have an empty text")


def _check_apart(first: str, second: str, shared: set[str]) -> None:
    if shared:
        raise ValueError(
            f"{first} and {second} must not have the same marker, but both have {min(shared)!r}; "
            "leave it out of one of them, or write a parser in Python for such a format"
        )
