"""Translation of tool calls to a regular expression: fixed text, and JSON by `json_schema`."""

import re

from quire.errors import GrammarError
from quire.interfaces.tool_parsing import CallGrammar, CallShape, SchemaPiece
from quire_structured_output.budget import Budget
from quire_structured_output.outlines import json_regex
from quire_structured_output.outlines.json_schema import SchemaRegex, schema_regex
from quire_structured_output.regex_syntax import check_text


def calls_regex(calls: CallGrammar) -> SchemaRegex:
    """Return the expression of one or more calls; quick and safe for any schemas.

    Raises:
        GrammarError: A tool's schema is not supported; the message names the tool and the keyword.
    """
    if not calls.shapes:
        raise GrammarError("the request has no tool that could be called")
    if calls.triggers:
        raise GrammarError("a regular expression cannot tell calls from the text around them")
    budget = Budget()
    shapes = [_shape_regex(shape, budget) for shape in calls.shapes]
    call = json_regex.one_of([shape.expression for shape in shapes])
    patterns = tuple(pattern for shape in shapes for pattern in shape.patterns)
    if calls.separator is None:
        return SchemaRegex(call, patterns)
    budget.write(2 * len(call))
    return SchemaRegex(f"{call}(?:{_text(calls.separator, budget)}{call})*", patterns)


def _shape_regex(shape: CallShape, budget: Budget) -> SchemaRegex:
    try:
        pieces = [_piece(piece, budget) for piece in shape.pieces]
    except GrammarError as error:
        raise GrammarError(f"the parameters of the tool {shape.tool!r:.80}: {error}") from error
    return SchemaRegex(
        "".join(piece.expression for piece in pieces),
        tuple(
            (f"{path} of the tool {shape.tool!r:.80}", pattern)
            for piece in pieces
            for path, pattern in piece.patterns
        ),
    )


def _piece(piece: str | SchemaPiece, budget: Budget) -> SchemaRegex:
    if isinstance(piece, SchemaPiece):
        return schema_regex(piece.schema, budget)
    return SchemaRegex(_text(piece, budget), ())


def _text(text: str, budget: Budget) -> str:
    check_text(text, "the text around a call")
    if "\0" in text:
        raise GrammarError(
            "the text around a call has the character U+0000, which is not supported"
        )
    budget.write(len(text))
    return re.escape(text)
