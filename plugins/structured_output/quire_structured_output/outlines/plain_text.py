"""Translation of a string schema to the regex of plain text, without quotes and escapes.

The text has none of the characters with which markers begin that may not be in it, nor a carriage
return at all if some texts are barred; a value of a list is left out if it is barred.
"""

import re
from typing import Any

from quire.errors import GrammarError
from quire.interfaces.tool_parsing import TextPiece
from quire_structured_output.budget import Budget
from quire_structured_output.outlines import json_regex
from quire_structured_output.outlines.json_schema import parse_schema, referenced
from quire_structured_output.outlines.supported_keywords import (
    MAX_DEPTH,
    Schema,
    bounds,
    constraints,
    refusal,
)
from quire_structured_output.regex_syntax import check_text

FORMATS = ("date", "time", "date-time", "uuid", "ipv4")  # of letters, digits and these:
_IN_FORMATS = frozenset("-+.:")
_WHY = "in a value that is written as plain text"


def text_regex(piece: TextPiece, budget: Budget) -> str:
    """Return the regex of a text, without its end; quick and safe for any schema.

    Raises:
        GrammarError: A keyword is not supported; the message names it.
    """
    root = parse_schema(piece.schema, budget)
    return _PlainText(root, piece, budget).regex(root, "", 0)


class _PlainText:
    def __init__(self, root: Schema | bool, piece: TextPiece, budget: Budget) -> None:
        self._root = root
        self._budget = budget
        self._markers = (piece.end, *piece.excluded)
        self._end = piece.end
        first = {(each.strip() or each)[0] for each in self._markers}
        self._barred = "".join(sorted({*first, *(["\r"] if piece.barred else [])}))
        self._barred_texts = [re.compile(each) for each in piece.barred]

    def regex(self, schema: Any, path: str, depth: int) -> str:
        """Translate the schema at `path`, a JSON pointer; raises a GrammarError."""
        self._budget.visit()
        if depth > MAX_DEPTH:
            raise GrammarError(f"the JSON schema is nested more than {MAX_DEPTH} deep, at {path}")
        if schema is False:
            raise GrammarError(f"nothing can satisfy the schema 'false' at {path or '/'}")
        given: Schema = {} if schema is True else schema
        if not isinstance(given, dict):
            raise GrammarError(f"the schema at {path or '/'} is neither an object nor a boolean")
        words = constraints(given, path) - {"type"}
        if not _allows_strings(given):
            raise GrammarError(f"'type' at {path or '/'} allows no string, where a text is written")
        expression = self._constrained(given, words, path, depth)
        self._budget.write(len(expression))
        return expression

    def _constrained(self, schema: Schema, words: set[str], path: str, depth: int) -> str:
        if not words - {"minLength", "maxLength"}:
            return self._free(*bounds(schema, "minLength", "maxLength", path))
        word, *others = sorted(words)
        if others:
            raise refusal(others[0], path, f"beside '{word}', {_WHY}")
        match word:
            case "$ref":
                target = referenced(self._root, schema["$ref"], path)
                return self.regex(target, path, depth + 1)
            case "enum" | "const":
                return self._listed(schema["enum"] if word == "enum" else [schema["const"]], path)
            case "format" if schema["format"] in FORMATS and not self._is_in_formats():
                return f"(?:{json_regex.FORMATS[schema['format']]})"
            case "anyOf" if isinstance(schema["anyOf"], list):
                parts = [part for part in schema["anyOf"] if _allows_strings(part)]
                each = [self.regex(part, f"{path}/anyOf", depth + 1) for part in parts]
                return json_regex.one_of(each)
        raise refusal(word, path, _WHY)

    def _free(self, least: int, most: int | None) -> str:
        times = f"{{{least},{'' if most is None else most}}}"
        return rf"[^{re.escape(self._barred)}\x00]{times if (least, most) != (0, None) else '*'}"

    def _listed(self, values: Any, path: str) -> str:
        barred = self._barred_texts
        texts = [
            value
            for value in values or []
            if isinstance(value, str) and not any(each.fullmatch(value) for each in barred)
        ]
        for text in texts:
            self._budget.list_value()
            check_text(text, f"a value at {path or '/'}")
            if any(-1 < f"{text}{self._end}".find(each) < len(text) for each in self._markers):
                raise GrammarError(
                    f"the value {text!r:.80} at {path or '/'} contains a marker of the format of "
                    "tool calls"
                )
        if not texts:
            raise GrammarError(f"no value at {path or '/'} is a string, where a text is written")
        return json_regex.one_of([re.escape(text) for text in texts])

    def _is_in_formats(self) -> bool:
        """Whether a format may have a character with which a marker begins."""
        return any(each.isalnum() or each in _IN_FORMATS for each in self._barred)


def _allows_strings(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return schema is not False
    named = schema.get("type", "string")
    return named == "string" or (isinstance(named, list) and "string" in named)
