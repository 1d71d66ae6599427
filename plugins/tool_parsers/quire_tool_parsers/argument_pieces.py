"""Pieces of a grammar for the arguments of a call, each written with its name.

A string is plain text, which the parser reads by the argument's types. So the text of a string that
may be something else too does not look like that.
"""

import re
from collections.abc import Sequence
from typing import Any

from quire.errors import GrammarError
from quire.interfaces.tool_parsing import EitherPiece, Member, Piece, SchemaPiece, TextPiece
from quire_tool_parsers.argument_schemas import (
    ANY_TYPE,
    ArgumentSchema,
    is_untyped,
    restricted,
)
from quire_tool_parsers.call_format import CallFormat, Notation
from quire_tool_parsers.call_writing import CallWriting

_NUMERIC = frozenset({"number", "integer"})
_KEYS: dict[Notation, str] = {"python": r"[\w.-]+", "braces": r'[^:{}\[\],"\s]+'}
_KEY_IN_TAG = r"""[^<>"'=\s](?:[^<>"'=\r\n\t]*[^<>"'=\s])?"""
_CONSTANTS = {"null": ("null", "None"), "true": ("true", "True"), "false": ("false", "False")}


class ArgumentPieces:
    """Writer of the arguments of one format.

    Args:
        form: Format of the calls.
        writing: Templates of the calls.
    """

    def __init__(self, form: CallFormat, writing: CallWriting) -> None:
        self._notation: Notation = form.notations[0]
        self._key = re.compile(_KEYS.get(self._notation, _KEY_IN_TAG))
        self._argument = writing.argument
        self._text_argument = writing.text_argument or (
            writing.argument if self._notation == "tagged" else ""
        )
        self._is_text_apart = self._text_argument != writing.argument
        self._excluded = _closers(form)

    def member(self, argument: ArgumentSchema, types: frozenset[str]) -> Member:
        """Return an argument.

        Args:
            argument: Name and schema.
            types: Types that the parser reads its values as.

        Raises:
            GrammarError: The format has no spelling for its name.
        """
        if not self._key.fullmatch(argument.key):
            raise GrammarError(
                f"the format of this model's calls has no spelling for the argument "
                f"{argument.key!r:.80}; use letters, digits and underscores"
            )
        if self._is_text_apart and is_untyped(argument.schema):
            types = ANY_TYPE
        pieces = self._pieces(argument.key, argument.schema, types)
        return Member(tuple(pieces), argument.is_required)

    def _pieces(self, key: str, schema: dict[str, Any], types: frozenset[str]) -> Sequence[Piece]:
        if not self._text_argument or "string" not in types:
            return self._written(self._argument, key, self._values(schema, types))
        if types == {"string"}:
            return self._text(key, schema)
        return self._mixed(key, schema, types)

    def _mixed(self, key: str, schema: dict[str, Any], types: frozenset[str]) -> Sequence[Piece]:
        """Return an argument that is a string or something else."""
        others = types - {"string"}
        if self._is_text_apart:
            other = restricted(schema, others)
            return [
                EitherPiece(
                    (
                        tuple(self._text(key, schema)),
                        tuple(self._written(self._argument, key, self._values(other, others))),
                    )
                )
            ]
        before, after = self._around(self._argument, key)
        constants: list[tuple[Piece, ...]] = [(f"{each}{after}",) for each in _constants(others)]
        structured = others - {"null", "boolean"}
        if structured:
            other = restricted(schema, structured)
            constants.append((SchemaPiece(other), after))
        text = {**_definitions(schema), "allOf": [schema, {"pattern": _beginning(structured)}]}
        free = TextPiece(text if structured else schema, after, self._excluded)
        return [before, EitherPiece((*constants, (free,)))]

    def _text(self, key: str, schema: dict[str, Any]) -> Sequence[Piece]:
        before, after = self._around(self._text_argument, key)
        return [before, TextPiece(schema, after, self._excluded)]

    def _written(self, template: str, key: str, values: Sequence[Piece]) -> Sequence[Piece]:
        before, after = self._around(template, key)
        return [piece for piece in (before, *values, after) if piece]

    def _around(self, template: str, key: str) -> tuple[str, str]:
        """Return what is before and behind the value."""
        before, _, after = template.partition("$value")
        return before.replace("$key", key), after

    def _values(self, schema: dict[str, Any], types: frozenset[str]) -> Sequence[Piece]:
        """Return a value in JSON; in Python's notation its constants are Python's."""
        constants = types & {"null", "boolean"}
        if self._notation != "python" or not constants or schema.keys() & {"enum", "const", "$ref"}:
            return [SchemaPiece(schema)]
        written = [(each,) for each in _constants(constants, is_python=True)]
        rest = types - constants
        if rest:
            return [EitherPiece((*written, (SchemaPiece(restricted(schema, rest)),)))]
        return [EitherPiece(tuple(written))]


def _constants(types: frozenset[str], *, is_python: bool = False) -> list[str]:
    names = [*(["null"] if "null" in types else []), *(["true", "false"] * ("boolean" in types))]
    return [_CONSTANTS[name][is_python] for name in names]


def _beginning(types: frozenset[str]) -> str:
    """Return the regex of a text that does not begin like a value of some types."""
    barred = r"\s" + (r"\[{" if types & {"array", "object"} else "")
    barred += r"\d+.\-" if types & _NUMERIC else ""
    return f"^([^{barred}]|$)"


def _definitions(schema: dict[str, Any]) -> dict[str, Any]:
    return {word: schema[word] for word in ("$defs", "definitions") if word in schema}


def _closers(form: CallFormat) -> tuple[str, ...]:
    """Return the markers that the parser looks for in a value."""
    if form.tags is None:
        return ()
    breaks = ("\r\n",) if form.tags.trims_newline else ()  # of which the parser drops one
    return (*form.tags.parameter_close, *form.call_close, *form.section_close, *breaks)
