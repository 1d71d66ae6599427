"""Pieces of a grammar for the arguments of a call, each written with its name.

A string is plain text, which the parser reads by the argument's types. So the text of a string that
may be something else too does not look like that.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from quire.errors import GrammarError
from quire.interfaces.tool_parsing import (
    EitherPiece,
    Member,
    Piece,
    RegexPiece,
    SchemaPiece,
    TextPiece,
)
from quire_tool_parsers.argument_schemas import (
    ANY_TYPE,
    ArgumentSchema,
    Schema,
    is_untyped,
    restricted,
)
from quire_tool_parsers.call_format import CallFormat, Notation
from quire_tool_parsers.call_writing import CallWriting
from quire_tool_parsers.listed_values import CONSTANTS, allows, listed_values, readable_texts
from quire_tool_parsers.text_limits import TextLimits

_NUMERIC = frozenset({"number", "integer"})
_KEY_IN_TAG = r"""[^<>"'=\s](?:[^<>"'=\r\n\t]*[^<>"'=\s])?"""
_OTHER_KEYS: dict[Notation, str] = {  # of arguments that are not declared
    "python": "[A-Za-z_][A-Za-z0-9_]{0,63}",
    "braces": "[A-Za-z0-9_.-]{1,64}",
}
_OTHER_KEY_IN_TAG = r"""[^<>"'=\s](?:[^<>"'=\r\n\t]{0,62}[^<>"'=\s])?"""
_SPELLINGS = {"python": {None: "None", True: "True", False: "False"}}
_JSON_SPELLINGS = {None: "null", True: "true", False: "false"}
_BEGINNINGS = {None: "nN", True: "tT1", False: "fF0"}  # of texts that are read as constants


@dataclass(frozen=True, slots=True)
class _Argument:
    """An argument.

    Attributes:
        name: Function of the template before a value, which returns the piece with the name.
        schema: Schema of the value.
        types: Types that the parser reads it as.
    """

    name: Callable[[str], Piece]
    schema: Schema
    types: frozenset[str]

    def constants(self, types: frozenset[str]) -> list[Any]:
        """Return the constants of some types."""
        every = [each for name, values in CONSTANTS.items() if name in types for each in values]
        return [each for each in every if allows(self.schema, each, self.schema)]


class ArgumentPieces:
    """Writer of the arguments of one format.

    Args:
        form: Format of the calls.
        writing: Templates of the calls.
    """

    def __init__(self, form: CallFormat, writing: CallWriting) -> None:
        self._notation: Notation = form.notations[0]
        self._key = re.compile(_key_of(form))
        self._spellings = _SPELLINGS.get(self._notation, _JSON_SPELLINGS)
        self._argument = writing.argument
        self._text_argument = writing.text_argument or (
            writing.argument if self._notation == "tagged" else ""
        )
        self._is_text_apart = self._text_argument != writing.argument
        self._limits = TextLimits(form)

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
        pieces = self._pieces(
            lambda before: before.replace("$key", argument.key), argument.schema, types
        )
        return Member(tuple(pieces), argument.is_required)

    def others(self, schema: Schema, types: frozenset[str], declared: Sequence[str]) -> Member:
        """Return an argument with any name but the declared ones.

        Args:
            schema: Schema of its value.
            types: Types that the parser reads its values as.
            declared: Names of the other arguments.
        """
        pattern = _OTHER_KEYS.get(self._notation, _OTHER_KEY_IN_TAG)

        def name(before: str) -> Piece:
            head, _, tail = before.partition("$key")
            return RegexPiece(pattern, head, tail, tuple(declared))

        return Member(tuple(self._pieces(name, schema, types)))

    def _pieces(
        self, name: Callable[[str], Piece], schema: Schema, types: frozenset[str]
    ) -> Sequence[Piece]:
        if self._is_text_apart and is_untyped(schema):
            types = ANY_TYPE
        argument = _Argument(name, schema, types)
        if not self._text_argument or "string" not in types:
            return self._written(argument, self._values(argument))
        if types == {"string"}:
            return self._text(argument)
        return self._apart(argument) if self._is_text_apart else self._mixed(argument)

    def _apart(self, argument: _Argument) -> Sequence[Piece]:
        """Return an argument that is a string or something else, each written in its own way."""
        others = argument.types - {"string"}
        other = _Argument(argument.name, restricted(argument.schema, others), others)
        written = self._written(other, self._values(other))
        return [EitherPiece((tuple(self._text(argument)), tuple(written)))]

    def _mixed(self, argument: _Argument) -> Sequence[Piece]:
        """Return an argument that is a string or something else, all written in the same way."""
        before, after = self._around(self._argument, argument)
        values = listed_values(argument.schema, argument.schema)
        if values is None:
            found = self._unlisted(argument, before, after)
        else:
            texts = readable_texts(values, argument.types)
            others = [value for value in values if not isinstance(value, str)]
            found = [(SchemaPiece({"enum": others}), after)] if others else []
            found += [(self._free({"enum": texts}, before, after),)] if texts else []
        if not found:
            raise GrammarError("the format of this model's calls has no spelling for its values")
        return [before, EitherPiece(tuple(found))]

    def _unlisted(self, argument: _Argument, before: Piece, after: str) -> list[tuple[Piece, ...]]:
        others = argument.types - {"string"}
        constants, structured = argument.constants(others), others - CONSTANTS.keys()
        found: list[tuple[Piece, ...]] = [
            (f"{_JSON_SPELLINGS[each]}{after}",) for each in constants
        ]
        if structured:
            found.append((SchemaPiece(restricted(argument.schema, structured)), after))
        every = [each for name in others & CONSTANTS.keys() for each in CONSTANTS[name]]
        barred = "".join(_BEGINNINGS[each] for each in every if each not in constants)
        text = argument.schema
        if structured or barred:
            pattern = _beginning(structured, barred)
            text = {**_definitions(text), "allOf": [text, {"pattern": pattern}]}
        return [*found, (self._free(text, before, after),)]

    def _text(self, argument: _Argument) -> Sequence[Piece]:
        before, after = self._around(self._text_argument, argument)
        return [before, self._free(argument.schema, before, after)]

    def _free(self, schema: Schema, before: Piece, after: str) -> TextPiece:
        barred = self._limits.barred(before, after)
        return TextPiece(schema, after, self._limits.excluded, barred)

    def _written(self, argument: _Argument, values: Sequence[Piece]) -> Sequence[Piece]:
        before, after = self._around(self._argument, argument)
        return [piece for piece in (before, *values, after) if piece != ""]

    def _around(self, template: str, argument: _Argument) -> tuple[Piece, str]:
        """Return what is before and behind the value."""
        before, _, after = template.partition("$value")
        return argument.name(before), after

    def _values(self, argument: _Argument) -> Sequence[Piece]:
        """Return a value in JSON; in Python's notation its constants are Python's."""
        schema, types = argument.schema, argument.types
        constants = argument.constants(types) if self._notation == "python" else []
        if not constants:
            return [SchemaPiece(schema)]
        found: list[tuple[Piece, ...]] = [(self._spellings[each],) for each in constants]
        values = listed_values(schema, schema)
        if values is not None:
            rest = [each for each in values if each is not None and not isinstance(each, bool)]
            found += [(SchemaPiece({"enum": rest}),)] if rest else []
        elif rest_types := types - CONSTANTS.keys():
            found.append((SchemaPiece(restricted(schema, rest_types)),))
        return [EitherPiece(tuple(found))]


def _key_of(form: CallFormat) -> str:
    """Return the regex of the names of arguments that a format has a spelling for."""
    match form.notations[0]:
        case "python":
            return r"[\w.-]+"
        case "braces":
            return rf'[^:{{}}\[\],"\s{re.escape(form.quote[0])}]+'
    return _KEY_IN_TAG


def _beginning(types: frozenset[str], characters: str) -> str:
    """Return the regex of a text that does not begin like a value of some types."""
    barred = rf"\s{characters}" + (r"\[{" if types & {"array", "object"} else "")
    barred += r"\d+.\-" if types & _NUMERIC else ""
    return f"^([^{barred}]|$)"


def _definitions(schema: Schema) -> Schema:
    return {word: schema[word] for word in ("$defs", "definitions") if word in schema}
