"""Terminals for plain text that satisfies a JSON schema as a string: without quotes and escapes."""

from collections.abc import Callable
from typing import Any

from quire.errors import GrammarError
from quire_structured_output.llguidance.grammar_parts import ANY_TEXT
from quire_structured_output.llguidance.lark_writing import in_slashes, literal
from quire_structured_output.schemas.ecma_regex import times
from quire_structured_output.schemas.formats import URI

MAX_DEPTH = 64  # of references and combinations
NEVER = "/[^\\x{0}-\\x{10ffff}]/"
_WORD = r"[A-Za-z0-9_+\-]{1,64}"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"
FORMATS = {  # that a parser of JSON has of its own; these are narrower
    "hostname": rf"{_LABEL}(?:\.{_LABEL}){{0,3}}",
    "email": rf"{_WORD}(?:\.{_WORD}){{0,3}}@{_LABEL}(?:\.{_LABEL}){{1,3}}",
    "uri": URI,
}
REFUSED = ("oneOf", "not", "if", "format")  # what a normal form may have, and texts cannot follow


def text_terminal(schema: dict[str, Any]) -> str:
    """Return the terminal of the strings that a schema in normal form allows.

    Raises:
        GrammarError: A keyword cannot be followed in plain text, or no string is allowed.
    """
    found = _Texts(schema.get("$defs", {})).terminal(schema, 0)
    if found is None:
        raise GrammarError("the schema allows no string, where a text is expected")
    return found


class _Texts:
    """State of the translation: the definitions that references name."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions

    def terminal(self, schema: Any, depth: int) -> str | None:
        """Return the terminal of a schema's strings; None: it allows none."""
        if isinstance(schema, bool):
            return ANY_TEXT if schema else None
        if depth > MAX_DEPTH:
            raise GrammarError("a text cannot follow a recursive schema ('$ref')")
        for word in REFUSED:
            if word in schema and not (word == "format" and schema[word] in FORMATS):
                raise GrammarError(
                    f"no backend supports {word!r} of a value that is written as plain text"
                    + (f" ({schema[word]!r:.40})" if word == "format" else "")
                )
        parts = [part(self, schema, depth) for word, part in _PARTS.items() if word in schema]
        if None in parts:
            return None
        return " & ".join(part for part in parts if part) or ANY_TEXT

    def _type(self, schema: dict[str, Any], depth: int) -> str | None:
        del depth
        named = schema["type"]
        return "" if "string" in ([named] if isinstance(named, str) else named) else None

    def _enum(self, schema: dict[str, Any], depth: int) -> str | None:
        del depth
        texts = [value for value in schema["enum"] if isinstance(value, str)]
        return f"({' | '.join(map(literal, texts))})" if texts else None

    def _lengths(self, schema: dict[str, Any], depth: int) -> str | None:
        del depth
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        if most is not None and most < least:
            return None
        return f"/(?s:.){times(least, most)}/"

    def _pattern(self, schema: dict[str, Any], depth: int) -> str:
        del depth
        return f"/{in_slashes(schema['pattern'].removeprefix('^').removesuffix('$'))}/"

    def _format(self, schema: dict[str, Any], depth: int) -> str:
        del depth
        return f"/{in_slashes(FORMATS[schema['format']])}/"

    def _all_of(self, schema: dict[str, Any], depth: int) -> str | None:
        parts = [self.terminal(each, depth + 1) for each in schema["allOf"]]
        return None if None in parts else " & ".join(f"({part})" for part in parts)

    def _any_of(self, schema: dict[str, Any], depth: int) -> str | None:
        parts = [self.terminal(each, depth + 1) for each in schema["anyOf"]]
        found = [f"({part})" for part in parts if part is not None]
        return f"({' | '.join(found)})" if found else None

    def _reference(self, schema: dict[str, Any], depth: int) -> str | None:
        name = schema["$ref"].rpartition("/")[2]
        part = self.terminal(self._definitions[name], depth + 1)
        return None if part is None else f"({part})"


_Part = Callable[[_Texts, dict[str, Any], int], str | None]
_PARTS: dict[str, _Part] = {
    "type": _Texts._type,
    "enum": _Texts._enum,
    "minLength": _Texts._lengths,
    "maxLength": lambda texts, schema, depth: (
        "" if "minLength" in schema else _Texts._lengths(texts, schema, depth)
    ),
    "pattern": _Texts._pattern,
    "format": _Texts._format,
    "allOf": _Texts._all_of,
    "anyOf": _Texts._any_of,
    "$ref": _Texts._reference,
}
