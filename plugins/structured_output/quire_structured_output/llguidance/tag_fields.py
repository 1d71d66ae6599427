"""Fields of the formats of a structural tag: their types, names and sizes."""

import json
from collections.abc import Sequence
from typing import Any

from quire.errors import GrammarError
from quire_structured_output.regex_syntax import check_text

MAX_FORMATS = 500
MAX_WORDS = 256  # of one list
MAX_WORD = 1_024  # characters of a begin, an end, a trigger or a separator
MAX_CHARACTERS = 64 * 1024  # of all texts

Format = dict[str, Any]


class TagFields:
    """Reader of the texts of one structural tag, which have a limit together."""

    def __init__(self) -> None:
        self._num_characters = 0

    def word(self, given: Format, name: str, where: str, most: int = MAX_WORD) -> str:
        """Return a text.

        Raises:
            GrammarError: It is none, or too long.
        """
        value = given.get(name)
        if not isinstance(value, str) or len(value) > most:
            raise GrammarError(f"'{name}' at {where} must be a text of at most {most} characters")
        check_text(value, f"'{name}' at {where}")
        if "\0" in value:
            raise GrammarError(f"'{name}' at {where} has the character U+0000")
        self._num_characters += len(value)
        if self._num_characters > MAX_CHARACTERS:
            raise GrammarError(f"structural_tag has texts of more than {MAX_CHARACTERS} characters")
        return value

    def words(self, given: Format, name: str, where: str) -> list[str]:
        """Return texts that are not empty; one text stands for itself, an empty one for none.

        Raises:
            GrammarError: They are none, or too many.
        """
        value = given.get(name)
        if isinstance(value, str):
            value = [value] if value else []
        if not isinstance(value, list):
            raise GrammarError(f"'{name}' at {where} must be a list of texts")
        if len(value) > MAX_WORDS:
            raise GrammarError(f"'{name}' at {where} has more than {MAX_WORDS} texts")
        words = [self.word({name: each}, name, where) for each in value]
        if "" in words:
            raise GrammarError(f"'{name}' at {where} has an empty text")
        return words


def parsed(tag: Format | str) -> Format:
    """Return a structural tag, of which the JSON text may be given.

    Raises:
        GrammarError: It is not JSON, or is something else.
    """
    try:
        given = json.loads(tag) if isinstance(tag, str) else tag
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"structural_tag is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise GrammarError("structural_tag must be an object")
    if given.get("type", "structural_tag") != "structural_tag":
        raise GrammarError("structural_tag.type must be 'structural_tag'")
    return given


def flag(given: Format, name: str, where: str) -> bool:
    """Return a truth value, false if it is missing.

    Raises:
        GrammarError: It is something else.
    """
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise GrammarError(f"'{name}' at {where} must be true or false")
    return value


def items(given: Format, name: str, where: str) -> list[Any]:
    """Return a list that is not empty.

    Raises:
        GrammarError: It is none, or too long.
    """
    value = given.get(name)
    if not isinstance(value, list) or not value:
        raise GrammarError(f"'{name}' at {where} must be a list that is not empty")
    if len(value) > MAX_FORMATS:
        raise GrammarError(f"'{name}' at {where} has more than {MAX_FORMATS} formats")
    return value


def check_fields(given: Any, where: str, known: Sequence[str]) -> None:
    """Check that an object has known fields only.

    Raises:
        GrammarError: It has others, or is none.
    """
    if not isinstance(given, dict):
        raise GrammarError(f"{where} must be an object")
    for name in given:
        if name not in known:
            raise GrammarError(f"{where} has the field {name!r:.80}; it takes {', '.join(known)}")
