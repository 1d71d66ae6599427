"""Terminals for plain text that satisfies a JSON schema as a string: without quotes and escapes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from quire.errors import GrammarError
from quire_structured_output.llguidance.grammar_parts import ANY_TEXT, words
from quire_structured_output.llguidance.lark_writing import in_slashes
from quire_structured_output.schemas.ecma_regex import times
from quire_structured_output.schemas.ecma_search import WrittenRegexes
from quire_structured_output.schemas.formats import URI

MAX_DEPTH = 64  # of references and combinations
_WORD = r"[A-Za-z0-9_+\-]{1,64}"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"
FORMATS = {  # that a parser of JSON has of its own; these are narrower
    "hostname": rf"{_LABEL}(?:\.{_LABEL}){{0,3}}",
    "email": rf"{_WORD}(?:\.{_WORD}){{0,3}}@{_LABEL}(?:\.{_LABEL}){{1,3}}",
    "uri": URI,
}
REFUSED = ("oneOf", "not", "if", "format")  # what a normal form may have, and texts cannot follow


@dataclass(frozen=True, slots=True)
class PlainText:
    """The strings that a schema allows.

    Attributes:
        terminal: Terminal of the strings.
        may_be_empty: Whether the empty one is among them.
    """

    terminal: str
    may_be_empty: bool


def plain_text(schema: dict[str, Any]) -> PlainText:
    """Return the strings that a schema in normal form allows.

    Raises:
        GrammarError: A keyword cannot be followed in plain text, or no string is allowed.
    """
    found = _Texts(schema.get("$defs", {})).text(schema, 0)
    if found is None:
        raise GrammarError("the schema allows no string, where a text is expected")
    return found


_ANY = PlainText(ANY_TEXT, True)


class _Texts:
    """State of the translation: the definitions that references name."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._regexes = WrittenRegexes()

    def text(self, schema: Any, depth: int) -> PlainText | None:
        """Return the strings of a schema; None: there are none."""
        if isinstance(schema, bool):
            return _ANY if schema else None
        if depth > MAX_DEPTH:
            raise GrammarError("a text cannot follow a recursive schema ('$ref')")
        for word in REFUSED:
            if word in schema and not (word == "format" and schema[word] in FORMATS):
                raise GrammarError(
                    f"no backend supports {word!r} of a value that is written as plain text"
                    + (f" ({schema[word]!r:.40})" if word == "format" else "")
                )
        parts = [part(self, schema, depth) for word, part in _PARTS.items() if word in schema]
        return _all(parts)

    def _type(self, schema: dict[str, Any], depth: int) -> PlainText | None:
        del depth
        named = schema["type"]
        return _ANY if "string" in ([named] if isinstance(named, str) else named) else None

    def _enum(self, schema: dict[str, Any], depth: int) -> PlainText | None:
        del depth
        texts = [value for value in schema["enum"] if isinstance(value, str)]
        return PlainText(words(texts), "" in texts) if texts else None

    def _lengths(self, schema: dict[str, Any], depth: int) -> PlainText | None:
        del depth
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        if most is not None and most < least:
            return None
        return PlainText(f"/(?s:.){times(least, most)}/", least == 0)

    def _pattern(self, schema: dict[str, Any], depth: int) -> PlainText:
        del depth
        pattern = schema["pattern"]
        may_be_empty = self._regexes.is_found(pattern, "") is not False
        return PlainText(
            f"/{in_slashes(pattern.removeprefix('^').removesuffix('$'))}/", may_be_empty
        )

    def _format(self, schema: dict[str, Any], depth: int) -> PlainText:
        del depth
        return PlainText(f"/{in_slashes(FORMATS[schema['format']])}/", False)

    def _all_of(self, schema: dict[str, Any], depth: int) -> PlainText | None:
        return _all([self.text(each, depth + 1) for each in schema["allOf"]])

    def _any_of(self, schema: dict[str, Any], depth: int) -> PlainText | None:
        found = [self.text(each, depth + 1) for each in schema["anyOf"]]
        texts = [text for text in found if text is not None]
        if not texts:
            return None
        joined = " | ".join(dict.fromkeys(f"({text.terminal})" for text in texts))
        return PlainText(f"({joined})", any(text.may_be_empty for text in texts))

    def _reference(self, schema: dict[str, Any], depth: int) -> PlainText | None:
        name = schema["$ref"].rpartition("/")[2]
        return self.text(self._definitions[name], depth + 1)


def _all(parts: Sequence[PlainText | None]) -> PlainText | None:
    """Return what all parts allow."""
    texts = [part for part in parts if part is not None]
    if len(texts) < len(parts):
        return None
    terminals = dict.fromkeys(text.terminal for text in texts if text.terminal != ANY_TEXT)
    joined = " & ".join(f"({terminal})" for terminal in terminals)
    return PlainText(joined or ANY_TEXT, all(text.may_be_empty for text in texts))


_Part = Callable[[_Texts, dict[str, Any], int], PlainText | None]
_PARTS: dict[str, _Part] = {
    "type": _Texts._type,
    "enum": _Texts._enum,
    "minLength": _Texts._lengths,
    "maxLength": lambda texts, schema, depth: (
        _ANY if "minLength" in schema else _Texts._lengths(texts, schema, depth)
    ),
    "pattern": _Texts._pattern,
    "format": _Texts._format,
    "allOf": _Texts._all_of,
    "anyOf": _Texts._any_of,
    "$ref": _Texts._reference,
}
