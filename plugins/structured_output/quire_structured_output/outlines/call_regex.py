"""Translation of tool calls to a regular expression: texts, and JSON by `json_schema`."""

import re
from collections.abc import Iterator, Mapping, Sequence

from quire.errors import GrammarError
from quire.interfaces.tool_parsing import (
    CallGrammar,
    CallShape,
    EitherPiece,
    MembersPiece,
    Piece,
    RegexPiece,
    SchemaPiece,
    TextPiece,
)
from quire_structured_output.budget import Budget
from quire_structured_output.outlines import json_regex
from quire_structured_output.outlines.json_schema import SchemaRegex, schema_regex
from quire_structured_output.outlines.plain_text import text_regex
from quire_structured_output.regex_syntax import check_regex, check_text

MAX_DEPTH = 24  # of members in members


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
    begin, end = _text(calls.begin, budget), _text(calls.end, budget)
    if calls.separator is None:
        return SchemaRegex(f"{begin}{call}{end}", patterns)
    budget.write(2 * len(call))
    several = f"{call}(?:{_text(calls.separator, budget)}{call})*"
    return SchemaRegex(f"{begin}{several}{end}", patterns)


def check_special_tokens(calls: CallGrammar, special_tokens: Mapping[str, int]) -> None:
    """Check that no text of calls contains a special token.

    Raises:
        GrammarError: One does: a regular expression has only texts, and no ids of tokens.
    """
    pieces = [piece for shape in calls.shapes for piece in shape.pieces]
    for text in (calls.begin, calls.end, calls.separator or "", *_texts(pieces)):
        for token in special_tokens:
            if token in text:
                raise GrammarError(
                    f"the outlines backend does not support {token!r:.80} in tool calls, which is "
                    "a special token of the tokenizer"
                )


def _texts(pieces: Sequence[Piece]) -> Iterator[str]:
    for piece in pieces:
        match piece:
            case str():
                yield piece
            case TextPiece():
                yield piece.end
            case RegexPiece(_, before, after):
                yield from (before, after)
            case EitherPiece(alternatives):
                for each in alternatives:
                    yield from _texts(each)
            case MembersPiece(members, separator, others):
                yield separator
                for member in [*members, *([] if others is None else [others])]:
                    yield from _texts(member.pieces)


def _shape_regex(shape: CallShape, budget: Budget) -> SchemaRegex:
    try:
        found = _joined(shape.pieces, budget, 0)
    except GrammarError as error:
        raise GrammarError(f"the parameters of the tool {shape.tool!r:.80}: {error}") from error
    named = ((f"{path} of the tool {shape.tool!r:.80}", each) for path, each in found.patterns)
    return SchemaRegex(found.expression, tuple(named))


def _joined(pieces: Sequence[Piece], budget: Budget, depth: int) -> SchemaRegex:
    if depth > MAX_DEPTH:
        raise GrammarError(f"members are nested more than {MAX_DEPTH} deep")
    found = [_piece(piece, budget, depth) for piece in pieces]
    return SchemaRegex(
        "".join(each.expression for each in found),
        tuple(pattern for each in found for pattern in each.patterns),
    )


def _piece(piece: Piece, budget: Budget, depth: int) -> SchemaRegex:
    match piece:
        case str():
            return SchemaRegex(_text(piece, budget), ())
        case SchemaPiece():
            return schema_regex(piece.schema, budget)
        case TextPiece():
            return SchemaRegex(f"{text_regex(piece, budget)}{_text(piece.end, budget)}", ())
        case RegexPiece():
            return _pattern(piece, budget)
        case EitherPiece(alternatives):
            parts = [_joined(each, budget, depth + 1) for each in alternatives]
            patterns = tuple(pattern for part in parts for pattern in part.patterns)
            return SchemaRegex(json_regex.one_of([part.expression for part in parts]), patterns)
        case MembersPiece():
            return _members(piece, budget, depth)


def _members(piece: MembersPiece, budget: Budget, depth: int) -> SchemaRegex:
    """Return the expression of members; others may be there only if none is declared.

    Beside declared ones they would need a name that is none of theirs, which a regular expression
    cannot say in few characters. It may be narrower than the grammar.
    """
    separator = _text(piece.separator, budget)
    if not piece.members and piece.others is not None:
        other = _joined(piece.others.pieces, budget, depth + 1)
        budget.write(len(other.expression))
        each = other.expression
        return SchemaRegex(f"(?:{each}(?:{separator}{each})*)?", other.patterns)
    parts = [_joined(member.pieces, budget, depth + 1) for member in piece.members]
    given = [
        (part.expression, member.is_required)
        for part, member in zip(parts, piece.members, strict=True)
    ]
    budget.write(_length(given, len(piece.separator)))
    patterns = tuple(pattern for part in parts for pattern in part.patterns)
    return SchemaRegex(json_regex.members_of(given, separator), patterns)


def _pattern(piece: RegexPiece, budget: Budget) -> SchemaRegex:
    if piece.excluded:
        raise GrammarError("the outlines backend does not support a pattern without some texts")
    check_regex(piece.pattern, "a pattern in a call")
    budget.write(len(piece.pattern))
    before, after = _text(piece.before, budget), _text(piece.after, budget)
    return SchemaRegex(f"{before}(?:{piece.pattern}){after}", ())


def _length(members: Sequence[tuple[str, bool]], separator: int) -> int:
    """Return an upper bound of the length of `members`, which repeats optional ones."""
    lengths = [len(expression) + 2 * separator + 8 for expression, _ in members]
    if any(needed for _, needed in members):
        return sum(lengths)
    return sum(i * length for i, length in enumerate(lengths, 1))


def _text(text: str, budget: Budget) -> str:
    check_text(text, "the text around a call")
    if "\0" in text:
        raise GrammarError(
            "the text around a call has the character U+0000, which is not supported"
        )
    budget.write(len(text))
    return re.escape(text)
